"""One record of a v2 batch, what a control record says, and the version that ranks a record.

A *control record* is what a control batch says, such as the markers that end transactions. Its key
is int16 version, int16 type; longer keys and higher versions are read as version 0. The value of a
marker is int16 version, int32 coordinator epoch, read likewise. Mind the numbers: ABORT is 0,
COMMIT is 1. Types 2 to 6 occur only in the KRaft metadata log, which is never cleaned, so their
values are not decoded. Any other type is unknown and to be ignored. Answers to
``ControlRecordType`` and ``EndTransactionMarker``; formats.md section 1.4.

The *version* of a record decides the winner of a key (KIP-280). It is the same value as in the
columns of :mod:`keeplast.columns.version_ranks`, for readers of records; a test binds the two.
Source: cleaning.md section 9.2, in words in :mod:`keeplast.model.topic_config`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.checksum import Buffer
from keeplast.format.fields import decode_varint, decode_varlong, encode_varint, encode_varlong
from keeplast.model.partition import INT32_MAX, wrap_int64

Header = tuple[bytes, bytes | None]

_NULL = b"\x01"
_ATTRIBUTES = b"\x00"


class Record(Struct, frozen=True):
    """A record as a reader gets it; ``timestamp`` in milliseconds, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    @property
    def is_tombstone(self) -> bool:
        """True when the value is null, which deletes the key; an empty value does not."""
        return self.value is None


def encode_record(record: Record, *, base_offset: int, base_timestamp: int) -> bytes:
    """Return the bytes of ``record``; its offset must be 0 to 2^31-1 above ``base_offset``."""
    offset_delta = record.offset - base_offset
    if not 0 <= offset_delta <= INT32_MAX:
        raise InvalidError(
            f"offset does not fit the batch. offset={record.offset} base_offset={base_offset}",
            code="K161",
        )
    parts = [
        _ATTRIBUTES,
        encode_varlong(wrap_int64(record.timestamp - base_timestamp)),
        encode_varint(offset_delta),
        *_encode_nullable(record.key),
        *_encode_nullable(record.value),
        encode_varint(len(record.headers)),
    ]
    for key, value in record.headers:
        parts += (encode_varint(len(key)), key, *_encode_nullable(value))
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def decode_record(
    data: Buffer,
    position: int,
    *,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int | None = None,
) -> tuple[Record, int]:
    """Return the record at ``position`` and the position after it.

    ``append_timestamp``, where not None, is the timestamp of every record of the batch
    (LogAppendTime). A :class:`CorruptError` carries the position of the record's first byte.
    """
    length, start = decode_varint(data, position)
    end = start + length
    if length < 0 or end > len(data):
        raise CorruptError(
            "record length out of range",
            position=position,
            expected=f"0 to {len(data) - start} bytes",
            found=length,
            code="K217",
        )
    # Cut here, so that no field can reach into the next record.
    body = memoryview(data)[start:end]
    try:
        record, used = _decode_body(body, base_offset, base_timestamp, append_timestamp)
    except CorruptError as error:
        raise error.placed(position=position) from None
    if used != length:
        raise CorruptError(
            "record length mismatch",
            position=position,
            expected=f"{length} bytes",
            found=f"{used} bytes",
            code="K217",
        )
    return record, end


def _decode_body(
    body: memoryview, base_offset: int, base_timestamp: int, append_timestamp: int | None
) -> tuple[Record, int]:
    timestamp_delta, at = decode_varlong(body, len(_ATTRIBUTES))
    offset_delta, at = decode_varint(body, at)
    key, at = _decode_nullable(body, at, "key")
    value, at = _decode_nullable(body, at, "value")
    count, at = decode_varint(body, at)
    if not 0 <= count <= len(body) - at:
        raise CorruptError(
            "header count out of range", expected=f"0 to {len(body) - at}", found=count, code="K217"
        )
    headers = []
    for _ in range(count):
        header_key, at = _decode_nullable(body, at, "header key")
        if header_key is None:
            raise CorruptError(
                "negative header key length", expected="0 or more", found="negative", code="K217"
            )
        header_value, at = _decode_nullable(body, at, "header value")
        headers.append((header_key, header_value))
    timestamp = (
        wrap_int64(base_timestamp + timestamp_delta)
        if append_timestamp is None
        else append_timestamp
    )
    offset = wrap_int64(base_offset + offset_delta)
    return Record(offset, timestamp, key, value, tuple(headers)), at


def _encode_nullable(data: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if data is None else (encode_varint(len(data)), data)


def _decode_nullable(body: memoryview, position: int, name: str) -> tuple[bytes | None, int]:
    length, start = decode_varint(body, position)
    if length < 0:
        return None, start
    end = start + length
    if end > len(body):
        raise CorruptError(
            f"{name} reaches past its record",
            expected=f"at most {len(body) - start} bytes",
            found=length,
            code="K217",
        )
    return bytes(body[start:end]), end


_KEY = struct.Struct(
    ">h"  # version
    "h"  # type
)
_VALUE = struct.Struct(
    ">h"  # version
    "i"  # coordinator epoch
)
_VERSION = 0


class ControlType(IntEnum):
    """What a control record is about, by the number in its key (``ControlRecordType``)."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(Struct, frozen=True):
    """The end of a transaction; ``control_type`` is ABORT or COMMIT."""

    control_type: ControlType
    coordinator_epoch: int


def decode_control_type(key: Buffer | None) -> ControlType:
    """Return the type that a control record's key names; UNKNOWN for numbers not in the list."""
    _, number = _unpack(_KEY, key, "control record key")
    return ControlType(number) if number in set(ControlType) else ControlType.UNKNOWN


def encode_control_key(control_type: ControlType) -> bytes:
    """Return the key of a control record."""
    return _KEY.pack(_VERSION, control_type)


def decode_end_transaction(key: Buffer | None, value: Buffer | None) -> EndTransactionMarker:
    """Return the marker in a control record; other types are a :class:`CorruptError`."""
    control_type = decode_control_type(key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptError(
            "not a transaction marker",
            position=0,
            expected="ABORT or COMMIT",
            found=control_type.name,
            code="K217",
        )
    _, coordinator_epoch = _unpack(_VALUE, value, "transaction marker")
    return EndTransactionMarker(control_type, coordinator_epoch)


def encode_end_transaction(marker: EndTransactionMarker) -> tuple[bytes, bytes]:
    """Return key and value of the one record in a marker's control and transactional batch."""
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return encode_control_key(marker.control_type), value


def _unpack(layout: struct.Struct, data: Buffer | None, name: str) -> tuple[int, int]:
    if data is None or len(data) < layout.size:
        raise CorruptError(
            f"{name} too short",
            position=0,
            expected=f"at least {layout.size} bytes",
            found="null" if data is None else f"{len(data)} bytes",
            code="K217",
        )
    version, number = layout.unpack_from(data)
    if version < 0:
        raise CorruptError(
            f"negative version of a {name}",
            position=0,
            expected="0 or more",
            found=version,
            code="K217",
        )
    return version, number


_VERSION_HEADER = struct.Struct(">q")


def header_version(headers: Sequence[Header], name: bytes) -> int | None:
    """Return the version in the last header ``name``; None without one, or not of eight bytes."""
    value = next((value for key, value in reversed(headers) if key == name), None)
    if value is None or len(value) != _VERSION_HEADER.size:
        return None
    version: int = _VERSION_HEADER.unpack(value)[0]
    return version
