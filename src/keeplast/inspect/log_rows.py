"""Batches and records as rows: plain values, for the document and for a table.

A row holds no reference to the window it came from, so that keeping some rows keeps little memory.
Bytes become text when they are UTF-8 and hexadecimal otherwise; the row says which.

A record of a broker's own topic is shown with its meaning. One that does not decode is shown with
the reason and is no finding: its bytes are sound as far as the log goes. Its meaning may be a newer
Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format import consumer_offsets, transaction_state
from keeplast.format.identifier import encode_id
from keeplast.format.message_set import Batch
from keeplast.format.record import ControlType, Record, decode_control_type
from keeplast.model.document import shown_fields
from keeplast.model.partition import TopicPartition
from keeplast.model.text import shown_bytes

Row = dict[str, Any]


def decoded_record(topic: str, record: Record) -> Row | None:
    """Return key and value in words, None when ``topic`` is not a broker's own."""
    decoder = _DECODERS.get(topic)
    if decoder is None:
        return None
    try:
        return decoder(record)
    except CorruptError as error:
        return {"kind": "not decodable", "problem": str(error)}


def decoded_text(row: Row) -> tuple[str, str]:
    """Return what the table shows for key and value."""
    if "problem" in row:
        return row["kind"], row["problem"]
    value = "null" if row["value"] is None else _join(row["value"])
    return f"{row['kind']} {_join(row['key'])}".rstrip(), value


def _offsets_record(record: Record) -> Row:
    key = consumer_offsets.decode_key(record.key)
    shown = _plain(key)
    kind = shown.pop("type_name")
    value = consumer_offsets.decode_value(key, record.value)
    return {
        "kind": kind,
        "key": {name: part for name, part in shown.items() if part is not None},
        "value": None if value is None else _plain(value),
    }


def _transaction_record(record: Record) -> Row:
    transactional_id = transaction_state.decode_key(record.key)
    if transactional_id is None:
        return {"kind": "not decodable", "problem": "key of an unknown type"}
    value = transaction_state.decode_value(record.value)
    return {
        "kind": "transaction",
        "key": {"transactional_id": transactional_id},
        "value": None if value is None else _plain(value),
    }


_DECODERS: dict[str, Callable[[Record], Row]] = {
    consumer_offsets.TOPIC: _offsets_record,
    transaction_state.TOPIC: _transaction_record,
}


_SAYS_NOTHING: tuple[object, ...] = (None, -1, "", [])
_LEFT_OUT = ("type_number", "version")
"""What the document has and a line has no room for."""


def _plain(value: Any) -> Any:
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, Struct):
        return {name: _plain(each) for name, each in shown_fields(value).items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, bytes):
        return encode_id(value)
    return value


def _join(row: Row) -> str:
    return " ".join(
        f"{name}={_short(value)}"
        for name, value in row.items()
        if value not in _SAYS_NOTHING and name not in _LEFT_OUT
    )


def _short(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return ",".join(each if isinstance(each, str) else each["member_id"] for each in value)


BYTES_SHOWN_MAX = 64 << 10
"""Bytes of a key, value or header that a row keeps; its length is always shown."""


def batch_row(batch: Batch) -> Row:
    """Return the header of ``batch``; CorruptError when a wrapper cannot be opened."""
    return {
        "position": batch.position,
        "size_bytes": batch.size_bytes,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "count": batch.count,
        "magic": batch.magic,
        "codec": batch.codec.name.lower(),
        "timestamp_type": batch.timestamp_type.name.lower(),
        "max_timestamp": batch.max_timestamp,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
        "delete_horizon_ms": batch.delete_horizon_ms,
        "crc": batch.crc,
        "is_valid": batch.is_valid,
    }


def record_row(batch: Batch, record: Record, topic: str | None = None) -> Row:
    """Return ``record``; of a control record also which kind it is.

    ``decoded`` is what a record of a broker's own ``topic`` says, None for any other.
    """
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": bytes_row(record.key),
        "value": bytes_row(record.value),
        "headers": [
            {"key": bytes_row(key), "value": bytes_row(value)} for key, value in record.headers
        ],
        "control": _control(record) if batch.is_control else None,
        "decoded": decoded_record(topic, record) if topic and not batch.is_control else None,
        "producer_id": batch.producer_id,
        "shown": {
            "key": shown_bytes(record.key, 40),
            "value": shown_bytes(record.value),
            "headers": " ".join(
                f"{shown_bytes(key, 30)}={shown_bytes(value, 30)}" for key, value in record.headers
            ),
        },
    }


def bytes_row(data: bytes | None) -> Row | None:
    """Return bytes as text, or in hexadecimal where they are none, with their number."""
    if data is None:
        return None
    head = bytes(data[:BYTES_SHOWN_MAX])
    try:
        return {"text": head.decode(), "size_bytes": len(data)}
    except UnicodeDecodeError:
        return {"hex": head.hex(), "size_bytes": len(data)}


def _control(record: Record) -> str:
    try:
        kind = decode_control_type(record.key)
    except CorruptError:
        kind = ControlType.UNKNOWN
    return kind.name
