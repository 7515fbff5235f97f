"""What the tasks of an export do: each writes one Parquet file, of a partition or of a part of it.

A task that Spark runs twice writes twice, and the last name given is a whole file either way.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from keeplast.clock import SystemClock
from keeplast.errors import CompactionError
from keeplast.log.files import FilesRecipe, LocalFiles, LocalRecipe
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.arrow_batches import ARROW_TYPES, COLUMN_NAMES, arrow_schema, record_batch
from keeplast.pipeline.increment import CarriedOver
from keeplast.read.log_ranges import ALL, Split
from keeplast.read.log_state import StateReader, Winners, new_hash_key, read_state
from keeplast.read.record_columns import RecordColumns
from keeplast.read.state_parts import StatePart
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.runner import Progressed
from keeplast.rewrite.workspace import Workspace

COLUMNS = tuple(name for name in COLUMN_NAMES if name not in ("topic", "partition"))
"""The directories say topic and partition."""

COMPRESSION = "zstd"
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One partition's state, and the directory that it is written to, which is there.

    ``files`` is how the log is opened. With ``tombstones`` what deletes its key is a row too, and
    nothing is carried over. With rows that are ``carried`` over from an earlier state, the split is
    what lies behind the end of that.
    """

    split: Split
    topic: TopicConfig
    target: Path
    memory_bytes: int
    files: FilesRecipe = field(default_factory=LocalRecipe)
    carried: CarriedOver | None = None
    tombstones: bool = False


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """What a task wrote of a partition. With ``error`` nothing else means anything."""

    partition: TopicPartition
    records: int = 0
    size_bytes: int = 0
    error: CompactionError | OSError | None = None


def export_partition(task: ExportTask, progressed: Progressed) -> ExportedFile:
    """Write one partition's state here; the result carries every fault."""
    partition = task.split.partition
    try:
        if task.carried is not None:
            return _continue(task, task.carried, progressed)
        found = read_state(
            task.split, ALL, task.topic, task.files.open(), SystemClock(),
            Workspace(task.memory_bytes), progressed, deletes=task.tombstones,
        )  # fmt: skip
        return _write(_batches(found, partition), partition, task.target, 0)
    except (CompactionError, OSError) as error:
        return ExportedFile(partition, error=error)


def export_part(
    part: StatePart,
    winners: Winners,
    target: Path,
    progressed: Progressed,
    *,
    tombstones: bool = False,
) -> ExportedFile:
    """Write what of a partition's state lies in a part; the result carries every fault.

    With ``tombstones`` what deletes its key is a row too.
    A part without winners leaves no file, but for the first one: a partition has at least one.
    """
    partition = part.split.partition
    try:
        if part.number and not len(winners):
            progressed(part.split.size_bytes)
            return ExportedFile(partition)
        found = part.show(winners, progressed, deletes=tombstones)
        return _write(_batches(found, partition), partition, target, part.number)
    except (CompactionError, OSError) as error:
        return ExportedFile(partition, error=error)


def _continue(task: ExportTask, carried: CarriedOver, progressed: Progressed) -> ExportedFile:
    """Write what goes on of the earlier rows, and behind them what has come since."""
    partition, wanted = task.split.partition, task.split.wanted
    reader = StateReader(
        task.split, ranking_of(task.topic), new_hash_key(), task.files.open(), SystemClock(),
        Workspace(task.memory_bytes), progressed,
    )  # fmt: skip
    winners, _ = reader.winners_from(wanted.first_offset, wanted.end_offset, None)
    come_again = [
        batch.column("key")
        for batch in _batches(reader.show(winners, wanted, deletes=True), partition)
    ]
    keys = pa.chunked_array(come_again, ARROW_TYPES["key"])
    kept = [_kept(path, keys, carried.log_start) for path in carried.files]
    if not len(keys) and all(mask.all() for mask in kept):
        return _take_over(carried, partition, task.target)

    def rows() -> Iterator[pa.RecordBatch]:
        for path, mask in zip(carried.files, kept, strict=True):
            at = 0
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    chosen = pa.array(mask[at : at + batch.num_rows])
                    at += batch.num_rows
                    yield batch.filter(chosen)
        yield from _batches(reader.show(winners, wanted), partition)

    return _write(rows(), partition, task.target, 0)


def _kept(path: Path, come_again: pa.ChunkedArray, log_start: int) -> NDArray[np.bool_]:
    """Say of each row of a file whether it is still what its key stands for."""
    table = pq.read_table(path, columns=["key", "offset"])
    is_replaced = pc.is_in(table.column("key"), value_set=come_again.combine_chunks())
    is_there = pc.greater_equal(table.column("offset"), log_start)
    found: NDArray[np.bool_] = pc.and_not(is_there, is_replaced).to_numpy()
    return found


def _take_over(carried: CarriedOver, partition: TopicPartition, target: Path) -> ExportedFile:
    """Give the earlier files, of which nothing changed, another name."""
    files, records, size_bytes = LocalFiles(), 0, 0
    for number, path in enumerate(carried.files):
        copy = target / f"part-{number:05d}.parquet"
        try:
            os.link(path, copy)
        except OSError:
            # Not every file system has links.
            shutil.copyfile(path, copy)
            files.fsync(copy)
        records += pq.read_metadata(copy).num_rows
        size_bytes += files.stat(copy).size_bytes
    files.fsync_directory(target)
    return ExportedFile(partition, records, size_bytes)


def _batches(found: Iterable[RecordColumns], partition: TopicPartition) -> Iterator[pa.RecordBatch]:
    for columns in found:
        yield record_batch(columns, partition, COLUMNS)


def _write(
    found: Iterable[pa.RecordBatch], partition: TopicPartition, target: Path, number: int
) -> ExportedFile:
    files = LocalFiles()
    # No task makes a directory: one that is still at work when the export has been given up would
    # bring back what was removed.
    path = target / f".{secrets.token_hex(8)}.parquet"
    records = 0
    try:
        with pq.ParquetWriter(path, arrow_schema(COLUMNS), compression=COMPRESSION) as writer:
            for batch in found:
                if batch.num_rows:
                    writer.write_batch(batch)
                    records += batch.num_rows
    except OSError as error:
        if error.filename is not None:
            raise
        # Arrow does not say of which file a disk is full.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    files.fsync(path)
    size = files.stat(path).size_bytes
    files.rename(path, target / f"part-{number:05d}.parquet")
    files.fsync_directory(target)
    return ExportedFile(partition, records, size)
