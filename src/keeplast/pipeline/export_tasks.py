"""How an export is cut into tasks, and what each of them writes.

How the partitions of an export are cut: chosen once for all of them, before anything runs.

A partition is one task unless it would keep others waiting, or its keys might fit no task. One that
is cut is read in parts, ranges of its offsets, by whoever is free: threads fill one key map, Spark
tasks send keys to buckets (:mod:`keeplast.read.log_state`). What is written is the same rows
either way; a part is a file.

What the tasks of an export do: each writes one Parquet file, of a partition or of a part of it.

A task that Spark runs twice writes twice, and the last name given is a whole file either way.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from keeplast.cleaner.shapes import (
    RECORDS_PER_BYTE_MAX,
    SMALLEST_CUT_BYTES,
    Ground,
    ShapeChoice,
    buckets_for,
    in_mib,
    map_bytes,
)
from keeplast.clock import SystemClock
from keeplast.errors import CompactionError
from keeplast.log.files import FilesRecipe, LocalFiles, LocalRecipe
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape, TopicConfig
from keeplast.pipeline.arrow_batches import ARROW_TYPES, COLUMN_NAMES, arrow_schema, record_batch
from keeplast.pipeline.increment import CarriedOver
from keeplast.read.log_state import (
    CutState,
    StatePart,
    StateReader,
    Winners,
    read_state,
)
from keeplast.read.log_view import ALL, LogView, Split, Wanted, plan_splits
from keeplast.read.record_source import RecordColumns
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.task import Progressed, new_hash_key
from keeplast.rewrite.workspace import Workspace

PARTS_PER_SLOT = 4
PART_BYTES_MIN = 16 << 20
PART_BYTES_MAX = 128 << 20
"""A part is so large that starting its task costs little, and so small that slots end together."""

OFFSET_BYTES = 8
"""Beside its slot of the key map a key needs room for the offset of its winner."""


@dataclass(frozen=True, slots=True)
class ExportedState:
    """What is known of a partition before its state is read: the offsets ``wanted`` of ``view``.

    ``resume_offset`` is where to read on behind it. With ``decided_before`` transactions count as
    they were decided at that offset.
    """

    view: LogView
    wanted: Wanted
    topic: TopicConfig
    resume_offset: int
    decided_before: int | None = None

    @property
    def key_bytes_max(self) -> int:
        """Return the most that its keys can take; every record has an offset of its own."""
        offsets = self.wanted.end_offset - self.wanted.first_offset
        keys = min(offsets, self.view.size_bytes * RECORDS_PER_BYTE_MAX)
        return map_bytes(self.topic.strategy, keys) + OFFSET_BYTES * keys


def choose_cuts(states: Sequence[ExportedState], ground: Ground) -> Iterator[ShapeChoice]:
    """Yield how each partition of an export is cut."""
    total = sum(state.view.size_bytes for state in states)
    for state in states:
        yield _choose(state, total // max(ground.slots, 1), ground)


def _choose(state: ExportedState, share: int, ground: Ground) -> ShapeChoice:
    size, room = state.view.size_bytes, ground.task_memory_bytes
    if room is not None and state.key_bytes_max > room:
        why = f"keys of up to {in_mib(state.key_bytes_max)} do not fit a task of {in_mib(room)}"
        return ShapeChoice(Shape.BUCKET, _buckets(state, ground.slots, room), why)
    if ground.slots == 1:
        return ShapeChoice(Shape.PARTITION, why="one task at a time")
    if size < SMALLEST_CUT_BYTES or size <= share:
        return ShapeChoice(Shape.PARTITION, why="small enough for one task")
    why = "too large for one task"
    if room is None:
        return ShapeChoice(Shape.BROADCAST, why=why)
    return ShapeChoice(Shape.BUCKET, _buckets(state, ground.slots, room), why)


def _buckets(state: ExportedState, slots: int, room: int) -> int:
    """Return how many buckets it takes for each to fit a task, and for every slot to have one."""
    return max(slots, buckets_for(state.key_bytes_max, room))


def parts_of_state(
    state: ExportedState,
    choice: ShapeChoice,
    number: int,
    slots: int,
    memory_bytes: int,
    files: FilesRecipe,
) -> tuple[StatePart, ...]:
    """Return the parts of a partition that is cut, in log order; none when it has no records."""
    wished = state.view.size_bytes // (slots * PARTS_PER_SLOT)
    part_bytes = min(max(wished, PART_BYTES_MIN), PART_BYTES_MAX)
    splits = list(
        plan_splits(
            state.view, state.wanted, files.open(), split_bytes=part_bytes,
            decided_before=state.decided_before,
        )
    )  # fmt: skip
    cut = CutState(
        number,
        state.topic,
        tuple(split.wanted.first_offset for split in splits),
        max(1, choice.buckets),
        memory_bytes,
        files=files,
    )
    return tuple(StatePart(cut, i, split) for i, split in enumerate(splits))


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
