"""Reads what a copy takes from the segments of a directory: what is missing, and what was aborted.

Aborted transactions follow from the markers and from what was open where the copy goes on, which
the *store* knows: a broker's cleaner may have removed the data of a transaction from the directory,
and with it the marker's entry in the transaction index, when the store still has that data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.columns.scan import HAS_EVENTS
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, Tail, list_partition
from keeplast.log.transactions import TransactionFold, fold_before
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.tier.copy.moving_directory import check_unmoved
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.objects.transfer import find_cut
from keeplast.tier.state.continuity import RangeContent
from keeplast.tier.state.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A segment to copy up to ``end``; ``is_cut`` says that batches at or above it stay behind.

    The first ``valid_bytes`` of its file can be read.
    """

    segment: SegmentFiles
    end: int
    valid_bytes: int
    is_cut: bool


def parts_to_copy(
    listing: PartitionFiles, tail: Tail, files: FileSystem, *, until: int | None,
    high_watermark: int | None, index_interval_bytes: int, cuts_last: bool = False,
) -> Iterator[CopiedPart]:  # fmt: skip
    """Yield what of a directory may be copied, ascending.

    ``until`` leaves out segments that end above it, and the active one; with ``cuts_last`` only the
    batches of a closed one that reach beyond it. Batches that reach beyond
    ``high_watermark`` are left out. None leaves out none.
    """
    ends = [*(segment.base_offset for segment in listing.segments[1:]), tail.log_end]
    for segment, segment_end in zip(listing.segments, ends, strict=True):
        is_active, end = segment is listing.active, segment_end
        limit = high_watermark
        if until is not None and (is_active or end > until):
            if is_active or not cuts_last or segment.base_offset >= until:
                return
            limit = until
        has_any = segment.size_bytes > 0  # the only one of an empty log may have no file
        is_cut = limit is not None and end > limit and has_any
        if is_cut:
            end = find_cut(files, segment, int(limit or 0), index_interval_bytes)
        if end > segment.base_offset:
            valid_bytes = tail.valid_bytes if is_active else segment.size_bytes
            yield CopiedPart(segment, end, valid_bytes, is_cut)
        if is_cut:
            return


class ContentReader:
    """Reads the ranges of a copy, in order; open transactions are carried from one to the next."""

    def __init__(self, files: FileSystem, opened: Callable[[], TransactionFold]) -> None:
        """Begin where the copy does; ``opened`` finds, when asked for, what is open there."""
        self._files = files
        self._opened = opened
        self._fold: TransactionFold | None = None
        self._buffers = WindowBuffers()

    def read(self, part: CopiedPart, start: int) -> RangeContent:
        """Return what a segment has of the offsets from ``start`` to the part's end.

        CorruptError where a batch or marker cannot be read; checksums of data are not looked at.
        """
        segment, end = part.segment, part.end
        present = 0
        has_old_format = False
        horizons: list[int] = []
        aborted: list[AbortedTransaction] = []
        with reading(self._files, segment.log_path) as handle:
            for window in read_windows(
                handle, segment.log_path, self._buffers, end=part.valid_bytes, checks_crc=False
            ):
                rows = window.table[: window.batches]
                is_new = (rows[:, t.LAST_OFFSET] >= start) & (rows[:, t.LAST_OFFSET] < end)
                # A batch that began below counts as none: what of it is there is not known.
                is_inside = is_new & (rows[:, t.BASE_OFFSET] >= start)
                present += int(rows[is_inside, t.COUNT].sum())
                has_old_format |= bool((rows[is_new, t.MAGIC] < 2).any())
                has_horizon = is_new & (rows[:, t.MAGIC] == 2)
                has_horizon &= rows[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0
                if has_horizon.any():
                    horizons.append(int(rows[has_horizon, t.BASE_TIMESTAMP].min()))
                if window.marks & HAS_EVENTS and is_new.any():
                    if self._fold is None:
                        self._fold = self._opened()
                    window.table = np.ascontiguousarray(rows[is_new])
                    window.batches = len(window.table)
                    aborted += self._fold.add(window)
        missing = max(end - start - present, 0)
        return RangeContent(
            start, end, missing, has_old_format, min(horizons, default=None), tuple(aborted)
        )


def read_rest(offset: int, listing: PartitionFiles, files: FileSystem) -> RangeContent | None:
    """Return what there is from ``offset`` to the end of the closed segment that it is in.

    None where no closed segment has it. MovedError when the file is another one by now.
    """
    ends = [segment.base_offset for segment in listing.segments[1:]]
    for segment, end in zip(listing.segments, ends, strict=False):
        if segment.base_offset <= offset < end:
            part = CopiedPart(segment, end, segment.size_bytes, is_cut=False)
            found = ContentReader(files, TransactionFold).read(part, offset)
            check_unmoved(segment, files)
            return found
    return None


def opened_in_store(objects: ObjectStore, state: PartitionState) -> TransactionFold:
    """Return the transactions that are open at the end of what the store has.

    From the newest snapshot of producers in the store, or from its first segment on.
    """
    segments = tuple(state.segments[route.segment_id] for route in state.routes)
    files = RoundFiles(objects, state.partition, state.topic_id, segments)
    listing = list_partition(files.path, files)
    return fold_before(state.remote_end, listing, files, WindowBuffers())


def opened_in_directory(listing: PartitionFiles, files: FileSystem, start: int) -> TransactionFold:
    """Return the transactions that are open at ``start`` in a directory."""
    return fold_before(start, listing, files, WindowBuffers())
