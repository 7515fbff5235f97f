"""Reads the records of a split as columns, while the log may be written, rolled and cleaned.

The rules that make every record come exactly once, in offset order:

1. Progress is an offset. Segments are looked up again, from that offset on, whenever one that was
   listed is no longer there. A file that is open stays readable whatever happens to its name.
2. A batch is read by the first look that finds it whole: nothing after the tail is ever read.
3. An index may belong to the segment's successor for a moment, or for good where a directory was
   copied or restored in pieces. Bytes chosen by it may turn out not to be batches, or to begin or
   end elsewhere than it says. They are read again without it, once.
4. Where all of a split must be there, each look compares where the log starts and ends with it.
   The log start is asked for after the names were listed. A process that removes records raises it
   first, so a listing that lacks them never goes with a log start from before.
5. Data is judged by markers that are looked for later. They are sure to be there only as long as
   the data is. So a window counts if its segment still lies where it was read; else it is looked
   up again (1).

Records are collected into columns of bounded size, whatever windows they come from. Each
:class:`RecordColumns` that is handed out has arrays of its own, and belongs to the receiver.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.clock import Clock
from keeplast.columns import arrow_columns as a
from keeplast.columns import batches as t
from keeplast.columns.kernel import OK, PROBLEMS, TOO_MANY
from keeplast.errors import ConflictError, CorruptError, UnavailableError
from keeplast.format.filename import LOG_START_CHECKPOINT
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem, ReadHandle, reading
from keeplast.log.log_end import require_log_end
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, find_tail
from keeplast.log.readers import settled_partition
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.model.partition import INT64_MAX
from keeplast.read.log_view import (
    TRIES_MAX,
    SeenSegment,
    Split,
    Wanted,
    byte_range,
    was_recreated,
)
from keeplast.read.transactions import AbortedData
from keeplast.rewrite.workspace import Workspace

ROWS = 1 << 16
BYTES = 8 << 20
HEADERS = 1 << 17
HEADER_BYTES = 4 << 20
"""Sizes of one set of columns; larger only for a single record that does not fit."""

EVERYTHING = np.empty(0, np.uint8)
"""A selection that selects all rows."""


class RecordColumns(Struct):
    """``rows`` records of one partition as columns; see :mod:`keeplast.columns.arrow_columns`."""

    rows: int
    headers: int
    longs: NDArray[np.int64]
    ints: NDArray[np.int32]
    marks: NDArray[np.uint8]
    ends: NDArray[np.int32]
    keys: NDArray[np.uint8]
    values: NDArray[np.uint8]
    header_ends: NDArray[np.int32]
    header_marks: NDArray[np.uint8]
    header_keys: NDArray[np.uint8]
    header_values: NDArray[np.uint8]


def _new_columns(
    *, key_bytes: int, value_bytes: int, headers: int, header_keys: int, header_values: int
) -> RecordColumns:
    columns = RecordColumns(
        0,
        0,
        np.empty((a.LONGS, ROWS), np.int64),
        np.empty((a.INTS, ROWS), np.int32),
        np.empty((a.MARKS, ROWS), np.uint8),
        np.empty((a.ENDS, ROWS + 1), np.int32),
        np.empty(max(BYTES, key_bytes), np.uint8),
        np.empty(max(BYTES, value_bytes), np.uint8),
        np.empty((a.HEADER_ENDS, max(HEADERS, headers) + 1), np.int32),
        np.empty(max(HEADERS, headers), np.uint8),
        np.empty(max(HEADER_BYTES, header_keys), np.uint8),
        np.empty(max(HEADER_BYTES, header_values), np.uint8),
    )
    columns.ends[:, 0] = 0
    columns.header_ends[:, 0] = 0
    return columns


class ColumnCollector:
    """The columns that are being filled. Not shared between threads."""

    def __init__(self) -> None:
        self._cursor = np.zeros(a.CURSOR, np.int64)
        self._columns = self._fresh()

    def _fresh(self) -> RecordColumns:
        key, value, headers, header_keys, header_values = self._cursor[a.NEED_KEY :].tolist()
        self._cursor[a.ROWS] = self._cursor[a.HEADER_ROWS] = 0
        self._cursor[a.NEED_KEY :] = 0
        return _new_columns(
            key_bytes=key, value_bytes=value, headers=headers,
            header_keys=header_keys, header_values=header_values,
        )  # fmt: skip

    def add(
        self,
        window: Window,
        scratch: NDArray[np.uint8],
        first: int,
        last: int,
        bounds: NDArray[np.int64],
        selected: NDArray[np.uint8] = EVERYTHING,
    ) -> Iterator[RecordColumns]:
        """Add batches ``[first, last)`` of a window; yields columns whenever they are full.

        The batches' VERDICTs are set and their payloads readable. ``bounds`` and ``selected`` are
        those of :func:`keeplast.columns.arrow_columns.fill_columns`. CorruptError names the batch
        that does not parse.
        """
        cursor = self._cursor
        cursor[[a.BATCH, a.RECORD, a.AT]] = first, 0, 0
        while cursor[a.BATCH] < last:
            c = self._columns
            code = a.fill_columns(
                window.data, scratch, window.table, last, selected, bounds, cursor,
                c.longs, c.ints, c.marks, c.ends, c.keys, c.values,
                c.header_ends, c.header_marks, c.header_keys, c.header_values,
            )  # fmt: skip
            if code not in (OK, TOO_MANY):
                raise self._corrupt(window, code)
            if cursor[a.BATCH] < last:
                yield from self.finish()

    def finish(self) -> Iterator[RecordColumns]:
        """Yield what has been collected, if anything, and start empty."""
        full = self._columns
        full.rows, full.headers = self._cursor[[a.ROWS, a.HEADER_ROWS]].tolist()
        self._columns = self._fresh()
        if full.rows:
            yield full

    def _corrupt(self, window: Window, code: int) -> CorruptError:
        return window.corrupt(
            int(self._cursor[a.BATCH]), PROBLEMS[code], "records that fill the batch",
            "something else",
        )  # fmt: skip


Hidden = NDArray[np.bool_] | None
"""Which batches of a window no reader is to see, as data of aborted transactions; None: none."""


def read_records(
    split: Split, files: FileSystem, clock: Clock, workspace: Workspace
) -> Iterator[RecordColumns]:
    """Yield the records of ``split`` in offset order, without control records.

    Data of aborted transactions is left out where ``split.hides_aborted``. CorruptError where a
    batch cannot be read or has a wrong CRC, and where the active segment is damaged in front of
    whole batches. UnavailableError when the directory does not hold still, ConflictError when the
    split must be whole and the log no longer is.
    """
    collector = ColumnCollector()
    aborted = aborted_data(split, files, clock)
    for _, window, wanted, hidden in read_wanted(
        split, files, clock, workspace.buffers, aborted=aborted
    ):
        select_batches(window, wanted, hidden)
        for first, last in workspace.uncovered(window):
            yield from collector.add(window, workspace.scratch, first, last, wanted.bounds())
    yield from collector.finish()


def aborted_data(split: Split, files: FileSystem, clock: Clock) -> AbortedData | None:
    """Return what judges the windows of ``split``, None where nothing is to be hidden."""
    if not split.hides_aborted:
        return None

    end = INT64_MAX if split.decided_before is None else split.decided_before

    def ahead(offset: int) -> Iterator[Window]:
        # What is missing is for the reader itself to say, by the range that it was given.
        rest = replace(split, wanted=Wanted(offset, end), must_be_whole=False, segments=None)
        buffers = WindowBuffers()
        for _, window, _, _ in read_wanted(rest, files, clock, buffers, checks_crc=False):
            yield window

    return AbortedData(ahead, split.decided_before)


def select_batches(window: Window, wanted: Wanted, hidden: Hidden) -> int:
    """Set the VERDICT of every batch: DELETE when it is hidden or none of its records is wanted.

    Returns how many batches are left.
    """
    table = window.table[: window.batches]
    selected = (
        (table[:, t.LAST_OFFSET] >= wanted.first_offset)
        & (table[:, t.COUNT] > 0)
        & (table[:, t.MAX_TIMESTAMP] >= wanted.first_ms)
        & ((table[:, t.ATTRIBUTES] & t.CONTROL == 0) | (table[:, t.MAGIC] < 2))
    )
    # The wrapper of an old format says only where it ends.
    selected &= (table[:, t.BASE_OFFSET] < wanted.end_offset) | (table[:, t.MAGIC] < 2)
    if hidden is not None:
        selected &= ~hidden
    table[:, t.VERDICT] = np.where(selected, t.RETAIN_EMPTY, t.DELETE)
    return int(selected.sum())


def read_wanted(
    split: Split,
    files: FileSystem,
    clock: Clock,
    buffers: WindowBuffers,
    *,
    checks_crc: bool = True,
    aborted: AbortedData | None = None,
) -> Iterator[tuple[int, Window, Wanted, Hidden]]:
    """Yield base offset of the segment, window, what is wanted of it, and what ``aborted`` says of
    it, in log order.

    No record is wanted of two windows. Without ``checks_crc`` nothing but headers is for use.
    """
    at, end = split.wanted.first_offset, split.wanted.end_offset
    tries = 0
    while at < end:
        try:
            for listed, next_base in _list(split, files, clock, at):
                path = listed.log_path
                with reading(files, path) as handle:
                    place = _place(listed, next_base, split, at, handle, files)
                    for window in _windows(path, place, at, end, handle, buffers, checks_crc):
                        last = int(window.table[: window.batches, t.LAST_OFFSET].max())
                        hidden = None if aborted is None else aborted.among(window)
                        if hidden is not None:
                            _require_there(listed, files, is_active=next_base is None)
                        yield listed.base_offset, window, split.wanted.between(at, end), hidden
                        at = max(at, last + 1)
                        tries = 0
            return
        except FileNotFoundError as error:
            tries += 1
            if tries >= TRIES_MAX:
                raise UnavailableError(
                    f"segments vanish faster than they can be read. path={split.path} offset={at}",
                    code="K234",
                ) from error


def _list(
    split: Split, files: FileSystem, clock: Clock, at: int
) -> Iterator[tuple[SegmentFiles, int | None]]:
    """Yield the segments that may hold offsets of the split from ``at`` on, as they are now.

    With each comes where the next one begins, None of the active one.
    """
    listing = settled_partition(split.path, files, clock)
    if split.must_be_whole:
        _require_start(split, listing, files, at)
    following = [*(each.base_offset for each in listing.segments[1:]), None]
    for segment, next_base in zip(listing.segments, following, strict=True):
        if (next_base is None or next_base > at) and segment.base_offset < split.wanted.end_offset:
            yield segment, next_base


def _require_start(split: Split, listing: PartitionFiles, files: FileSystem, at: int) -> None:
    """Raise ConflictError when the log starts above ``at``, still to be read, or is another's."""
    if was_recreated(split.topic_id, split.path, files):
        raise ConflictError(
            "the topic was deleted and made again since reading was planned; read again. "
            f"path={split.path}",
            code="K233",
        )
    starts = read_checkpoint(files, split.path.parent, LOG_START_CHECKPOINT)
    log_start = max(starts.get(split.partition, 0), listing.segments[0].base_offset)
    if log_start > at:
        raise _explain_loss(split, f"offset={at} log_start={log_start}")


def _explain_loss(split: Split, found: str) -> ConflictError:
    return ConflictError(
        "the log no longer has records that were there when reading was planned; retention or a "
        "truncation took them. Read again from what there is, or set failOnDataLoss=false to go "
        f"on without them. path={split.path} first_offset={split.wanted.first_offset} "
        f"end_offset={split.wanted.end_offset} {found}",
        code="K143",
    )


def _place(
    listed: SegmentFiles,
    next_base: int | None,
    split: Split,
    at: int,
    handle: ReadHandle,
    files: FileSystem,
) -> tuple[int, int, int]:
    """Return which bytes of an open segment to read from offset ``at`` on, and how many it has.

    FileNotFoundError when it is another one by now.
    """
    end = split.wanted.end_offset
    if next_base is None:
        active = PartitionFiles(split.path, (listed,), (), (), ())
        tail = find_tail(active, files, at=at)
        if tail.log_end < end:
            require_log_end(active, tail, None, files)
        if split.must_be_whole and tail.log_end < end:
            raise _explain_loss(split, f"log_end={tail.log_end}")
        segment = SeenSegment(listed, tail.log_end, tail.valid_bytes, is_active=True)
        return *byte_range(segment, at, end, files), tail.valid_bytes
    segment = SeenSegment(listed, next_base, handle.size_bytes, is_active=False)
    place = *byte_range(segment, at, end, files), handle.size_bytes
    # Both stats must say what the listing said: then neither the open file nor the index, which
    # was read in between, is that of a segment that took this one's name.
    _require_there(listed, files, is_active=False)
    if handle.size_bytes != listed.size_bytes:
        raise FileNotFoundError(f"{listed.log_path} was replaced")
    return place


def _require_there(listed: SegmentFiles, files: FileSystem, *, is_active: bool) -> None:
    """Raise FileNotFoundError when a segment has been removed or replaced since it was listed."""
    status = files.stat(listed.log_path)
    # One that was active may have grown.
    is_same = (
        status.inode == listed.inode and status.size_bytes >= listed.size_bytes
        if is_active
        else (status.size_bytes, status.mtime_ns) == (listed.size_bytes, listed.mtime_ns)
    )
    if not is_same:
        raise FileNotFoundError(f"{listed.log_path} was replaced")


def _windows(
    path: Path,
    place: tuple[int, int, int],
    at: int,
    end: int,
    handle: ReadHandle,
    buffers: WindowBuffers,
    checks_crc: bool,
) -> Iterator[Window]:
    """Yield the windows of one segment that hold offsets of [at, end).

    ``place`` is from which byte to which an index says, and how many bytes there are; that they
    hold all of them is for the offsets to say.
    """
    start, stop, size_bytes = place
    whole = (0, size_bytes)
    done, reached = start, -1
    try:
        for window in read_windows(
            handle, path, buffers, start=start, end=stop, checks_crc=checks_crc
        ):
            if done == start > 0 and int(window.table[0, t.LAST_OFFSET]) > at:
                break  # what is wanted may lie in front of it
            done = window.position + window.length
            reached = int(window.table[: window.batches, t.LAST_OFFSET].max())
            yield window
    except CorruptError:
        if (start, stop) == whole:
            raise
    if reached >= end - 1 or (done == stop == whole[1]):
        return
    yield from read_windows(
        handle, path, buffers, start=0 if done == start else done, end=whole[1],
        checks_crc=checks_crc,
    )  # fmt: skip
