"""How readers go through a partition that others may change: its list, its batches, its indexes.

Readers take no lock. Between two renames of a swap some offsets are in no ``.log`` file, and a
reader that listed the directory then would miss them without noticing. So a reader that finds a
``.swap`` waits until there is none. A swap takes milliseconds. Where no process holds the
directory's lock it was interrupted, and is for the next start of a broker or the next clean to
finish. The names of a large directory are not listed at once, and one that is renamed meanwhile may
be in no part of the list. So while a process is at work, logs are listed until they are the same
twice.

A log is read from an offset on, as a broker answers a fetch: whole batches, as they are stored. An
offset that cleaning has removed is answered by the next batch that is there; nothing but the end of
the log gives no bytes. The same code reads a directory and, through another
:class:`~keeplast.log.files.FileSystem`, segments in object storage. Kafka: ``LocalLog.read``.

The indexes of one log are kept while it is looked at, of any number of segments in bounded memory.
Only :meth:`LoadedIndexes.find_start` compares one with its segment's batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.errors import CorruptError, UnavailableError
from keeplast.format import offset_index
from keeplast.format.filename import INDEX, LOG, SWAP, TIME_INDEX
from keeplast.format.message_set import read_batches
from keeplast.log.files import FileSystem, reading
from keeplast.log.lock import is_locked
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentFiles,
    SegmentIndexes,
    list_partition,
    load_entries,
    load_indexes,
    rebuild_indexes,
)
from keeplast.log.windows import WindowBuffers, find_start, read_from

SWAP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05


def settled_partition(
    path: Path, files: FileSystem, clock: Clock, *, if_empty: int | None = None
) -> PartitionFiles:
    """List a partition in which no swap is under way; ``if_empty`` as in :func:`list_partition`.

    InterruptedSwapError where one was interrupted, and RefusedError as :func:`list_partition`;
    UnavailableError when one does not end although a process is at work.
    """
    deadline = clock.seconds() + SWAP_SECONDS_MAX
    while True:
        is_at_work = is_locked(path.parent)
        try:
            before = _logs(path, files) if is_at_work else frozenset()
            listing = list_partition(path, files, if_empty=if_empty)
            if not is_at_work or before == _logs(path, files):
                return listing
        except UnavailableError:
            pass  # segments are being replaced
        except FileNotFoundError:
            # A segment went between its name and its size; or the directory did.
            if not files.is_directory(path):
                raise
        if clock.seconds() >= deadline:
            raise UnavailableError(
                "segments are being replaced, and the swap does not end; see what holds the "
                f"directory's lock. path={path}",
                code="K205",
            )
        clock.sleep(POLL_SECONDS)


def _logs(path: Path, files: FileSystem) -> frozenset[str]:
    return frozenset(name for name in files.listdir(path) if name.endswith((LOG, LOG + SWAP)))


FETCH_BYTES_DEFAULT = 1 << 20


class Fetched(Struct, frozen=True):
    """Whole batches, and the offset after the last of them; no bytes at the end of the log."""

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
    """Return batches from the one that holds ``offset``, or the first above it, below ``end``.

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
    nothing of what lies above. 0 where the index says nothing, or has something later.
    """
    try:
        entries = load_entries(segment, TIME_INDEX, files)
    except (CorruptError, FileNotFoundError):
        return 0
    if not len(entries) or entries[-1, 0] >= timestamp_ms:
        return 0
    return segment.base_offset + int(entries[-1, 1])


LOADED_BYTES_MAX = 64 << 20
"""Indexes of one log that are kept: those of 8 GiB of segments, at a broker's interval."""


class LoadedIndexes(Mapping[int, SegmentIndexes]):
    """The indexes of a log's closed segments, each read when it is asked for.

    Those asked for last are kept, of LOADED_BYTES_MAX together and one at least: all those of a log
    of 1 TiB are 8 GiB.
    """

    def __init__(
        self, listing: PartitionFiles, files: FileSystem, interval: int, buffers: WindowBuffers
    ) -> None:
        self._segments = {segment.base_offset: segment for segment in listing.segments[:-1]}
        self._files = files
        self._interval = interval
        self._buffers = buffers
        self._loaded: OrderedDict[int, SegmentIndexes] = OrderedDict()
        self._loaded_bytes = 0
        self._derived: dict[int, SegmentIndexes] = {}
        self._rebuilt: set[int] = set()

    @property
    def loaded_bytes(self) -> int:
        """Return what is kept of what was read."""
        return self._loaded_bytes

    def __getitem__(self, base: int) -> SegmentIndexes:
        """Return the indexes of the segment at ``base``."""
        if base in self._derived:
            return self._derived[base]
        found = self._loaded.get(base)
        if found is not None:
            self._loaded.move_to_end(base)
            return found
        found = load_indexes(self._segments[base], self._files, self._interval, self._buffers)
        if found.rebuilt:
            self._rebuilt.add(base)
        self._loaded[base] = found
        self._loaded_bytes += found.size_bytes
        while self._loaded_bytes > LOADED_BYTES_MAX and len(self._loaded) > 1:
            _, least = self._loaded.popitem(last=False)
            self._loaded_bytes -= least.size_bytes
        return found

    def find_start(self, base: int, offset: int) -> int:
        """Return the position from which on the segment at ``base`` has ``offset`` and all above
        it.

        Its file is compared with the segment: one that is older could leave batches out.
        """
        position = self[base].position_before(offset - base)
        if not position:
            return 0
        segment = self._segments[base]
        with reading(self._files, segment.log_path) as handle:
            return find_start(
                handle, segment.log_path, self._buffers,
                position=position, offset=offset, end=segment.size_bytes,
            )  # fmt: skip

    def derive(self, base: int) -> None:
        """Take the indexes of a segment that is still appended to from its batches.

        Its files are good as far as they reach, which is not to its end.
        """
        found = rebuild_indexes(self._segments[base], self._files, self._interval, self._buffers)
        self._derived[base] = replace(found, rebuilt=False)

    def __iter__(self) -> Iterator[int]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def rebuilt(self) -> tuple[int, ...]:
        """Return the segments, of those asked for, whose files could not be used, ascending."""
        return tuple(sorted(self._rebuilt))
