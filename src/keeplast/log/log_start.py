"""Moves the start of a log and removes what lies below, so that a crash at any point loses nothing.

The order is the rule. A segment may go only when the log is known to start behind it; otherwise a
crash could leave a log that has lost its first segments and says nothing of it:

1. :func:`raise_log_start`: ``log-start-offset-checkpoint``, durably. From here on nobody reads what
   is below. Then :func:`follow_log_start`, what depends on it: leader epochs that end below it are
   trimmed to it, and a cleaner checkpoint below it is repaired, as a broker does at its next start
   and round. Who finds a log start that was raised before makes up for what a crash kept from this.
2. :func:`retire_below`: the files become ``.deleted``, then the directory is made durable.
   Whatever part of the renames a crash keeps, the rest lies below the log start and goes next time,
   an index or a snapshot without its segment included.
3. the caller removes what became ``.deleted``;
4. :func:`settle_log_start`: the checkpoint's line goes when the first segment's name says the same.

Who empties a log needs a new active segment first, or the log would forget where it ends. Answers
to ``UnifiedLog.maybeIncrementLogStartOffset``, ``deleteSegments``, ``LogManager.
checkpointLogStartOffsets`` and ``LeaderEpochFileCache.truncateFromStart``; cleaning.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from keeplast.errors import CorruptError
from keeplast.format import leader_epoch
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    DELETED,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    parse_partition_directory,
    parse_segment_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.checkpoints import (
    BYTES_MAX,
    drop_from_checkpoint,
    read_checkpoint,
    update_checkpoint,
)
from keeplast.log.child_path import child_path
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition


def noted_log_start(files: FileSystem, directory: Path) -> int:
    """Return the log start offset that the data directory of a partition notes, 0 without a line.

    0 too for a directory that is not in service: the line is then another's. CorruptError when
    ``log-start-offset-checkpoint`` cannot be read.
    """
    parsed = parse_partition_directory(directory.name)
    if parsed is None or parsed.mark is not None:
        return 0
    noted = read_checkpoint(files, directory.parent, LOG_START_CHECKPOINT)
    return noted.get(parsed.partition, 0)


def raise_log_start(
    files: FileSystem,
    directory: Path,
    partition: TopicPartition,
    offset: int,
    *,
    is_compacted: bool,
) -> None:
    """Make ``offset`` the first readable one, durably; not below where the log starts already.

    CorruptError, before anything is changed, when a checkpoint cannot be read.
    """
    read_leader_epochs(files, directory)
    read_checkpoint(files, directory.parent, CLEANER_CHECKPOINT)
    update_checkpoint(files, directory.parent, LOG_START_CHECKPOINT, {partition: offset})
    follow_log_start(files, directory, partition, offset, is_compacted=is_compacted)


def follow_log_start(
    files: FileSystem,
    directory: Path,
    partition: TopicPartition,
    offset: int,
    *,
    is_compacted: bool,
) -> None:
    """Trim leader epochs and repair the cleaner's checkpoint where the log starts at ``offset``.

    The line of the cleaner of a log that is not compacted stays: the policy may come back.
    """
    root = directory.parent
    epochs = read_leader_epochs(files, directory)
    cleaner = read_checkpoint(files, root, CLEANER_CHECKPOINT).get(partition)
    trimmed = trim_epochs(epochs, offset)
    if trimmed != epochs:
        path = directory / LEADER_EPOCH_CHECKPOINT
        files.write_durable(path, leader_epoch.encode(trimmed))
    if is_compacted and cleaner is not None and cleaner < offset:
        update_checkpoint(files, root, CLEANER_CHECKPOINT, {partition: offset})


def retire_below(files: FileSystem, directory: Path, first_base: int) -> list[Path]:
    """Rename what belongs to segments below ``first_base`` to ``.deleted``, oldest first, durably.

    Their producer snapshots too. Returns what may be removed now. The log must start at
    ``first_base`` or behind it.
    """
    return _retire(files, directory, lambda base: base < first_base)


def retire_segments(files: FileSystem, directory: Path, bases: Iterable[int]) -> list[Path]:
    """Do the same to all that belongs to segments at ``bases``; whoever calls knows they may go."""
    return _retire(files, directory, frozenset(bases).__contains__)


def _retire(files: FileSystem, directory: Path, goes: Callable[[int], bool]) -> list[Path]:
    retired: list[Path] = []
    for name in files.listdir(directory):
        parsed = parse_segment_file(name)
        if parsed is not None and not parsed.stage and goes(parsed.base_offset):
            gone = child_path(directory, name + DELETED)
            files.rename(child_path(directory, name), gone)
            retired.append(gone)
    if retired:
        files.fsync_directory(directory)
    return retired


def settle_log_start(
    files: FileSystem, directory: Path, partition: TopicPartition, first_base: int
) -> None:
    """Drop the line that says no more than the name of the first segment, as a broker does."""
    root = directory.parent
    offset = read_checkpoint(files, root, LOG_START_CHECKPOINT).get(partition)
    if offset is not None and offset <= first_base:
        drop_from_checkpoint(files, root, LOG_START_CHECKPOINT, partition)


def trim_epochs(epochs: Sequence[LeaderEpoch], log_start: int) -> tuple[LeaderEpoch, ...]:
    """Return what is left of leader epochs when the log starts at ``log_start``.

    The one that is under way there starts there.
    """
    below = [epoch for epoch in epochs if epoch.start_offset <= log_start]
    above = [epoch for epoch in epochs if epoch.start_offset > log_start]
    if not below:
        return tuple(above)
    return (replace(below[-1], start_offset=log_start), *above)


def read_leader_epochs(files: FileSystem, directory: Path) -> tuple[LeaderEpoch, ...]:
    """Return the leader epochs of a partition directory; CorruptError names the file."""
    path = child_path(directory, LEADER_EPOCH_CHECKPOINT)
    if not files.exists(path):
        return ()
    try:
        return leader_epoch.decode(files.read_bytes(path, BYTES_MAX))
    except CorruptError as error:
        raise error.located(str(path)) from error
