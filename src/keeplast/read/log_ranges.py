"""Which parts of a log have to be read for some offsets and times, and how they are shared out.

Everything here may only leave out what cannot match: a range is never narrower than what is wanted.

* Offsets: the offset index tells from which byte on to read, and at which to stop.
* Times from below: what lies up to the last entry of the time index that is too early is left out.
  Behind the last entry of all a closed segment has nothing later, when the index is whole. One that
  has lost its end says the same, so the batches there are looked at, as far as TAIL_BYTES_MAX.
* Times from above prune nothing. Producers set timestamps, so any batch may hold an early one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import arrow_columns as a
from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import SegmentFiles
from keeplast.log.windows import WindowBuffers, read_from
from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.read.log_view import LogView, SeenSegment

TAIL_BYTES_MAX = 1 << 20
"""So much of a segment is looked at behind the last entry of its time index; more is not left out
but read, by whoever reads the rest."""
TAIL_WINDOW_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """Records that are asked for: offsets [first, end), timestamps in ms [first, last]."""

    first_offset: int = 0
    end_offset: int = INT64_MAX
    first_ms: int = -INT64_MAX - 1
    last_ms: int = INT64_MAX

    def between(self, first_offset: int, end_offset: int) -> Wanted:
        """Return what of it lies in [first, end)."""
        first = max(self.first_offset, first_offset)
        return Wanted(
            first, max(first, min(self.end_offset, end_offset)), self.first_ms, self.last_ms
        )

    def bounds(self) -> NDArray[np.int64]:
        """Return the bounds as the kernel takes them."""
        bounds = np.empty(a.BOUNDS, np.int64)
        bounds[a.FIRST_OFFSET] = self.first_offset
        bounds[a.END_OFFSET] = self.end_offset
        bounds[a.FIRST_MS] = self.first_ms
        bounds[a.LAST_MS] = self.last_ms
        return bounds


ALL = Wanted()
"""Every record."""


@dataclass(frozen=True, slots=True)
class SegmentsSeen:
    """The segments that a state is read of: the closed ones, and where the active one begins."""

    closed: tuple[SegmentFiles, ...]
    active_base: int


@dataclass(frozen=True, slots=True)
class Split:
    """One task's part of a partition.

    Offsets, not bytes: segments may be rolled and replaced until it is read. With
    ``must_be_whole`` the log must still reach over all of ``wanted`` by then: what retention or a
    truncation took meanwhile is an error and not a shorter result. With ``segments`` it is of a
    state, and an error as well when a cleaner has gone past its end
    (:mod:`keeplast.read.state_end`). ``hides_aborted`` leaves out the data of aborted
    transactions; with ``decided_before`` no marker at or behind that offset counts, and data that
    is undecided then is left out too. A log that must be whole must also still be of the topic
    ``topic_id``.
    """

    partition: TopicPartition
    path: Path
    wanted: Wanted
    size_bytes: int
    must_be_whole: bool = False
    segments: SegmentsSeen | None = None
    hides_aborted: bool = True
    topic_id: bytes | None = None
    decided_before: int | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    first_offset: int
    end_offset: int
    size_bytes: int


def plan_splits(
    view: LogView,
    wanted: Wanted,
    files: FileSystem,
    *,
    split_bytes: int,
    must_be_whole: bool = False,
    hides_aborted: bool = True,
    decided_before: int | None = None,
) -> Iterator[Split]:
    """Yield splits of about ``split_bytes`` that hold everything that is wanted, in log order."""
    pieces = [piece for s in view.segments for piece in _pieces(s, wanted, files, split_bytes)]
    at = 0
    while at < len(pieces):
        first, size = at, 0
        while at < len(pieces):
            piece = pieces[at]
            has_gap = at > first and piece.first_offset != pieces[at - 1].end_offset
            if at > first and (has_gap or size + piece.size_bytes > split_bytes):
                break
            size += piece.size_bytes
            at += 1
        part = wanted.between(pieces[first].first_offset, pieces[at - 1].end_offset)
        yield Split(
            view.partition, view.path, part, size, must_be_whole,
            hides_aborted=hides_aborted, topic_id=view.topic_id, decided_before=decided_before,
        )  # fmt: skip


def segments_below(view: LogView, end_offset: int) -> SegmentsSeen:
    """Return which segments a state that ends at ``end_offset`` is read of."""
    closed = (segment.files for segment in view.segments if not segment.is_active)
    return SegmentsSeen(
        tuple(each for each in closed if each.base_offset < end_offset),
        view.segments[-1].base_offset,
    )


def _pieces(
    segment: SeenSegment, wanted: Wanted, files: FileSystem, split_bytes: int
) -> Iterator[_Piece]:
    """Cut what is wanted of a segment where its offset index allows it."""
    base = segment.base_offset
    first = max(wanted.first_offset, base, _offset_of_time(segment, wanted.first_ms, files))
    end = min(wanted.end_offset, segment.end_offset)
    if first >= end:
        return
    start, stop = byte_range(segment, first, end)
    entries = segment.indexes.offsets
    for offset, position in entries[(entries[:, 1] > start) & (entries[:, 1] < stop)].tolist():
        if position - start < split_bytes or offset + base < first:
            continue
        # The batch at the position ends with the entry's offset, so the next one begins a piece.
        cut = offset + base + 1
        if cut >= end:
            break
        yield _Piece(first, cut, position - start)
        first, start = cut, position
    yield _Piece(first, end, stop - start)


def byte_range(segment: SeenSegment, first_offset: int, end_offset: int) -> tuple[int, int]:
    """Return [start, end) of the bytes that hold all batches with offsets in [first, end).

    Both are where a batch begins, or the end of what can be read.
    """
    base, entries = segment.base_offset, segment.indexes.offsets
    start = segment.indexes.position_before(max(0, first_offset - base))
    # The batch of this entry ends at or above the last wanted offset; the entry after it is the
    # next place known to begin a batch.
    after = int(np.searchsorted(entries[:, 0], end_offset - 1 - base, side="left")) + 1
    stop = int(entries[after, 1]) if after < len(entries) else segment.valid_bytes
    return min(start, stop), stop


def _offset_of_time(segment: SeenSegment, first_ms: int, files: FileSystem) -> int:
    """Return the offset below which every record of the segment is older than ``first_ms``."""
    times = segment.indexes.times
    older = int(np.searchsorted(times[:, 0], first_ms, side="left"))
    if not older:
        return segment.base_offset
    first = segment.base_offset + int(times[older - 1, 1]) + 1
    is_last = older == len(times) and not segment.is_active
    if is_last and not _has_later(segment, first, first_ms, files):
        return segment.end_offset
    return first


def _has_later(segment: SeenSegment, first: int, first_ms: int, files: FileSystem) -> bool:
    """Say whether a closed segment may have a record from offset ``first`` and ``first_ms`` on.

    Of one that was replaced or cannot be read it is not known: whoever reads it will see.
    """
    start, stop = byte_range(segment, first, segment.end_offset)
    if stop - start > TAIL_BYTES_MAX:
        return True
    path = segment.files.log_path
    buffers = WindowBuffers(TAIL_WINDOW_BYTES)
    try:
        with reading(files, path) as handle:
            for window in read_from(
                handle, path, buffers, position=start, offset=first, end=stop, checks_crc=False
            ):
                if window.position < start:
                    return True  # The offset index is not this segment's: nothing is known.
                if int(window.table[: window.batches, t.MAX_TIMESTAMP].max()) >= first_ms:
                    return True
        status = files.stat(path)
    except (FileNotFoundError, CorruptError):
        return True
    found = (status.inode, status.size_bytes, status.mtime_ns)
    return found != (segment.files.inode, segment.files.size_bytes, segment.files.mtime_ns)
