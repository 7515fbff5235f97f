"""A broker's fold of ``__remote_log_metadata``: which segments it serves, and which it hides.

The rule: **this is the brokers' own cache, defects included**. A segment counts because a broker
would find it, not because it ought to. What a broker logs and drops is dropped here too and
reported; what ends a broker's reader for good is a :class:`~keeplast.errors.CorruptError`.

For each leader epoch a broker keeps start offset -> segment. A segment that is finished takes the
place of what starts at the same offset, and of those at the end that do not reach beyond it. It
does not take away what starts later and reaches as far as it does. So a merge in the middle of a
log hides its first source only, until the others are deleted (KAFKA-20932).

Answers to ``RemoteLogMetadataCache``, ``RemoteLogLeaderEpochState`` and
``RemoteLogSegmentState.isValidTransition`` of 3.9 and 4.3; tiering.md section 1.

A tiered partition's state is the segments that brokers serve, hide, and wait for. The rule: **this
is what brokers say of their remote tier**, from the metadata topic and the log's offsets alone; no
object is looked at.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cluster.live_cluster import OffsetRange, TopicFacts
from keeplast.errors import CorruptError
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDelete,
    TopicIdPartition,
)

RULES = 1
"""Raised with every change of what a record does here: what an older fold concluded is not gone on
with then."""
_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_NEXT_STATES = {
    None: {_STARTED},
    _STARTED: {_STARTED, _FINISHED, _DELETING},
    _FINISHED: {_FINISHED, _DELETING},
    _DELETING: {_DELETING, _DELETED},
}


EpochRange = tuple[int, int, int]
"""A leader epoch, and its first and last offset, inclusive, in one segment."""


class ServedRange(Struct, frozen=True):
    """Offsets, both inclusive, that a broker reads from ``segment`` in ``epoch``."""

    epoch: int
    start_offset: int
    end_offset: int
    segment: RemoteLogSegment


class _EpochMap(Struct):
    """Start offset -> segment of one leader epoch; ``starts`` ascend."""

    starts: list[int] = field(default_factory=list)
    segments: dict[int, RemoteLogSegmentId] = field(default_factory=dict)
    highest: int = -1

    def put(self, start: int, end: int, name: RemoteLogSegmentId) -> None:
        """Let ``name`` serve from ``start`` on, and take away what it covers at the end."""
        while self.starts and self.starts[-1] >= start and self.highest <= end:
            del self.segments[self.starts.pop()]
        if start not in self.segments:
            insort(self.starts, start)
        self.segments[start] = name
        self.highest = max(self.highest, end)

    def remove(self, start: int, name: RemoteLogSegmentId) -> None:
        """Take ``name`` away, unless something else serves from ``start`` on."""
        if self.segments.get(start) == name:
            del self.segments[start]
            del self.starts[bisect_left(self.starts, start)]

    def floor(self, offset: int) -> RemoteLogSegmentId | None:
        """Return what serves from at most ``offset`` on."""
        place = bisect_right(self.starts, offset)
        return self.segments[self.starts[place - 1]] if place else None


class CacheState(Struct, frozen=True):
    """All that is known of one partition, as plain values.

    ``segments`` stand in the order in which they were announced. Of each of ``epochs``: its number,
    the highest offset that ever served in it, start offsets that ascend, what serves from each on.
    """

    segments: list[RemoteLogSegment]
    epochs: list[tuple[int, int, list[int], list[RemoteLogSegmentId]]]


class PartitionCache:
    """What a broker knows of one partition's remote log."""

    def __init__(self) -> None:
        self._segments: dict[RemoteLogSegmentId, RemoteLogSegment] = {}
        self._epochs: dict[int, _EpochMap] = {}

    def copy(self, *events: RemoteLogSegment | RemoteLogSegmentUpdate) -> PartitionCache:
        """Return one that takes further events by itself, and has taken ``events``."""
        made = PartitionCache()
        made._segments = dict(self._segments)
        made._epochs = {
            epoch: _EpochMap(list(each.starts), dict(each.segments), each.highest)
            for epoch, each in self._epochs.items()
        }
        for event in events:
            made.apply(event)
        return made

    @property
    def highest(self) -> int:
        """Return the highest offset that ever was served, -1 for none: brokers copy none below."""
        return max((each.highest for each in self._epochs.values()), default=-1)

    def state(self) -> CacheState:
        """Return all that is known; :meth:`of_state` goes on from it as this does."""
        return CacheState(
            list(self._segments.values()),
            [
                (epoch, each.highest, each.starts, [each.segments[at] for at in each.starts])
                for epoch, each in self._epochs.items()
            ],
        )

    @classmethod
    def of_state(cls, state: CacheState) -> PartitionCache:
        """Return a cache that knows ``state`` and nothing else."""
        made = cls()
        made._segments = {each.id: each for each in state.segments}
        made._epochs = {
            epoch: _EpochMap(list(starts), dict(zip(starts, names, strict=True)), highest)
            for epoch, highest, starts, names in state.epochs
        }
        return made

    def find(self, name: RemoteLogSegmentId) -> RemoteLogSegment | None:
        """Return a segment whose deletion has not ended, as it stands."""
        return self._segments.get(name)

    @property
    def segment_count(self) -> int:
        """Return how many segments there are whose deletion has not ended."""
        return len(self._segments)

    @property
    def segments(self) -> list[RemoteLogSegment]:
        """Return every segment whose deletion has not ended, by start offset."""
        return sorted(self._segments.values(), key=lambda each: each.start_offset)

    def apply(self, event: RemoteLogSegment | RemoteLogSegmentUpdate) -> str | None:
        """Take ``event`` in; return why a broker drops it, None when it does not.

        CorruptError when the event ends the broker's reader.
        """
        known = self._segments.get(event.id)
        if isinstance(event, RemoteLogSegment):
            if event.state is not _STARTED:
                raise _poison("a segment is announced in another state than the first", event.state)
            if event.state not in _NEXT_STATES[None if known is None else known.state]:
                return f"{_name(event.id)} is announced again"
            self._segments[event.id] = event
            return None
        if known is None:
            return f"{_name(event.id)} is not known"
        if event.state not in _NEXT_STATES[known.state]:
            return f"{_name(event.id)} goes from {known.state.name} to {event.state.name}"
        if event.state is _STARTED:
            raise _poison("a segment is updated to the first state", event.state)
        self._move(
            replace(
                known,
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_timestamp_ms,
                custom_metadata=event.custom_metadata,
                state=event.state,
            )
        )
        return None

    def lookup(self, epoch: int, offset: int) -> RemoteLogSegment | None:
        """Return the segment that a broker reads ``offset`` from in ``epoch``, None for a hole."""
        entries = self._epochs.get(epoch)
        name = None if entries is None else entries.floor(offset)
        if name is None:
            return None
        segment = self._segments[name]
        return segment if offset <= _end_in(segment, epoch) else None

    def served(self) -> list[ServedRange]:
        """Return what is read from which segment, by epoch and offset; ranges do not overlap."""
        return [each for epoch in sorted(self._epochs) for each in self._served_in(epoch)]

    def served_segments(self) -> dict[RemoteLogSegmentId, RemoteLogSegment]:
        """Return the segments that are read, each once, by id, in the order of :meth:`served`."""
        return {each.segment.id: each.segment for each in self.served()}

    def served_by_segment(self) -> dict[RemoteLogSegmentId, list[ServedRange]]:
        """Return what is read from each segment that is read, by epoch."""
        found: dict[RemoteLogSegmentId, list[ServedRange]] = {}
        for each in self.served():
            found.setdefault(each.segment.id, []).append(each)
        return found

    def holes(self, log_start_offset: int) -> list[tuple[int, int]]:
        """Return offsets, first and last inclusive, that nothing serves though it should.

        They lie from ``log_start_offset`` on and before the last segment that is copied whole.
        """
        found: list[tuple[int, int]] = []
        expected = log_start_offset
        for each in sorted(self.served(), key=lambda each: each.start_offset):
            if each.start_offset > expected:
                found.append((expected, each.start_offset - 1))
            expected = max(expected, each.end_offset + 1)
        ends = [each.end_offset for each in self._segments.values() if each.state is not _STARTED]
        if ends and max(ends) >= expected:
            found.append((expected, max(ends)))
        return found

    def _served_in(self, epoch: int) -> Iterator[ServedRange]:
        entries = self._epochs[epoch]
        for place, start in enumerate(entries.starts):
            segment = self._segments[entries.segments[start]]
            end = _end_in(segment, epoch)
            if place + 1 < len(entries.starts):
                end = min(end, entries.starts[place + 1] - 1)
            if end >= start:
                yield ServedRange(epoch, start, end, segment)

    def _move(self, segment: RemoteLogSegment) -> None:
        for epoch, start, end in epoch_ranges(segment):
            entries = self._epochs.setdefault(epoch, _EpochMap())
            if segment.state is _FINISHED:
                entries.put(start, end, segment.id)
            elif segment.state is _DELETING:
                entries.remove(start, segment.id)
        if segment.state is _DELETED:
            del self._segments[segment.id]
        else:
            self._segments[segment.id] = segment


class ClusterCache:
    """What brokers know of every partition that some partitions of the metadata topic name."""

    def __init__(self) -> None:
        self.partitions: dict[TopicIdPartition, PartitionCache] = {}

    def copy(self) -> ClusterCache:
        """Return one that takes further events by itself."""
        made = ClusterCache()
        made.partitions = {name: each.copy() for name, each in self.partitions.items()}
        return made

    def apply(self, event: RemoteLogEvent) -> str | None:
        """Take ``event`` in; return why a broker drops it, None when it does not.

        CorruptError when it ends the broker's reader, or when what follows it would.
        """
        if isinstance(event, RemotePartitionDelete):
            raise _poison("a partition's whole remote log is deleted", event.state)
        return self.partitions.setdefault(event.id.partition, PartitionCache()).apply(event)


def epoch_ranges(segment: RemoteLogSegment) -> Iterator[EpochRange]:
    """Yield epoch, first and last offset (inclusive) of each epoch of ``segment``, ascending."""
    epochs = sorted((each.epoch, each.start_offset) for each in segment.epochs)
    for place, (epoch, start) in enumerate(epochs):
        is_last = place + 1 == len(epochs)
        yield epoch, start, segment.end_offset if is_last else epochs[place + 1][1] - 1


def is_in_one_piece(served: Sequence[ServedRange]) -> bool:
    """Say whether what is ``served`` of a segment, by epoch, is its beginning without a gap."""
    first = served[0]
    if len(served) == 1 and len(first.segment.epochs) == 1:
        return first.start_offset == first.segment.epochs[0].start_offset
    last = served[-1].end_offset
    cut = ((epoch, start, min(end, last)) for epoch, start, end in epoch_ranges(first.segment))
    return [(each.epoch, each.start_offset, each.end_offset) for each in served] == [
        each for each in cut if each[1] <= each[2]
    ]


def _end_in(segment: RemoteLogSegment, epoch: int) -> int:
    """Return the last offset that ``segment`` has of one of its epochs."""
    if len(segment.epochs) == 1:
        return segment.end_offset
    return next(end for at, _, end in epoch_ranges(segment) if at == epoch)


def _poison(problem: str, state: object) -> CorruptError:
    return CorruptError(
        f"{problem}: brokers that read it stop reading",
        expected="what a broker writes",
        found=getattr(state, "name", state),
        code="K442",
    )


def _name(name: RemoteLogSegmentId) -> str:
    return f"segment {encode_id(name.segment_id)}"


COMPACTOR_BROKER_MAX = -1
"""Announcements of a compactor carry a negative broker; brokers' own numbers begin at 0."""


class SegmentSum(Struct, frozen=True):
    """How many segments of one kind there are, and their bytes."""

    count: int
    bytes: int


class RemotePartitionStatus(Struct, frozen=True, kw_only=True):
    """One partition. Offsets of ``log`` as of :class:`OffsetRange`; others are inclusive.

    ``served`` is read by clients, ``hidden`` is whole and not read, ``copying`` was announced and
    not finished, ``deleting`` waits for its objects to go. ``holes`` are offsets that nothing
    serves: a reader of them is sent elsewhere, or stops. ``remote_start`` and ``remote_end`` are
    None while nothing is served.
    """

    topic: str
    topic_id: str
    partition: int
    log: OffsetRange
    remote_start: int | None
    remote_end: int | None
    served: SegmentSum
    hidden: SegmentSum
    copying: SegmentSum
    deleting: SegmentSum
    holes: tuple[tuple[int, int], ...]
    compacted: SegmentSum
    """Of those that are served, the ones that a compactor announced."""


def partition_status(
    topic: TopicFacts, partition: int, log: OffsetRange, cache: PartitionCache | None
) -> RemotePartitionStatus:
    """Return what stands of one partition; ``cache`` is None when nothing was ever announced."""
    known = PartitionCache() if cache is None else cache
    ranges = known.served()
    served = {each.segment.id: each.segment for each in ranges}
    by_state: dict[RemoteLogSegmentState, list[RemoteLogSegment]] = defaultdict(list)
    for each in known.segments:
        by_state[each.state].append(each)
    finished = by_state[RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    return RemotePartitionStatus(
        topic=topic.name,
        topic_id=encode_id(topic.topic_id),
        partition=partition,
        log=log,
        remote_start=min((each.start_offset for each in ranges), default=None),
        remote_end=max((each.end_offset for each in ranges), default=None),
        served=_sum(served.values()),
        hidden=_sum(each for each in finished if each.id not in served),
        copying=_sum(by_state[RemoteLogSegmentState.COPY_SEGMENT_STARTED]),
        deleting=_sum(by_state[RemoteLogSegmentState.DELETE_SEGMENT_STARTED]),
        holes=tuple(known.holes(log.start)),
        compacted=_sum(each for each in served.values() if is_compactors(each)),
    )


def is_compactors(segment: RemoteLogSegment) -> bool:
    """Return whether a compactor announced ``segment``, and no broker."""
    return segment.broker_id <= COMPACTOR_BROKER_MAX


def name_of(topic: TopicFacts, partition: int) -> TopicIdPartition:
    """Return the name of a partition in the metadata topic."""
    return TopicIdPartition(topic.name, topic.topic_id, partition)


def _sum(segments: Iterable[RemoteLogSegment]) -> SegmentSum:
    sizes = [each.size_bytes for each in segments]
    return SegmentSum(len(sizes), sum(sizes))
