"""Writes the state of logs as Parquet, one directory a topic, with the offsets to resume from.

::

    DIR/orders/partition=0/part-00000.parquet
    DIR/orders/partition=1/part-00000.parquet
    DIR/_offsets.json                          {"orders": {"0": 339, "1": 17}}

The rules:

1. Everything is written to a directory beside the target and gets the target's name when it is
   whole and on disk; a run that fails or is stopped leaves neither.
2. What is in the way is replaced only on request, and only when it is an export itself.
3. The offsets are those at which each partition's state was taken: who reads the Parquet files and
   then the log from there on misses nothing.

The files are written by tasks, and are the same whatever runs them.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from keeplast.clock import SystemClock
from keeplast.engine.kernel_cache import load_kernels
from keeplast.engine.log_ranges import ALL, Split, Wanted, reaching_into
from keeplast.engine.log_state import read_state
from keeplast.engine.runner import Progressed
from keeplast.engine.workspace import Workspace
from keeplast.errors import CompactionError, InvalidError, RefusedError
from keeplast.log.files import FilesRecipe, FileSystem, LocalFiles, LocalRecipe
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.arrow_batches import COLUMN_NAMES, arrow_schema, record_batch
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.source_options import SourceOptions

OFFSETS_FILE = "_offsets.json"
OFFSETS_BYTES_MAX = 64 << 20
FILE_NAME = "part-00000.parquet"
COLUMNS = tuple(name for name in COLUMN_NAMES if name not in ("topic", "partition"))
"""The directories say topic and partition."""

COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One partition's state, and the directory that it is written to, on a disk.

    ``files`` is how the log is opened.
    """

    split: Split
    topic: TopicConfig
    target: Path
    memory_bytes: int
    files: FilesRecipe = field(default_factory=LocalRecipe)


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """What a task did; ``end_offset`` is exclusive. With ``error`` nothing else means anything."""

    partition: TopicPartition
    end_offset: int
    records: int
    size_bytes: int
    error: CompactionError | OSError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the partition's part of the document."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "end_offset": self.end_offset,
            "records": self.records,
            "size_bytes": self.size_bytes,
        }


class Workers(Protocol):
    """Who executes tasks: threads of this process, or Spark."""

    def each(
        self,
        work: Callable[[ExportTask, Progressed], ExportedPartition],
        items: Sequence[ExportTask],
        progressed: Progressed,
        roots: Iterable[Path] = (),
    ) -> Iterator[ExportedPartition]:
        """Yield the result of every item, in any order; every host must see ``roots``."""
        ...


class ExportEvents(Protocol):
    """Who is told how far an export is."""

    def planned(self, total_bytes: int) -> None:
        """Hear how much will be read."""
        ...

    def progressed(self, read_bytes: int) -> None:
        """Hear how much more was read."""
        ...


@dataclass(frozen=True, slots=True)
class Export:
    """A finished export."""

    target: Path
    partitions: tuple[ExportedPartition, ...]

    def offsets(self) -> dict[str, dict[str, int]]:
        """Return where to go on, as ``startingOffsets`` takes it."""
        found: dict[str, dict[str, int]] = {}
        for each in self.partitions:
            found.setdefault(each.partition.topic, {})[str(each.partition.partition)] = (
                each.end_offset
            )
        return found


def export_state(
    options: SourceOptions,
    target: Path,
    workers: Workers,
    events: ExportEvents,
    *,
    topic_config: Callable[[str], TopicConfig],
    partitions: Sequence[int] = (),
    overwrite: bool = False,
) -> Export:
    """Write the state of what ``options`` choose to the directory ``target``.

    ``partitions`` empty means all numbers. ``topic_config`` says how a topic's records rank.
    Raises InvalidError for what names nothing, RefusedError when ``target`` is in the way, and the
    error of the first partition that cannot be read; ``target`` is then as it was.
    """
    target = target.absolute()
    files = LocalFiles()
    check_target(target, files, options, overwrite=overwrite)
    staging = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    tasks = list(_tasks(options, staging, topic_config, partitions))
    events.planned(2 * sum(task.split.size_bytes for task in tasks))
    try:
        staging.mkdir(parents=True)
        done = []
        for result in workers.each(export_partition, tasks, events.progressed, (staging,)):
            if result.error is not None:
                raise result.error
            done.append(result)
        export = Export(target, tuple(sorted(done, key=lambda each: each.partition)))
        document = json.dumps(export.offsets(), indent=1) + "\n"
        files.write_durable(staging / OFFSETS_FILE, document.encode())
        _put_in_place(staging, target, files)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return export


def check_target(
    target: Path, files: FileSystem, options: SourceOptions, *, overwrite: bool
) -> None:
    """Raise RefusedError when ``target`` cannot be written, or holds what is not ours."""
    if target.is_relative_to(options.path) or options.path.is_relative_to(target):
        raise RefusedError(
            f"the export and the logs would lie in one another; choose another place. "
            f"--to={target} path={options.path}"
        )
    if not files.exists(target):
        return
    if not overwrite:
        raise RefusedError(
            f"something is there already; choose another place, or replace it with --overwrite. "
            f"--to={target}"
        )
    if not files.is_directory(target) or not files.exists(target / OFFSETS_FILE):
        raise RefusedError(
            f"what is there is no export, so it is not replaced; remove it, or choose another "
            f"place. --to={target}"
        )


def _tasks(
    options: SourceOptions,
    staging: Path,
    topic_config: Callable[[str], TopicConfig],
    partitions: Sequence[int],
) -> Iterator[ExportTask]:
    logs = Logs(options)
    chosen = [e for e in logs.entries if not partitions or e.partition.partition in partitions]
    for number in partitions:
        if all(entry.partition.partition != number for entry in chosen):
            raise InvalidError(
                f"no such partition in the data directory; leave --partition out to take all. "
                f"partition={number} path={options.path}"
            )
    for entry in chosen:
        topic = entry.partition.topic
        if topic == OFFSETS_FILE:
            raise RefusedError(f"a topic's name is that of the offsets' file. topic={topic}")
        view = logs.look(entry)
        whole = Wanted(*logs.range_of(view))
        aborted = reaching_into(view.aborted, whole)
        split = Split(entry.partition, entry.path, whole, aborted, view.size_bytes)
        place = staging / topic / f"partition={entry.partition.partition}"
        yield ExportTask(split, topic_config(topic), place, options.memory_bytes, logs.recipe)


def export_partition(task: ExportTask, progressed: Progressed) -> ExportedPartition:
    """Write one partition's state here; the result carries every fault."""
    partition, end = task.split.partition, task.split.wanted.end_offset
    try:
        records, size = _write(task, progressed)
    except (CompactionError, OSError) as error:
        return ExportedPartition(partition, end, 0, 0, error)
    return ExportedPartition(partition, end, records, size)


def _write(task: ExportTask, progressed: Progressed) -> tuple[int, int]:
    load_kernels(_silent)
    files = LocalFiles()
    workspace = Workspace(task.memory_bytes)
    task.target.mkdir(parents=True, exist_ok=True)
    # A task that Spark runs twice writes twice, and the last name given is a whole file either way.
    path = task.target / f".{secrets.token_hex(8)}.parquet"
    records = 0
    with pq.ParquetWriter(path, arrow_schema(COLUMNS), compression=COMPRESSION) as writer:
        for columns in read_state(
            task.split, ALL, task.topic, task.files.open(), SystemClock(), workspace, progressed
        ):
            writer.write_batch(record_batch(columns, task.split.partition, COLUMNS))
            records += columns.rows
    files.fsync(path)
    size = files.stat(path).size_bytes
    files.rename(path, task.target / FILE_NAME)
    files.fsync_directory(task.target)
    return records, size


def _put_in_place(staging: Path, target: Path, files: FileSystem) -> None:
    """Give the finished export its name; what had it is removed after that."""
    for left_by_a_killed_task in staging.rglob(".*.parquet"):
        files.unlink(left_by_a_killed_task)
    for directory in {path.parent for path in staging.rglob("partition=*")}:
        files.fsync_directory(directory)
    files.fsync_directory(staging)
    old = staging.with_name(staging.name.removesuffix(".partial") + ".replaced")
    is_replacing = files.exists(target)
    if is_replacing:
        files.rename(target, old)
    try:
        files.rename(staging, target)
    except OSError:
        if is_replacing:
            files.rename(old, target)
        raise
    files.fsync_directory(target.parent)
    if is_replacing:
        shutil.rmtree(old)


def _silent(message: str) -> None:
    """Say nothing: output of a task is not for people."""
