"""Says whether an attached partition is worth a round, from announcements alone.

A look decides on what a round's survey decides on, except for transactions: only the objects show
those. A round that then finds nothing to do says so. A look reads two things of the objects, and
remembers them, because they never change. They are the newest segment's leader epochs, and the
first timestamps of dirty segments where ``max.compaction.lag.ms`` asks for them. Within bounds it
also reads what shows that transaction indexes lack an abort:
:mod:`keeplast.attach.rounds.missing_aborts`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.held.outputs import OutputMark
from keeplast.attach.rounds.attached_files import AttachedRecipe
from keeplast.attach.rounds.attached_place import UNANNOUNCED, AttachedState, naming_sources
from keeplast.attach.rounds.missing_aborts import AbortSearch, MissingAbort
from keeplast.attach.rounds.round import RoundWish, read_lineage, sources_of
from keeplast.attach.rules.sources import (
    Source,
    Sources,
    effective_log,
    newest_whole,
    parts_of,
    source_of,
    summary_of,
    synthetic_lineage,
)
from keeplast.attach.rules.swap import reasserted
from keeplast.cleaner.cleanable_range import FirstDirty, find_first_uncleanable, find_hold
from keeplast.cleaner.dirty_section import (
    LogFigures,
    due_reason,
    figures_of,
    find_dirty_section,
    skip_reason,
)
from keeplast.cleaner.reasons import (
    AbortUnnamed,
    Decision,
    DueReason,
    HoldLimit,
    NothingBelow,
    Unserved,
)
from keeplast.cluster.late_copies import closable_holes
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.format.identifier import encode_id
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.log.partition_log import list_partition, read_first_timestamp
from keeplast.model.hold import Hold, in_force
from keeplast.model.partition import INT64_MAX, SegmentSummary
from keeplast.model.topic_config import TopicConfig

LINEAGES_MAX = 10_000
"""Most partitions whose newest segment's epochs are remembered."""
TIMESTAMPS_MAX = 1_000_000


class AttachedOutlook(Struct, frozen=True):
    """A partition as found; ``figures`` are None while none of its segments may be compacted.

    ``sources`` are what a round would take, not measured, ``decision`` why one is worth it, or not.
    ``cleaned_to`` is the first offset that is not clean. ``fingerprint`` changes when there is
    something else to decide on. ``is_mendable`` says that brokers serve nothing somewhere, and will
    when another announcement says what is whole: see :meth:`.Publisher.mend`. ``missing_aborts``
    are those that the indexes lack which brokers serve, whether a round may take them yet or not.
    """

    sources: Sources
    figures: LogFigures | None
    decision: Decision
    cleaned_to: int
    fingerprint: str
    is_mendable: bool = False
    missing_aborts: tuple[MissingAbort, ...] = ()

    @property
    def is_eligible(self) -> bool:
        """True when a round is worth it."""
        return isinstance(self.decision, DueReason)


class AttachedLooks:
    """Looks at partitions of one remote tier, and remembers of segments what never changes.

    Without a layout no object is read. Leader epochs are then those that were announced. It is then
    unknown since when ``max.compaction.lag.ms`` counts, and what transaction indexes lack.
    """

    def __init__(self, layout: RemoteLayout | None) -> None:
        """Know nothing yet."""
        self._layout = layout
        self._lineages: dict[bytes, tuple[LeaderEpoch, ...]] = {}
        self._timestamps: dict[bytes, int | None] = {}
        self._aborts = None if layout is None else AbortSearch(layout)

    def look(
        self, cache: PartitionCache, wish: RoundWish, now_ms: int, *, log_start: int,
        cleaned_to: int, holds: Sequence[Hold] = (),
    ) -> AttachedOutlook:  # fmt: skip
        """Look at a partition at ``now_ms``; CorruptError for objects that cannot be read."""
        lineage_of = partial(self._lineage, cache)
        sources = sources_of(lineage_of, cache, log_start, wish.margin_bytes, now_ms=now_ms)
        is_mendable = bool(reasserted(cache, (), log_start))
        holes = [each for each in closable_holes(cache, log_start) if each[1] < sources.end]
        hold = find_hold(in_force(holds, now_ms))
        fingerprint = _fingerprint(sources.segments, log_start, cleaned_to, hold)
        missing = self._missing(cache, log_start, cleaned_to)
        if not sources.segments:
            return AttachedOutlook(
                sources, None, NothingBelow(sources.limit), cleaned_to, fingerprint, is_mendable,
                missing,
            )  # fmt: skip
        first_dirty = AttachedState(sources, log_start, cleaned_to).first_dirty
        segments = (*self._summaries(sources, first_dirty, wish.topic), _behind(sources))
        uncleanable = find_first_uncleanable(
            segments, first_dirty=first_dirty, high_watermark=sources.end, open_transaction=None,
            min_compaction_lag_ms=wish.topic.min_compaction_lag_ms, now_ms=now_ms, hold=hold,
        )  # fmt: skip
        section = find_dirty_section(
            segments, wish.topic, first_dirty=FirstDirty(first_dirty), uncleanable=uncleanable,
            now_ms=now_ms,
        )  # fmt: skip
        taken = [each for each in missing if each.marker_offset < sources.end]
        skipped = skip_reason(
            section, segments, wish.topic, is_forced=wish.force or bool(holes or taken)
        )  # fmt: skip
        decision: Decision = due_reason(section, wish.topic) if skipped is None else skipped
        if holes and skipped is None:
            decision = Unserved(*holes[0])
        elif taken and skipped is None:
            decision = AbortUnnamed(taken[0].first_offset, taken[0].marker_offset)
        decision = naming_sources(decision, sources)
        figures = figures_of(section, segments)
        raw = {s.segment.id: s.segment.size_bytes for s in cache.served()}
        late = [copy for each in sources.segments for copy in each.late]
        for part in (*parts_of(sources.segments), *late):
            raw.pop(part.id, None)
        figures = replace(
            figures, uncleanable_bytes=figures.uncleanable_bytes + sum(raw.values())
        )  # fmt: skip
        return AttachedOutlook(
            sources, figures, decision, cleaned_to, fingerprint, is_mendable, missing
        )

    def _missing(
        self, cache: PartitionCache, log_start: int, cleaned_to: int
    ) -> tuple[MissingAbort, ...]:
        newest = newest_whole(cache)
        if self._aborts is None or newest is None:
            return ()
        ranges = effective_log(cache, self._lineage(cache, newest), log_start).ranges
        return self._aborts.find(ranges, log_start=log_start, first_dirty=cleaned_to)

    def _lineage(self, cache: PartitionCache, newest: RemoteLogSegment) -> Sequence[LeaderEpoch]:
        if self._layout is None:
            return synthetic_lineage(cache)
        known = self._lineages.get(newest.id.segment_id)
        if known is None:
            known = self._lineages[newest.id.segment_id] = read_lineage(self._layout, newest)
            while len(self._lineages) > LINEAGES_MAX:
                del self._lineages[next(iter(self._lineages))]
        return known

    def _summaries(
        self, sources: Sources, first_dirty: int, topic: TopicConfig
    ) -> list[SegmentSummary]:
        """Return the summaries; dirty segments know their first timestamp where a lag asks."""
        found = [summary_of(each, topic.index_interval_bytes) for each in sources.segments]
        layout = self._layout
        if layout is None or topic.max_compaction_lag_ms == INT64_MAX:
            return found
        return [
            replace(summary, first_timestamp_ms=self._first_timestamp(layout, source.parts[0]))
            if source.end_offset >= first_dirty
            else summary
            for summary, source in zip(found, sources.segments, strict=True)
        ]

    def _first_timestamp(self, layout: RemoteLayout, segment: RemoteLogSegment) -> int | None:
        name = segment.id.segment_id
        if name not in self._timestamps:
            if len(self._timestamps) >= TIMESTAMPS_MAX:
                self._timestamps.clear()
            files = AttachedRecipe(layout, (source_of(segment),), OutputMark(UNANNOUNCED, 0)).open()
            (found, _active) = list_partition(files.path, files).segments
            self._timestamps[name] = read_first_timestamp(found, files)
        return self._timestamps[name]


def _behind(sources: Sources) -> SegmentSummary:
    """Return the empty active segment above the sources, as a round has it."""
    newest = sources.segments[-1].newest
    return SegmentSummary(sources.end, 0, newest.event_timestamp_ms, -1, 0, 0)


def _fingerprint(
    segments: Sequence[Source], log_start: int, cleaned_to: int, hold: HoldLimit | None
) -> str:
    held = "" if hold is None else f" {hold.offset}"
    digest = hashlib.sha256(f"{log_start} {cleaned_to}{held}\n".encode())
    for each in (*parts_of(segments), *(copy for source in segments for copy in source.late)):
        digest.update(encode_id(each.id.segment_id).encode())
    return digest.hexdigest()[:32]
