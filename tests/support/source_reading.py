"""One partition read as a task of the data source does, in this process."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from keeplast.clock import Clock, SystemClock
from keeplast.format.filename import parse_partition_directory
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_state import read_state
from keeplast.read.log_view import (
    ALL,
    LogView,
    Split,
    Wanted,
    load_reader_checkpoints,
    look_at_log,
    plan_splits,
)
from keeplast.read.record_source import read_records
from tests.support.kernel_window import workspace
from tests.support.record_rows import LogRow, rows_of

ONE_SPLIT = 1 << 40


def view_of(
    directory: Path, *, files: FileSystem | None = None, clock: Clock | None = None
) -> LogView:
    """Look at a partition directory."""
    workspace()
    files = LocalFiles() if files is None else files
    parsed = parse_partition_directory(directory.name)
    assert parsed is not None
    checkpoints = load_reader_checkpoints(files, directory.parent)
    clock = SystemClock() if clock is None else clock
    return look_at_log(parsed.partition, directory, checkpoints, files, clock)


def splits_of(
    view: LogView, wanted: Wanted = ALL, *, committed: bool = True, split_bytes: int = ONE_SPLIT
) -> list[Split]:
    """Return the splits of what is wanted of a log, to where readers may see it."""
    end = view.end_for(committed=committed, replicated=False)
    bounded = wanted.between(view.log_start, end)
    return list(plan_splits(view, bounded, LocalFiles(), split_bytes=split_bytes))


def read_splits(
    splits: list[Split], *, files: FileSystem | None = None, clock: Clock | None = None
) -> list[LogRow]:
    """Return the rows of all splits."""
    files = LocalFiles() if files is None else files
    clock = SystemClock() if clock is None else clock
    return [
        row for split in splits for row in rows_of(read_records(split, files, clock, workspace()))
    ]


def read_log(
    directory: Path,
    wanted: Wanted = ALL,
    *,
    committed: bool = True,
    split_bytes: int = ONE_SPLIT,
    files: FileSystem | None = None,
) -> list[LogRow]:
    """Return the rows of a partition."""
    view = view_of(directory, files=files)
    splits = splits_of(view, wanted, committed=committed, split_bytes=split_bytes)
    if not committed:
        splits = [replace(s, hides_aborted=False) for s in splits]
    return read_splits(splits, files=files)


def read_log_state(
    directory: Path,
    shown: Wanted = ALL,
    *,
    topic: TopicConfig | None = None,
    files: FileSystem | None = None,
    key_bytes_max: int | None = None,
) -> list[LogRow]:
    """Return the state of a partition's committed records."""
    files = LocalFiles() if files is None else files
    view = view_of(directory, files=files)
    whole = Wanted(view.log_start, view.last_stable)
    split = Split(view.partition, view.path, whole, 0)
    topic = TopicConfig() if topic is None else topic
    return rows_of(
        read_state(
            split, shown, topic, files, SystemClock(), workspace(), key_bytes_max=key_bytes_max
        )
    )
