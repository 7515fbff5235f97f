"""Says whether a partition of a store is worth a round, from the metadata alone.

*The decision* rests on what a round's survey rests on, but for open transactions, which only the
objects show. A round that then finds nothing to do says so. The first timestamps of segments, which
``max.compaction.lag.ms`` is about, are read from the objects once a segment, because those never
change. Kafka: ``LogCleanerManager.grabFilthiestCompactedLog``; cleaning.md 1.3 to 1.6.

*What has expired* in the clean part of a remote log is found mostly without reading its segments. A
segment's filter knows the earliest delete horizon of its tombstones, and segments never change.
Only one whose earliest horizon has passed, or that has markers or no filter, is asked batch by
batch, once. What a round has left although its horizon had passed is no reason for another one; see
:mod:`keeplast.survey.tombstone_horizons`, whose rule this is.

*The groups* that tombstones of a partition in object storage wait for are known from brokers. A
store has no ``__consumer_offsets``, nor has a live cluster's remote tier, and the log there ends
where the copies do. Only the cluster's brokers know what groups have committed, and whether that is
of this log. Without any to ask every group counts as not there yet, and the longest wait as the
only end.

*The batch headers* of a partition in object storage give codecs, horizons, stages. Every live
object is read once, by ranges as large as a window. Nothing is changed, and a round that replaces
what is read meanwhile ends it with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import (
    CleanableRange,
    FirstDirty,
    find_expired_bound,
    find_first_uncleanable,
    find_hold,
)
from keeplast.cleaner.dirty_section import (
    DirtySection,
    LogFigures,
    due_reason,
    figures_of,
    find_dirty_section,
    skip_reason,
)
from keeplast.cleaner.reasons import (
    AllCopiedClean,
    Decision,
    DueReason,
    NotCompacted,
    NothingCopied,
)
from keeplast.cleaner.settings import INTERNAL_TOPICS
from keeplast.errors import CorruptError
from keeplast.format.filename import LOG
from keeplast.inspect.stages import LogHeaders, scan_headers
from keeplast.log.files import reading
from keeplast.log.partition_log import SegmentFiles, list_partition, read_first_timestamp
from keeplast.model.hold import GroupReader, ReaderWait, WaitedGroup, in_force, not_asked
from keeplast.model.partition import INT64_MAX, SegmentSummary, TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.bounds import Checkpoints
from keeplast.survey.request import PartitionRequest
from keeplast.survey.tombstone_horizons import (
    NOTHING,
    Examination,
    Expired,
    SegmentHorizons,
    read_horizons,
)
from keeplast.survey.wording import skip_words
from keeplast.tier.objects.filters import HEAD_BYTES, SegmentBytes, decode_head
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles, filter_file
from keeplast.tier.state.partition_state import Orphan, PartitionState, plan_remote_expiry
from keeplast.tier.state.segment import RemoteSegment

EXPIRED_SEGMENTS_MAX = 100_000
"""More are remembered only while one partition has more."""
_NEVER: SegmentHorizons = SegmentHorizons({}, {}, 0)


class RemoteHorizons:
    """The delete horizons of the segments of a store. One partition's calls come one at a time."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._earliest: dict[str, int | None] = {}
        self._horizons: dict[str, SegmentHorizons] = {}
        self._examined: dict[TopicPartition, tuple[Examination, frozenset[str]]] = {}

    def expired(self, state: PartitionState, bound: int, now: Examination) -> Expired:
        """Return what a round could remove ``now`` from the segments that begin below."""
        if len(self._horizons) + len(self._earliest) > EXPIRED_SEGMENTS_MAX + 2 * len(
            state.segments
        ):
            self._horizons.clear()
            self._earliest.clear()
        examined, left = self._examined.get(state.partition, (Examination(), frozenset()))
        found = Expired()
        for route in state.routes:
            if route.base_offset < bound:
                horizons = self._of(state, state.segments[route.segment_id], now.at_ms)
                since = examined if route.segment_id in left else Examination()
                found += horizons.passed(since, now)
        return found

    def examined(self, partition: TopicPartition, at: Examination, left: frozenset[str]) -> None:
        """Note that a round has removed all that could be removed ``at`` its time.

        ``left`` are the ids of the segments that are live after it.
        """
        self._examined[partition] = at, left

    def book(self, state: PartitionState) -> RemoteBook:
        """Return what a survey of the partition asks."""
        return RemoteBook(self, state)

    def _of(self, state: PartitionState, segment: RemoteSegment, now_ms: int) -> SegmentHorizons:
        name = segment.segment_id
        if name in self._horizons:
            return self._horizons[name]
        files = RoundFiles(self._objects, state.partition, state.topic_id, (segment,))
        if name not in self._earliest:
            self._earliest[name] = _earliest(files, segment)
        earliest = self._earliest[name]
        if earliest is not None and earliest > now_ms:
            return _NEVER
        (found, _active) = list_partition(files.path, files).segments
        self._horizons[name] = read_horizons(found, files)
        return self._horizons[name]


class RemoteBook:
    """The horizons of one partition, for its survey."""

    def __init__(self, horizons: RemoteHorizons, state: PartitionState) -> None:
        """Ask ``horizons`` about the segments of ``state``."""
        self._horizons = horizons
        self._state = state

    def expired(self, path: Path, segments: Sequence[SegmentFiles], now: Examination) -> Expired:
        """Return what a round could remove now from ``segments``, a prefix of the log."""
        del path
        return self._horizons.expired(
            self._state, segments[-1].base_offset + 1 if segments else 0, now
        )


def _earliest(files: RoundFiles, segment: RemoteSegment) -> int | None:
    """Return the earliest horizon that a segment's filter knows; None when its batches must be
    read.

    The key of the filter plays no part: what it says of batches, it says of these very bytes.
    """
    path = files.path / filter_file(segment.base_offset)
    try:
        with reading(files, path) as handle:
            object_bytes = handle.size_bytes
            data = bytearray(min(object_bytes, HEAD_BYTES))
            head = decode_head(bytes(data[: handle.pread_into(memoryview(data), 0)]), str(path))
    except (FileNotFoundError, CorruptError):
        return None
    of = SegmentBytes(segment.segment_id, segment.size_bytes, segment.files[LOG].crc32c)
    # Of markers a filter knows that there are some, and not their horizons.
    if not head.is_of(of, object_bytes) or head.contents.transactional:
        return None
    horizon_ms = head.contents.horizon_ms
    return INT64_MAX if horizon_ms is None else horizon_ms


class StoredReaders(Struct, frozen=True):
    """The source of what is known of groups, for one partition's log in a store or a remote tier.

    ``topic_id`` is the log's, 32 hexadecimal digits, all of them 0 where it has none.
    """

    topic_id: str
    brokers: GroupReader | None

    def waited(
        self,
        partition: PartitionRequest,
        groups: Sequence[str],
        checkpoints: Checkpoints,
        log_end: int,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return where groups go on reading, to a survey that asks for it.

        They may well have read beyond ``log_end``, which is where the copies end.
        """
        return self.of(partition.partition, groups, now_ms)

    def of(
        self, partition: TopicPartition, groups: Sequence[str], now_ms: int
    ) -> tuple[WaitedGroup, ...]:
        """Return where ``groups`` go on reading the partition."""
        if self.brokers is None:
            return not_asked(groups)
        known = bytes.fromhex(self.topic_id) if int(self.topic_id, 16) else None
        return self.brokers.waited(partition, groups, known, now_ms)

    def wait(self, partition: TopicPartition, topic: TopicConfig, now_ms: int) -> ReaderWait | None:
        """Return the groups that tombstones wait for by the settings, None without any."""
        groups = topic.tombstones_wait_for_groups
        if not groups or partition.topic in INTERNAL_TOPICS:
            return None
        return ReaderWait(self.of(partition, groups, now_ms), topic.tombstones_wait_max_ms)


SEGMENTS_MAX = 10_000
"""More are remembered only while one partition has more."""


class RemoteLook(Struct, frozen=True):
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
        """Return the bytes of replaced segments that are not collected yet."""
        return sum(orphan.segment.size_bytes for orphan in self.orphans)


class FirstTimestamps:
    """The first timestamp of each segment that was asked for, by segment id.

    ``known`` are those that a caller keeps from one opening of a store to the next.
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

    ``brokers`` report what consumer groups have committed, where that waits for groups.
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


def scan_stored_headers(
    objects: ObjectStore, state: PartitionState, now_ms: int, progressed: Callable[[int], None]
) -> LogHeaders:
    """Read the headers of what is live, as :func:`~keeplast.inspect.stages.scan_headers` does.

    Raises CorruptError, which names the object, and OSError for one that is gone.
    """
    live = tuple(state.segments[route.segment_id] for route in state.routes)
    files = RoundFiles(objects, state.partition, state.topic_id, live)
    try:
        found = scan_headers(files.path, files, now_ms, progressed)
    except CorruptError as error:
        raise files.named(error) from error
    # After them stands an empty segment that does not exist.
    bases = {each.base_offset for each in live}
    return replace(found, segments={b: s for b, s in found.segments.items() if b in bases})
