"""gzip payloads: RFC 1952 members, written as the JDK writes them.

Members in a row are one stream. As in the JDK, what follows a member and is no gzip header, or is
no longer than 18 bytes, is ignored. Output is asked for one byte past the limit and never more, so
a payload cannot make us take memory that the caller did not allow.
Answers to ``GZIPOutputStream`` (level -1, JDK 16 or later) and ``GZIPInputStream``.
"""

from __future__ import annotations

import struct
import zlib

from keeplast.format.checksum import Buffer, crc32
from keeplast.format.payload import check_limit, cut, undecodable

_HEADER = bytes.fromhex("1f8b08000000000000ff")
_LEVEL = 6
_WINDOW_BITS = 31
_RAW_WINDOW_BITS = -15
_TRAILER = struct.Struct("<II")  # crc of the content, its size modulo 2^32
_MAGIC = b"\x1f\x8b\x08"
_JUNK_BYTES_MAX = 18
_BITE_BYTES = 16 * 1024


def compress(data: Buffer) -> bytes:
    """Return ``data`` as one gzip member, with Kafka's level and a header without a time."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_WINDOW_BITS)
    body = deflater.compress(data)
    trailer = _TRAILER.pack(crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((_HEADER, body, deflater.flush(), trailer))


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
        len(data) - position <= _JUNK_BYTES_MAX or data[position : position + len(_MAGIC)] != _MAGIC
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
