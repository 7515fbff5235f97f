"""Copies that an overtaken leader finishes late, over what others have copied or compacted since.

Pure. A leader announces a copy before its first byte and says when it is whole. Nothing calls it
back when another leader is elected. It may be finished long after the next leader has copied the
same offsets in other pieces, and after a round has put those together. Brokers then serve the late
copy from where it begins, and above its end whatever begins next. Where that lies beyond the end of
one segment, they serve **nothing**, up to there. Without keeplast there was another piece to begin;
so:

* **no output goes past the end of a copy that is begun, from where that begins or before**: pieces
  are put together up to such a place and from it on, as long as the copy may be finished;
* a copy that came all the same, within a segment that is whole, is passed over by the next round:
  that reads the segment, and ends both;
* brokers may serve only a later epoch of a segment of several, because something else has the
  place where it begins. The next round reads it from its beginning and ends both, too.

One epoch's offsets are the same records wherever they were copied: that is what an epoch is. So a
copy has nothing of its own when another segment has every epoch's offsets of it. Source: tiering.md
1.2, 1.3 and 4; docs/contributing/decisions/0032, 0034.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set

from msgspec import Struct

from keeplast.cluster.metadata_cache import (
    EpochRange,
    PartitionCache,
    ServedRange,
    epoch_ranges,
    is_compactors,
    is_in_one_piece,
)
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
)

COPY_MS = 7 * 24 * 60 * 60 * 1000
"""How long a copy that was begun may still finish: brokers that end leave word of it."""
PIECES_MAX = 8
"""Segments that are tried one by one; each try is a copy of what brokers know. The later ones wait
for the next round.
"""
_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def begun_copies(cache: PartitionCache, now_ms: int) -> tuple[RemoteLogSegment, ...]:
    """Return brokers' copies that may be finished yet, by start offset."""
    return tuple(
        each
        for each in cache.segments
        if each.state is _STARTED
        and not is_compactors(each)
        and each.event_timestamp_ms + COPY_MS > now_ms
    )


def newest_start(copy: RemoteLogSegment) -> int:
    """Return where a copy begins in its newest epoch: what brokers find by its end begins there."""
    *_, (_, start, _) = epoch_ranges(copy)
    return start


def goes_past(start: int, end: int, copy: RemoteLogSegment) -> bool:
    """Say whether offsets ``start`` to ``end``, as one segment, would be hidden above ``copy``."""
    return start <= newest_start(copy) and copy.end_offset < end


def again(segment: RemoteLogSegment) -> RemoteLogSegmentUpdate:
    """Return the update that says once more that ``segment`` is whole, in its own name."""
    return _moved(segment, _FINISHED)


class LateCopy(Struct, frozen=True):
    """A ``copy`` that is served, and has no offset that ``within`` has not."""

    copy: RemoteLogSegment
    within: RemoteLogSegment


def late_copies(cache: PartitionCache) -> tuple[LateCopy, ...]:
    """Return brokers' copies that lie within a longer segment and are served in its place.

    A leader that knows what was copied ends above all of it: these were begun before. They take
    away, for good, a part of the longer one, or what lies between them and its end.
    """
    found: list[LateCopy] = []
    longest: RemoteLogSegment | None = None
    served = cache.served_segments().values()
    for each in sorted(served, key=lambda each: (each.start_offset, -each.end_offset)):
        if longest is None or each.end_offset >= longest.end_offset:
            longest = each
        elif not is_compactors(each) and _has_all_of(longest, each):
            found.append(LateCopy(each, longest))
    return tuple(found)


def without(
    cache: PartitionCache, late: Sequence[LateCopy]
) -> tuple[PartitionCache, list[LateCopy]]:
    """Return what brokers would serve had ``late`` never been finished; ``cache`` stays as it is.

    And those of ``late`` that this holds of. All of them, if then no other segment would be served
    in another part, and no hole would open. Else those within one longer segment at a time: nothing
    is concluded where more than these have come between.
    """
    if not late:
        return cache, []
    found = _tried_without(cache, late)
    if found is not None:
        return found, list(late)
    groups: dict[RemoteLogSegmentId, list[LateCopy]] = {}
    for each in late:
        groups.setdefault(each.within.id, []).append(each)
    if len(groups) == 1:
        return cache, []
    passed: list[LateCopy] = []
    for group in list(groups.values())[:PIECES_MAX]:
        found = _tried_without(cache, group)
        if found is not None:
            cache = found
            passed += group
    return cache, passed


def _tried_without(cache: PartitionCache, late: Sequence[LateCopy]) -> PartitionCache | None:
    tried = cache.copy()
    longer = {each.within.id: each.within for each in late}
    for segment in sorted(longer.values(), key=lambda each: each.start_offset, reverse=True):
        _finish_again(tried, segment)
    for each in late:
        tried.apply(_moved(each.copy, _DELETING))
    ids = {each.copy.id for each in late} | set(longer)
    is_alike = _others(tried, ids) == _others(cache, ids) and not opened(cache, tried, 0)
    return tried if is_alike else None


def pieced_together(
    cache: PartitionCache, only: Set[RemoteLogSegmentId] | None = None
) -> tuple[PartitionCache, list[LateCopy]]:
    """Return what brokers would serve had what they serve in pieces been finished last.

    And what they would serve nothing of then, with what they would serve in its place. Brokers keep
    a table for each leader epoch. A segment that is finished later takes the beginning of another
    away, or its middle, and leaves it an epoch. Nothing is concluded of a segment when less would
    be served by it, or when one that begins before it would lose more than its end. ``only`` these
    are tried. ``cache`` stays as it is.
    """
    covered: list[LateCopy] = []
    passed = (-1, -1)
    served = cache.served_by_segment()
    for _ in range(PIECES_MAX):
        # A later beginning takes the end of what begins before it, so that it comes after it.
        pieces = [
            ranges[0].segment
            for name, ranges in served.items()
            if not is_in_one_piece(ranges)
            and (only is None or name in only)
            and _bounds(ranges[0].segment) > passed
        ]
        if not pieces:
            break
        piece = min(pieces, key=_bounds)
        passed = _bounds(piece)
        tried = cache.copy()
        behind = _finish_again(tried, piece)
        lost = [ranges[0].segment for name, ranges in served.items() if name not in behind]
        if (
            piece.id in behind
            and is_in_one_piece(behind[piece.id])
            and all(_has_all_of(piece, each) for each in lost)
            and _has_extents_of(tried, cache)
            and all(
                served.get(name) == ranges
                or _bounds(ranges[0].segment) > passed
                or is_in_one_piece(ranges)
                for name, ranges in behind.items()
            )
        ):
            covered += [LateCopy(each, piece) for each in lost]
            cache, served = tried, behind
    return cache, covered


def closable_holes(cache: PartitionCache, log_start: int) -> list[tuple[int, int]]:
    """Return the holes, first and last offset inclusive, that only late copies have left.

    Their records are whole in the longer segments; a round that takes those has them served again.
    """
    holes = cache.holes(log_start)
    if not holes:
        return []
    late = [each for each in late_copies(cache) if each.within.start_offset >= log_start]
    left = without(cache, late)[0].holes(log_start)
    return [
        (first, last)
        for first, last in holes
        if not any(start <= last and first <= end for start, end in left)
    ]


def opened(before: PartitionCache, after: PartitionCache, log_start: int) -> list[tuple[int, int]]:
    """Return the holes of ``after`` that are no part of one of ``before``."""
    had = before.holes(log_start)
    return [
        (first, last)
        for first, last in after.holes(log_start)
        if not any(start <= first and last <= end for start, end in had)
    ]


def _bounds(segment: RemoteLogSegment) -> tuple[int, int]:
    return segment.start_offset, segment.end_offset


def _others(cache: PartitionCache, ids: Set[RemoteLogSegmentId]) -> list[ServedRange]:
    return [each for each in cache.served() if each.segment.id not in ids]


def _finish_again(
    cache: PartitionCache, segment: RemoteLogSegment
) -> dict[RemoteLogSegmentId, list[ServedRange]]:
    """Finish ``segment`` again, and whatever loses more by that than a later end, in their order.

    A segment that ``segment`` has all offsets of loses everything. Return what is served then.
    """
    before = cache.served_by_segment()
    cache.apply(again(segment))
    served = cache.served_by_segment()
    for each in sorted((ranges[0].segment for ranges in before.values()), key=_bounds):
        if _bounds(each) <= _bounds(segment) or _has_all_of(segment, each):
            continue
        now = served.get(each.id)
        if now is None or (now != before[each.id] and not is_in_one_piece(now)):
            cache.apply(again(each))
            served = cache.served_by_segment()
    return served


def _has_extents_of(cache: PartitionCache, other: PartitionCache) -> bool:
    """Say whether all is served that ``other`` serves, by epoch, from whatever segment."""
    extents = _extents(cache)
    firsts = [each[:2] for each in extents]
    for epoch, first, last in _extents(other):
        place = bisect_right(firsts, (epoch, first)) - 1
        if place < 0 or extents[place][0] != epoch or extents[place][2] < last:
            return False
    return True


def _extents(cache: PartitionCache) -> list[EpochRange]:
    """Return what is served by epoch, from whatever segment, ascending; ranges do not touch."""
    found: list[EpochRange] = []
    for each in cache.served():
        if found and found[-1][0] == each.epoch and found[-1][2] + 1 == each.start_offset:
            found[-1] = (each.epoch, found[-1][1], each.end_offset)
        else:
            found.append((each.epoch, each.start_offset, each.end_offset))
    return found


def _has_all_of(outer: RemoteLogSegment, inner: RemoteLogSegment) -> bool:
    """Say whether ``outer`` has what ``inner`` has, epoch by epoch."""
    has = {epoch: (start, end) for epoch, start, end in epoch_ranges(outer)}
    return all(
        epoch in has and has[epoch][0] <= start and end <= has[epoch][1]
        for epoch, start, end in epoch_ranges(inner)
    )


def _moved(segment: RemoteLogSegment, state: RemoteLogSegmentState) -> RemoteLogSegmentUpdate:
    return RemoteLogSegmentUpdate(
        id=segment.id, broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms,
        custom_metadata=segment.custom_metadata, state=state,
    )  # fmt: skip
