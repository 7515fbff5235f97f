"""The frames around compressed payloads: gzip, lz4, xerial's snappy, zstd.

The rule: **a frame's own claim of its size is never believed**. All readers here share one greatest
size, and the ways to fail. Every size that a payload declares passes :func:`check_limit` before
memory is taken for it.

*gzip* payloads are RFC 1952 members, written as the JDK writes them. Members in a row are one
stream. As in the JDK, what follows a member and is no gzip header, or is no longer than 18 bytes,
is ignored. Output is asked for one byte past the limit and never more, so a payload cannot make us
take memory that the caller did not allow. Answers to ``GZIPOutputStream`` (level -1, JDK 16 or
later) and ``GZIPInputStream``.

*lz4*: the frame is around independent lz4 blocks; everything in it is little-endian.

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

*snappy*: the xerial stream is around raw snappy blocks. It is not Google's framing format.

    ====  =================================================================
    size  content
    ====  =================================================================
    8     ``82 53 4e 41 50 50 59 00``
    4     version, 1
    4     lowest compatible version, 1
    4, n  length of a raw snappy block, and the block; repeated to the end
    ====  =================================================================

A length equal to the magic's first four bytes starts another header (streams in a row). Fewer than
four bytes are a quiet end. There is no checksum. A payload that does not start with the whole
header is one raw block, as some clients write it. Answers to ``SnappyOutputStream`` and
``SnappyInputStream`` of snappy-java.

*zstd*: the outer structure of frames is read to know how much they can give before they do. A block
of a frame gives at most 128 KiB if compressed, and exactly its declared size if raw or run length
encoded. Source: RFC 8878 section 3.1.1.2. So headers alone bound the output: a frame of run-length
blocks gives up to 32,768 times its size. Frames in a row, and skippable ones, are one stream; any
other bytes between or after them are an error, as they are to Kafka. Answers to the
``ZstdInputStreamNoFinalizer`` of zstd-jni; formats.md section 1.6.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer, crc32, xxh32

DECOMPRESSED_BYTES_MAX = 1 << 30
"""Most that one payload may decompress to, whatever the caller allows."""


def check_limit(size: int, limit: int, position: int) -> None:
    """Raise :class:`CorruptError` when ``size`` is above ``limit`` (inclusive)."""
    if size > limit:
        raise CorruptError(
            "data too large when decompressed",
            position=position,
            expected=f"at most {limit} bytes",
            found=f"{size} bytes",
            code="K216",
        )


def cut(position: int, expected: object, found: int) -> CorruptError:
    """Return the error for a unit at ``position`` that has only ``found`` bytes."""
    return CorruptError(
        "compressed data ends early",
        position=position,
        expected=expected,
        found=f"{max(0, found)} bytes",
        code="K216",
    )


def undecodable(codec: str, position: int, found: object) -> CorruptError:
    """Return the error for data at ``position`` that the codec's library refuses."""
    return CorruptError(
        f"{codec} data cannot be decompressed",
        position=position,
        expected=f"valid {codec} data",
        found=found,
        code="K216",
    )


_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
_LEVEL = 6
_WINDOW_BITS = 31
_RAW_WINDOW_BITS = -15
_TRAILER = struct.Struct("<II")  # crc of the content, its size modulo 2^32
_GZIP_MAGIC = b"\x1f\x8b\x08"
_JUNK_BYTES_MAX = 18
_BITE_BYTES = 16 * 1024


def compress(data: Buffer) -> bytes:
    """Return ``data`` as one gzip member, with Kafka's level and a header without a time."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_WINDOW_BITS)
    body = deflater.compress(data)
    trailer = _TRAILER.pack(crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((_GZIP_HEADER, body, deflater.flush(), trailer))


def decompress(data: memoryview, limit: int) -> bytes:
    """Return the content of all members, at most ``limit`` bytes."""
    content, position = _member(data, 0, len(data), limit)
    if _is_junk(data, position):
        return content
    parts = [content]
    size = len(content)
    while not _is_junk(data, position):
        # Small bites: what zlib does not use of a bite it copies, and members may be tiny.
        content, position = _member(data, position, _BITE_BYTES, limit - size)
        parts.append(content)
        size += len(content)
    return b"".join(parts)


def _is_junk(data: memoryview, position: int) -> bool:
    return (
        len(data) - position <= _JUNK_BYTES_MAX
        or data[position : position + len(_GZIP_MAGIC)] != _GZIP_MAGIC
    )


def _member(data: memoryview, start: int, bite: int, limit: int) -> tuple[bytes, int]:
    inflater = zlib.decompressobj(_WINDOW_BITS)
    parts: list[bytes] = []
    size = 0
    position = start
    while not inflater.eof:
        if position >= len(data):
            raise cut(start, "a whole gzip member", len(data) - start)
        piece = data[position : position + bite]
        position += len(piece)
        try:
            part = inflater.decompress(piece, limit - size + 1)
        except zlib.error as error:
            raise undecodable("gzip", start, str(error)) from None
        size += len(part)
        check_limit(size, limit, start)
        parts.append(part)
    content = parts[0] if len(parts) == 1 else b"".join(parts)
    return content, position - len(inflater.unused_data)


LZ4_BLOCK_BYTES = 64 * 1024
"""Input of each block that is written; readers take up to what the descriptor says."""

END_MARK = b"\0\0\0\0"

_LZ4_MAGIC = bytes.fromhex("04224d18")
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


LZ4_HEADER = _LZ4_MAGIC + _DESCRIPTOR + bytes((_checksum(_DESCRIPTOR),))
BROKEN_HEADER = _LZ4_MAGIC + _DESCRIPTOR + bytes((_checksum(_LZ4_MAGIC + _DESCRIPTOR),))
"""The header with the checksum of magic 0."""


class Block(NamedTuple):
    """One block in ``[start, end)`` of the payload; it gives at most ``output_bytes_max``.

    A tuple because one is made for every 64 KiB of data.
    """

    start: int
    end: int
    is_stored: bool
    output_bytes_max: int


class _Header(Struct, frozen=True):
    end: int
    block_bytes_max: int
    has_block_checksum: bool
    has_content_checksum: bool


_WRITTEN_HEADER = _Header(_HEADER_BYTES, LZ4_BLOCK_BYTES, False, False)


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
                code="K216",
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
    if data[:_HEADER_BYTES] == LZ4_HEADER:
        return _WRITTEN_HEADER
    if len(data) < _HEADER_BYTES:
        raise cut(0, "an lz4 frame header", len(data))
    magic = bytes(data[: len(_LZ4_MAGIC)])
    if magic != _LZ4_MAGIC:
        raise CorruptError(
            "not an lz4 frame",
            position=0,
            expected=_LZ4_MAGIC.hex(),
            found=magic.hex(),
            code="K216",
        )
    flags, descriptor = data[4], data[5]
    if flags & (_VERSION_MASK | _INDEPENDENT | _RESERVED) != _DESCRIPTOR[0]:
        raise CorruptError(
            "lz4 frame flags not supported",
            position=4,
            expected="version 1, independent blocks",
            found=f"{flags:#04x}",
            code="K216",
        )
    if descriptor not in _BLOCK_SIZES:
        raise CorruptError(
            "lz4 block size not supported",
            position=5,
            expected="0x40, 0x50, 0x60 or 0x70",
            found=f"{descriptor:#04x}",
            code="K216",
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
            code="K216",
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
            code="K216",
        )


XERIAL_BLOCK_BYTES = 32 * 1024
"""Input of each block that is written; readers take any."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_VERSION = 1
_XERIAL_HEADER = struct.Struct(
    ">8s"  # magic
    "i"  # version
    "i"  # lowest compatible version
)
_LENGTH = struct.Struct(">i")
_MAGIC_LENGTH = _LENGTH.unpack(_XERIAL_MAGIC[:4])[0]
_LENGTH_MAX = 512 * 1024 * 1024
_SIZE_BYTES_MAX = 5
# The densest element of a snappy block is a copy: 3 bytes of input give up to 64 of output.
_COPY_BYTES = 3
_COPY_OUTPUT_BYTES = 64

XERIAL_HEADER = _XERIAL_HEADER.pack(_XERIAL_MAGIC, _VERSION, _VERSION)


def encode_length(length: int) -> bytes:
    """Return the prefix of a block of ``length`` bytes."""
    return _LENGTH.pack(length)


def is_framed(data: memoryview) -> bool:
    """Return False when the payload is one raw block without a header."""
    return len(data) >= _XERIAL_HEADER.size and data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC


def find_blocks(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield start and end of every raw block of a framed payload."""
    position = _XERIAL_HEADER.size
    while len(data) - position >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, position)
        if length == _MAGIC_LENGTH:
            if len(data) - position < _XERIAL_HEADER.size:
                raise cut(position, "a snappy stream header", len(data) - position)
            magic, version, _ = _XERIAL_HEADER.unpack_from(data, position)
            if magic != _XERIAL_MAGIC:
                # snappy-java takes half a magic for the end of the stream.
                break
            if version < _VERSION:
                raise CorruptError(
                    "unknown version of a snappy stream",
                    position=position,
                    expected=f"at least {_VERSION}",
                    found=version,
                    code="K216",
                )
            position += _XERIAL_HEADER.size
            continue
        start = position + _LENGTH.size
        if not 0 <= length <= _LENGTH_MAX:
            raise CorruptError(
                "snappy block length out of range",
                position=position,
                expected=f"0 to {_LENGTH_MAX}",
                found=length,
                code="K216",
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
                    code="K216",
                )
            check_limit(size, limit, start)
            return size
    raise undecodable("snappy", start, bytes(data[start : min(end, start + _SIZE_BYTES_MAX)]).hex())


_ZSTD_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50
_SKIPPABLE_MASK = 0xFFFFFFF0
_PREFIX_BYTES = 8
_BLOCK_HEADER_BYTES = 3
_BLOCK_BYTES_MAX = 128 * 1024
_RLE, _COMPRESSED = 1, 2
_SINGLE_SEGMENT = 0x20


def raw_frame(content: bytes) -> bytes:
    """Return a frame that holds up to 128 KiB as they are."""
    header = len(content) << 3 | 1
    return (
        _WORD.pack(_ZSTD_MAGIC)
        + b"\0\x58"
        + header.to_bytes(_BLOCK_HEADER_BYTES, "little")
        + content
    )


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
        elif magic == _ZSTD_MAGIC:
            frame_bound, position = _frame(data, start)
            bound += frame_bound
        else:
            raise CorruptError(
                "not a zstd frame",
                position=start,
                expected=f"{_ZSTD_MAGIC:#010x}",
                found=f"{magic:#010x}",
                code="K216",
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
                code="K216",
            )
        bound += _BLOCK_BYTES_MAX if kind == _COMPRESSED else size
        position += _BLOCK_HEADER_BYTES + (1 if kind == _RLE else size)
        if header & 1:
            return bound, position + checksum_bytes
