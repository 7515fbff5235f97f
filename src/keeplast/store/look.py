"""Says whether a partition of a store is worth a round, from the metadata alone.

What a look decides on is what a round's survey decides on, but for open transactions, which only
the objects tell: a round that then finds nothing to do says so. The first timestamps of segments,
which ``max.compaction.lag.ms`` is about, are read from the objects once a segment, because those
never change. Kafka: ``LogCleanerManager.grabFilthiestCompactedLog``; cleaning.md 1.3 to 1.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from keeplast.cleaner.eligibility import (
    CleanableRange,
    FirstDirty,
    find_expired_bound,
    find_first_uncleanable,
    find_hold,
)
from keeplast.cleaner.reasons import (
    AllCopiedClean,
    Decision,
    DueReason,
    NotCompacted,
    NothingCopied,
)
from keeplast.cleaner.section import (
    DirtySection,
    LogFigures,
    due_reason,
    figures_of,
    find_dirty_section,
    skip_reason,
)
from keeplast.log.partition_log import list_partition, read_first_timestamp
from keeplast.model.hold import in_force
from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader
from keeplast.model.segment import SegmentSummary
from keeplast.model.topic_config import TopicConfig
from keeplast.store.horizons import RemoteHorizons
from keeplast.store.readers import StoredReaders
from keeplast.survey.horizons import NOTHING, Examination, Expired
from keeplast.survey.log_bounds import Checkpoints
from keeplast.survey.wording import skip_words
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.partition_state import Orphan, PartitionState
from keeplast.tier.state.remote_retention import plan_remote_expiry
from keeplast.tier.state.segment import RemoteSegment

SEGMENTS_MAX = 10_000
"""More are remembered only while one partition has more."""


@dataclass(frozen=True, slots=True)
class RemoteLook:
    """A partition of a store as found; ``decision`` is why a round is worth it, or not.

    ``expires`` says that retention or the log
    start let something go. ``expired`` is what a round could remove without anything dirty, where
    that was asked for and nothing else is worth one.
    """

    state: PartitionState
    topic: TopicConfig
    orphans: tuple[Orphan, ...]
    figures: LogFigures
    decision: Decision
    expires: bool
    expired: Expired = NOTHING

    @property
    def is_eligible(self) -> bool:
        """True when a round is worth it."""
        return isinstance(self.decision, DueReason)

    @property
    def reason(self) -> str | None:
        """Return in words why no round is worth it, None when one is."""
        return None if isinstance(self.decision, DueReason) else skip_words(self.decision)

    @property
    def fingerprint(self) -> object:
        """Return what a round decides on but the clock: another one where there is something else.

        The version of a state is none: what is kept of a directory at every copy raises it, too.
        """
        state = self.state
        return (
            state.routes, state.log_start, state.first_dirty(), dict(state.settings), state.holds
        )  # fmt: skip

    @property
    def orphan_bytes(self) -> int:
        """Return the bytes of replaced segments that nobody has collected yet."""
        return sum(orphan.segment.size_bytes for orphan in self.orphans)


class FirstTimestamps:
    """The first timestamp of each segment that was asked for, by segment id.

    ``known`` are those that somebody keeps from one opening of a store to the next.
    """

    def __init__(self, objects: ObjectStore, known: dict[str, int | None] | None = None) -> None:
        self._objects = objects
        self._known: dict[str, int | None] = {} if known is None else known

    def of(self, state: PartitionState, segment: RemoteSegment) -> int | None:
        """Return the timestamp of the segment's first record, None when it has none."""
        if segment.segment_id not in self._known:
            files = RoundFiles(self._objects, state.partition, state.topic_id, (segment,))
            (found, _active) = list_partition(files.path, files).segments
            self._known[segment.segment_id] = read_first_timestamp(found, files)
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
    brokers: GroupReader | None = None,
) -> RemoteLook:
    """Look at a partition at ``now_ms``; with ``horizons``, also for what has expired.

    ``brokers`` tell what consumer groups have committed, for whom that waits.
    """
    first_dirty = state.first_dirty()
    segments = _date(state, topic, first_dirty, timestamps)
    uncleanable = find_first_uncleanable(
        segments, first_dirty=first_dirty, high_watermark=state.remote_end, open_transaction=None,
        min_compaction_lag_ms=topic.min_compaction_lag_ms, now_ms=now_ms,
        hold=find_hold(in_force(state.holds, now_ms)),
    )  # fmt: skip
    section = find_dirty_section(
        segments, topic, first_dirty=FirstDirty(first_dirty), uncleanable=uncleanable, now_ms=now_ms
    )
    decision = _decide(state, topic, section, segments)
    expired = NOTHING
    can_expire = topic.is_compacted and state.routes and not isinstance(decision, DueReason)
    if horizons is not None and can_expire:
        bound = find_expired_bound(segments, first_dirty=first_dirty, bound=section.cleanable.bound)
        readers = StoredReaders(state.topic_id, brokers).wait(state.partition, topic, now_ms)
        expired = horizons.expired(state, bound, Examination(now_ms, readers))
        if expired:
            decision = expired.due_reason()
    return RemoteLook(
        state, topic, orphans, figures_of(section, segments), decision,
        bool(plan_remote_expiry(topic, state, now_ms).expired), expired,
    )  # fmt: skip


def _decide(
    state: PartitionState,
    topic: TopicConfig,
    section: DirtySection,
    segments: Sequence[SegmentSummary],
) -> Decision:
    """Say whether what is dirty is worth a round, and why or why not."""
    if not state.routes:
        return NothingCopied()
    if not topic.is_compacted:
        return NotCompacted(",".join(sorted(topic.cleanup_policy)), is_stored=True)
    reason = skip_reason(section, segments, topic, is_forced=False)
    if reason is None:
        return due_reason(section, topic)
    return as_copied(
        reason, section.cleanable, first_dirty=section.first_dirty.offset, end=state.remote_end
    )


def stored_checkpoints(
    state: PartitionState, high_watermark: Mapping[TopicPartition, int]
) -> Checkpoints:
    """Return what counts as the checkpoints of a partition's directory; its log start is given.

    Where it is dirty from is no offset that somebody asks for: what is clean holds nothing back.
    """
    at = state.partition
    return Checkpoints({at: state.first_dirty()}, {}, high_watermark, {at: state.holds})


def as_copied(
    decision: Decision, cleanable: CleanableRange, *, first_dirty: int, end: int
) -> Decision:
    """Return a decision that names what was copied, up to ``end``, where all of that is clean."""
    if isinstance(decision, DueReason) or cleanable.cleanable_bytes or first_dirty < end:
        return decision
    return AllCopiedClean()


def _date(
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
            first_timestamp_ms=timestamps.of(state, state.segments[route.segment_id]),
        )
        if route.last_offset >= first_dirty
        else summary
        for summary, route in zip(summaries, state.routes, strict=False)
    ]
    return (*dated, summaries[-1])
