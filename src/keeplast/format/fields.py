"""The fields of messages: varints, and what messages of internal topics are made of.

*Varints* are base-128 groups, least significant first, bit 7 meaning "more". Values are Java's:
32-bit (``varint``, ``unsigned``) or 64-bit (``varlong``) two's complement. The signed kinds are
zig-zagged first. Decoding follows what the JVM really does:

1. An error only if the 5th (10th) byte still has bit 7 set, or the data ends.
2. Bits of the last byte that do not fit are dropped: results are masked before un-zig-zagging.
3. Over-long encodings, such as ``80 00`` for 0, are accepted. Encoding emits the shortest form.

Answers to ``org.apache.kafka.common.utils.ByteUtils``; formats.md section 0.

*Messages* of internal topics are read field by field. A message is written in one of two encodings;
which one follows from its version:

    =========  ===========================================  ==================================
    field      plain                                        flexible
    =========  ===========================================  ==================================
    string     int16 length (-1 for null), UTF-8            unsigned varint length + 1 (0 null)
    bytes      int32 length (-1 for null)                   unsigned varint length + 1
    array      int32 count (-1 for null)                    unsigned varint count + 1
    tags       none                                         after the fields: unsigned varint
                                                            count, then tag, size, content each
    =========  ===========================================  ==================================

Every length is compared with what is left before anything is taken. Answers to
``ByteBufferAccessor`` and the classes that Kafka generates from its message definitions.
"""

from __future__ import annotations

import struct
from functools import lru_cache

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


# Most numbers of a log are small deltas and sizes, which come again.
@lru_cache(1 << 14)
def encode_varint(value: int) -> bytes:
    """Return a signed 32-bit ``value``, zig-zagged, in 1 to 5 bytes, least significant first."""
    invariant(-_INT32 <= value < _INT32, f"not a 32-bit number. value={value}")
    return _encode((value << 1 ^ value >> 31) & _MASK_32)


@lru_cache(1 << 14)
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
                code="K217",
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
        code="K217",
    )


NO_COUNT = -1
_INT8, _INT16, _INT32_FIELD, _INT64_FIELD = (struct.Struct(f">{code}") for code in "bhiq")


class FieldReader:
    """A position in one message; ``is_flexible`` may be set once the version is known."""

    __slots__ = ("_data", "_name", "is_flexible", "position")

    def __init__(self, data: Buffer, name: str) -> None:
        """Begin at the start of ``data``; ``name`` is what errors call the message."""
        self._data = bytes(data)
        self._name = name
        self.is_flexible = False
        self.position = 0

    def int8(self) -> int:
        """Return the next signed byte."""
        return self._number(_INT8)

    def int16(self) -> int:
        """Return the next 16-bit number."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Return the next 32-bit number."""
        return self._number(_INT32_FIELD)

    def int64(self) -> int:
        """Return the next 64-bit number."""
        return self._number(_INT64_FIELD)

    def text(self) -> str:
        """Return the next string; null is a :class:`CorruptError`."""
        start = self.position
        value = self.nullable_text()
        if value is None:
            raise self._wrong("null where a string must be", start, "a string", "null")
        return value

    def nullable_text(self) -> str | None:
        """Return the next string or None."""
        start = self.position
        raw = self._taken(self._length(_INT16))
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            found = raw[error.start : error.start + 4].hex()
            raise self._wrong("string is not text", start, "UTF-8", found) from None

    def blob(self) -> bytes:
        """Return the next bytes; null reads as none."""
        return self.nullable_blob() or b""

    def nullable_blob(self) -> bytes | None:
        """Return the next bytes or None."""
        return self._taken(self._length(_INT32_FIELD))

    def count(self, element_bytes_min: int) -> int:
        """Return the number of elements of the next array, :data:`NO_COUNT` for null.

        CorruptError when so many of at least ``element_bytes_min`` bytes do not fit.
        """
        start = self.position
        count = self._length(_INT32_FIELD)
        if count * element_bytes_min > self._left():
            raise self._wrong(
                "array too long", start, f"at most {self._left() // element_bytes_min}", count
            )
        return count

    def tags(self) -> dict[int, FieldReader]:
        """Return the tagged fields by number; a plain message has none."""
        fields: dict[int, FieldReader] = {}
        for tag, content in self.raw_tags().items():
            fields[tag] = FieldReader(content, self._name)
            fields[tag].is_flexible = True
        return fields

    def raw_tags(self) -> dict[int, bytes]:
        """Return the contents of the tagged fields by number; a plain message has none."""
        if not self.is_flexible:
            return {}
        start = self.position
        count = self._unsigned()
        if not 0 <= count <= self._left() // 2:
            raise self._wrong("too many tagged fields", start, self._left() // 2, count)
        contents: dict[int, bytes] = {}
        for _ in range(count):
            tag = self._unsigned()
            contents[tag] = self._taken(self._unsigned()) or b""
        return contents

    def raw(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        return self._taken(size) or b""

    def end(self) -> None:
        """Raise :class:`CorruptError` when bytes are left."""
        if self._left():
            raise self._wrong("bytes left over", self.position, 0, self._left())

    def _left(self) -> int:
        return len(self._data) - self.position

    def _number(self, layout: struct.Struct) -> int:
        raw = self.raw(layout.size)
        value: int = layout.unpack(raw)[0]
        return value

    def _unsigned(self) -> int:
        value, self.position = decode_unsigned(self._data, self.position)
        return value

    def _length(self, plain: struct.Struct) -> int:
        return self._unsigned() - 1 if self.is_flexible else self._number(plain)

    def _taken(self, size: int) -> bytes | None:
        start = self.position
        if size == NO_COUNT:
            return None
        if not 0 <= size <= self._left():
            raise self._wrong(
                "ends inside a field", start, f"{size} bytes", f"{self._left()} bytes"
            )
        self.position += size
        return self._data[start : start + size]

    def _wrong(self, problem: str, position: int, expected: object, found: object) -> CorruptError:
        return CorruptError(
            f"{self._name}: {problem}",
            position=position,
            expected=expected,
            found=found,
            code="K217",
        )
