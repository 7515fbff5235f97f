"""Reads the fields of a message that brokers keep in internal topics, one after the other.

A message is written in one of two encodings; which one follows from its version:

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

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer
from keeplast.format.varint import decode_unsigned

NO_COUNT = -1
_INT8, _INT16, _INT32, _INT64 = (struct.Struct(f">{code}") for code in "bhiq")


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
        return self._number(_INT32)

    def int64(self) -> int:
        """Return the next 64-bit number."""
        return self._number(_INT64)

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
        return self._taken(self._length(_INT32))

    def count(self, element_bytes_min: int) -> int:
        """Return the number of elements of the next array, :data:`NO_COUNT` for null.

        CorruptError when so many of at least ``element_bytes_min`` bytes do not fit.
        """
        start = self.position
        count = self._length(_INT32)
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
            f"{self._name}: {problem}", position=position, expected=expected, found=found
        )
