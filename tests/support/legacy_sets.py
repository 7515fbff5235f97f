"""Messages of the old formats as Kafka's old builder wrote them, magic 0 and 1.

What is shipped reads them only; a test that needs some has them from here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from keeplast.errors import InvalidError
from keeplast.format.batch import TIMESTAMP_TYPE_MASK, TimestampType
from keeplast.format.checksum import crc32
from keeplast.format.compression import Codec, compress
from keeplast.format.record import Record
from keeplast.model.partition import (
    NO_TIMESTAMP,
)

_PREFIX = struct.Struct(">qi")
"""Offset, size."""
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")


def encode_message(
    *,
    magic: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    attributes: int = 0,
) -> bytes:
    """Return one entry with a valid CRC; ``timestamp`` is not written for magic 0."""
    if not 0 <= magic <= 1:
        raise InvalidError(f"not a legacy magic. magic={magic}")
    body = b"".join(
        (
            bytes((magic, attributes)),
            _TIMESTAMP.pack(timestamp) if magic else b"",
            *_encode_nullable(key),
            *_encode_nullable(value),
        )
    )
    crc = crc32(body).to_bytes(4, "big")
    return _PREFIX.pack(offset, len(crc) + len(body)) + crc + body


def encode_message_set(
    records: Sequence[Record],
    *,
    magic: int,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_timestamp: int = NO_TIMESTAMP,
) -> bytes:
    """Return ``records`` as Kafka's old builder wrote them; headers do not exist and must be empty.

    Uncompressed each record is an entry of its own; with a codec all are in one wrapper that
    carries the last offset. With LogAppendTime (magic 1 only) ``append_timestamp`` is the
    timestamp of every entry, or of the wrapper.
    """
    if codec == Codec.ZSTD or any(record.headers for record in records):
        raise InvalidError(f"magic {magic} has neither zstd nor headers")
    is_log_append_time = magic > 0 and timestamp_type is TimestampType.LOG_APPEND_TIME
    attributes = TIMESTAMP_TYPE_MASK if is_log_append_time else 0
    is_wrapped = codec != Codec.NONE
    # Magic 0 keeps absolute offsets inside a wrapper, magic 1 counts from the first record.
    base = records[0].offset if is_wrapped and magic and records else 0
    entries = b"".join(
        encode_message(
            magic=magic,
            offset=record.offset - base,
            timestamp=append_timestamp
            if is_log_append_time and not is_wrapped
            else record.timestamp,
            key=record.key,
            value=record.value,
            attributes=0 if is_wrapped else attributes,
        )
        for record in records
    )
    if not is_wrapped or not records:
        return entries
    return encode_message(
        magic=magic,
        offset=records[-1].offset,
        timestamp=append_timestamp
        if is_log_append_time
        else max(record.timestamp for record in records),
        key=None,
        value=compress(codec, entries, magic=magic),
        attributes=attributes | codec,
    )


def _encode_nullable(data: bytes | None) -> tuple[bytes, ...]:
    return (_LENGTH.pack(-1),) if data is None else (_LENGTH.pack(len(data)), data)
