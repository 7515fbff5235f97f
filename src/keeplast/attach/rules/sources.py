"""Which object brokers read each offset from, and which of them a round may compact.

Pure. The first rule: **an offset is read in the leader epoch that the log gives it**, from the
segment that the brokers' fold names there. Offsets are in the order of the log. A reader of a
segment gets it to its end, also where another one serves these offsets. In such a range it depends
on the reader which copy it sees. Answers to ``RemoteLogManager.read`` and ``LeaderEpochFileCache``.

The second rule: **a round takes from the log start on what brokers serve, without a hole, and never
the end**. A newly elected leader uploads the local segment that holds the first offset that is not
remote, and that segment may begin earlier. The segments that it lies over are taken together with
it, up to where it begins. Two outputs could not take their places without a hole between them.
tiering.md 0.4, 8.2 step 3, I-16 and R-4; attach.md section 8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from keeplast.attach.rules.swap import merged_epochs
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.cluster.late_copies import (
    begun_copies,
    goes_past,
    late_copies,
    pieced_together,
    without,
)
from keeplast.cluster.metadata_cache import (
    PartitionCache,
    epoch_ranges,
    is_compactors,
    is_in_one_piece,
)
from keeplast.format import offset_index, time_index
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from keeplast.model.partition import INT32_MAX, INT64_MAX, SegmentSummary

Range = tuple[int, int]
"""First and last offset, both inclusive."""


class EffectiveRange(Struct, frozen=True):
    """Offsets, both inclusive, that are read from ``segment``."""

    start: int
    end: int
    segment: RemoteLogSegment


class EffectiveLog(Struct, frozen=True):
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
        """Yield the unread offsets of each of ``segments``: its first and last offset, inclusive.

        A reader from ``log_start`` on gets all of the segment that this lies within.
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
    return [LeaderEpoch(each.epoch, each.start_offset) for each in merged_epochs(cache.segments)]


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


MARGIN_SEGMENTS = 2
"""The raw bytes at the end that stay, in ``segment.bytes``."""
PARTS_MAX = 50
"""Segments that become one because each lies over the end of the one before."""


class Source(Struct, frozen=True):
    """Segments that a round takes as one; all but the last are served in part.

    A leader that was just elected uploads from where its own local segment begins, over the end of
    what was copied before (R-4). Of each part brokers serve what lies before the next one begins,
    of the last everything. ``sizes`` are the bytes of each part's log that are served. ``late`` are
    copies within a single part that are passed over, and end with it.
    """

    parts: tuple[RemoteLogSegment, ...]
    sizes: tuple[int, ...]
    late: tuple[RemoteLogSegment, ...] = ()

    @property
    def is_overlaid(self) -> bool:
        """Say whether something is served in its place: then it never stays as it is."""
        return len(self.parts) > 1 or bool(self.late)

    @property
    def start_offset(self) -> int:
        """Return the first offset."""
        return self.parts[0].start_offset

    @property
    def end_offset(self) -> int:
        """Return the last offset, inclusive."""
        return self.parts[-1].end_offset

    @property
    def size_bytes(self) -> int:
        """Return the bytes of log that are served."""
        return sum(self.sizes)

    @property
    def newest(self) -> RemoteLogSegment:
        """Return the part that ends it."""
        return self.parts[-1]

    def last_of(self, number: int) -> int:
        """Return the last offset, inclusive, that is served from a part."""
        is_last = number + 1 == len(self.parts)
        return self.end_offset if is_last else self.parts[number + 1].start_offset - 1


class Sources(Struct, frozen=True):
    """What may be compacted, ascending, without a hole; ``limit`` is the first thing that ends it.

    What lies before a limit that is below the margin stays all the same, as much as the margin has.
    ``end`` is exclusive, and where they begin when there are none. ``hidden`` are segments from
    which brokers serve nothing, or nothing that another one has not (:func:`.late_copies`): what
    takes the place of all around them ends them too. ``begins_at`` are first offsets of sources
    that what takes their place may not go past: see :func:`.goes_past`.
    """

    segments: tuple[Source, ...]
    end: int
    limit: SourcesLimit
    hidden: tuple[RemoteLogSegment, ...] = ()
    begins_at: tuple[int, ...] = ()


def source_of(segment: RemoteLogSegment) -> Source:
    """Return a segment that is served whole, as a source."""
    return Source((segment,), (segment.size_bytes,))


def parts_of(sources: Iterable[Source]) -> list[RemoteLogSegment]:
    """Return the segments of ``sources``, ascending."""
    return [part for each in sources for part in each.parts]


def newest_whole(cache: PartitionCache) -> RemoteLogSegment | None:
    """Return the last segment that is served whole: its files have the lineage of the log."""
    whole = [each for each, last in _served_from_start(cache) if last == each.end_offset]
    return max(whole, key=lambda each: each.start_offset, default=None)


def choose_sources(
    cache: PartitionCache,
    *,
    log_start: int,
    margin_bytes: int,
    lineage: Sequence[LeaderEpoch],
    now_ms: int,
) -> Sources:
    """Return what may be compacted of a log that begins at ``log_start``.

    ``lineage`` is the leader epoch file of the newest segment, ``margin_bytes`` what stays raw.
    Sizes are those of whole logs: the reader of a part measures it first. A late copy is passed
    over: of the segment that it lies within all is read; what is served in pieces is read from its
    beginning. What brokers have begun by ``now_ms`` is counted with.
    """
    late = [each for each in late_copies(cache) if each.within.start_offset >= log_start]
    as_served = cache
    cache, late = without(cache, late)
    cache, covered = pieced_together(cache)
    late += covered
    within: dict[RemoteLogSegmentId, list[RemoteLogSegment]] = {}
    for each in late:
        within.setdefault(each.within.id, []).append(each.copy)
    begun = begun_copies(cache, now_ms)
    served = {each.start_offset: (each, last) for each, last in _served_from_start(cache)}
    found: list[Source] = []
    limit: SourcesLimit | None = None
    at = start = _first_start(as_served, cache, log_start)
    while limit is None:
        source = _chain(cache, served, within, at, lineage)
        if isinstance(source, SourcesEnd):
            limit = SourcesLimit(at, source)
        elif source.is_overlaid and any(
            goes_past(source.start_offset, source.end_offset, each) for each in begun
        ):
            limit = SourcesLimit(at, SourcesEnd.BEGUN_COPY)
        else:
            found.append(source)
            at = source.end_offset + 1
    kept = _before_margin(found, margin_bytes)
    end = kept[-1].end_offset + 1 if kept else start
    if len(kept) < len(found) and not _is_below_margin(cache, limit, margin_bytes):
        limit = SourcesLimit(found[len(kept)].start_offset, SourcesEnd.MARGIN)
    begins_at = _begins_at([(each.start_offset, each.end_offset) for each in kept], begun)
    passed = {each.copy.id: each.copy for each in late}
    hidden = (*passed.values(), *(each for each in _hidden(cache) if each.id not in passed))
    return Sources(tuple(kept), end, limit, hidden, begins_at)


def _begins_at(
    bounds: Sequence[tuple[int, int]], begun: Iterable[RemoteLogSegment]
) -> tuple[int, ...]:
    """Return at which of ``bounds``, first and last offset of each source, outputs have to begin.

    A source that alone goes past a begun copy stays alone: brokers would have that hole without us.
    Where both begin together it is closed as long as nothing is added.
    """
    found: set[int] = set()
    for copy in begun:
        if not bounds or not goes_past(bounds[0][0], bounds[-1][1], copy):
            continue
        start, end = [each for each in bounds if each[0] <= copy.end_offset + 1][-1]
        found.add(start)
        if goes_past(start, end, copy):
            found.add(end + 1)
    return tuple(sorted(found))


def _served_from_start(cache: PartitionCache) -> list[tuple[RemoteLogSegment, int]]:
    """Return what is served from its first offset on without a gap, and its last such offset."""
    return [
        (served[0].segment, served[-1].end_offset)
        for served in cache.served_by_segment().values()
        if is_in_one_piece(served)
    ]


def _chain(
    cache: PartitionCache,
    served: dict[int, tuple[RemoteLogSegment, int]],
    within: Mapping[RemoteLogSegmentId, Sequence[RemoteLogSegment]],
    start: int,
    lineage: Sequence[LeaderEpoch],
) -> Source | SourcesEnd:
    """Return what begins at ``start`` with all that lies over its end, or why there is nothing.

    ``within`` are the late copies by the segment that they lie within.
    """
    parts: list[RemoteLogSegment] = []
    at = reach = start
    while at < reach or not parts:
        segment, last = served.get(at, (None, 0))
        if segment is None:
            is_served = bool(parts) or any(
                each.start_offset <= at <= each.end_offset for each in cache.served()
            )
            return SourcesEnd.SHADOWED if is_served else SourcesEnd.HOLE
        if not is_in_lineage(segment, lineage):
            return SourcesEnd.OTHER_LINEAGE
        parts.append(segment)
        at, reach = last + 1, max(reach, segment.end_offset + 1)
    size = sum(each.size_bytes for each in parts)
    if len(parts) > 1 and (
        len(parts) > PARTS_MAX or max(size, parts[-1].end_offset - start) > INT32_MAX
    ):
        return SourcesEnd.SHADOWED
    sizes = tuple(each.size_bytes for each in parts)
    return Source(tuple(parts), sizes, tuple(within.get(parts[-1].id, ())))


def _hidden(cache: PartitionCache) -> tuple[RemoteLogSegment, ...]:
    served = {each.segment.id for each in cache.served()}
    return tuple(
        each
        for each in cache.segments
        if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and each.id not in served
    )


def summary_of(source: Source, index_interval_bytes: int) -> SegmentSummary:
    """Return what announcements say; indexes are as large as their segment allows."""
    interval = index_interval_bytes + 1
    return SegmentSummary(
        base_offset=source.start_offset,
        size_bytes=source.size_bytes,
        mtime_ms=source.newest.event_timestamp_ms,
        largest_timestamp_ms=max(part.max_timestamp_ms for part in source.parts),
        offset_index_bytes=source.size_bytes // interval * offset_index.ENTRY_BYTES,
        time_index_bytes=(source.size_bytes // interval + 1) * time_index.ENTRY_BYTES,
    )


def overlaid_from(
    cache: PartitionCache, outputs: Iterable[RemoteLogSegment], log_start: int
) -> int | None:
    """Return from where on brokers serve again what they copied themselves, None for nowhere.

    ``outputs`` were published. A segment that overlaps one and that no compactor announced came
    later: a newly elected leader has uploaded what it still had, and that is not clean. A segment
    that begins below ``log_start`` does not count: no round may take it, and the log above it is as
    it was.
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

    found = (
        each.start_offset
        for each in cache.served_segments().values()
        if each.start_offset >= log_start and not is_compactors(each) and overlaps(each)
    )
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


def sources_start(cache: PartitionCache, log_start: int) -> int:
    """Return where what may be compacted begins, if anything may."""
    read, _ = pieced_together(cache)
    return _first_start(cache, read, log_start)


def _first_start(as_served: PartitionCache, read: PartitionCache, log_start: int) -> int:
    """Return where the first segment begins that has nothing below ``log_start``.

    One that begins below it stays as it is: DeleteRecords has cut the log's epochs at the log
    start. So brokers, and newer epoch files, count it out of the lineage. So does what is served
    from a place within such a one: ``as_served`` is what brokers serve, ``read`` what rounds do.
    """
    at = log_start
    bounds = {
        (ranges[0].segment.start_offset, ranges[-1].end_offset)
        for cache in ((as_served,) if read is as_served else (as_served, read))
        for ranges in cache.served_by_segment().values()
    }
    for start, last in sorted(bounds):
        if start < at <= last:
            at = last + 1
    return at


def _is_below_margin(cache: PartitionCache, limit: SourcesLimit, margin_bytes: int) -> bool:
    """Return whether the margin lies above ``limit``: then it is no reason to end before it.

    Nothing is served above the end of the remote tier; that is where the margin ends, too.
    """
    behind = [each for each in cache.served_segments().values() if each.end_offset >= limit.offset]
    raw = sum(each.size_bytes for each in behind if not is_compactors(each))
    return bool(behind) and raw >= margin_bytes


def _before_margin(sources: Sequence[Source], margin_bytes: int) -> Sequence[Source]:
    """Return ``sources`` without the last one, and without the raw bytes that have to stay."""
    left = 0
    for count in range(len(sources), 0, -1):
        if left >= margin_bytes and count < len(sources):
            return sources[:count]
        parts = sources[count - 1].parts
        left += sum(each.size_bytes for each in parts if not is_compactors(each))
    return ()
