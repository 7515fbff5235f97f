"""Reads any file of batches in bounded memory, for people rather than for cleaning.

The rule that a reader must not break: a window holds whole batches only, so nothing that spans two
windows is ever decoded from a part. Batches come out in file order; the first place that is not a
batch ends the file with a :class:`CorruptError` that carries path and position. A wrong CRC is no
such place: the batch says so itself (``is_valid``) and the next one follows.

Slow on purpose, one Python object a batch; cleaning reads through the kernels instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from keeplast.errors import CorruptError
from keeplast.format.message_set import SIZE_MIN, Batch, read_batches
from keeplast.log.files import FileSystem, ReadHandle, reading

WINDOW_BYTES = 4 << 20
BATCH_BYTES_MAX = 1 << 30
"""A batch that claims more is damage; brokers refuse far smaller ones."""

_PREFIX = struct.Struct(
    ">q"  # base offset
    "i"  # size of what follows
)


def read_segment(
    files: FileSystem,
    path: Path,
    *,
    start: int = 0,
    end: int | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Batch]:
    """Yield the batches of ``path`` in bytes ``[start, end)``; ``start`` is where one begins.

    ``end`` defaults to the file's size. At most ``window_bytes`` are held, or the one batch that is
    larger. Raises CorruptError at the first byte that begins no whole batch, OSError as the disk
    does.
    """
    with reading(files, path) as handle:
        yield from read_opened(handle, path, start=start, end=end, window_bytes=window_bytes)


def read_opened(
    handle: ReadHandle,
    path: Path,
    *,
    start: int = 0,
    end: int | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Batch]:
    """Yield the batches of an open file as :func:`read_segment` does; ``path`` is for errors."""
    stop = handle.size_bytes if end is None else min(end, handle.size_bytes)
    position = start
    while position < stop:
        data = _window(handle, path, position, stop, window_bytes)
        try:
            yield from read_batches(data, base_position=position)
        except CorruptError as error:
            raise error.located(str(path)) from error
        position += len(data)


def _window(
    handle: ReadHandle, path: Path, position: int, stop: int, window_bytes: int
) -> memoryview:
    """Return the whole batches that begin at ``position``: at least one, or CorruptError."""
    data = _read(handle, position, min(max(window_bytes, _PREFIX.size), stop - position))
    length = 0
    while length + _PREFIX.size <= len(data):
        _, size = _PREFIX.unpack_from(data, length)
        whole = _PREFIX.size + size
        if size < SIZE_MIN or whole > BATCH_BYTES_MAX:
            if length:
                break
            raise CorruptError(
                "size of a batch is impossible",
                path=str(path),
                position=position,
                expected=f"{SIZE_MIN} to {BATCH_BYTES_MAX - _PREFIX.size}",
                found=size,
                code="K215",
            )
        if length + whole > len(data):
            if length:
                break
            if position + whole > stop:
                raise CorruptError(
                    "batch is cut off by the end of the file",
                    path=str(path),
                    position=position,
                    expected=f"{whole} bytes",
                    found=f"{stop - position} bytes",
                    code="K215",
                )
            return _read(handle, position, whole)
        length += whole
    if not length:
        raise CorruptError(
            "bytes left over after the last batch",
            path=str(path),
            position=position,
            expected=f"at least {_PREFIX.size} bytes",
            found=f"{stop - position} bytes",
            code="K215",
        )
    return data[:length]


def _read(handle: ReadHandle, position: int, size: int) -> memoryview:
    data = memoryview(bytearray(size))
    return data[: handle.pread_into(data, position)]
