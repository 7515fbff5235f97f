"""Logs whose records carry versions, in the words of cleaning.md section 8.8."""

from __future__ import annotations

import struct

from msgspec.structs import replace

from keeplast.log.append import NewRecord
from keeplast.model.partition import NO_TIMESTAMP
from keeplast.model.topic_config import Strategy
from tests.support.scenario_log import SMALL, ScenarioLog

HEADER_NAME = "ver"
BY_HEADER = replace(SMALL, strategy=Strategy.HEADER, strategy_header=HEADER_NAME)
BY_TIMESTAMP = replace(SMALL, strategy=Strategy.TIMESTAMP)
SINGLE_SEGMENT_BYTES = 14
"""So small a segment makes every segment a group of its own."""


def version_bytes(version: int) -> bytes:
    """Return a version as a producer writes it."""
    return struct.pack(">q", version)


def versioned(
    key: bytes,
    version: int | None = None,
    value: bytes | None = b"v",
    *,
    timestamp_ms: int = NO_TIMESTAMP,
    name: bytes = HEADER_NAME.encode(),
) -> NewRecord:
    """Return a record with one version header, or with none."""
    headers = () if version is None else ((name, version_bytes(version)),)
    return NewRecord(key, value, timestamp_ms, headers)


def deletion(key: bytes, version: int | None = None) -> NewRecord:
    """Return a tombstone with a version, or without."""
    return versioned(key, version, None)


def write(log: ScenarioLog, *records: NewRecord, at: int | None = None) -> None:
    """Append each record as a batch of its own and close the segment."""
    for number, record in enumerate(records):
        log.append(record, at=at if number == 0 else None)
    log.roll()


def left(log: ScenarioLog) -> list[tuple[int, bool]]:
    """Return offset and is-a-tombstone of every record that has a key."""
    return [(r.offset, r.value is None) for r in log.records() if r.key is not None]


def offsets_left(log: ScenarioLog) -> list[int]:
    """Return the offset of every record that has a key."""
    return [offset for offset, _ in left(log)]
