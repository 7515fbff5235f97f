"""Columns of records as Arrow record batches, in the schema that Spark users see.

Names and types are those of Spark's own Kafka source where it has the column. What a record does
not have is null: a key, a value, headers, a timestamp, a producer, a leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keeplast.columns import arrow_columns as a
from keeplast.model.partition import NO_TIMESTAMP, TopicPartition
from keeplast.read.record_source import RecordColumns

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
ARROW_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", HEADER)),
    "producerId": pa.int64(),
    "isTransactional": pa.bool_(),
    "leaderEpoch": pa.int32(),
}
"""The columns, in order, with their types."""

COLUMN_NAMES = tuple(ARROW_TYPES)


def arrow_schema(names: Iterable[str] = COLUMN_NAMES) -> pa.Schema:
    """Return the schema of the columns ``names``."""
    return pa.schema([(name, ARROW_TYPES[name]) for name in names])


def state_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Return rows of Python values as a table; times are in milliseconds, -1 for none.

    A header's name that is no UTF-8 has U+FFFD for what is not.
    """
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            columns[name].append(_cell(name, value))
    return pa.table(columns, schema=arrow_schema(names))


def _cell(name: str, value: Any) -> Any:
    match name:
        case "timestamp":
            micros = max(-a.MICROS_MAX, min(value * 1000, a.MICROS_MAX))
            return None if value == NO_TIMESTAMP else micros
        case "headers":
            named = [{"key": key.decode("utf-8", "replace"), "value": held} for key, held in value]
            return named or None
        case _:
            return value


def record_batch(
    columns: RecordColumns, partition: TopicPartition, names: Sequence[str] = COLUMN_NAMES
) -> pa.RecordBatch:
    """Return ``columns`` as a record batch; no bytes of keys and values are copied."""
    arrays = [_array(name, columns, partition) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def _array(name: str, c: RecordColumns, partition: TopicPartition) -> pa.Array:
    match name:
        case "topic":
            return pa.repeat(pa.scalar(partition.topic, pa.string()), c.rows)
        case "partition":
            return pa.repeat(pa.scalar(partition.partition, pa.int32()), c.rows)
        case "offset":
            return _make_fixed(name, c.rows, c.longs[a.OFFSET])
        case "timestamp":
            return _make_fixed(name, c.rows, c.longs[a.TIMESTAMP], c.marks[a.HAS_TIMESTAMP])
        case "timestampType":
            return _make_fixed(name, c.rows, c.ints[a.TIMESTAMP_TYPE])
        case "key":
            return _bytes(c.rows, c.ends[a.KEYS], c.keys, c.marks[a.HAS_KEY])
        case "value":
            return _bytes(c.rows, c.ends[a.VALUES], c.values, c.marks[a.HAS_VALUE])
        case "headers":
            return _headers(c)
        case "producerId":
            return _make_fixed(name, c.rows, c.longs[a.PRODUCER_ID], c.marks[a.HAS_PRODUCER])
        case "isTransactional":
            bits = pa.py_buffer(_bits(c.rows, c.marks[a.IS_TRANSACTIONAL]))
            return pa.Array.from_buffers(pa.bool_(), c.rows, [None, bits])
        case _:
            return _make_fixed(name, c.rows, c.ints[a.LEADER_EPOCH], c.marks[a.HAS_EPOCH])


def _bits(rows: int, marks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.packbits(marks[:rows], bitorder="little")


def _validity(rows: int, marks: NDArray[np.uint8] | None) -> pa.Buffer | None:
    """Return the bitmap of what is not null, None when nothing is."""
    if marks is None or marks[:rows].all():
        return None
    return pa.py_buffer(_bits(rows, marks))


def _make_fixed(
    name: str,
    rows: int,
    numbers: NDArray[np.int64] | NDArray[np.int32],
    marks: NDArray[np.uint8] | None = None,
) -> pa.Array:
    buffers = [_validity(rows, marks), pa.py_buffer(numbers[:rows])]
    return pa.Array.from_buffers(ARROW_TYPES[name], rows, buffers)


def _bytes(
    rows: int,
    ends: NDArray[np.int32],
    data: NDArray[np.uint8],
    marks: NDArray[np.uint8] | None,
    kind: pa.DataType = ARROW_TYPES["key"],
) -> pa.Array:
    buffers = [
        _validity(rows, marks),
        pa.py_buffer(ends[: rows + 1]),
        pa.py_buffer(data[: int(ends[rows])]),
    ]
    return pa.Array.from_buffers(kind, rows, buffers)


def _headers(c: RecordColumns) -> pa.Array:
    keys = _header_keys(c)
    values = _bytes(c.headers, c.header_ends[a.HEADER_VALUES], c.header_values, c.header_marks)
    headers = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    buffers = [
        _validity(c.rows, c.marks[a.HAS_HEADERS]),
        pa.py_buffer(c.ends[a.HEADERS, : c.rows + 1]),
    ]
    return pa.Array.from_buffers(ARROW_TYPES["headers"], c.rows, buffers, children=[headers])


def _header_keys(c: RecordColumns) -> pa.Array:
    """Return the headers' keys as strings: what is no UTF-8 in them is U+FFFD, as for consumers."""
    ends = c.header_ends[a.HEADER_KEYS]
    keys = _bytes(c.headers, ends, c.header_keys, None, pa.string())
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        raw = keys.cast(pa.binary()).to_pylist()
        return pa.array([key.decode("utf-8", "replace") for key in raw], pa.string())
    return keys
