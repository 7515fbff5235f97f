"""Reads the records of a split as columns, while the log may be written, rolled and cleaned.

The rules that make every record come exactly once, in offset order:

1. What has been read is an offset. Segments are looked up anew, from that offset on, whenever one
   that was listed is no longer there; a file that is open stays readable whatever happens to its
   name.
2. A batch is read by the first look that finds it whole: what follows the tail is never read.
3. An index may belong to the segment's successor for a moment. Bytes chosen by it that turn out
   not to be batches are read again without it, once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from keeplast.clock import Clock
from keeplast.columns import batch_table as t
from keeplast.engine.log_ranges import Split, Wanted, byte_range
from keeplast.engine.log_view import (
    TRIES_MAX,
    SeenSegment,
    outcomes_of,
    see_segment,
)
from keeplast.engine.record_columns import ColumnCollector, RecordColumns
from keeplast.engine.transaction_outcomes import Outcome, TransactionOutcomes
from keeplast.engine.workspace import Workspace
from keeplast.errors import CorruptError, UnavailableError
from keeplast.log.files import FileSystem, ReadHandle, reading
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, find_tail
from keeplast.log.settled import settled_partition
from keeplast.log.windows import Window, read_windows
from keeplast.model.offsets import INT64_MAX


def read_records(
    split: Split, files: FileSystem, clock: Clock, workspace: Workspace
) -> Iterator[RecordColumns]:
    """Yield the records of ``split`` in offset order, without control records.

    Data of the transactions in ``split.aborted`` is left out. CorruptError where a batch cannot be
    read or has a wrong CRC, UnavailableError when the directory does not hold still.
    """
    collector = ColumnCollector()
    outcomes = outcomes_of(split.aborted)
    for _, window, wanted in read_wanted(split, files, clock, workspace):
        select_batches(window, wanted, outcomes)
        for first, last in workspace.uncovered(window):
            yield from collector.add(window, workspace.scratch, first, last, wanted.bounds())
    yield from collector.finish()


def select_batches(window: Window, wanted: Wanted, outcomes: TransactionOutcomes) -> int:
    """Set the VERDICT of every batch: DELETE when none of its records is wanted.

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
    if outcomes.aborted:
        selected &= outcomes.of_batches(table) != Outcome.ABORTED
    table[:, t.VERDICT] = np.where(selected, t.RETAIN_EMPTY, t.DELETE)
    return int(selected.sum())


def read_wanted(
    split: Split, files: FileSystem, clock: Clock, workspace: Workspace
) -> Iterator[tuple[int, Window, Wanted]]:
    """Yield base offset of the segment, window, and what is wanted of it, in log order.

    No record is wanted of two windows.
    """
    at, end = split.wanted.first_offset, split.wanted.end_offset
    tries = 0
    while at < end:
        try:
            for listed, is_active in _listed(split, files, clock, at):
                with reading(files, listed.log_path) as handle:
                    segment = _seen(listed, split, handle, files, is_active=is_active)
                    for window in _windows(segment, at, end, handle, workspace):
                        last = int(window.table[: window.batches, t.LAST_OFFSET].max())
                        yield segment.base_offset, window, split.wanted.between(at, end)
                        at = max(at, last + 1)
                        tries = 0
            return
        except FileNotFoundError as error:
            tries += 1
            if tries >= TRIES_MAX:
                raise UnavailableError(
                    f"segments vanish faster than they can be read. path={split.path} offset={at}"
                ) from error


def _listed(
    split: Split, files: FileSystem, clock: Clock, at: int
) -> Iterator[tuple[SegmentFiles, bool]]:
    """Yield the segments that may hold offsets of the split from ``at`` on, as they are now."""
    listing = settled_partition(split.path, files, clock)
    following = [*(each.base_offset for each in listing.segments[1:]), INT64_MAX]
    for segment, next_base in zip(listing.segments, following, strict=True):
        if next_base > at and segment.base_offset < split.wanted.end_offset:
            yield segment, segment is listing.active


def _seen(
    listed: SegmentFiles, split: Split, handle: ReadHandle, files: FileSystem, *, is_active: bool
) -> SeenSegment:
    """Return an open segment with its indexes; FileNotFoundError when it is another one by now."""
    end = split.wanted.end_offset
    if is_active:
        only = PartitionFiles(split.path, (listed,), (), (), ())
        return see_segment(listed, end, find_tail(only, files).valid_bytes, files, is_active=True)
    segment = see_segment(listed, end, handle.size_bytes, files, is_active=False)
    # Both stats must say what the listing said: then neither the open file nor the indexes, which
    # were read in between, are those of a segment that took this one's name.
    status = files.stat(listed.log_path)
    if (status.size_bytes, status.mtime_ns) != (listed.size_bytes, listed.mtime_ns) or (
        handle.size_bytes != listed.size_bytes
    ):
        raise FileNotFoundError(f"{listed.log_path} was replaced")
    return segment


def _windows(
    segment: SeenSegment, at: int, end: int, handle: ReadHandle, workspace: Workspace
) -> Iterator[Window]:
    """Yield the windows of one segment that hold offsets of [at, end)."""
    path, whole = segment.files.log_path, (0, segment.valid_bytes)
    start, stop = byte_range(segment, at, end)
    done = start
    try:
        for window in read_windows(handle, path, workspace.buffers, start=start, end=stop):
            done = window.position + window.length
            yield window
        return
    except CorruptError:
        if (start, stop) == whole:
            raise
    yield from read_windows(
        handle, path, workspace.buffers, start=0 if done == start else done, end=whole[1]
    )
