"""Bytes as the kernels see them: a scanned window, and its records as rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from keeplast.columns import batches as t
from keeplast.columns import retained
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, DecompressedCache, Workspace

PATH = Path("window.log")
HASH_KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)


class Row(Struct, frozen=True):
    """One record as the row columns have it; ``record`` are its bytes in the payload."""

    batch: int
    offset: int
    flags: int
    hashes: tuple[int, int]
    record: bytes


@functools.cache
def workspace() -> Workspace:
    """Return the arrays that all tests of a process share."""
    return Workspace(MEMORY_BYTES_MIN)


class MemoryHandle:
    """A file that is a byte string."""

    def __init__(self, data: bytes) -> None:
        """Hold ``data``."""
        self._data = data

    @property
    def size_bytes(self) -> int:
        """Return the length."""
        return len(self._data)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Copy from ``position``."""
        part = self._data[position : position + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Do nothing."""


def windows_of(
    data: bytes, *, window_bytes: int = 1 << 20, checks_crc: bool = True
) -> Iterator[Window]:
    """Yield ``data`` in windows of whole batches, as a segment is read."""
    buffers = WindowBuffers(window_bytes)
    yield from read_windows(MemoryHandle(data), PATH, buffers, checks_crc=checks_crc)


def window_of(data: bytes, *, checks_crc: bool = True) -> Window:
    """Return all of ``data`` as one window."""
    (window,) = windows_of(data, window_bytes=8 * len(data) + 1, checks_crc=checks_crc)
    return window


def rows_of(window: Window) -> Iterator[Row]:
    """Yield the records of every data batch, decompressed and converted as the passes do it."""
    w = workspace()
    retained.select_indexed(window.table, 0, window.batches)
    table = window.table
    for part in w.slices(window, 0, HASH_KEY, DecompressedCache(0), keeps=False):
        for i in range(part.first, part.last):
            first = int(table[i, t.FIRST_ROW])
            last = first + int(table[i, t.ROWS])
            data = window.data if table[i, t.PAYLOAD_IN] == 0 else w.scratch
            ends = [*w.positions[first + 1 : last].tolist(), int(table[i, t.PAYLOAD_END])]
            for row, end in zip(range(first, last), ends, strict=False):
                yield Row(
                    batch=i,
                    offset=int(w.offsets[row]),
                    flags=int(w.flags[row]),
                    hashes=(int(w.hashes[row, 0]), int(w.hashes[row, 1])),
                    record=data[w.positions[row] : end].tobytes(),
                )
