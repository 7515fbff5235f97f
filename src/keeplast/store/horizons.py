"""Finds what has expired in the clean part of a remote log, mostly without reading its segments.

A segment's filter knows the earliest delete horizon of its tombstones, and segments never change:
only one whose earliest horizon has passed, or that has markers or no filter, is asked batch by
batch, once. What a round has left although its horizon had passed is no reason for another one; see
:mod:`keeplast.survey.horizons`, whose rule this is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keeplast.errors import CorruptError
from keeplast.format.filename import LOG
from keeplast.log.files import reading
from keeplast.log.partition_log import SegmentFiles, list_partition
from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.survey.horizons import Examination, Expired, SegmentHorizons, read_horizons
from keeplast.tier.objects.filters import HEAD_BYTES, SegmentBytes, decode_head
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles, filter_file
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment

SEGMENTS_MAX = 100_000
"""More are remembered only while one partition has more."""
_NEVER: SegmentHorizons = SegmentHorizons({}, {}, 0)


class RemoteHorizons:
    """The delete horizons of the segments of a store. One partition's calls come one at a time."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._earliest: dict[str, int | None] = {}
        self._horizons: dict[str, SegmentHorizons] = {}
        self._examined: dict[TopicPartition, Examination] = {}

    def expired(self, state: PartitionState, bound: int, now: Examination) -> Expired:
        """Return what a round could remove ``now`` from the segments that begin below."""
        if len(self._horizons) + len(self._earliest) > SEGMENTS_MAX + 2 * len(state.segments):
            self._horizons.clear()
            self._earliest.clear()
        since = self._examined.get(state.partition, Examination())
        found = Expired()
        for route in state.routes:
            if route.base_offset < bound:
                horizons = self._of(state, state.segments[route.segment_id], now.at_ms)
                found += horizons.passed(since, now)
        return found

    def examined(self, partition: TopicPartition, at: Examination) -> None:
        """Note that a round has removed all that could be removed ``at`` its time."""
        self._examined[partition] = at

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
        bound = segments[-1].base_offset + 1 if segments else 0
        return self._horizons.expired(self._state, bound, now)


def _earliest(files: RoundFiles, segment: RemoteSegment) -> int | None:
    """Return the earliest horizon that a segment's filter knows; None when its batches must tell.

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
