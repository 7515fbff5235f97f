"""One round in stages, seen from its driver: which units come next, and what they gave.

    [mark, scan] -> index -> [filter] -> [raise, or ask and resolve] -> [mark, scan] -> rewrite

With filters (on the tier) only the dirty section is indexed before they are asked. What no dirty
key is in has no part in the stages after that. Without filters, buckets are asked about everything
at once. What the filters of a segment let stay has no transactions either, so that it needs no
scan.

The markers of a log are asked who was aborted, and a scan is made, only where that is needed. Where
a snapshot or an index names transactions the markers come first. Elsewhere a unit that meets one
gives up, they are asked, and its stage begins again, without what it had. A map that takes a record
twice would note it as superseded by itself. Transactions that aborted decide what the first pass
indexes, so they are followed before it. Without any, the first pass lists the events that it meets;
the clean section is then scanned only if a group turns out to have transactions. A log without
transactions is never read a third time.

Runs nothing itself and is not thread-safe. The first error in the order of the log ends the round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from keeplast.cleaner.plan import GroupPlan, plan_groups
from keeplast.cleaner.transactions import TransactionState, no_events
from keeplast.clock import Clock
from keeplast.columns import retained
from keeplast.errors import invariant
from keeplast.model.topic_config import Shape
from keeplast.rewrite.index import first_pass_position
from keeplast.rewrite.skipping import ranks_apart, segments_to_ask, skips_of
from keeplast.rewrite.stage_work import end_of
from keeplast.rewrite.standings import bucket_of
from keeplast.rewrite.task import (
    NO_PAYLOADS,
    NO_SKIPS,
    Asked,
    IndexStats,
    PartitionTask,
    TaskResult,
    first_pass_start,
    second_pass_start,
)
from keeplast.rewrite.units import (
    NO_HASHES,
    Answer,
    AskUnit,
    Edge,
    Events,
    Extent,
    Failed,
    Filtered,
    FilterUnit,
    IndexedUnit,
    IndexUnit,
    KeyChunk,
    Marked,
    MarkUnit,
    RaiseUnit,
    Resolved,
    ResolveUnit,
    RewriteUnit,
    Rewritten,
    Scanned,
    ScanUnit,
    Unit,
    UnitResult,
    Unmarked,
)
from keeplast.rewrite.wave import failed_result

FILTERS_OF_A_UNIT = 32


class Stage(Enum):
    """Which step of a round in stages is under way; units of one step run side by side."""

    MARK = "mark"
    SCAN = "scan"
    INDEX = "index"
    FILTER = "filter"
    ASK = "ask about the clean section"
    RAISE = "raise"
    RESOLVE = "resolve"
    SCAN_CLEAN = "scan the clean section"
    REWRITE = "rewrite"
    DONE = "done"


class StagedRound:
    """The progress of one task through the stages."""

    def __init__(self, task: PartitionTask, clock: Clock) -> None:
        """Begin; ``task`` has a shape other than ``partition``."""
        self.task = task
        plan = task.plan
        self._clock = clock
        self._started = clock.seconds()
        self._index_seconds = 0.0
        dirty = plan.dirty_segments()
        dirty_bases = {s.base_offset for s in dirty}
        self._extents: list[Extent] = []
        self._dirty: list[Extent] = []
        for s in plan.segments:
            if s.base_offset >= plan.bound:
                break
            start = first_pass_position(plan) if s.base_offset == dirty[0].base_offset else 0
            if start:
                self._extents.append(Extent(s.base_offset, 0, start))
            extent = Extent(s.base_offset, start, s.size_bytes)
            self._extents.append(extent)
            if s.base_offset in dirty_bases:
                self._dirty.append(extent)
        self.groups: Sequence[GroupPlan] = plan_groups(plan, plan.bound)
        """Those that are rewritten, as far as that is known."""
        self._skips = NO_SKIPS
        self._asked: dict[int, Asked] = {}
        self.dirty_hashes = NO_HASHES
        self._events: dict[Extent, Events] = {}
        self._indexed: list[IndexedUnit] = []
        self.answers: list[Answer] = []
        self._distinct_keys = 0
        self._rewritten: dict[int, Rewritten] = {}
        self._needs_entry: set[int] = set()
        self._failures: list[Failed] = []
        self._peak_rss_bytes = 0
        self._is_unmarked = False
        self.edges: Mapping[int, Sequence[Edge]] = {}
        """Where pieces of dirty segments begin after the first one, by the segment's base offset.

        They need not be right: a piece that does not end with a whole batch fails, and the stage
        begins again without any.
        """
        self._kept = 0
        self._interrupted = Stage.INDEX
        self.stage = Stage.MARK
        if plan.aborted is not None or not plan.expects_transactions:
            self.stage = self._marked_stage()

    @property
    def is_done(self) -> bool:
        """Say whether there is a result."""
        return self.stage is Stage.DONE

    @property
    def has_events(self) -> bool:
        """Say whether any unit has met a transaction; markers need not be read without one."""
        return any(len(events) for events in self._events.values())

    def units(self) -> Iterator[Unit]:
        """Yield the units of the stage, made one by one: each may hold a state of its own."""
        number = self.task.number
        match self.stage:
            case Stage.MARK:
                yield MarkUnit(number, self.task.cost_bytes // 8)
            case Stage.SCAN | Stage.SCAN_CLEAN:
                for extent in self._extents:
                    if extent not in self._events:
                        yield ScanUnit(number, extent)
            case Stage.INDEX:
                yield from self._ask_units() if self.is_bucket else self.index_units()
            case Stage.FILTER:
                bases = self.filtered_bases
                for first in range(0, len(bases), FILTERS_OF_A_UNIT):
                    yield FilterUnit(number, bases[first : first + FILTERS_OF_A_UNIT])
            case Stage.ASK:
                yield from self._ask_units()
            case Stage.RAISE:
                yield from self._raise_units()
            case Stage.RESOLVE:
                yield from self._resolve_units()
            case Stage.REWRITE:
                yield from self._rewrite_units()

    def take(self, result: UnitResult) -> None:
        """Take what one unit of the stage gave."""
        if isinstance(result, Failed):
            self._failures.append(result)
            return
        if isinstance(result, Marked):
            self.task = replace(self.task, plan=replace(self.task.plan, aborted=result.aborted))
            return
        if isinstance(result, Unmarked):
            self._is_unmarked = True
            return
        if isinstance(result, Scanned):
            self._events[result.extent] = result.events
            return
        self._peak_rss_bytes = max(self._peak_rss_bytes, result.peak_rss_bytes)
        if isinstance(result, IndexedUnit):
            self._indexed.append(result)
            if result.events is not None:
                self._events[result.extent] = result.events
        elif isinstance(result, Filtered):
            for each in result.answers:
                known = self._asked.get(each.base_offset)
                self._asked[each.base_offset] = each if known is None else known & each
        elif isinstance(result, Resolved):
            self.answers.extend(result.answers)
            self._distinct_keys += result.distinct_keys
        elif result.groups:
            self._rewritten[result.base_offset] = result
            self._needs_entry.discard(result.base_offset)
        else:
            self._needs_entry.add(result.base_offset)

    def fail(self, error: Exception) -> None:
        """End the round with an error that no unit reported."""
        self._failures.append(Failed((0, 0), error))
        self.stage = Stage.DONE

    def advance(
        self, distinct_keys: int | None = None, *, index_seconds: float | None = None
    ) -> None:
        """Go to the next stage; everything that the present one yielded has been taken.

        ``distinct_keys`` is the size of a key map that was filled outside of the round, and
        ``index_seconds`` what that took where the round cannot know.
        """
        if distinct_keys is not None:
            self._distinct_keys = distinct_keys
        if index_seconds is not None:
            self._index_seconds = index_seconds
        if self._failures and self.begins_again:
            self._failures, self._is_unmarked, self.edges = [], False, {}
            del self._indexed[self._kept :]
        elif self._failures:
            self.stage = Stage.DONE
        elif self._is_unmarked:
            self._interrupt(self.stage)
        elif self.stage is Stage.MARK:
            self.stage = self._marked_stage()
        elif self.stage is Stage.SCAN:
            self.stage = self._interrupted
        elif self.stage is Stage.INDEX and self.task.filters is not None:
            self._gather_hashes()
            self.stage = Stage.FILTER
        elif self.stage is Stage.FILTER and self.is_bucket:
            self._leave_out()
            self.stage = Stage.ASK
        elif self.stage in (Stage.INDEX, Stage.ASK) and self.is_bucket:
            self.stage = Stage.RESOLVE
        elif (
            self.stage in (Stage.INDEX, Stage.FILTER)
            and self._distinct_keys > 0
            and ranks_apart(self.task)
        ):
            self._leave_out()
            self.stage = Stage.RAISE
        elif self.stage in (Stage.INDEX, Stage.FILTER, Stage.RAISE, Stage.RESOLVE):
            self._leave_out()
            # Where the dirty section has transactions the clean one most likely has some too.
            self.stage = (
                Stage.SCAN_CLEAN if self.has_events and not self._knows_all else Stage.REWRITE
            )
        elif self.stage is Stage.SCAN_CLEAN:
            self.stage = Stage.REWRITE
        elif self._needs_entry:
            invariant(not self._knows_all, "a group asks for a state that it was given")
            if self.task.plan.aborted is None:
                self._interrupt(Stage.SCAN_CLEAN)
            else:
                self.stage = Stage.SCAN_CLEAN
        else:
            self.stage = Stage.DONE
        if self.stage not in (Stage.MARK, Stage.SCAN):
            self._kept = len(self._indexed)
        if self.stage is Stage.REWRITE and not self._index_seconds:
            self._index_seconds = self._clock.seconds() - self._started
        is_optional = self.stage in (Stage.FILTER, Stage.ASK, Stage.RAISE, Stage.RESOLVE)
        if is_optional and next(self.units(), None) is None:
            self.advance()

    @property
    def has_transactions(self) -> bool:
        """Say whether any are known of, so that some may have aborted."""
        return bool(self.task.plan.aborted) or any(len(found) for found in self._events.values())

    @property
    def begins_again(self) -> bool:
        """Say whether the stage does: a unit met a transaction, or a piece of a segment failed."""
        is_cut = bool(self.edges) and self.stage is Stage.INDEX
        return is_cut if self._failures else self._is_unmarked

    def _interrupt(self, stage: Stage) -> None:
        """Have the markers asked, and ``stage`` done from its beginning after that."""
        invariant(self.task.plan.aborted is None, "a round asks the markers twice")
        del self._indexed[self._kept :]
        self._is_unmarked, self.edges = False, {}
        self._interrupted = stage
        self.stage = Stage.MARK

    def _marked_stage(self) -> Stage:
        """Return what follows when the markers have been asked, or need not be yet."""
        has_aborted = bool(second_pass_start(self.task.plan).aborted)
        return Stage.SCAN if has_aborted else self._interrupted

    @property
    def filtered_bases(self) -> tuple[int, ...]:
        """Return the clean segments whose filters are asked; none where keys were too many."""
        if any(each.hashes is None for each in self._indexed):
            return ()
        return segments_to_ask(self.task.plan, self.groups, has_versions=ranks_apart(self.task))

    def _gather_hashes(self) -> None:
        """Put together what index units of this process know of the dirty keys."""
        hashes = [each.hashes for each in self._indexed if each.hashes is not None]
        self.dirty_hashes = np.unique(np.concatenate([NO_HASHES, *hashes]))
        self._indexed = [
            replace(each, hashes=each.hashes if each.hashes is None else NO_HASHES)
            for each in self._indexed
        ]

    def _leave_out(self) -> None:
        """Forget the groups that filters let stay, and whose transactions need not be followed."""
        if self.stage is not Stage.FILTER:
            return
        self._skips = skips_of(self.task.plan, self.groups, self._asked.values())
        self.groups = self._skips.rest(self.groups)
        self.dirty_hashes = NO_HASHES
        for extent in self._extents:
            if extent.base_offset in self._skips.staying | self._skips.unranked:
                self._events[extent] = no_events()

    @property
    def is_bucket(self) -> bool:
        """Say whether keys are resolved by hash bucket."""
        return self.task.shape.shape is Shape.BUCKET

    @property
    def _knows_all(self) -> bool:
        return all(extent in self._events for extent in self._extents)

    def index_units(self) -> Iterator[IndexUnit]:
        """Yield the units that put the keys of the dirty section into a map."""
        for extent, entry in self._first_pass():
            base, lists = extent.base_offset, extent not in self._events
            inner = [
                edge
                for edge in self.edges.get(base, ())
                if edge[0] > extent.start and edge[1] > base
            ]
            bounds = [(extent.start, base), *inner, (extent.end, end_of(self.task.plan, base))]
            for (start, first), (end, before) in pairwise(bounds):
                yield IndexUnit(
                    self.task.number, Extent(base, start, end), entry, lists, first, before
                )

    def _raise_units(self) -> Iterator[Unit]:
        for extent, entry in self._second_pass():
            is_known = extent.base_offset in self._skips.unranked
            if extent.base_offset < self.task.plan.first_dirty and not is_known:
                yield RaiseUnit(self.task.number, extent, entry)

    def _ask_units(self) -> Iterator[Unit]:
        """Yield what the buckets are asked for: where filters are asked between, in two stages."""
        number, buckets = self.task.number, self.task.shape.buckets
        first = dict(self._first_pass())
        for extent, entry in self._second_pass():
            lists = extent not in self._events
            own = first.get(extent)
            if self.task.filters is not None and (own is None) == (self.stage is Stage.INDEX):
                continue
            if extent.base_offset in self._skips.staying:
                continue
            agree = own is not None and self._agree(extent, own, entry)
            yield AskUnit(number, extent, entry, buckets, agree, True, lists)
            if own is not None and not agree:
                yield AskUnit(number, extent, own, buckets, True, False, False)

    def _agree(self, extent: Extent, first: TransactionState, second: TransactionState) -> bool:
        """Say whether both passes take the same data of a dirty extent for aborted.

        The first one does not when it starts inside a segment and transactions aborted before that
        (finding F5): it takes them for open.
        """
        at = self.task.plan.first_dirty + 1 if extent.start else extent.base_offset
        return first.at_entry(at).aborted_open() == second.at_entry(at).aborted_open()

    def _first_pass(self) -> Iterator[tuple[Extent, TransactionState]]:
        return self._entries(self._dirty, first_pass_start(self.task.plan))

    def _second_pass(self) -> Iterator[tuple[Extent, TransactionState]]:
        return self._entries(self._extents, second_pass_start(self.task.plan))

    def _entries(
        self, extents: Sequence[Extent], state: TransactionState
    ) -> Iterator[tuple[Extent, TransactionState]]:
        """Yield each extent with the transactions at its entry, by ``state`` at the first one."""
        for extent in extents:
            yield extent, state.at_entry(extent.base_offset)
            if extent in self._events:
                state.replay(self._events[extent])

    def _resolve_units(self) -> Iterator[Unit]:
        buckets = self.task.shape.buckets
        chunks: dict[int, list[KeyChunk]] = {}
        for indexed in self._indexed:
            for chunk in indexed.chunks:
                chunks.setdefault(bucket_of(chunk.cell, buckets), []).append(chunk)
        for bucket, its in sorted(chunks.items()):
            yield ResolveUnit(self.task.number, bucket, tuple(its))

    def _rewrite_units(self) -> Iterator[Unit]:
        waiting: dict[int, GroupPlan] = {
            group.base_offset: group
            for group in self.groups
            if group.base_offset not in self._rewritten
        }
        if not self._knows_all:
            for group in waiting.values():
                yield self._rewrite_unit(group, None)
            return
        for extent, entry in self._second_pass():
            if extent.start == 0 and extent.base_offset in waiting:
                yield self._rewrite_unit(waiting[extent.base_offset], entry)

    def _rewrite_unit(self, group: GroupPlan, entry: TransactionState | None) -> RewriteUnit:
        known = self._skips.known.intersection(source.base_offset for source in group.sources)
        return RewriteUnit(self.task.number, group, entry, known)

    def result(self) -> TaskResult:
        """Return what the round gave, or its first error in the order of the log."""
        if self._failures:
            return failed_result(self.task, min(self._failures, key=lambda each: each.at).error)
        parts = [self._rewritten[group.base_offset] for group in self.groups]
        counters = np.zeros(retained.COUNTERS, np.int64)
        source_crcs: dict[int, int] = {}
        output_crcs: dict[int, int] = {}
        payloads = sum((each.payloads for each in self._indexed), NO_PAYLOADS)
        # Buckets hear what ranks of clean records before it is known whether a key is dirty.
        ranked = self._indexed if self._distinct_keys else []
        filters = self._skips.stats
        for part in parts:
            counters += part.counters
            payloads += part.payloads
            filters += part.filters
            source_crcs.update(part.source_crcs)
            output_crcs.update(part.output_crcs)
        return TaskResult(
            number=self.task.number,
            staged=tuple(staged for part in parts for staged in part.staged),
            end_offset=self.task.plan.bound,
            groups=tuple(group for part in parts for group in part.groups),
            counters=counters,
            index=IndexStats(
                sum(each.stats.messages_read for each in self._indexed),
                sum(each.stats.bytes_read for each in self._indexed),
                self._distinct_keys,
                self._index_seconds,
                sum(each.stats.versions_missing for each in ranked),
                sum(each.stats.versions_malformed for each in ranked),
            ),
            segments_left_alone=sum(part.left_alone for part in parts),
            copied_bytes=sum(part.copied_bytes for part in parts),
            clean_seconds=self._clock.seconds() - self._started - self._index_seconds,
            peak_rss_bytes=self._peak_rss_bytes,
            source_crcs=source_crcs,
            output_crcs=output_crcs,
            payloads=payloads,
            filters=filters,
        )


def place_of(unit: Unit) -> tuple[int, int]:
    """Return where in the log a unit works, for failures to be ordered by."""
    match unit:
        case MarkUnit():
            return (0, 0)
        case ResolveUnit():
            return (0, unit.bucket)
        case RewriteUnit():
            return (unit.group.base_offset, 0)
        case FilterUnit():
            return (unit.bases[0], 0)
        case _:
            return (unit.extent.base_offset, unit.extent.start)
