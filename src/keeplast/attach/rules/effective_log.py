"""Which object a broker reads each offset of the remote tier from, in the order of the log.

Pure. The rule: **an offset is read in the leader epoch that the log gives it**, from the segment
that the brokers' fold names there. Who reads a segment gets it to its end, also where another one
serves these offsets: of such a range it depends on the reader which copy he sees.
Answers to ``RemoteLogManager.read`` and ``LeaderEpochFileCache``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentId
from keeplast.model.offsets import INT64_MAX

Range = tuple[int, int]
"""First and last offset, both inclusive."""


@dataclass(frozen=True, slots=True)
class EffectiveRange:
    """Offsets, both inclusive, that are read from ``segment``."""

    start: int
    end: int
    segment: RemoteLogSegment


@dataclass(frozen=True, slots=True)
class EffectiveLog:
    """The log from its start to the end of the remote tier: ranges ascend and do not overlap.

    ``holes`` are read from nowhere; of ``doubtful`` ranges a reader may be given either of two
    segments.
    """

    ranges: tuple[EffectiveRange, ...]
    holes: tuple[Range, ...]
    doubtful: tuple[Range, ...]

    @property
    def segments(self) -> tuple[RemoteLogSegment, ...]:
        """Return what is read, each segment once, ascending."""
        found = {each.segment.id: each.segment for each in self.ranges}
        return tuple(found.values())

    @property
    def bytes(self) -> int:
        """Return the sizes of :attr:`segments`."""
        return sum(each.size_bytes for each in self.segments)

    def unread(
        self, segments: Iterable[RemoteLogSegment], log_start: int
    ) -> Iterator[tuple[RemoteLogSegment, int, int]]:
        """Yield what nobody reads from each of ``segments``: its first and last offset, inclusive.

        Who reads from ``log_start`` on gets all of the segment that this lies within.
        """
        read: dict[RemoteLogSegmentId, list[EffectiveRange]] = {}
        for each in self.ranges:
            read.setdefault(each.segment.id, []).append(each)
        for segment in segments:
            at = segment.start_offset
            for each in read.get(segment.id, ()):
                if at < each.start != log_start:
                    yield segment, at, each.start - 1
                at = each.end + 1
            if at <= segment.end_offset:
                yield segment, at, segment.end_offset


def effective_log(
    cache: PartitionCache, lineage: Iterable[LeaderEpoch], log_start: int
) -> EffectiveLog:
    """Return what is read from ``log_start`` on; ``lineage`` is the epochs' file of the log."""
    found: list[EffectiveRange] = []
    epochs = sorted((each.epoch, each.start_offset) for each in lineage)
    ends = {epoch: INT64_MAX for epoch, _ in epochs}
    ends |= {before[0]: after[1] - 1 for before, after in pairwise(epochs)}
    # What a broker wrote before its first epoch counts as that one's.
    starts = {epoch: start if place else 0 for place, (epoch, start) in enumerate(epochs)}
    for each in cache.served():
        if each.epoch not in starts:
            continue
        start = max(each.start_offset, starts[each.epoch], log_start)
        end = min(each.end_offset, ends[each.epoch])
        if start <= end:
            found.append(EffectiveRange(start, end, each.segment))
    found.sort(key=lambda each: each.start)
    ranges = _joined(found)
    holes = _holes(ranges, log_start) if ranges else []
    holes += [each for each in cache.holes(log_start) if each not in holes]
    doubtful = [
        (each.end + 1, each.segment.end_offset)
        for each in ranges
        if each.segment.end_offset > each.end
    ]
    return EffectiveLog(ranges, tuple(sorted(holes)), tuple(doubtful))


def synthetic_lineage(cache: PartitionCache) -> list[LeaderEpoch]:
    """Return epochs by where segments say that they begin, for want of the log's own file."""
    starts: dict[int, int] = {}
    for segment in cache.segments:
        for each in segment.epochs:
            starts[each.epoch] = min(each.start_offset, starts.get(each.epoch, each.start_offset))
    return [LeaderEpoch(epoch, starts[epoch]) for epoch in sorted(starts)]


def _joined(ranges: Sequence[EffectiveRange]) -> tuple[EffectiveRange, ...]:
    """Return ranges with those of one segment that touch as one."""
    joined: list[EffectiveRange] = []
    for each in ranges:
        last = joined[-1] if joined else None
        if last is not None and last.segment.id == each.segment.id and last.end + 1 == each.start:
            joined[-1] = EffectiveRange(last.start, each.end, last.segment)
        else:
            joined.append(each)
    return tuple(joined)


def _holes(ranges: Sequence[EffectiveRange], log_start: int) -> list[Range]:
    found: list[Range] = []
    at = log_start
    for each in ranges:
        if each.start > at:
            found.append((at, each.start - 1))
        at = each.end + 1
    return found
