"""Whether the swaps of a live partition were right: removed records had to go, and swaps stand.

Until they are collected, sources of published swaps lie in the remote tier, and are read again next
to what is served instead. The served records of their offsets are an ordered sub-sequence of
theirs, field by field; of each key the record that ranks last is served. A tombstone or a marker
may be gone when it was due: its horizon had passed, and a swap that removes such things reached so
far. In a compactor's outputs without a later copy over them, no key comes twice. The rule:
**nothing of the cleaner decides here**. An external sort on a fingerprint of its own brings keys
together, so that memory does not grow with the log.

Whether published swaps still stand, and what they left, has a rule too: **only published swaps are
held against the brokers' fold**. An output that a later swap replaced, or that the log's start has
passed, is no loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.rules.sources import EffectiveRange, Range
from keeplast.attach.rules.swap import covered
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache, is_compactors
from keeplast.columns import batches as t
from keeplast.columns.rows import HAS_KEY
from keeplast.errors import CorruptError, RefusedError
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from keeplast.inspect.sorted_runs import (
    FLAGS,
    HORIZON,
    IS_TOMBSTONE,
    OFFSET,
    OLDER_RIGHT,
    ON_LEFT,
    ON_RIGHT,
    SortedRuns,
    final_records,
)
from keeplast.inspect.verified_log import Findings, VerifiedPart
from keeplast.read.transactions import TransactionOutcome, TransactionOutcomes
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached, Decision, DecisionState, epoch_of_mark

Offsets = NDArray[np.int64]


class CleanGround(Struct, frozen=True, kw_only=True):
    """What is judged; ranges ascend and do not overlap.

    ``covered`` are the offsets of the sources that are read again, ``compacted`` those that are
    clean. Below ``log_start`` nothing needs to be there; ``end`` is above all that is served.
    Tombstones and markers below ``expires_below`` were due when their horizon is ``expired_ms`` or
    earlier.
    """

    log_start: int
    end: int
    expired_ms: int = -1
    expires_below: int = 0
    covered: Sequence[Range] = ()
    compacted: Sequence[Range] = ()


class KeyLaw:
    """One pass: parts of what is served in, in order; then :meth:`finish`."""

    def __init__(
        self,
        ground: CleanGround,
        sources: Iterator[tuple[VerifiedPart, int]],
        aborted: TransactionOutcomes,
        runs: tuple[SortedRuns, SortedRuns],
        keys: Findings,
        removed: Findings,
    ) -> None:
        """Take the components; ``runs`` sort clean records, and all.

        ``sources`` are parts of the sources, each with the first offset that is read of it.
        """
        self._ground = ground
        self._sources = sources
        self._aborted = aborted
        self._clean, self._all = runs
        self._keys = keys
        self._removed = removed
        self._part: VerifiedPart | None = None
        self._at = 0
        self._is_read = False
        self._is_broken = False
        self._has_gaps = False

    def add(self, part: VerifiedPart, first: int, last: int) -> None:
        """Compare offsets ``[first, last]`` of a part of what is served."""
        committed = self._committed(part, first, last)
        is_clean = _inside(part.offsets[committed], self._ground.compacted)
        self._clean.add(part.rows(committed[is_clean], ON_RIGHT))
        if not self._ground.covered:
            return
        self._all.add(part.rows(committed, ON_RIGHT))
        rows = np.flatnonzero((part.offsets >= first) & (part.offsets <= last))
        offsets, contents = part.offsets[rows], part.contents[rows]
        is_known = np.zeros(len(offsets), np.bool_)
        for source, chosen in self._sources_to(min(part.last_offset, last)):
            found = np.searchsorted(offsets, source.offsets[chosen])
            is_there = found < len(offsets)
            is_there[is_there] = offsets[found[is_there]] == source.offsets[chosen[is_there]]
            self._report_markers(source, chosen[~is_there])
            found, chosen = found[is_there], chosen[is_there]
            is_known[found] = True
            differs = (contents[found] != source.contents[chosen]).any(axis=1)
            for offset in offsets[found[differs]].tolist():
                self._removed.add("a record is not what it was in its source", offset=offset)
        if self._is_broken:
            return  # The sources' records are unknown.
        for offset in offsets[~is_known & _inside(offsets, self._ground.covered)].tolist():
            self._removed.add("no source had such a record", offset=offset)

    def skip(self, last: int) -> None:
        """Say that what is served next, up to ``last``, cannot be read."""
        self._has_gaps = True
        for _ in self._sources_to(last):
            pass

    def finish(self) -> int:
        """Judge keys; return how many there are in what is clean."""
        for source, chosen in self._sources_to(self._ground.end):
            self._report_markers(source, chosen)
        count = 0
        for rows in final_records(self._clean.merged()):
            count += len(rows)
            for row in rows[rows[:, OLDER_RIGHT] >= 0]:
                self._keys.add(
                    f"a record is served that the one at {row[OFFSET]} supersedes",
                    offset=int(row[OLDER_RIGHT]),
                )
        if self._has_gaps:
            reason = "a part of what is served cannot be read"
            self._keys.cannot_judge(reason)
            self._removed.cannot_judge(reason)
            return count
        for rows in final_records(self._all.merged()):
            self._judge_lost(rows[rows[:, FLAGS] & ON_RIGHT == 0])
        return count

    def _judge_lost(self, lost: NDArray[np.int64]) -> None:
        for row in lost:
            offset, older = int(row[OFFSET]), int(row[OLDER_RIGHT])
            is_due = row[FLAGS] & IS_TOMBSTONE and self._was_due(offset, int(row[HORIZON]))
            if is_due and older < 0:
                continue
            if row[FLAGS] & IS_TOMBSTONE and older >= 0:
                problem = f"a deleted key is back: its tombstone is gone, {older} is served"
            elif row[FLAGS] & IS_TOMBSTONE:
                problem = "the tombstone of a key is gone before its time"
            elif older >= 0:
                problem = f"the last record of a key is gone, {older} is served"
            else:
                problem = "the last record of a key is gone"
            self._removed.add(problem, offset=offset)

    def _was_due(self, offset: int, horizon_ms: int) -> bool:
        """Say whether what carried this horizon, -1 for none, might go."""
        ground = self._ground
        return 0 <= horizon_ms <= ground.expired_ms and offset < ground.expires_below

    def _sources_to(self, last: int) -> Iterator[tuple[VerifiedPart, Offsets]]:
        """Yield the rows of sources up to offset ``last``, inclusive, each once."""
        while not self._is_read:
            part = self._next_source() if self._part is None else self._part
            if part is None:
                self._is_read = True
                return
            stop = int(np.searchsorted(part.offsets, last, "right"))
            if stop > self._at:
                yield part, np.arange(self._at, stop)
            self._at = max(stop, self._at)
            if self._at < len(part.offsets) or part.last_offset > last:
                return
            self._part = None

    def _next_source(self) -> VerifiedPart | None:
        try:
            found = next(self._sources, None)
        except CorruptError as error:
            self._removed.cannot_judge(f"a source cannot be read any more: {error}")
            self._is_broken = True
            return None
        if found is None:
            return None
        self._part, first = found
        self._at = int(np.searchsorted(self._part.offsets, first))
        first = max(first, self._ground.log_start)
        committed = self._committed(self._part, first, self._ground.end)
        self._all.add(self._part.rows(committed, ON_LEFT))
        return self._part

    def _report_markers(self, source: VerifiedPart, missing: Offsets) -> None:
        """Report control records that are not served, and were not due."""
        is_control = source.table[source.batch_of[missing], t.ATTRIBUTES] & t.CONTROL != 0
        gone = missing[is_control]
        horizons = source.horizons()[source.batch_of[gone]]
        for offset, horizon_ms in zip(
            source.offsets[gone].tolist(), horizons.tolist(), strict=True
        ):
            if offset >= self._ground.log_start and not self._was_due(offset, horizon_ms):
                self._removed.add(
                    "the marker of a transaction is gone before its time", offset=offset
                )

    def _committed(self, part: VerifiedPart, first: int, last: int) -> Offsets:
        """Return which rows from ``first`` to ``last`` have a key and are committed."""
        is_data = part.table[:, t.ATTRIBUTES] & t.CONTROL == 0
        is_data &= self._aborted.of_batches(part.table) == TransactionOutcome.COMMITTED
        wanted = is_data[part.batch_of] & (part.flags & HAS_KEY != 0)
        wanted &= (part.offsets >= first) & (part.offsets <= last)
        return np.flatnonzero(wanted)


def _inside(offsets: Offsets, ranges: Sequence[Range]) -> NDArray[np.bool_]:
    """Say of each offset whether one of ``ranges``, which ascend, has it."""
    bounds = np.array(ranges, np.int64).reshape(-1, 2)
    place = np.searchsorted(bounds[:, 0], offsets, "right") - 1
    found: NDArray[np.bool_] = place >= 0
    found[found] = offsets[found] <= bounds[place[found], 1]
    return found


_LIVE = (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
_PUBLISHED = (DecisionState.PUBLISHED, DecisionState.COLLECTING, DecisionState.COLLECTED)


def check_swaps(
    findings: Findings,
    layout: RemoteLayout,
    log: DecisionLog,
    cache: PartitionCache,
    known: Attached | None,
    decisions: Sequence[Decision],
    own_ids: Collection[bytes],
    log_start: int,
) -> None:
    """Report what brokers serve otherwise than was published, and other compactors here."""
    for each in cache.segments:
        if not is_compactors(each):
            continue
        is_later = known is not None and epoch_of_mark(each.broker_id) > known.epoch
        if is_later or each.id.segment_id not in own_ids:
            findings.add(
                "a compactor announced a segment that this decision log does not know: "
                f"{encode_id(each.id.segment_id)}", offset=each.start_offset,
            )  # fmt: skip
    if known is None:
        return
    published = [each for each in decisions if each.state in _PUBLISHED]
    replaced = {source.id for each in published for source in each.sources}
    for number, decision in enumerate(published):
        later = [each for other in published[number + 1 :] for each in other.outputs]
        for output in decision.outputs:
            if output.id in replaced or output.end_offset < log_start:
                continue
            # Who replaced it may be forgotten, when he was replaced himself; not who stands there.
            if not any(
                each.start_offset <= output.start_offset and output.end_offset <= each.end_offset
                for each in later
            ):
                _check_output(findings, cache, output, decision)
        for source in decision.sources:
            state = _state(cache, source)
            if state in _LIVE:
                findings.add(
                    "brokers still serve a segment that was replaced: "
                    f"{encode_id(source.id.segment_id)} decision={decision.id}",
                    offset=source.start_offset,
                )
    if known.detached_ms is None:
        _check_owner(findings, layout, log, known)


def sources_left(
    decisions: Sequence[Decision], log_start: int, findings: Findings
) -> list[EffectiveRange]:
    """Return what still lies there of the oldest sources; ranges ascend and do not overlap.

    A source that another listed swap has written has sources of its own for the same offsets. Where
    sources lay over one another, it is no longer known which of them was served where: that is a
    reason in ``findings``.
    """
    waiting = [each for each in decisions if each.state is DecisionState.PUBLISHED]
    written = {output.id for each in waiting for output in each.outputs}
    left: dict[RemoteLogSegmentId, RemoteLogSegment] = {}
    for decision in waiting:
        if any(b.start_offset <= a.end_offset for a, b in pairwise(decision.sources)):
            first, last = covered(decision.sources)
            findings.cannot_judge(
                f"segments that were replaced from offset {first} to {last} lay over one another"
            )
            continue
        left |= {each.id: each for each in decision.sources if each.id not in written}
    found: list[EffectiveRange] = []
    for each in sorted(left.values(), key=lambda each: each.start_offset):
        start = max(each.start_offset, found[-1].end + 1 if found else 0)
        if log_start <= each.end_offset and start <= each.end_offset:
            found.append(EffectiveRange(start, each.end_offset, each))
    return found


def _check_output(
    findings: Findings, cache: PartitionCache, output: RemoteLogSegment, decision: Decision
) -> None:
    found = cache.find(output.id)
    name = f"{encode_id(output.id.segment_id)} decision={decision.id}"
    if found is None or found.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        state = "gone" if found is None else found.state.name
        findings.add(
            f"brokers do not serve what was published: {name} state={state}",
            offset=output.start_offset,
        )
    elif _described(found) != _described(output):
        findings.add(
            f"brokers know another description of what was published: {name}",
            offset=output.start_offset,
        )


def _check_owner(
    findings: Findings, layout: RemoteLayout, log: DecisionLog, known: Attached
) -> None:
    try:
        owner = OwnerObject(layout, known.name, log.store_id()).read()
    except (CorruptError, RefusedError) as error:
        findings.add(str(error))
        return
    if owner is None:
        findings.add("the owner object is gone: nothing more can be decided or deleted")
    elif owner.epoch != known.epoch:
        findings.add(
            f"the owner object says epoch {owner.epoch}, the decision log {known.epoch}"
        )  # fmt: skip


def _described(segment: RemoteLogSegment) -> object:
    return (
        segment.start_offset, segment.end_offset, segment.size_bytes, segment.epochs,
        segment.max_timestamp_ms, segment.custom_metadata,
    )  # fmt: skip


def _state(cache: PartitionCache, segment: RemoteLogSegment) -> RemoteLogSegmentState | None:
    found = cache.find(segment.id)
    return None if found is None else found.state
