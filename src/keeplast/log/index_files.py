"""Reads the index files of a segment as bytes, and no more of them than its log can fill.

What a file's size claims is not believed before memory is taken for it; formats.md section 2.4.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.errors import CorruptError
from keeplast.format.filename import Kind
from keeplast.format.index_bounds import ENTRY_BYTES, index_bytes_max
from keeplast.log.files import FileSystem, read_whole, reading


def read_index(path: Path, kind: Kind, log_bytes: int, files: FileSystem) -> bytes:
    """Return the bytes of an index of ``kind`` whose segment's log has ``log_bytes``.

    CorruptError when there are more entries than the segment can have batches.
    """
    limit = index_bytes_max(log_bytes, kind)
    with reading(files, path) as handle:
        if handle.size_bytes > limit:
            raise CorruptError(
                "index has more entries than its segment has batches",
                path=str(path), position=limit, expected=f"at most {limit} bytes",
                found=handle.size_bytes,
            )  # fmt: skip
        return read_whole(handle, path)


def read_index_start(path: Path, kind: Kind, log_bytes: int, files: FileSystem) -> bytes:
    """Return what of an active segment's index can be entries of it.

    A running broker has it at full size: what is too much is left unread, but for the piece of an
    entry that a file of another size has at its end.
    """
    with reading(files, path) as handle:
        limit = index_bytes_max(log_bytes, kind) + handle.size_bytes % ENTRY_BYTES[kind]
        data = bytearray(min(handle.size_bytes, limit))
        return bytes(data[: handle.pread_into(memoryview(data), 0)])
