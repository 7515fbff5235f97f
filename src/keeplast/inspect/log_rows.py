"""Batches and records as rows: plain values, for the document and for a table.

A row holds no reference to the window it came from, so that keeping some rows keeps little memory.
Bytes become text when they are UTF-8 and hexadecimal otherwise; the row says which.
"""

from __future__ import annotations

from typing import Any

from keeplast.errors import CorruptError
from keeplast.format.control import ControlType, decode_control_type
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.inspect.internal_records import decoded_record
from keeplast.model.escapes import shown_bytes

BYTES_SHOWN_MAX = 64 << 10
"""Bytes of a key, value or header that a row keeps; its length is always told."""

Row = dict[str, Any]


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
