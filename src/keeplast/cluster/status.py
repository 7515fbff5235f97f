"""What stands of a tiered partition in a live cluster: what brokers serve, hide, and wait for.

The rule: **this is what brokers say of their remote tier**, from the metadata topic and the log's
offsets alone; no object is looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from keeplast.cluster.facts import OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentState,
    TopicIdPartition,
)

COMPACTOR_BROKER_MAX = -1
"""Announcements of a compactor carry a negative broker; brokers' own numbers begin at 0."""


@dataclass(frozen=True, slots=True)
class SegmentSum:
    """How many segments of one kind there are, and their bytes."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionStatus:
    """One partition. Offsets of ``log`` as of :class:`OffsetRange`; others are inclusive.

    ``served`` is read by clients, ``hidden`` is whole and not read, ``copying`` was announced and
    not finished, ``deleting`` waits for its objects to go. ``holes`` are offsets that nothing
    serves: who reads them is sent elsewhere, or stops. ``remote_start`` and ``remote_end`` are None
    while nothing is served.
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
