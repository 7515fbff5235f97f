"""The outer structure of zstd frames, read to know how much they can give before they do.

A block of a frame gives at most 128 KiB if compressed, and exactly its declared size if raw or run
length encoded (RFC 8878 section 3.1.1.2), so headers alone bound the output: a frame of run-length
blocks gives up to 32,768 times its size. Frames in a row, and skippable ones, are one stream; any
other bytes between or after them are an error, as they are to Kafka.
Answers to the ``ZstdInputStreamNoFinalizer`` of zstd-jni; formats.md section 1.6.
"""

from __future__ import annotations

import struct

from keeplast.errors import CorruptError
from keeplast.format.payload import cut

_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50
_SKIPPABLE_MASK = 0xFFFFFFF0
_WORD = struct.Struct("<I")
_PREFIX_BYTES = 8
_BLOCK_HEADER_BYTES = 3
_BLOCK_BYTES_MAX = 128 * 1024
_RLE, _COMPRESSED = 1, 2
_SINGLE_SEGMENT = 0x20
_CONTENT_CHECKSUM = 0x04
_PLAIN_MASK = 0xEB
_PLAIN_WINDOW_MAX = 13 << 3 | 7


def is_plain(data: memoryview) -> bool:
    """Say whether a frame declares nothing but a window of less than 16 MiB, as Kafka's do."""
    return (
        len(data) > _PREFIX_BYTES
        and _WORD.unpack_from(data)[0] == _MAGIC
        and data[4] & _PLAIN_MASK == 0
        and data[5] <= _PLAIN_WINDOW_MAX
    )


def raw_frame(content: bytes) -> bytes:
    """Return a frame that holds up to 128 KiB as they are."""
    header = len(content) << 3 | 1
    return _WORD.pack(_MAGIC) + b"\0\x58" + header.to_bytes(_BLOCK_HEADER_BYTES, "little") + content


def output_bound(data: memoryview) -> int:
    """Return the most that the frames in ``data`` can give; a cut frame raises."""
    bound = position = 0
    while position < len(data):
        start = position
        if len(data) - start < _PREFIX_BYTES:
            raise cut(start, "a zstd frame", len(data) - start)
        (magic,) = _WORD.unpack_from(data, start)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
            (size,) = _WORD.unpack_from(data, start + _WORD.size)
            position = start + _PREFIX_BYTES + size
        elif magic == _MAGIC:
            frame_bound, position = _frame(data, start)
            bound += frame_bound
        else:
            raise CorruptError(
                "not a zstd frame",
                position=start,
                expected=f"{_MAGIC:#010x}",
                found=f"{magic:#010x}",
            )
        if position > len(data):
            raise cut(start, f"{position - start} bytes", len(data) - start)
    return bound


def _frame(data: memoryview, start: int) -> tuple[int, int]:
    descriptor = data[start + 4]
    is_single_segment = bool(descriptor & _SINGLE_SEGMENT)
    content_size_bytes = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary_id_bytes = (0, 1, 2, 4)[descriptor & 0x03]
    position = start + 5 + (not is_single_segment) + dictionary_id_bytes + content_size_bytes
    checksum_bytes = 4 if descriptor & _CONTENT_CHECKSUM else 0
    bound = 0
    while True:
        header = int.from_bytes(data[position : position + _BLOCK_HEADER_BYTES], "little")
        if len(data) - position < _BLOCK_HEADER_BYTES:
            raise cut(position, "a block header", len(data) - position)
        kind, size = header >> 1 & 3, header >> 3
        if kind > _COMPRESSED or size > _BLOCK_BYTES_MAX:
            raise CorruptError(
                "zstd block header not valid",
                position=position,
                expected=f"type 0 to 2, at most {_BLOCK_BYTES_MAX} bytes",
                found=f"type {kind}, {size} bytes",
            )
        bound += _BLOCK_BYTES_MAX if kind == _COMPRESSED else size
        position += _BLOCK_HEADER_BYTES + (1 if kind == _RLE else size)
        if header & 1:
            return bound, position + checksum_bytes
