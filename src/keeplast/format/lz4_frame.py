"""The lz4 frame around independent lz4 blocks; everything in it is little-endian.

====  ========================================================================
size  content
====  ========================================================================
4     ``04 22 4d 18``
1     flags: version 01, independent blocks; block checksum, content size and
      content checksum are optional
1     block descriptor: greatest block size, 64 KiB to 4 MiB
0/8   content size, skipped
1     header checksum: second byte of XXH32 over flags to content size
4, n  block size (bit 31: stored as it is) and block, then its checksum if any
4     end mark, zero
0/4   content checksum, not verified
====  ========================================================================

What follows the end mark is ignored, a second frame too. For magic 0 Kafka used to compute the
header checksum over the frame's magic number as well; it writes that one and checks none there.
Answers to ``Lz4BlockInputStream`` and ``Lz4BlockOutputStream``; formats.md section 1.6.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer, xxh32
from keeplast.format.payload import cut

BLOCK_BYTES = 64 * 1024
"""Input of each block that is written; readers take up to what the descriptor says."""

END_MARK = b"\0\0\0\0"

_MAGIC = bytes.fromhex("04224d18")
_DESCRIPTOR = bytes.fromhex("6040")  # version 1, independent blocks; blocks of 64 KiB
_HEADER_BYTES = 7
_WORD = struct.Struct("<I")
_STORED = 1 << 31
_OUTPUT_RATIO_MAX = 255
_VERSION_MASK = 0xC0
_INDEPENDENT = 0x20
_BLOCK_CHECKSUM = 0x10
_CONTENT_SIZE = 0x08
_CONTENT_CHECKSUM = 0x04
_RESERVED = 0x03
_BLOCK_SIZES = {code << 4: 1 << 8 + 2 * code for code in (4, 5, 6, 7)}


def _checksum(header: Buffer) -> int:
    return xxh32(header) >> 8 & 0xFF


HEADER = _MAGIC + _DESCRIPTOR + bytes((_checksum(_DESCRIPTOR),))
BROKEN_HEADER = _MAGIC + _DESCRIPTOR + bytes((_checksum(_MAGIC + _DESCRIPTOR),))
"""The header with the checksum of magic 0."""


class Block(NamedTuple):
    """One block in ``[start, end)`` of the payload; it gives at most ``output_bytes_max``.

    A tuple because one is made for every 64 KiB of data.
    """

    start: int
    end: int
    is_stored: bool
    output_bytes_max: int


@dataclass(frozen=True, slots=True)
class _Header:
    end: int
    block_bytes_max: int
    has_block_checksum: bool
    has_content_checksum: bool


_WRITTEN_HEADER = _Header(_HEADER_BYTES, BLOCK_BYTES, False, False)


def encode_size(size: int, *, is_stored: bool) -> bytes:
    """Return the prefix of a block of ``size`` bytes."""
    return _WORD.pack(size | _STORED if is_stored else size)


def decode_blocks(data: memoryview, *, is_checksum_checked: bool) -> list[Block]:
    """Return the blocks of the frame; nothing is decompressed, sizes are only compared."""
    header = _decode_header(data, is_checksum_checked)
    position = header.end
    blocks: list[Block] = []
    while True:
        if len(data) - position < _WORD.size:
            raise cut(position, "a block or an end mark", len(data) - position)
        (word,) = _WORD.unpack_from(data, position)
        start = position + _WORD.size
        size = word & ~_STORED
        if size == 0:
            if header.has_content_checksum and len(data) - start < _WORD.size:
                raise cut(start, "a content checksum", len(data) - start)
            return blocks
        if size > header.block_bytes_max:
            raise CorruptError(
                "lz4 block too large",
                position=position,
                expected=f"at most {header.block_bytes_max} bytes",
                found=f"{size} bytes",
            )
        end = start + size
        position = end + (_WORD.size if header.has_block_checksum else 0)
        if position > len(data):
            raise cut(start, f"{position - start} bytes", len(data) - start)
        if header.has_block_checksum:
            _check_block(data, start, end)
        is_stored = word >= _STORED
        output_bytes_max = (
            size if is_stored else min(header.block_bytes_max, size * _OUTPUT_RATIO_MAX)
        )
        blocks.append(Block(start, end, is_stored, output_bytes_max))


def _decode_header(data: memoryview, is_checksum_checked: bool) -> _Header:
    if data[:_HEADER_BYTES] == HEADER:
        return _WRITTEN_HEADER
    if len(data) < _HEADER_BYTES:
        raise cut(0, "an lz4 frame header", len(data))
    magic = bytes(data[: len(_MAGIC)])
    if magic != _MAGIC:
        raise CorruptError("not an lz4 frame", position=0, expected=_MAGIC.hex(), found=magic.hex())
    flags, descriptor = data[4], data[5]
    if flags & (_VERSION_MASK | _INDEPENDENT | _RESERVED) != _DESCRIPTOR[0]:
        raise CorruptError(
            "lz4 frame flags not supported",
            position=4,
            expected="version 1, independent blocks",
            found=f"{flags:#04x}",
        )
    if descriptor not in _BLOCK_SIZES:
        raise CorruptError(
            "lz4 block size not supported",
            position=5,
            expected="0x40, 0x50, 0x60 or 0x70",
            found=f"{descriptor:#04x}",
        )
    end = 6 + (8 if flags & _CONTENT_SIZE else 0)
    if len(data) <= end:
        raise cut(0, "an lz4 frame header", len(data))
    if is_checksum_checked and data[end] != _checksum(data[4:end]):
        raise CorruptError(
            "lz4 header checksum mismatch",
            position=end,
            expected=f"{data[end]:#04x}",
            found=f"{_checksum(data[4:end]):#04x}",
        )
    return _Header(
        end + 1,
        _BLOCK_SIZES[descriptor],
        bool(flags & _BLOCK_CHECKSUM),
        bool(flags & _CONTENT_CHECKSUM),
    )


def _check_block(data: memoryview, start: int, end: int) -> None:
    (expected,) = _WORD.unpack_from(data, end)
    found = xxh32(data[start:end])
    if expected != found:
        raise CorruptError(
            "lz4 block checksum mismatch",
            position=start,
            expected=f"{expected:#010x}",
            found=f"{found:#010x}",
        )
