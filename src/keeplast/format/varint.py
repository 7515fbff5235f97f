"""Variable-length integers: base-128 groups, least significant first, bit 7 meaning "more".

Values are Java's: 32-bit (``varint``, ``unsigned``) or 64-bit (``varlong``) two's complement. The
signed kinds are zig-zagged first. Decoding follows what the JVM really does:

1. An error only if the 5th (10th) byte still has bit 7 set, or the data ends.
2. Bits of the last byte that do not fit are dropped: results are masked before un-zig-zagging.
3. Over-long encodings, such as ``80 00`` for 0, are accepted. Encoding emits the shortest form.

Answers to ``org.apache.kafka.common.utils.ByteUtils``; formats.md section 0.
"""

from __future__ import annotations

from keeplast.errors import CorruptError, invariant
from keeplast.format.checksum import Buffer

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10
_INT32 = 1 << 31
_INT64 = 1 << 63
_MASK_32 = (1 << 32) - 1
_MASK_64 = (1 << 64) - 1


def encode_unsigned(value: int) -> bytes:
    """Return the 32-bit ``value`` without zig-zag; a negative one takes five bytes."""
    invariant(-_INT32 <= value <= _MASK_32, f"not a 32-bit number. value={value}")
    return _encode(value & _MASK_32)


def encode_varint(value: int) -> bytes:
    """Return a signed 32-bit ``value``, zig-zagged, in 1 to 5 bytes, least significant first."""
    invariant(-_INT32 <= value < _INT32, f"not a 32-bit number. value={value}")
    return _encode((value << 1 ^ value >> 31) & _MASK_32)


def encode_varlong(value: int) -> bytes:
    """Return a signed 64-bit ``value``, zig-zagged, in 1 to 10 bytes, least significant first."""
    invariant(-_INT64 <= value < _INT64, f"not a 64-bit number. value={value}")
    return _encode((value << 1 ^ value >> 63) & _MASK_64)


def decode_unsigned(data: Buffer, position: int = 0) -> tuple[int, int]:
    """Return the number at ``position`` as a Java ``int``, and the position after it."""
    raw, end = _decode(data, position, VARINT_BYTES_MAX)
    raw &= _MASK_32
    return raw - (1 << 32) if raw >= _INT32 else raw, end


def decode_varint(data: Buffer, position: int = 0) -> tuple[int, int]:
    """Return the signed 32-bit number at ``position``, and the position after it."""
    raw, end = _decode(data, position, VARINT_BYTES_MAX)
    raw &= _MASK_32
    return raw >> 1 ^ -(raw & 1), end


def decode_varlong(data: Buffer, position: int = 0) -> tuple[int, int]:
    """Return the signed 64-bit number at ``position``, and the position after it."""
    raw, end = _decode(data, position, VARLONG_BYTES_MAX)
    raw &= _MASK_64
    return raw >> 1 ^ -(raw & 1), end


def _encode(raw: int) -> bytes:
    if raw < 0x80:
        return bytes((raw,))
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _decode(data: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    raw = 0
    for index in range(bytes_max):
        at = position + index
        if at >= len(data):
            raise CorruptError(
                "data ends inside a varint",
                position=position,
                expected="a byte without bit 7",
                found=f"{max(0, len(data) - position)} bytes",
            )
        byte = data[at]
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return raw, at + 1
    raise CorruptError(
        "varint too long",
        position=position,
        expected=f"at most {bytes_max} bytes",
        found=bytes(data[position : position + bytes_max]).hex(),
    )
