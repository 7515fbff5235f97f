"""Reads a log from an offset on, as a broker answers a fetch: whole batches, as they are stored.

An offset that cleaning has removed is answered by the next batch that is there; nothing but the end
of the log gives no bytes. The same code reads a directory and, through another
:class:`~keeplast.log.files.FileSystem`, segments in object storage. Kafka: ``LocalLog.read``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format import offset_index
from keeplast.format.filename import INDEX, TIME_INDEX
from keeplast.format.message_set import read_batches
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, load_entries
from keeplast.log.windows import WindowBuffers, read_from

FETCH_BYTES_DEFAULT = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches, and the offset behind the last of them; no bytes at the end of the log."""

    data: bytes
    next_offset: int


def fetch(
    files: FileSystem,
    listing: PartitionFiles,
    offset: int,
    *,
    end: int,
    bytes_max: int = FETCH_BYTES_DEFAULT,
) -> Fetched:
    """Return batches from the one that holds ``offset``, or the first behind it, below ``end``.

    At least one batch when there is any, whatever its size; batches of one segment only.
    """
    for segment, segment_end in _limit(listing, end):
        if segment_end <= offset:
            continue
        start = _position(segment, files, offset)
        chosen = bytearray()
        next_offset = offset
        with reading(files, segment.log_path) as handle:
            for window in read_from(
                handle, segment.log_path, WindowBuffers(), position=start,
                offset=offset,
            ):  # fmt: skip
                rows = window.table[: window.batches]
                wanted = (rows[:, t.LAST_OFFSET] >= offset) & (rows[:, t.LAST_OFFSET] < end)
                for i in np.flatnonzero(wanted).tolist():
                    position, size = int(rows[i, t.POSITION]), int(rows[i, t.SIZE])
                    if chosen and len(chosen) + size > bytes_max:
                        return Fetched(bytes(chosen), next_offset)
                    chosen += window.data[position : position + size].data
                    next_offset = int(rows[i, t.LAST_OFFSET]) + 1
        if chosen:
            return Fetched(bytes(chosen), next_offset)
    return Fetched(b"", end)


def find_offset_for_time(
    files: FileSystem, listing: PartitionFiles, timestamp_ms: int, *, start: int, end: int
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record at or after a time, None without one.

    Only records in ``[start, end)`` count. Kafka: ``UnifiedLog.fetchOffsetByTimestamp``.
    """
    for segment, segment_end in _limit(listing, end):
        if segment_end <= start:
            continue
        # The index of the active segment is of when it was last closed, before it grew again.
        is_closed = segment is not listing.active
        first = _later_from(segment, files, timestamp_ms) if is_closed else 0
        position = _position(segment, files, first) if first else 0
        with reading(files, segment.log_path) as handle:
            for window in read_from(
                handle, segment.log_path, WindowBuffers(), position=position,
                offset=first,
            ):  # fmt: skip
                rows = window.table[: window.batches]
                if int(rows[:, t.MAX_TIMESTAMP].max()) < timestamp_ms:
                    continue
                for batch in read_batches(window.data[: window.length].data):
                    if batch.max_timestamp < timestamp_ms or batch.is_control:
                        continue
                    for record in batch.records():
                        if start <= record.offset < end and record.timestamp >= timestamp_ms:
                            return record.offset, record.timestamp
    return None


def _limit(listing: PartitionFiles, end: int) -> Iterator[tuple[SegmentFiles, int]]:
    """Yield segments with something in them, each with its exclusive end."""
    ends = [*(segment.base_offset for segment in listing.segments[1:]), end]
    for segment, segment_end in zip(listing.segments, ends, strict=True):
        if segment.size_bytes and segment.base_offset < end:
            yield segment, min(segment_end, end)


def _position(segment: SegmentFiles, files: FileSystem, offset: int) -> int:
    """Return where to start reading; the beginning where there is no usable index."""
    try:
        entries = load_entries(segment, INDEX, files)
    except (CorruptError, FileNotFoundError):
        return 0
    return offset_index.find_position(entries, max(offset - segment.base_offset, 0))


def _later_from(segment: SegmentFiles, files: FileSystem, timestamp_ms: int) -> int:
    """Return an offset below which a closed segment has nothing as late as ``timestamp_ms``.

    That of the time index's last entry, when this is earlier: an index that has lost its end says
    nothing of what lies behind. 0 where the index says nothing, or has something later.
    """
    try:
        entries = load_entries(segment, TIME_INDEX, files)
    except (CorruptError, FileNotFoundError):
        return 0
    if not len(entries) or entries[-1, 0] >= timestamp_ms:
        return 0
    return segment.base_offset + int(entries[-1, 1])
