"""What the tasks of an export do: each writes one Parquet file, of a partition or of a part of it.

A task that Spark runs twice writes twice, and the last name given is a whole file either way.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from keeplast.clock import SystemClock
from keeplast.errors import CompactionError
from keeplast.log.files import FilesRecipe, LocalFiles, LocalRecipe
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.arrow_batches import COLUMN_NAMES, arrow_schema, record_batch
from keeplast.read.log_ranges import ALL, Split
from keeplast.read.log_state import Winners, read_state
from keeplast.read.record_columns import RecordColumns
from keeplast.read.state_parts import StatePart
from keeplast.rewrite.runner import Progressed
from keeplast.rewrite.workspace import Workspace

COLUMNS = tuple(name for name in COLUMN_NAMES if name not in ("topic", "partition"))
"""The directories say topic and partition."""

COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One partition's state, and the directory that it is written to, which is there.

    ``files`` is how the log is opened.
    """

    split: Split
    topic: TopicConfig
    target: Path
    memory_bytes: int
    files: FilesRecipe = field(default_factory=LocalRecipe)


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
        found = read_state(
            task.split, ALL, task.topic, task.files.open(), SystemClock(),
            Workspace(task.memory_bytes), progressed,
        )  # fmt: skip
        return _write(found, partition, task.target, 0)
    except (CompactionError, OSError) as error:
        return ExportedFile(partition, error=error)


def export_part(
    part: StatePart, winners: Winners, target: Path, progressed: Progressed
) -> ExportedFile:
    """Write what of a partition's state lies in a part; the result carries every fault.

    A part without winners leaves no file, but for the first one: a partition has at least one.
    """
    partition = part.split.partition
    try:
        if part.number and not len(winners):
            progressed(part.split.size_bytes)
            return ExportedFile(partition)
        return _write(part.show(winners, progressed), partition, target, part.number)
    except (CompactionError, OSError) as error:
        return ExportedFile(partition, error=error)


def _write(
    found: Iterable[RecordColumns], partition: TopicPartition, target: Path, number: int
) -> ExportedFile:
    files = LocalFiles()
    # No task makes a directory: one that is still at work when the export has been given up would
    # bring back what was removed.
    path = target / f".{secrets.token_hex(8)}.parquet"
    records = 0
    try:
        with pq.ParquetWriter(path, arrow_schema(COLUMNS), compression=COMPRESSION) as writer:
            for columns in found:
                writer.write_batch(record_batch(columns, partition, COLUMNS))
                records += columns.rows
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
