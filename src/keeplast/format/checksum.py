"""The three checksums of Kafka's files: CRC-32C, CRC-32 and XXH32.

CRC-32C guards v2 batches (from byte 21 on) and producer snapshots, CRC-32 legacy messages, XXH32
the header and the blocks of an lz4 frame. Results are unsigned 32-bit numbers. Only this module
may import the ``crc32c`` package.
Answers to ``Crc32C``, ``java.util.zip.CRC32`` and ``XXHash32``.
"""

from __future__ import annotations

import struct
import zlib

import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview

_MASK = 0xFFFFFFFF
_PRIME_1 = 2654435761
_PRIME_2 = 2246822519
_PRIME_3 = 3266489917
_PRIME_4 = 668265263
_PRIME_5 = 374761393
_STRIPE = struct.Struct("<IIII")
_WORD = struct.Struct("<I")


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the Castagnoli CRC of ``data``, continuing from ``value`` of the bytes before it."""
    return _crc32c.crc32c(data, value)


def crc32(data: Buffer) -> int:
    """Return the ordinary (zlib) CRC of ``data``."""
    return zlib.crc32(data)


def xxh32(data: Buffer) -> int:
    """Return XXH32 with seed 0 of ``data``.

    Plain Python, a few MB/s. Lz4 frames need it for a header of two bytes, and for blocks only
    where a foreign writer switched block checksums on, which Kafka never does.
    """
    length = len(data)
    stripes_end = length - length % 16
    if length >= 16:
        one, two, three, four = _PRIME_1 + _PRIME_2 & _MASK, _PRIME_2, 0, -_PRIME_1 & _MASK
        for a, b, c, d in _STRIPE.iter_unpack(memoryview(data)[:stripes_end]):
            one = one + a * _PRIME_2 & _MASK
            one = (one << 13 | one >> 19) * _PRIME_1 & _MASK
            two = two + b * _PRIME_2 & _MASK
            two = (two << 13 | two >> 19) * _PRIME_1 & _MASK
            three = three + c * _PRIME_2 & _MASK
            three = (three << 13 | three >> 19) * _PRIME_1 & _MASK
            four = four + d * _PRIME_2 & _MASK
            four = (four << 13 | four >> 19) * _PRIME_1 & _MASK
        total = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
    else:
        total = _PRIME_5
    total = total + length & _MASK
    words_end = length - length % 4
    for (word,) in _WORD.iter_unpack(memoryview(data)[stripes_end:words_end]):
        total = _rotate(total + word * _PRIME_3 & _MASK, 17) * _PRIME_4 & _MASK
    for byte in memoryview(data)[words_end:]:
        total = _rotate(total + byte * _PRIME_5 & _MASK, 11) * _PRIME_1 & _MASK
    total = (total ^ total >> 15) * _PRIME_2 & _MASK
    total = (total ^ total >> 13) * _PRIME_3 & _MASK
    return total ^ total >> 16


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
