"""Says whether a partition of a store is worth a round, from the metadata alone.

What a look decides on is what a round's survey decides on, but for open transactions, which only
the objects tell: a round that then finds nothing to do says so. The first timestamps of segments,
which ``max.compaction.lag.ms`` is about, are read from the objects once a segment, because those
never change. Kafka: ``LogCleanerManager.grabFilthiestCompactedLog``; cleaning.md 1.3 to 1.6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from keeplast.cleaner.eligibility import (
    CleanableRange,
    delay_ms,
    find_cleanable_range,
    find_expired_bound,
    find_first_uncleanable,
    find_overdue_from,
)
from keeplast.cleaner.explanation import nothing_sentence, ratio_sentence
from keeplast.log.partition_log import list_partition, read_first_batch_timestamp
from keeplast.model.offsets import INT64_MAX
from keeplast.model.segment import SegmentSummary
from keeplast.model.topic_config import TopicConfig
from keeplast.store.horizons import RemoteHorizons
from keeplast.survey.horizons import NOTHING, Expired
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.partition_state import Orphan, PartitionState
from keeplast.tier.state.remote_retention import plan_remote_expiry
from keeplast.tier.state.segment import RemoteSegment

SEGMENTS_MAX = 10_000
"""More are remembered only while one partition has more."""
ALL_CLEAN = "nothing to clean: all that was copied is clean"


@dataclass(frozen=True, slots=True)
class RemoteLook:
    """A partition of a store as found; ``reason`` is why no round is worth it, None when one is.

    ``uncleanable_bytes`` lie at and above the bound; ``expires`` says that retention or the log
    start let something go. ``expired`` is what a round could remove without anything dirty, where
    that was asked for and nothing else is worth one.
    """

    state: PartitionState
    topic: TopicConfig
    orphans: tuple[Orphan, ...]
    first_dirty: int
    cleanable: CleanableRange
    uncleanable_bytes: int
    compaction_delay_ms: int
    overdue_from_ms: int | None
    reason: str | None
    expires: bool
    expired: Expired = NOTHING

    @property
    def is_eligible(self) -> bool:
        """True when a round is worth it."""
        return self.reason is None

    @property
    def orphan_bytes(self) -> int:
        """Return what replaced segments still hold."""
        return sum(orphan.segment.size_bytes for orphan in self.orphans)


class FirstTimestamps:
    """The first timestamp of each segment that was asked for, by segment id."""

    def __init__(self, objects: ObjectStore) -> None:
        """Begin with none."""
        self._objects = objects
        self._known: dict[str, int | None] = {}

    def of(self, state: PartitionState, segment: RemoteSegment) -> int | None:
        """Return the maximum timestamp of the segment's first batch, None when it has none."""
        if segment.segment_id not in self._known:
            files = RoundFiles(self._objects, state.partition, state.topic_id, (segment,))
            (found, _active) = list_partition(files.path, files).segments
            self._known[segment.segment_id] = read_first_batch_timestamp(found, files)
        return self._known[segment.segment_id]

    def keep(self, state: PartitionState) -> None:
        """Forget all when many more are known than the partition has."""
        if len(self._known) > SEGMENTS_MAX + 2 * len(state.segments):
            self._known.clear()


def look_at_remote(
    state: PartitionState,
    orphans: tuple[Orphan, ...],
    topic: TopicConfig,
    timestamps: FirstTimestamps,
    now_ms: int,
    horizons: RemoteHorizons | None = None,
) -> RemoteLook:
    """Look at a partition at ``now_ms``; with ``horizons``, also for what has expired."""
    first_dirty = state.first_dirty()
    segments = _dated(state, topic, first_dirty, timestamps)
    uncleanable = find_first_uncleanable(
        segments, first_dirty=first_dirty, high_watermark=state.remote_end, open_transaction=None,
        min_compaction_lag_ms=topic.min_compaction_lag_ms, now_ms=now_ms,
    )  # fmt: skip
    cleanable = find_cleanable_range(
        segments, first_dirty=first_dirty, uncleanable=uncleanable.offset
    )
    overdue_from_ms = find_overdue_from(
        segments, first_dirty=first_dirty, max_compaction_lag_ms=topic.max_compaction_lag_ms
    )
    delay = delay_ms(overdue_from_ms, now_ms)
    reason = None
    if not state.routes:
        reason = "nothing was copied yet"
    elif not topic.is_compacted:
        reason = f"not compacted: cleanup.policy={','.join(sorted(topic.cleanup_policy))}"
    elif not cleanable.cleanable_bytes:
        reason = ALL_CLEAN
        if first_dirty < state.remote_end:
            reason = nothing_sentence(
                first_dirty=first_dirty, first_base=segments[0].base_offset,
                active_base=segments[-1].base_offset, limit=uncleanable.note,
            )  # fmt: skip
    elif not delay and cleanable.ratio <= topic.min_cleanable_dirty_ratio:
        reason = ratio_sentence(ratio=cleanable.ratio, threshold=topic.min_cleanable_dirty_ratio)
    expired = NOTHING
    if reason is not None and horizons is not None and topic.is_compacted and state.routes:
        bound = find_expired_bound(segments, first_dirty=first_dirty, bound=cleanable.bound)
        expired = horizons.expired(state, bound, now_ms)
        reason = None if expired else reason
    above = [s for s in segments if s.base_offset >= cleanable.bound]
    return RemoteLook(
        state, topic, orphans, first_dirty, cleanable, sum(s.size_bytes for s in above), delay,
        overdue_from_ms, reason, bool(plan_remote_expiry(topic, state, now_ms).expired), expired,
    )  # fmt: skip


def _dated(
    state: PartitionState, topic: TopicConfig, first_dirty: int, timestamps: FirstTimestamps
) -> tuple[SegmentSummary, ...]:
    """Return the summaries; dirty segments know their first timestamp where the lag asks for it."""
    summaries = state.summaries()
    if topic.max_compaction_lag_ms == INT64_MAX or not topic.is_compacted:
        return summaries
    timestamps.keep(state)
    dated = [
        replace(
            summary,
            first_batch_timestamp_ms=timestamps.of(state, state.segments[route.segment_id]),
        )
        if route.last_offset >= first_dirty
        else summary
        for summary, route in zip(summaries, state.routes, strict=False)
    ]
    return (*dated, summaries[-1])
