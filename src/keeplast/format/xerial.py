"""The xerial stream around raw snappy blocks, which is not Google's framing format.

====  =================================================================
size  content
====  =================================================================
8     ``82 53 4e 41 50 50 59 00``
4     version, 1
4     lowest compatible version, 1
4, n  length of a raw snappy block, and the block; repeated to the end
====  =================================================================

A length equal to the magic's first four bytes starts another header (streams in a row); fewer than
four bytes are a quiet end. There is no checksum. A payload that does not start with the whole
header is one raw block, as some clients write it.
Answers to ``SnappyOutputStream`` and ``SnappyInputStream`` of snappy-java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from keeplast.errors import CorruptError
from keeplast.format.payload import check_limit, cut, undecodable

BLOCK_BYTES = 32 * 1024
"""Input of each block that is written; readers take any."""

_MAGIC = b"\x82SNAPPY\x00"
_VERSION = 1
_HEADER = struct.Struct(
    ">8s"  # magic
    "i"  # version
    "i"  # lowest compatible version
)
_LENGTH = struct.Struct(">i")
_MAGIC_LENGTH = _LENGTH.unpack(_MAGIC[:4])[0]
_LENGTH_MAX = 512 * 1024 * 1024
_SIZE_BYTES_MAX = 5
# The densest element of a snappy block is a copy: 3 bytes of input give up to 64 of output.
_COPY_BYTES = 3
_COPY_OUTPUT_BYTES = 64

HEADER = _HEADER.pack(_MAGIC, _VERSION, _VERSION)


def encode_length(length: int) -> bytes:
    """Return the prefix of a block of ``length`` bytes."""
    return _LENGTH.pack(length)


def is_framed(data: memoryview) -> bool:
    """Return False when the payload is one raw block without a header."""
    return len(data) >= _HEADER.size and data[: len(_MAGIC)] == _MAGIC


def find_blocks(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield start and end of every raw block of a framed payload."""
    position = _HEADER.size
    while len(data) - position >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, position)
        if length == _MAGIC_LENGTH:
            if len(data) - position < _HEADER.size:
                raise cut(position, "a snappy stream header", len(data) - position)
            magic, version, _ = _HEADER.unpack_from(data, position)
            if magic != _MAGIC:
                # snappy-java takes half a magic for the end of the stream.
                break
            if version < _VERSION:
                raise CorruptError(
                    "unknown version of a snappy stream",
                    position=position,
                    expected=f"at least {_VERSION}",
                    found=version,
                )
            position += _HEADER.size
            continue
        start = position + _LENGTH.size
        if not 0 <= length <= _LENGTH_MAX:
            raise CorruptError(
                "snappy block length out of range",
                position=position,
                expected=f"0 to {_LENGTH_MAX}",
                found=length,
            )
        if length > len(data) - start:
            raise cut(position, f"{length} bytes", len(data) - start)
        yield start, start + length
        position = start + length


def declared_size(data: memoryview, start: int, end: int, limit: int) -> int:
    """Return the size of the raw block in ``[start, end)`` when decompressed, if it is credible."""
    size = 0
    for index in range(_SIZE_BYTES_MAX):
        position = start + index
        if position >= end:
            break
        byte = data[position]
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            body = end - position - 1
            if size * _COPY_BYTES > body * _COPY_OUTPUT_BYTES:
                raise CorruptError(
                    "snappy block declares more than it can hold",
                    position=start,
                    expected=f"at most {body * _COPY_OUTPUT_BYTES // _COPY_BYTES}",
                    found=size,
                )
            check_limit(size, limit, start)
            return size
    raise undecodable("snappy", start, bytes(data[start : min(end, start + _SIZE_BYTES_MAX)]).hex())
