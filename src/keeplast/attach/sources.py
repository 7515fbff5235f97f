"""Which segments of a live partition a round may compact, and why no more of them.

Pure. The rule: **a round takes from the log start on what brokers serve whole, without a hole, and
never the end**. A leader that has just been elected uploads the local segment that holds the first
offset that is not remote, and that segment may begin earlier: what it shadows must still be raw, or
deleted keys come back. tiering.md 0.4, 8.2 step 3 and I-16; attach.md section 8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.cluster.metadata_cache import PartitionCache, epoch_ranges
from keeplast.cluster.status import is_compactors
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentId

MARGIN_SEGMENTS = 2
"""The raw bytes at the end that stay, in ``segment.bytes``."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Segments that may be compacted, ascending, without a hole; ``limit`` is what ends them.

    ``end`` is exclusive, and where they begin when there are none.
    """

    segments: tuple[RemoteLogSegment, ...]
    end: int
    limit: SourcesLimit


def whole_segments(cache: PartitionCache) -> list[RemoteLogSegment]:
    """Return the segments that are served in all of their epochs and offsets, ascending."""
    ranges: dict[RemoteLogSegmentId, set[tuple[int, int, int]]] = {}
    segments: dict[RemoteLogSegmentId, RemoteLogSegment] = {}
    for each in cache.served():
        segments[each.segment.id] = each.segment
        ranges.setdefault(each.segment.id, set()).add(
            (each.epoch, each.start_offset, each.end_offset)
        )
    whole = [segment for name, segment in segments.items() if _own_ranges(segment) == ranges[name]]
    return sorted(whole, key=lambda each: each.start_offset)


def newest_whole(cache: PartitionCache) -> RemoteLogSegment | None:
    """Return the last segment that is served whole: its files tell the lineage of the log."""
    whole = whole_segments(cache)
    return whole[-1] if whole else None


def choose_sources(
    cache: PartitionCache,
    *,
    log_start: int,
    margin_bytes: int,
    lineage: Sequence[LeaderEpoch],
) -> Sources:
    """Return what may be compacted of a log that begins at ``log_start``.

    ``lineage`` is the leader epoch file of the newest segment, ``margin_bytes`` what stays raw.
    """
    whole = {each.start_offset: each for each in whole_segments(cache)}
    found: list[RemoteLogSegment] = []
    limit: SourcesLimit | None = None
    at = _first_start(whole, log_start)
    while limit is None:
        segment = whole.get(at)
        if segment is None:
            is_served = _serves(cache, at)
            limit = SourcesLimit(at, SourcesEnd.SHADOWED if is_served else SourcesEnd.HOLE)
        elif not is_in_lineage(segment, lineage):
            limit = SourcesLimit(at, SourcesEnd.OTHER_LINEAGE)
        else:
            found.append(segment)
            at = segment.end_offset + 1
    kept = _before_margin(found, margin_bytes)
    end = kept[-1].end_offset + 1 if kept else _first_start(whole, log_start)
    if len(kept) < len(found):
        limit = SourcesLimit(found[len(kept)].start_offset, SourcesEnd.MARGIN)
    return Sources(tuple(kept), end, limit)


def overlaid_from(cache: PartitionCache, outputs: Iterable[RemoteLogSegment]) -> int | None:
    """Return from where on brokers serve again what they copied themselves, None for nowhere.

    ``outputs`` were published. What overlaps one and no compactor announced came later: a leader
    that was just elected has uploaded what it still had, and that is not clean.
    """
    ends: list[int] = []
    starts: list[int] = []
    for start, end in sorted((each.start_offset, each.end_offset) for each in outputs):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)

    def overlaps(segment: RemoteLogSegment) -> bool:
        place = bisect_right(starts, segment.end_offset) - 1
        return place >= 0 and ends[place] >= segment.start_offset

    raw = {each.segment.id: each.segment for each in cache.served()}
    found = (s.start_offset for s in raw.values() if not is_compactors(s) and overlaps(s))
    return min(found, default=None)


def is_in_lineage(segment: RemoteLogSegment, lineage: Sequence[LeaderEpoch]) -> bool:
    """Return whether the log's epochs have the segment's offsets as the segment says.

    ``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``, but for the end of the log.
    """
    starts = {each.epoch: each.start_offset for each in lineage}
    epochs = sorted(starts)
    for place, (epoch, start, end) in enumerate(epoch_ranges(segment)):
        if epoch not in starts:
            return False
        if (start < starts[epoch]) if place == 0 else (start != starts[epoch]):
            return False
        later = [starts[each] for each in epochs if each > epoch]
        if later and end >= min(later):
            return False
    return True


def _own_ranges(segment: RemoteLogSegment) -> set[tuple[int, int, int]]:
    return {each for each in epoch_ranges(segment) if each[2] >= each[1]}


def _first_start(whole: dict[int, RemoteLogSegment], log_start: int) -> int:
    """Return where the first segment begins of which nothing lies below ``log_start``.

    One that begins below it stays as it is: DeleteRecords has cut the log's epochs at the log
    start, so that brokers, and newer epoch files, count it out of the lineage.
    """
    cut = (
        each.end_offset + 1
        for each in whole.values()
        if each.start_offset < log_start <= each.end_offset
    )
    return next(cut, log_start)


def _serves(cache: PartitionCache, offset: int) -> bool:
    return any(each.start_offset <= offset <= each.end_offset for each in cache.served())


def _before_margin(
    segments: Sequence[RemoteLogSegment], margin_bytes: int
) -> Sequence[RemoteLogSegment]:
    """Return ``segments`` without the last one, and without the raw bytes that have to stay."""
    left = 0
    for count in range(len(segments), 0, -1):
        if left >= margin_bytes and count < len(segments):
            return segments[:count]
        segment = segments[count - 1]
        left += 0 if is_compactors(segment) else segment.size_bytes
    return ()
