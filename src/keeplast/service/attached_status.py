"""What is known of an attached partition: served and hidden segments, and the decisions about it.

It is joined from the fold of the metadata topic and, where there is one, the decision log. No
object is looked at, nothing is claimed and nothing is a reason to delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.cluster.live_cluster import ClusterFacts, OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import (
    PartitionCache,
    RemotePartitionStatus,
    is_compactors,
    partition_status,
)
from keeplast.config.precedence import Settings
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentState
from keeplast.model.hold import GroupReader, ReaderWait
from keeplast.model.partition import TopicPartition
from keeplast.store.look import StoredReaders
from keeplast.tier.state.attached import Attached, Decision, DecisionState


class SegmentUse(StrEnum):
    """What brokers do with a segment of the remote tier."""

    SERVED = "served"
    HIDDEN = "hidden"
    COPYING = "copying"
    DELETING = "deleting"


_USES = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: SegmentUse.COPYING,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: SegmentUse.HIDDEN,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: SegmentUse.DELETING,
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: SegmentUse.DELETING,
}


class AttachedSegment(Struct, frozen=True):
    """A segment of the remote tier: offsets ``[start, end)``, of a served one those that it serves.

    ``is_compacted`` says that a compactor announced it.
    """

    use: SegmentUse
    start: int
    end: int
    size_bytes: int
    largest_ms: int | None
    is_compacted: bool


class WaitingSources(Struct, frozen=True):
    """Segments that were replaced at ``published_ms``; None while brokers have not heard of it."""

    decision: str
    state: DecisionState
    segments: int
    size_bytes: int
    published_ms: int | None


class AttachedStatus(Struct, frozen=True):
    """One partition; ``attached`` is None where it is not attached, or no decision log was asked.

    ``served`` ascend by offset; ``others`` are whole and not read, or on their way in or out.
    ``readers`` are those that tombstones wait for.
    """

    partition: TopicPartition
    remote: RemotePartitionStatus
    served: tuple[AttachedSegment, ...]
    others: tuple[AttachedSegment, ...]
    attached: Attached | None = None
    waiting: tuple[WaitingSources, ...] = ()
    readers: ReaderWait | None = None

    @property
    def is_attached(self) -> bool:
        """Say whether rounds are done for it."""
        return self.attached is not None and self.attached.detached_ms is None

    @property
    def cleaned_to(self) -> int:
        """Return the first offset that is not clean: the log's start where it is not attached."""
        start = self.remote.log.start
        return start if self.attached is None else max(self.attached.cleaned_to, start)

    @property
    def size_bytes(self) -> int:
        """Return the bytes that are served."""
        return sum(each.size_bytes for each in self.served)

    @property
    def dirty_bytes(self) -> int:
        """Return the bytes of segments that end above the first offset that is not clean."""
        return sum(each.size_bytes for each in self.served if each.end > self.cleaned_to)

    @property
    def ratio(self) -> float:
        """Return which part of what is served is dirty; a round may be able to take less."""
        return self.dirty_bytes / self.size_bytes if self.size_bytes else 0.0


def attached_status(
    topic: TopicFacts,
    number: int,
    log: OffsetRange,
    cache: PartitionCache | None,
    attached: Attached | None = None,
    decisions: Sequence[Decision] = (),
    readers: ReaderWait | None = None,
) -> AttachedStatus:
    """Return what is known of one partition; ``cache`` is None when nothing was announced.

    ``decisions`` are those of it whose sources are not all gone.
    """
    known = PartitionCache() if cache is None else cache
    ranges: dict[bytes, tuple[int, int]] = {}
    for each in known.served():
        name = each.segment.id.segment_id
        start, end = ranges.get(name, (each.start_offset, each.end_offset))
        ranges[name] = (min(start, each.start_offset), max(end, each.end_offset))
    served = [
        _segment(each, SegmentUse.SERVED, *ranges[each.id.segment_id])
        for each in known.segments
        if each.id.segment_id in ranges
    ]
    others = [
        _segment(each, _USES[each.state], each.start_offset, each.end_offset)
        for each in known.segments
        if each.id.segment_id not in ranges
    ]
    return AttachedStatus(
        TopicPartition(topic.name, number),
        partition_status(topic, number, log, cache),
        tuple(sorted(served, key=lambda each: each.start)),
        tuple(others),
        attached,
        tuple(
            WaitingSources(
                each.id, each.state, len(each.sources), sum(s.size_bytes for s in each.sources),
                each.published_ms,
            )
            for each in decisions
            if each.state is not DecisionState.COLLECTED
        ),
        readers,
    )  # fmt: skip


def holes_words(status: AttachedStatus) -> list[str]:
    """Return what nothing serves of an attached partition, a sentence each."""
    return [
        f"nothing serves offsets {first} to {last}; who reads them is sent elsewhere, or stops"
        for first, last in status.remote.holes
    ]


def waits_of(
    groups: GroupReader, facts: ClusterFacts, settings: Settings, clock: Clock
) -> dict[TopicPartition, ReaderWait]:
    """Return whom tombstones wait for in each partition of tiered topics that waits."""
    found = {}
    for topic in facts.topics:
        config = settings.topic_config(topic.name)
        readers = StoredReaders(topic.topic_id.hex(), groups)
        for number in range(topic.partition_count):
            partition = TopicPartition(topic.name, number)
            wait = readers.wait(partition, config, clock.now_ms()) if config.is_compacted else None
            if wait is not None:
                found[partition] = wait
    return found


def _segment(found: RemoteLogSegment, use: SegmentUse, first: int, last: int) -> AttachedSegment:
    largest = found.max_timestamp_ms
    return AttachedSegment(
        use, first, last + 1, found.size_bytes, None if largest < 0 else largest,
        is_compactors(found),
    )  # fmt: skip
