"""The entries of a ``.log`` file, of whatever magic: a plain concatenation without header or end.

Reading stops quietly where no whole entry is left: fewer than 18 bytes, or an entry that reaches
past the end. Whether that is a torn tail is for the caller to say: :func:`valid_bytes` tells how
much was whole. Everything else that is not an entry is an error.
Answers to ``ByteBufferLogInputStream``; formats.md section 1.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from keeplast.errors import CorruptError
from keeplast.format.batch import MAGIC, RecordBatch, decode_batch
from keeplast.format.checksum import Buffer
from keeplast.format.legacy import SIZE_MIN, SIZE_PREFIX_BYTES, LegacyBatch, decode_message

Batch = RecordBatch | LegacyBatch
"""A v2 batch, or an entry of magic 0 or 1 with the same fields."""

ENTRY_BYTES_MIN = 18
"""With fewer bytes left a file has ended."""

_SIZE = struct.Struct(">i")
_SIZE_POSITION = 8
_MAGIC = struct.Struct(">b")
_MAGIC_POSITION = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an entry lies, by its first 17 bytes alone; ``end`` is exclusive."""

    position: int
    end: int
    magic: int


def read_entries(data: Buffer, *, base_position: int = 0) -> Iterator[Entry]:
    """Yield the whole entries of ``data``, positions relative to it; looks at no other byte.

    Raises :class:`CorruptError` (position counted from ``base_position``) for a size below 14 or
    a magic outside 0 to 2.
    """
    position = 0
    while len(data) - position >= ENTRY_BYTES_MIN:
        (size,) = _SIZE.unpack_from(data, position + _SIZE_POSITION)
        (magic,) = _MAGIC.unpack_from(data, position + _MAGIC_POSITION)
        if size < SIZE_MIN:
            raise CorruptError(
                "entry too small",
                position=base_position + position,
                expected=f"at least {SIZE_MIN} bytes",
                found=size,
            )
        if not 0 <= magic <= MAGIC:
            raise CorruptError(
                "unknown magic",
                position=base_position + position,
                expected=f"0 to {MAGIC}",
                found=magic,
            )
        end = position + SIZE_PREFIX_BYTES + size
        if end > len(data):
            return
        yield Entry(position, end, magic)
        position = end


def read_batches(data: Buffer, *, base_position: int = 0) -> Iterator[Batch]:
    """Yield the whole entries of ``data`` as batches, which refer to its memory.

    ``base_position`` is where ``data`` starts in its file: positions of batches and errors are
    file positions.
    """
    view = memoryview(data)
    for entry in read_entries(view, base_position=base_position):
        decode = decode_batch if entry.magic == MAGIC else decode_message
        yield decode(view[: entry.end], entry.position, base_position=base_position)


def valid_bytes(data: Buffer) -> int:
    """Return the length of the whole entries at the front of ``data``.

    Less than ``len(data)`` means that bytes are left over: a torn tail, or data that continues
    elsewhere. Raises :class:`CorruptError` as :func:`read_entries` does; no CRC is checked.
    """
    end = 0
    for entry in read_entries(data):
        end = entry.end
    return end
