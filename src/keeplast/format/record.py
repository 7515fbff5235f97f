"""One record of a v2 batch.

=================  ==================================================================
field              encoding
=================  ==================================================================
length             varint: bytes after this field
attributes         one byte, written 0 and ignored
timestamp delta    varlong, against the batch's base timestamp (or delete horizon)
offset delta       varint, against the batch's base offset
key, value         varint length and bytes; any negative length reads as null
header count       varint, not negative
headers            key: varint length, not negative, and bytes; value: as above
=================  ==================================================================

A null key and an empty key differ, and a null value is a tombstone. Header keys are UTF-8 by
contract but kept as bytes, so that nothing is lost. Sums wrap at 64 bits as in Java.
Answers to ``DefaultRecord``; formats.md section 1.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.checksum import Buffer
from keeplast.format.varint import decode_varint, decode_varlong, encode_varint, encode_varlong
from keeplast.model.offsets import INT32_MAX, wrap_int64

Header = tuple[bytes, bytes | None]

_NULL = b"\x01"
_ATTRIBUTES = b"\x00"


@dataclass(frozen=True, slots=True)
class Record:
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
            f"offset does not fit the batch. offset={record.offset} base_offset={base_offset}"
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
        )
    # Cut here, so that no field can reach into the next record.
    body = memoryview(data)[start:end]
    try:
        record, used = _decode_body(body, base_offset, base_timestamp, append_timestamp)
    except CorruptError as error:
        raise CorruptError(
            error.problem, position=position, expected=error.expected, found=error.found
        ) from None
    if used != length:
        raise CorruptError(
            "record length mismatch",
            position=position,
            expected=f"{length} bytes",
            found=f"{used} bytes",
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
            "header count out of range", expected=f"0 to {len(body) - at}", found=count
        )
    headers = []
    for _ in range(count):
        header_key, at = _decode_nullable(body, at, "header key")
        if header_key is None:
            raise CorruptError("negative header key length", expected="0 or more", found="negative")
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
        )
    return bytes(body[start:end]), end
