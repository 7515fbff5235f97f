"""Reads a segment in windows of whole batches, each checked before it is handed out.

A window is as large as asked for, or as its one batch when that is larger. Every batch that leaves
here has a plausible size, a known magic and codec, and the right CRC. The first that has not is a
:class:`CorruptError` with the path, its position, what was expected and what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.batches import (
    CRC_IN_KERNEL_BYTES_MAX,
    HAS_HIDDEN,
    find_bad_crc,
    scan_batches,
)
from keeplast.columns.kernel import BAD_CRC, OK, PROBLEMS
from keeplast.errors import CorruptError
from keeplast.format.checksum import crc32c
from keeplast.log.files import ReadHandle

WINDOW_BYTES_DEFAULT = 1 << 20
"""A window, its table and what is made of them stay in the cache next to the core."""
WINDOW_BYTES_MIN = 64 << 10
FEW_BATCHES = 128
"""A window with fewer, none of them compressed, is followed by one of up to twice the size: where
tables are small, larger windows cost fewer calls and waits for the interpreter.
"""
TABLE_ROWS = 16384
"""A window has so many batches at most, so that tables stay small against the data."""

Scan = Callable[[NDArray[np.uint8], int, NDArray[np.int64]], tuple[int, int, int, int, int]]
"""Finds the batches of ``data[:length]`` for the table, as :func:`scan_batches` does."""


class Window(Struct):
    """Whole batches of one segment.

    ``data[:length]`` are the file's bytes from ``position``; ``table[:batches]`` describes them,
    positions relative to the window. Both are reused by the next window. With HAS_GAPS among the
    ``marks`` some batches have no row, or even all.
    """

    path: Path
    position: int
    length: int
    data: NDArray[np.uint8]
    table: NDArray[np.int64]
    batches: int
    marks: int
    largest_batch_bytes: int

    def corrupt(self, batch: int, problem: str, expected: object, found: object) -> CorruptError:
        """Return the error that names batch ``batch`` of this window."""
        at = self.position + int(self.table[batch, t.POSITION])
        return CorruptError(
            problem, path=str(self.path), position=at, expected=expected, found=found, code="K215"
        )


@dataclass(slots=True)
class WindowBuffers:
    """The arrays that windows are read into; grown for a batch larger than a window."""

    window_bytes: int = WINDOW_BYTES_DEFAULT
    data: NDArray[np.uint8] = field(init=False)
    table: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Allocate; pages are touched as they are used."""
        self.data = np.empty(self.window_bytes, np.uint8)
        self.table = t.new_batch_table(TABLE_ROWS)

    def make_room(self, size: int) -> None:
        """Let ``data`` have at least ``size`` bytes; what it held is lost when it has to grow."""
        if size > self.data.shape[0]:
            self.data = np.empty(size, np.uint8)


def read_windows(
    handle: ReadHandle,
    path: Path,
    buffers: WindowBuffers,
    *,
    start: int = 0,
    end: int | None = None,
    checks_crc: bool = True,
    scan: Scan = scan_batches,
) -> Iterator[Window]:
    """Yield the batches of ``[start, end)`` in windows; ``start`` is where a batch begins.

    ``end`` defaults to the size of the file. Bytes that are left over at the end, a batch that
    is cut off there included, are a CorruptError: in a closed segment nothing may be torn.
    ``scan`` may leave batches out whose CRCs it has checked.
    """
    stop = handle.size_bytes if end is None else end
    position = start
    want = buffers.window_bytes
    while position < stop:
        length = min(want, stop - position)
        buffers.make_room(length)
        got = handle.pread_into(buffers.data.data[:length], position)
        if got < length:
            raise CorruptError(
                "file is shorter than it was when it was opened",
                path=str(path), position=position, expected=length, found=got, code="K224",
            )  # fmt: skip
        batches, consumed, marks, largest, code = scan(buffers.data, length, buffers.table)
        window = Window(
            path, position, consumed, buffers.data, buffers.table, batches, marks, largest
        )
        if batches and checks_crc:
            _check_crcs(window)
        # Who is given a window may use the buffers.
        bad = None if code == OK else _bad_batch(path, position, buffers.data, consumed, code)
        if consumed:
            yield window
        if bad is not None:
            raise bad
        position += consumed
        if batches == TABLE_ROWS:
            want = consumed + (consumed >> 3)  # no more than what the table can describe
            continue
        if consumed:
            is_larger = batches < FEW_BATCHES and not marks & HAS_HIDDEN
            want = min(buffers.window_bytes << is_larger, 2 * max(want, WINDOW_BYTES_MIN))
            continue
        want = _size_of_next(path, position, buffers.data, length, stop)


def read_from(
    handle: ReadHandle,
    path: Path,
    buffers: WindowBuffers,
    *,
    position: int,
    offset: int,
    end: int | None = None,
    checks_crc: bool = True,
) -> Iterator[Window]:
    """Yield the windows of ``[0, end)`` that hold ``offset`` and what lies above it.

    ``position`` is where an index says that reading may begin. An index can be older than its
    segment, where a directory was copied or restored in pieces. Reading begins at 0 unless a batch
    lies there that ends at ``offset`` or below it, so that nothing that is wanted lies before it.
    """
    if position:
        windows = read_windows(
            handle, path, buffers, start=position, end=end, checks_crc=checks_crc
        )
        try:
            first = next(windows, None)
        except CorruptError:
            first = None
        if first is not None and int(first.table[0, t.LAST_OFFSET]) <= offset:
            yield first
            yield from windows
            return
    yield from read_windows(handle, path, buffers, end=end, checks_crc=checks_crc)


def find_start(
    handle: ReadHandle, path: Path, buffers: WindowBuffers, *, position: int, offset: int, end: int
) -> int:
    """Return where :func:`read_from` would begin: ``position``, or 0 where it is not proven."""
    windows = read_from(
        handle, path, buffers, position=position, offset=offset, end=end, checks_crc=False
    )
    try:
        first = next(windows, None)
    except CorruptError:
        return 0  # who reads the segment says what is wrong with it
    return 0 if first is None else first.position


def _size_of_next(
    path: Path, position: int, data: NDArray[np.uint8], length: int, stop: int
) -> int:
    """Return the size of the one batch that was larger than its window; raise when it is cut."""
    if length < t.SCAN_BYTES_MIN:
        raise CorruptError(
            "bytes left over after the last batch",
            path=str(path), position=position, expected=0, found=length, code="K215",
        )  # fmt: skip
    size = int.from_bytes(data[8:12].tobytes(), "big", signed=True) + t.PREFIX_BYTES
    if size > stop - position:
        raise CorruptError(
            "batch reaches beyond the end of the file",
            path=str(path), position=position, expected=size, found=stop - position, code="K215",
        )  # fmt: skip
    return size


def _bad_batch(
    path: Path, position: int, data: NDArray[np.uint8], at: int, code: int
) -> CorruptError:
    size = int.from_bytes(data[at + 8 : at + 12].tobytes(), "big", signed=True)
    found = f"size {size}, magic {int(data[at + 16].astype(np.int8))}"
    return CorruptError(
        PROBLEMS[code],
        path=str(path),
        position=position + at,
        expected="a batch of magic 0 to 2 with a size of 14 or more",
        found=found,
        code="K215",
    )


def _check_crcs(window: Window) -> None:
    table, data = window.table, window.data
    bad = find_bad_crc(data, table, window.batches, CRC_IN_KERNEL_BYTES_MAX)
    if bad < 0 and window.largest_batch_bytes > CRC_IN_KERNEL_BYTES_MAX:
        rows = table[: window.batches]
        is_large = (rows[:, t.SIZE] > CRC_IN_KERNEL_BYTES_MAX) & (rows[:, t.MAGIC] == 2)
        large = np.flatnonzero(is_large)
        view = data.data
        for i, at, size in zip(
            large.tolist(),
            rows[large, t.POSITION].tolist(),
            rows[large, t.SIZE].tolist(),
            strict=True,
        ):
            stored = int.from_bytes(view[at + 17 : at + 21], "big")
            if crc32c(view[at + 21 : at + size]) != stored:
                bad = i
                break
    if bad >= 0:
        at, size = int(table[bad, t.POSITION]), int(table[bad, t.SIZE])
        if table[bad, t.MAGIC] == 2:
            stored = int.from_bytes(data[at + 17 : at + 21].tobytes(), "big")
            actual = crc32c(data[at + 21 : at + size].tobytes())
            # Kafka's order: what the batch says, then what its bytes give.
            raise window.corrupt(bad, PROBLEMS[BAD_CRC], f"{stored:#010x}", f"{actual:#010x}")
        raise window.corrupt(bad, PROBLEMS[BAD_CRC], "the checksum of the message", "another")
