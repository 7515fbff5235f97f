"""Rows of the data source, as values that can be compared with what the format's codec reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from msgspec import Struct

from keeplast.format.batch import TimestampType
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.pipeline.arrow_batches import record_batch
from keeplast.read.record_source import RecordColumns

MICROS_MAX = INT64_MAX


class LogRow(Struct, frozen=True):
    """One row; the timestamp in microseconds, header keys as strings."""

    offset: int
    timestamp: int | None
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    producer_id: int | None
    is_transactional: bool
    leader_epoch: int | None


def expected_row(batch: Batch, record: Record) -> LogRow:
    """Return the row that a record of ``batch`` must become."""
    kind = batch.timestamp_type
    headers = tuple((key.decode(errors="replace"), value) for key, value in record.headers)
    micros = max(-MICROS_MAX, min(record.timestamp * 1000, MICROS_MAX))
    if abs(record.timestamp) <= MICROS_MAX // 1000:
        micros = record.timestamp * 1000
    return LogRow(
        record.offset,
        None if record.timestamp == -1 else micros,
        -1 if batch.magic == 0 else int(kind is TimestampType.LOG_APPEND_TIME),
        record.key,
        record.value,
        headers or None,
        None if batch.producer_id < 0 else batch.producer_id,
        batch.is_transactional,
        None if batch.leader_epoch < 0 else batch.leader_epoch,
    )


def expected_rows(batches: Iterable[Batch]) -> list[LogRow]:
    """Return the rows of all data batches."""
    return [expected_row(b, r) for b in batches if not b.is_control for r in b.records()]


def rows_of(found: Iterable[RecordColumns]) -> list[LogRow]:
    """Return columns as rows, by way of Arrow, which is asked whether they are sound."""
    rows: list[LogRow] = []
    for columns in found:
        batch = record_batch(columns, TopicPartition("t", 0))
        batch.validate(full=True)
        rows += rows_of_batch(batch)
    return rows


def rows_of_batch(batch: pa.RecordBatch) -> list[LogRow]:
    """Return an Arrow batch as rows."""
    values: dict[str, list[Any]] = {
        name: batch.column(name).to_pylist() for name in batch.schema.names if name != "timestamp"
    }
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        LogRow(
            values["offset"][i],
            stamps[i],
            values["timestampType"][i],
            values["key"][i],
            values["value"][i],
            None
            if values["headers"][i] is None
            else tuple((each["key"], each["value"]) for each in values["headers"][i]),
            values["producerId"][i],
            values["isTransactional"][i],
            values["leaderEpoch"][i],
        )
        for i in range(batch.num_rows)
    ]
