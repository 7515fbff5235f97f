"""Follows a log's producers and transactions from the newest snapshot to its end.

Only what lies behind the snapshot is read, and headers alone. What a damaged or missing transaction
index would have said is followed from the log itself. ``ProducerStateManager`` and the recovery of
``LogSegment``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format import producer_snapshot
from keeplast.format.batch import decode_batch
from keeplast.format.filename import INDEX, SNAPSHOT, segment_file
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import (
    SNAPSHOT_BYTES_MAX,
    PartitionFiles,
    SegmentIndexes,
    Tail,
    load_aborted,
)
from keeplast.log.producer_state import ProducerState
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.model.offsets import NO_PRODUCER_ID


def replay_producers(
    listing: PartitionFiles,
    tail: Tail,
    log_start: int,
    indexes: Mapping[int, SegmentIndexes],
    files: FileSystem,
    buffers: WindowBuffers,
) -> tuple[ProducerState, tuple[tuple[int, tuple[AbortedTransaction, ...]], ...]]:
    """Return the producers at the log end, and each segment's aborted transactions by its base.

    A segment without an offset index has lost its transaction index too, as far as anybody can
    tell, and one whose transaction index is another's has none; the transactions are then
    followed from the first such segment on, as Kafka's recovery does.
    """
    aborted: dict[int, tuple[AbortedTransaction, ...]] = {}
    stripped: list[int] = []
    for segment in listing.segments:
        try:
            aborted[segment.base_offset] = load_aborted(segment, files)
        except CorruptError:
            stripped.append(segment.base_offset)
        else:
            if segment.size_bytes and not files.exists(segment.path(INDEX)):
                stripped.append(segment.base_offset)
    if stripped:
        state, start = _newest_snapshot(listing, stripped[0], log_start, files)
        ended = _fold(state, listing, tail, start, {}, files, buffers)
        ends = [*(s.base_offset for s in listing.segments[1:]), tail.log_end]
        for segment, end in zip(listing.segments, ends, strict=True):
            base = segment.base_offset
            if base in stripped:
                aborted[base] = tuple(x for x in ended if base <= x.last_offset < end)
    state, start = _newest_snapshot(listing, tail.log_end, log_start, files)
    _fold(state, listing, tail, start, indexes, files, buffers)
    return state, tuple(sorted(aborted.items()))


def _newest_snapshot(
    listing: PartitionFiles, at_most: int, log_start: int, files: FileSystem
) -> tuple[ProducerState, int]:
    """Return the producers of the newest readable snapshot and the offset it stands for.

    Snapshots above ``at_most`` or at or below the log start are not used, unreadable ones are
    passed over, as a broker does; without any the fold starts at the log start.
    """
    for offset in reversed(listing.snapshots):
        if log_start < offset <= at_most:
            path = listing.path / segment_file(offset, SNAPSHOT)
            try:
                entries = producer_snapshot.decode(files.read_bytes(path, SNAPSHOT_BYTES_MAX))
            except CorruptError:
                continue
            return ProducerState(entries), offset
    return ProducerState(), log_start


def _fold(
    state: ProducerState,
    listing: PartitionFiles,
    tail: Tail,
    start: int,
    indexes: Mapping[int, SegmentIndexes],
    files: FileSystem,
    buffers: WindowBuffers,
) -> list[AbortedTransaction]:
    """Fold every batch that ends at or above ``start``; return the transactions that aborted."""
    ended: list[AbortedTransaction] = []
    for i, segment in enumerate(listing.segments):
        is_active = i == len(listing.segments) - 1
        end_offset = tail.log_end if is_active else listing.segments[i + 1].base_offset
        if end_offset <= start:
            continue
        end = tail.valid_bytes if is_active else segment.size_bytes
        position = 0
        if segment.base_offset < start and segment.base_offset in indexes:
            position = indexes[segment.base_offset].position_before(start - segment.base_offset)
        if position >= end:
            continue
        with reading(files, segment.log_path) as handle:
            for window in read_windows(handle, segment.log_path, buffers, start=position, end=end):
                _fold_window(state, ended, window, start)
    return ended


def _fold_window(
    state: ProducerState, ended: list[AbortedTransaction], window: Window, start: int
) -> None:
    rows = window.table[: window.batches]
    chosen = (rows[:, t.PRODUCER_ID] != NO_PRODUCER_ID) & (rows[:, t.LAST_OFFSET] >= start)
    for i in np.flatnonzero(chosen & (rows[:, t.MAGIC] == 2)).tolist():
        position = int(rows[i, t.POSITION])
        raw = window.data[position : position + int(rows[i, t.SIZE])].tobytes()
        try:
            aborted = state.add(decode_batch(raw))
        except CorruptError as error:
            raise window.corrupt(i, error.problem, error.expected, error.found) from error
        if aborted is not None:
            ended.append(aborted)
