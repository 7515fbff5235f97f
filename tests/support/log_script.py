"""Logs as scripts: a list of operations that hypothesis can draw and shrink, and their writer.

Producers keep their own books: sequences continue per producer, and a marker ends whatever its
producer has open. Files get times that follow from their place in the log, so that a script always
gives the same directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from keeplast.format.compression import Codec
from keeplast.format.filename import LOG
from keeplast.format.record import ControlType
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.partition import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from keeplast.model.topic_config import TopicConfig

START_MS = 1_700_000_000_000
STEP_MS = 1000
FIRST_PRODUCER_ID = 100
PRODUCERS = 3
KEYS = 6
VERSION_HEADER = b"ver"


class Append(Struct, frozen=True):
    """A batch. ``producer`` counts from 0; None writes without a producer id."""

    records: tuple[NewRecord, ...]
    codec: Codec
    producer: int | None
    is_transactional: bool
    is_append_time: bool
    gap: int


class EndTransaction(Struct, frozen=True):
    """A transaction marker, whether or not the producer has anything open."""

    producer: int
    is_commit: bool


class Roll(Struct, frozen=True):
    """A new active segment."""


Operation = Append | EndTransaction | Roll


def version_headers() -> st.SearchStrategy[tuple[bytes, bytes | None]]:
    """Draw headers that carry a version, a few of them malformed."""
    versions = st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1])).map(
        lambda version: version.to_bytes(8, "big", signed=True)
    )
    malformed = st.sampled_from([None, b"", b"1234567", b"123456789"])
    return st.tuples(st.just(VERSION_HEADER), st.one_of(versions, versions, versions, malformed))


def records() -> st.SearchStrategy[NewRecord]:
    """Draw records of few keys: some tombstones, some without a key, some headers."""
    keys = st.integers(0, KEYS - 1).map(lambda number: b"" if number == 0 else b"key%d" % number)
    values = st.one_of(st.none(), st.binary(max_size=12), st.just(b"long" * 40))
    timestamps = st.one_of(st.just(-1), st.integers(START_MS, START_MS + 100 * STEP_MS))
    others = st.tuples(st.binary(max_size=3), st.one_of(st.none(), st.binary(max_size=3)))
    headers = st.lists(st.one_of(others, version_headers()), max_size=3).map(tuple)
    return st.builds(
        NewRecord,
        key=st.one_of(keys, keys, keys, st.none()),
        value=values,
        timestamp_ms=timestamps,
        headers=headers,
    )


def appends() -> st.SearchStrategy[Append]:
    """Draw batches of every kind."""
    return st.builds(
        Append,
        records=st.lists(records(), min_size=1, max_size=4).map(tuple),
        codec=st.sampled_from(Codec),
        producer=st.one_of(st.none(), st.integers(0, PRODUCERS - 1)),
        is_transactional=st.booleans(),
        is_append_time=st.booleans(),
        gap=st.sampled_from([0, 0, 0, 0, 1, 7]),
    )


def scripts() -> st.SearchStrategy[tuple[Operation, ...]]:
    """Draw whole logs; the last operation is a roll, so that something is cleanable."""
    ends = st.builds(EndTransaction, st.integers(0, PRODUCERS - 1), st.booleans())
    operations: st.SearchStrategy[Operation] = st.one_of(
        appends(), appends(), ends, st.just(Roll())
    )
    return st.lists(operations, min_size=1, max_size=24).map(lambda drawn: (*drawn, Roll()))


def write_script(script: tuple[Operation, ...], partition: Path, topic: TopicConfig) -> None:
    """Append ``script`` to the partition directory ``partition``."""
    sequences: dict[int, int] = {}
    # Records without a key come from the time before the topic was compacted.
    topic = replace(topic, cleanup_policy=frozenset({"delete"}))
    with LogAppender(partition, LocalFiles(), topic=topic, leader_epoch=0) as log:
        for number, operation in enumerate(script):
            now_ms = START_MS + number * STEP_MS
            match operation:
                case Roll():
                    log.roll()
                case EndTransaction(producer, is_commit):
                    log.append_marker(
                        ControlType.COMMIT if is_commit else ControlType.ABORT,
                        producer_id=FIRST_PRODUCER_ID + producer,
                        producer_epoch=0,
                        timestamp_ms=now_ms,
                    )
                case Append():
                    _append(log, operation, sequences, now_ms)
    for number, path in enumerate(sorted(partition.glob(f"*{LOG}"))):
        mtime_ns = (START_MS + number * STEP_MS) * 10**6
        os.utime(path, ns=(mtime_ns, mtime_ns))


def _append(log: LogAppender, append: Append, sequences: dict[int, int], now_ms: int) -> None:
    producer_id, producer_epoch, sequence = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    if append.producer is not None:
        producer_id, producer_epoch = FIRST_PRODUCER_ID + append.producer, 0
        sequence = sequences.get(append.producer, 0)
        sequences[append.producer] = sequence + len(append.records)
    log.append(
        append.records,
        codec=append.codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        is_transactional=append.is_transactional and append.producer is not None,
        append_time_ms=now_ms if append.is_append_time else None,
        base_offset=log.log_end_offset + append.gap,
    )
