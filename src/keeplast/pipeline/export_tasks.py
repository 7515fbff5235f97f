"""How an export is cut into tasks, and what each of them writes.

How its partitions are cut is chosen once for all of them, before anything runs. A partition is one
task unless it would keep others waiting, or its keys might fit no task. One that is cut is read in
parts, ranges of its offsets, by any free worker: threads fill one key map, Spark tasks send keys to
buckets (:mod:`keeplast.read.log_state`). What is written is the same rows either way; a part is a
file.

Each task writes one Parquet file, of a partition or of a part of it. A task that Spark runs twice
writes twice, and the last name given is a whole file either way.
"""

from __future__ import annotations

import contextlib
import io
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, field
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
from keeplast.errors import CompactionError, RefusedError
from keeplast.log.files import (
    FilesRecipe,
    FileSystem,
    LocalRecipe,
    ReadHandle,
    WriteHandle,
    reading,
)
from keeplast.log.paths import is_object_path
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
"""Next to its slot of the key map a key needs room for the offset of its winner."""


class ExportedState(Struct, frozen=True):
    """What is known of a partition before its state is read: the offsets ``wanted`` of ``view``.

    ``resume_offset`` is where to read on after it. With ``decided_before`` transactions count as
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
SCHEMA = arrow_schema(COLUMNS)
CHANGES_SCHEMA = SCHEMA.append(pa.field("deleted", pa.bool_()))


class ExportTask(Struct, frozen=True):
    """One partition's state, and the directory that it is written to, which is there.

    ``files`` is how the log is opened, ``out`` how the target is. With ``tombstones`` what deletes
    its key is a row too, and nothing is carried over. With rows that are ``carried`` over from an
    earlier state, the split is what lies above the end of that.
    """

    split: Split
    topic: TopicConfig
    target: Path
    memory_bytes: int
    files: FilesRecipe = field(default_factory=LocalRecipe)
    carried: CarriedOver | None = None
    tombstones: bool = False
    out: FilesRecipe = field(default_factory=LocalRecipe)


class ExportedFile(Struct, frozen=True):
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
        return _write(_batches(found, partition), partition, task.target, 0, task.out)
    except (CompactionError, OSError) as error:
        return ExportedFile(partition, error=error)


def export_part(
    part: StatePart,
    winners: Winners,
    target: Path,
    progressed: Progressed,
    *,
    out: FilesRecipe,
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
        return _write(_batches(found, partition), partition, target, part.number, out)
    except (CompactionError, OSError) as error:
        return ExportedFile(partition, error=error)


class ChangeTask(Struct, frozen=True):
    """The files of a partition before and now, and the directory for what changed between them."""

    partition: TopicPartition
    before: tuple[Path, ...]
    now: tuple[Path, ...]
    target: Path
    out: FilesRecipe


def export_changes(task: ChangeTask, progressed: Progressed) -> ExportedFile:
    """Write each key that changed as one row; the result carries every fault.

    An offset is the same record in both. Of what did not change only offsets are in memory, eight
    bytes a row.
    """
    try:
        files = task.out.open()
        old, new = _offsets(task.before, files), _offsets(task.now, files)
        return _write(
            _changes(task, old, new, files), task.partition, task.target, 0, task.out,
            CHANGES_SCHEMA,
        )  # fmt: skip
    except (CompactionError, OSError) as error:
        return ExportedFile(task.partition, error=error)


def _changes(
    task: ChangeTask, old: NDArray[np.int64], new: NDArray[np.int64], files: FileSystem
) -> Iterator[pa.RecordBatch]:
    """Yield what keys stand for now that had another record before, then those that have none."""
    come = []
    for batch in _values(task.now, list(COLUMNS), files):
        fresh = batch.filter(pa.array(~_among(batch, old)))
        come.append(fresh.column("key"))
        yield _marked(fresh, is_deleted=False)
    keys = pa.chunked_array(come, ARROW_TYPES["key"]).combine_chunks()
    for batch in _values(task.before, ["offset", "key", "value"], files):
        gone = batch.filter(pa.array(~_among(batch, new)))
        dropped = gone.filter(pc.invert(pc.is_in(gone.column("key"), value_set=keys)))
        yield _marked(dropped, is_deleted=True)


def _marked(rows: pa.RecordBatch, *, is_deleted: bool) -> pa.RecordBatch:
    """Return rows with whether their keys are gone; of one that is, the key is all there is."""
    deleted = pa.repeat(pa.scalar(is_deleted), rows.num_rows)
    columns = [
        pa.nulls(rows.num_rows, SCHEMA.field(name).type)
        if is_deleted and name != "key"
        else rows.column(name)
        for name in COLUMNS
    ]
    return pa.RecordBatch.from_arrays([*columns, deleted], schema=CHANGES_SCHEMA)


def _values(
    paths: Sequence[Path], columns: list[str], files: FileSystem
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files; one without a value is a tombstone, and stands for nothing."""
    for path in paths:
        with parquet_file(path, files) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                yield batch.filter(batch.column("value").is_valid())


def _offsets(paths: Sequence[Path], files: FileSystem) -> NDArray[np.int64]:
    """Return the offsets of the rows that have a value, sorted."""
    found = [_numbers(batch) for batch in _values(paths, ["offset", "value"], files)]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))


def _numbers(batch: pa.RecordBatch) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = batch.column("offset").to_numpy()
    return numbers


def _among(batch: pa.RecordBatch, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say of each row whether its offset is one of ``offsets``, which are sorted."""
    numbers = _numbers(batch)
    at = np.searchsorted(offsets, numbers)
    found: NDArray[np.bool_] = np.append(offsets, -1)[at] == numbers
    return found


def _continue(task: ExportTask, carried: CarriedOver, progressed: Progressed) -> ExportedFile:
    """Write what goes on of the earlier rows, and after them what has come since."""
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
    files = task.out.open()
    kept = [_kept(path, keys, carried.log_start, files) for path in carried.files]
    if not len(keys) and all(mask.all() for mask in kept):
        return _take_over(carried, partition, task.target, files)

    def rows() -> Iterator[pa.RecordBatch]:
        for path, mask in zip(carried.files, kept, strict=True):
            at = 0
            with parquet_file(path, files) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    chosen = pa.array(mask[at : at + batch.num_rows])
                    at += batch.num_rows
                    yield batch.filter(chosen)
        yield from _batches(reader.show(winners, wanted), partition)

    return _write(rows(), partition, task.target, 0, task.out)


def _kept(
    path: Path, come_again: pa.ChunkedArray, log_start: int, files: FileSystem
) -> NDArray[np.bool_]:
    """Say of each row of a file whether it is still what its key stands for."""
    with parquet_file(path, files) as file:
        table = file.read(columns=["key", "offset"])
    is_replaced = pc.is_in(table.column("key"), value_set=come_again.combine_chunks())
    is_there = pc.greater_equal(table.column("offset"), log_start)
    found: NDArray[np.bool_] = pc.and_not(is_there, is_replaced).to_numpy()
    return found


def _take_over(
    carried: CarriedOver, partition: TopicPartition, target: Path, files: FileSystem
) -> ExportedFile:
    """Give the earlier files, which have not changed, another name."""
    records, size_bytes = 0, 0
    for number, path in enumerate(carried.files):
        copy = target / f"part-{number:05d}.parquet"
        try:
            files.link(path, copy)
        except (OSError, RefusedError):
            # Not every file system has links, and no object store.
            with reading(files, path) as source, contextlib.closing(files.open_write(copy)) as made:
                made.copy_from(source, 0, source.size_bytes)
                made.fsync()
        with parquet_file(copy, files) as file:
            records += file.metadata.num_rows
        size_bytes += files.stat(copy).size_bytes
    files.fsync_directory(target)
    return ExportedFile(partition, records, size_bytes)


def _batches(found: Iterable[RecordColumns], partition: TopicPartition) -> Iterator[pa.RecordBatch]:
    return (record_batch(columns, partition, COLUMNS) for columns in found)


def _write(
    found: Iterable[pa.RecordBatch],
    partition: TopicPartition,
    target: Path,
    number: int,
    out: FilesRecipe,
    schema: pa.Schema = SCHEMA,
) -> ExportedFile:
    files, name = out.open(), f"part-{number:05d}.parquet"
    if not out.is_on_disk(target):
        # It appears when it is complete, or not at all.
        with contextlib.closing(files.open_write(target / name)) as made:
            records = _fill(_Sink(made), found, schema)
            made.fsync()
        return ExportedFile(partition, records, files.stat(target / name).size_bytes)
    # No task makes a directory: one that is still at work when the export has been given up would
    # bring back what was removed.
    path = target / f".{secrets.token_hex(8)}.parquet"
    try:
        records = _fill(path, found, schema)
    except OSError as error:
        if error.filename is not None:
            raise
        # Arrow does not name the file for which a disk is full.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    files.fsync(path)
    size = files.stat(path).size_bytes
    files.rename(path, target / name)
    files.fsync_directory(target)
    return ExportedFile(partition, records, size)


def _fill(where: Path | _Sink, found: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches as one Parquet file, and return how many rows they had."""
    records = 0
    with pq.ParquetWriter(where, schema, compression=COMPRESSION) as writer:
        for batch in found:
            if batch.num_rows:
                writer.write_batch(batch)
                records += batch.num_rows
    return records


class _Sink(io.RawIOBase):
    """A file of ours as Arrow writes to it; closing it completes nothing."""

    def __init__(self, handle: WriteHandle) -> None:
        super().__init__()
        self._handle = handle

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._handle.write(view)
        return len(view)


class _Source(io.RawIOBase):
    """A file of ours as Arrow reads it."""

    def __init__(self, handle: ReadHandle) -> None:
        super().__init__()
        self._handle = handle
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._handle.size_bytes}
        self._at = start[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        left = max(0, self._handle.size_bytes - self._at)
        count = self._handle.pread_into(view[:left], self._at) if left else 0
        self._at += count
        return count

    def close(self) -> None:
        self._handle.close()
        super().close()


def parquet_file(path: Path, files: FileSystem) -> pq.ParquetFile:
    """Open a Parquet file wherever it lies; it is closed with the ``with`` block."""
    return pq.ParquetFile(_Source(files.open_read(path)) if is_object_path(path) else path)
