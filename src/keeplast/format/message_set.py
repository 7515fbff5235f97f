"""The entries of a ``.log`` file, of whatever magic, and the messages of magic 0 and 1 among them.

Messages of magic 0 and 1 are alone or wrapped into a compressed set.

    ===  ==========================  ==========================
    off  magic 0                     magic 1
    ===  ==========================  ==========================
    0    int64 offset                int64 offset
    8    int32 size of what follows  int32 size of what follows
    12   uint32 CRC-32 of 16 to end  uint32 CRC-32 of 16 to end
    16   int8 magic                  int8 magic
    17   int8 attributes             int8 attributes
    18   int32 length, key           int64 timestamp
    26                               int32 length, key
         int32 length, value         int32 length, value
    ===  ==========================  ==========================

A wrapper has a codec in its attributes and the compressed inner messages as its value. Four rules
bend the reading of a wrapper:

1. Offsets follow the *wrapper's* magic even where inner magics differ (KAFKA-4298): absolute in
   magic 0, relative in magic 1. The wrapper carries the last inner message's absolute offset, so
   base = wrapper offset - last inner offset; a wrapper offset of exactly 0 means base 0.
2. With LogAppendTime every inner message of magic 1 has the wrapper's timestamp.
3. An incomplete inner message at the end is dropped silently; no message at all is an error.
4. Inner CRCs are not checked.

Answers to ``AbstractLegacyRecordBatch`` and ``LegacyRecord``; formats.md section 1.5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.batch import (
    CODEC_MASK,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    RecordBatch,
    TimestampType,
    decode_batch,
)
from keeplast.format.checksum import Buffer, crc32
from keeplast.format.compression import Codec, decompress
from keeplast.format.frames import DECOMPRESSED_BYTES_MAX
from keeplast.format.record import Record
from keeplast.model.partition import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    wrap_int64,
)

SIZE_PREFIX_BYTES = 12
SIZE_MIN = 14
"""Least value of any entry's size field: a message of magic 0 with null key and value."""

_PREFIX = struct.Struct(
    ">q"  # offset
    "i"  # size
)
_CRC_START = 16
_HEAD = struct.Struct(
    ">q"  # offset
    "i"  # size
    "I"  # crc
    "b"  # magic
    "B"  # attributes
)
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_SIZE_MIN_OF_MAGIC = (SIZE_MIN, SIZE_MIN + _TIMESTAMP.size)


@dataclass(frozen=True, slots=True)
class LegacyBatch:
    """One entry of magic 0 or 1: a message, or a wrapper and the messages in it.

    Has the fields of a v2 batch; those that the format lacks are -1, False or None. Of a wrapper
    ``base_offset`` and ``count`` are known only by decompressing it, which they do each time.
    """

    position: int
    data: memoryview = field(repr=False)
    last_offset: int
    crc: int
    magic: int
    attributes: int
    max_timestamp: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole entry, its offset and size fields included."""
        return len(self.data)

    @property
    def base_offset(self) -> int:
        """Offset of the first message, of a compressed entry too, whose header has the last."""
        if self.codec is Codec.NONE:
            return self.last_offset
        return next(self.records()).offset

    @property
    def codec(self) -> Codec:
        """The codec; zstd does not exist for these magics and raises :class:`CorruptError`."""
        code = self.attributes & CODEC_MASK
        if code > Codec.LZ4:
            raise CorruptError(
                "unknown codec of a legacy message",
                position=self.position,
                expected=f"0 to {Codec.LZ4:d}",
                found=code,
                code="K218",
            )
        return Codec(code)

    @property
    def timestamp_type(self) -> TimestampType:
        """Who gave the timestamps; magic 0 has none."""
        if self.magic == 0:
            return TimestampType.NO_TIMESTAMP
        if self.attributes & TIMESTAMP_TYPE_MASK:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def base_timestamp(self) -> int:
        """The entry's own timestamp; there is no other."""
        return self.max_timestamp

    @property
    def leader_epoch(self) -> int:
        """Always -1."""
        return NO_LEADER_EPOCH

    @property
    def producer_id(self) -> int:
        """Always -1."""
        return NO_PRODUCER_ID

    @property
    def producer_epoch(self) -> int:
        """Always -1."""
        return NO_PRODUCER_EPOCH

    @property
    def base_sequence(self) -> int:
        """Always -1."""
        return NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        """Always -1."""
        return NO_SEQUENCE

    @property
    def is_transactional(self) -> bool:
        """Always False."""
        return False

    @property
    def is_control(self) -> bool:
        """Always False."""
        return False

    @property
    def delete_horizon_ms(self) -> int | None:
        """Always None."""
        return None

    @property
    def count(self) -> int:
        """Number of messages; those inside when the entry is compressed."""
        return 1 if self.codec is Codec.NONE else sum(1 for _ in self.records())

    @property
    def is_valid(self) -> bool:
        """True when the entry's own CRC matches."""
        return self.computed_crc == self.crc

    @property
    def computed_crc(self) -> int:
        """The CRC-32 that the bytes after the field give, to be compared with ``crc``."""
        return crc32(self.data[_CRC_START:])

    def records(self, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """Yield the messages in order, with absolute offsets.

        Raises :class:`CorruptError`; its position is that of the entry.
        """
        codec = self.codec
        key, value = self._key_and_value()
        if codec is Codec.NONE:
            yield Record(self.last_offset, self.max_timestamp, _copy(key), _copy(value))
            return
        if value is None:
            raise self._corrupt("compressed message set without a value", "a value", "null")
        try:
            plain = memoryview(decompress(codec, value, magic=self.magic, limit=limit))
            last_inner_offset = _last_inner_offset(plain)
        except CorruptError as error:
            raise error.placed(position=self.position) from None
        if last_inner_offset is None:
            raise self._corrupt("compressed message set without messages", "1 or more", 0)
        base = self._base_of(last_inner_offset)
        is_log_append_time = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        for start, end in _inner_spans(plain):
            try:
                message = decode_message(plain[start:end])
                if message.attributes & CODEC_MASK:
                    raise CorruptError(
                        "compressed message inside a compressed set",
                        expected=f"codec {Codec.NONE:d}",
                        found=message.attributes & CODEC_MASK,
                        code="K218",
                    )
                key, value = message._key_and_value()
            except CorruptError as error:
                raise error.placed(position=self.position) from None
            has_append_time = is_log_append_time and message.magic > 0
            yield Record(
                wrap_int64(base + message.last_offset),
                self.max_timestamp if has_append_time else message.max_timestamp,
                _copy(key),
                _copy(value),
            )

    def _base_of(self, last_inner_offset: int) -> int:
        if self.magic == 0 or self.last_offset == 0:
            return 0
        if self.last_offset < last_inner_offset:
            raise self._corrupt(
                "wrapper offset below its last inner offset",
                f"at least {last_inner_offset}",
                self.last_offset,
            )
        return wrap_int64(self.last_offset - last_inner_offset)

    def _key_and_value(self) -> tuple[memoryview | None, memoryview | None]:
        start = _HEAD.size + (_TIMESTAMP.size if self.magic else 0)
        key, start = self._nullable(start, "key")
        value, _ = self._nullable(start, "value")
        return key, value

    def _nullable(self, start: int, name: str) -> tuple[memoryview | None, int]:
        left = len(self.data) - start - _LENGTH.size
        if left < 0:
            raise self._corrupt(
                f"message ends before its {name}", f"{_LENGTH.size} bytes", left + _LENGTH.size
            )
        (length,) = _LENGTH.unpack_from(self.data, start)
        start += _LENGTH.size
        if length < 0:
            return None, start
        if length > left:
            raise self._corrupt(f"{name} reaches past its message", f"at most {left} bytes", length)
        return self.data[start : start + length], start + length

    def _corrupt(self, problem: str, expected: object, found: object) -> CorruptError:
        return CorruptError(
            problem, position=self.position, expected=expected, found=found, code="K218"
        )


def decode_message(data: Buffer, position: int = 0, *, base_position: int = 0) -> LegacyBatch:
    """Return the entry at ``position`` of ``data``, which must be there as a whole.

    ``base_position`` is where ``data`` starts in its file.
    """
    view = memoryview(data)[position:]
    reported = base_position + position
    if len(view) < _HEAD.size:
        raise CorruptError(
            "message header cut",
            position=reported,
            expected=f"{_HEAD.size} bytes",
            found=f"{len(view)} bytes",
            code="K218",
        )
    offset, size, crc, magic, attributes = _HEAD.unpack_from(view)
    if not 0 <= magic <= 1:
        raise CorruptError(
            "not a legacy message",
            position=reported,
            expected="magic 0 or 1",
            found=magic,
            code="K218",
        )
    if size < _SIZE_MIN_OF_MAGIC[magic]:
        raise CorruptError(
            "message too small",
            position=reported,
            expected=f"at least {_SIZE_MIN_OF_MAGIC[magic]} bytes",
            found=size,
            code="K218",
        )
    body = view[: SIZE_PREFIX_BYTES + size]
    if len(body) < SIZE_PREFIX_BYTES + size:
        raise CorruptError(
            "message reaches past the end",
            position=reported,
            expected=f"{SIZE_PREFIX_BYTES + size} bytes",
            found=f"{len(body)} bytes",
            code="K218",
        )
    timestamp = _TIMESTAMP.unpack_from(body, _HEAD.size)[0] if magic else NO_TIMESTAMP
    return LegacyBatch(reported, body, offset, crc, magic, attributes, timestamp)


def _inner_spans(data: memoryview) -> Iterator[tuple[int, int]]:
    position = 0
    while len(data) - position >= SIZE_PREFIX_BYTES:
        _, size = _PREFIX.unpack_from(data, position)
        if size < SIZE_MIN:
            raise CorruptError(
                "inner message too small",
                expected=f"at least {SIZE_MIN} bytes",
                found=size,
                code="K218",
            )
        end = position + SIZE_PREFIX_BYTES + size
        if end > len(data):
            return
        yield position, end
        position = end


def _last_inner_offset(data: memoryview) -> int | None:
    # A pass of its own, over prefixes only: the base of all offsets stands in the last message.
    last = None
    for start, _ in _inner_spans(data):
        last = start
    return None if last is None else int(_PREFIX.unpack_from(data, last)[0])


def _copy(data: memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


Batch = RecordBatch | LegacyBatch
"""A v2 batch, or an entry of magic 0 or 1 with the same fields."""

ENTRY_BYTES_MIN = 18
"""With fewer bytes left a file has ended."""

_SIZE = struct.Struct(">i")
_SIZE_POSITION = 8
_MAGIC = struct.Struct(">b")
_MAGIC_POSITION = 16


class Entry(Struct, frozen=True):
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
                code="K218",
            )
        if not 0 <= magic <= MAGIC:
            raise CorruptError(
                "unknown magic",
                position=base_position + position,
                expected=f"0 to {MAGIC}",
                found=magic,
                code="K218",
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
