"""Partition directories from given batches, and one call that cleans them in this process.

Segments get the indexes and file times that a broker would have left, worked out the plain way;
nothing here goes through the kernels or the appender.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from keeplast.clock import Clock, SystemClock
from keeplast.format import leader_epoch, offset_index, producer_snapshot, time_index, txn_index
from keeplast.format.batch import encode_batch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT, LOG
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType, EndTransactionMarker, Record, encode_end_transaction
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import Events, NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import CleanReport, RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.observed_files import UnsyncedFiles

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
PARTITION = TopicPartition("t", 0)
COMPACT = TopicConfig(cleanup_policy=frozenset({"compact"}))
SMALL_SEGMENTS = replace(COMPACT, segment_bytes=14)
"""Every segment is a group of its own."""


def one(offset: int, key: bytes | None, value: bytes | None = b"v", timestamp: int = -1) -> bytes:
    """Return a batch of one record."""
    return encode_batch([Record(offset, timestamp, key, value)])


def data_batch(offset: int, producer_id: int, keys: Sequence[bytes], *, sequence: int = 0) -> bytes:
    """Return a transactional batch of ``producer_id``; values are the keys."""
    return encode_batch(
        [Record(offset + i, NOW_MS, key, key) for i, key in enumerate(keys)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def marker(
    offset: int, producer_id: int, outcome: ControlType, *, epoch: int = 0, timestamp: int = NOW_MS
) -> bytes:
    """Return the batch that ends a transaction."""
    key, value = encode_end_transaction(EndTransactionMarker(outcome, 0))
    return encode_batch(
        [Record(offset, timestamp, key, value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        is_transactional=True,
        is_control=True,
    )


def write_segment(
    directory: Path,
    base_offset: int,
    data: bytes,
    *,
    mtime_ms: int = NOW_MS,
    aborted: Sequence[AbortedTransaction] = (),
    interval: int = 4096,
) -> None:
    """Write a segment with the indexes of formats.md 2.4; damaged data gets empty ones."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{base_offset:020d}"
    offsets, times = indexes_of(base_offset, list(read_batches(data)), interval)
    stem.with_suffix(".log").write_bytes(data)
    stem.with_suffix(".index").write_bytes(offset_index.encode(offsets))
    stem.with_suffix(".timeindex").write_bytes(time_index.encode(times))
    if aborted:
        stem.with_suffix(".txnindex").write_bytes(txn_index.encode(aborted))
    for path in directory.glob(f"{base_offset:020d}.*"):
        os.utime(path, ns=(mtime_ms * 10**6, mtime_ms * 10**6))


def write_partition(root: Path, segments: Mapping[int, bytes], *, interval: int = 4096) -> Path:
    """Make the partition directory under ``root``; the last segment is the active one."""
    directory = root / str(PARTITION)
    for base_offset, data in segments.items():
        write_segment(directory, base_offset, data, interval=interval)
    epochs = leader_epoch.encode([leader_epoch.LeaderEpoch(0, 0)])
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(epochs)
    return directory


def write_snapshot(
    directory: Path, offset: int, entries: Sequence[producer_snapshot.ProducerEntry] = ()
) -> Path:
    """Write a producer snapshot."""
    path = directory / f"{offset:020d}.snapshot"
    path.write_bytes(producer_snapshot.encode(entries))
    return path


def indexes_of(
    base_offset: int, batches: Sequence[Batch], interval: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return offset and time index entries by the rule that recovery and the cleaner share (F3)."""
    offsets: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    greatest, greatest_at, position, indexed = -1, base_offset, 0, 0

    def add_time() -> None:
        if greatest > (times[-1][0] if times else -1):
            times.append((greatest, greatest_at - base_offset))

    for batch in batches:
        if batch.max_timestamp > greatest:
            greatest, greatest_at = batch.max_timestamp, batch.last_offset
        if position - indexed > interval:
            offsets.append((batch.last_offset - base_offset, position))
            add_time()
            indexed = position
        position += batch.size_bytes
    add_time()
    return offsets, times


def clean_request(
    directory: Path, *, topic: TopicConfig = COMPACT, cleaner: CleanerConfig | None = None
) -> CleanRequest:
    """Return a request to clean ``directory`` once, whatever its dirty ratio and by a test's clock.

    What a test changes of it counts as given: most look at what a round does, not at what is let
    through to it.
    """
    partition = PartitionRequest(PARTITION, directory, topic, cleaner or CleanerConfig())
    return CleanRequest(
        (partition,), now_ms=NOW_MS, is_unsafe=True, force=True, memory_bytes=MEMORY_BYTES_MIN
    )


def coordinator(
    *,
    files: FileSystem | None = None,
    clock: Clock | None = None,
    events: Events | None = None,
    brokers: GroupReader | None = None,
) -> Coordinator:
    """Return a coordinator with one local worker on the same files."""
    files = UnsyncedFiles() if files is None else files
    clock = SystemClock() if clock is None else clock
    runner = LocalRunner(cores=1, files=files, clock=clock)
    return Coordinator(
        runner, clock, files, NoEvents() if events is None else events, brokers=brokers
    )


def clean(request: CleanRequest, *, files: FileSystem | None = None) -> RoundReport:
    """Clean and return the last round, which must not have failed."""
    report = last_round(coordinator(files=files).clean(request))
    if report.failure is not None:
        raise report.failure
    return report


def clean_at(directory: Path, now_ms: int = NOW_MS, *, topic: TopicConfig = COMPACT) -> RoundReport:
    """Clean everything from offset 0 once more, as of ``now_ms``."""
    request = clean_request(directory, topic=topic)
    return clean(replace(request, now_ms=now_ms, first_dirty_offset=0))


def last_round(report: CleanReport) -> RoundReport:
    """Return the last round of the only partition."""
    (partition,) = report.partitions
    return partition.rounds[-1]


def batches_of(directory: Path) -> list[Batch]:
    """Return every batch of the partition, in order."""
    return [
        batch
        for path in sorted(directory.glob(f"*{LOG}"))
        for batch in read_batches(path.read_bytes())
    ]


def records_of(directory: Path) -> list[Record]:
    """Return every record of the partition that is no control record, in order."""
    return [
        record
        for batch in batches_of(directory)
        if not batch.is_control
        for record in batch.records()
    ]


def bases_of(directory: Path) -> list[int]:
    """Return the base offsets of the segments."""
    return sorted(int(path.stem) for path in directory.glob(f"*{LOG}"))
