"""What the records of a broker's own topics say, for ``inspect``.

A record that does not decode is shown with the reason and is no finding: its bytes are sound as far
as the log goes, and its meaning may be a newer Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any

from keeplast.errors import CorruptError
from keeplast.format import consumer_offsets, transaction_state
from keeplast.format.identifier import encode_id
from keeplast.format.record import Record
from keeplast.model.partition import TopicPartition

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
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
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
