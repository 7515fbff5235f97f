"""Sentinels and arithmetic of offsets, timestamps and sequences, as Kafka's formats use them.

Ranges are half-open; a name that starts with ``last_`` is inclusive.
"""

from __future__ import annotations

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
RELATIVE_OFFSET_MAX = INT32_MAX
"""Greatest distance between a segment's base offset and any offset in it, inclusive."""


def wrap_int64(value: int) -> int:
    """Return ``value`` as a two's complement 64-bit number, as a Java ``long`` would hold it."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def increment_sequence(sequence: int, increment: int) -> int:
    """Return the sequence number ``increment`` (>= 0) later; wraps from 2^31-1 to 0."""
    if sequence > INT32_MAX - increment:
        return increment - (INT32_MAX - sequence) - 1
    return sequence + increment


def range_text(start: int, end: int) -> str:
    """Return the offsets ``[start, end)`` as a person reads a range, both ends in it."""
    if end <= start:
        return f"no offset from {start} on"
    return f"offset {start}" if end == start + 1 else f"offsets {start} to {end - 1}"


NO_HORIZON = -(1 << 63)
"""In place of a delete horizon to set: none is, and no batch is written anew for one."""


def delete_horizon(now_ms: int, delete_retention_ms: int) -> int:
    """Return ``now_ms + delete_retention_ms`` in 64-bit arithmetic; negative means no horizon.

    Source: ``MemoryRecords.filterTo``; cleaning.md section 3.6 on overflow.
    """
    return wrap_int64(now_ms + delete_retention_ms)


def decrement_sequence(sequence: int, decrement: int) -> int:
    """Return the producer sequence ``decrement`` records before; INT32_MAX comes before 0.

    Kafka: ``DefaultRecordBatch.decrementSequence``.
    """
    return (sequence - decrement) % (INT32_MAX + 1)
