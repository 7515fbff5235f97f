"""What cuts a log off, at its start and at its end. Nothing else does.

A crash at any point loses nothing that stays. The order is the rule. A segment may go only when the
log is known to start above it. Otherwise a crash could leave a log that has lost its first segments
and does not show it:

1. :func:`raise_log_start`: ``log-start-offset-checkpoint``, durably. From here on what is below is
   not read. Then :func:`follow_log_start`, what depends on it. Leader epochs that end below it are
   trimmed to it, and a cleaner checkpoint below it is repaired, as a broker does at its next start
   and round. A process that finds a log start that was raised before makes up for what a crash kept
   from this.
2. :func:`retire_below`: the files become ``.deleted``, then the directory is made durable. Whatever
   part of the renames a crash keeps, the rest lies below the log start and goes next time, an index
   or a snapshot without its segment included.
3. the caller removes what became ``.deleted``;
4. :func:`settle_log_start`: the checkpoint's line goes when the first segment's name says the same.

An emptied log needs a new active segment first, or it would forget where it ends. Answers to
``UnifiedLog.maybeIncrementLogStartOffset``, ``deleteSegments``,
``LogManager.checkpointLogStartOffsets`` and ``LeaderEpochFileCache.truncateFromStart``; cleaning.md
section 5.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from keeplast.columns import batches as t
from keeplast.errors import CorruptError
from keeplast.format import leader_epoch
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    DELETED,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START_CHECKPOINT,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.checkpoints import (
    BYTES_MAX,
    drop_from_checkpoint,
    read_checkpoint,
    update_checkpoint,
)
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, find_tail, list_partition
from keeplast.log.paths import child_path
from keeplast.log.windows import WindowBuffers, read_windows
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
        files.write_durable(directory / LEADER_EPOCH_CHECKPOINT, leader_epoch.encode(trimmed))
    if is_compacted and cleaner is not None and cleaner < offset:
        update_checkpoint(files, root, CLEANER_CHECKPOINT, {partition: offset})


def retire_below(files: FileSystem, directory: Path, first_base: int) -> list[Path]:
    """Rename what belongs to segments below ``first_base`` to ``.deleted``, oldest first, durably.

    Their producer snapshots too. Returns what may be removed now. The log must start at
    ``first_base`` or above.
    """
    return _retire(files, directory, lambda base: base < first_base)


def retire_segments(files: FileSystem, directory: Path, bases: Iterable[int]) -> list[Path]:
    """Do the same to all that belongs to segments at ``bases``; the caller knows they may go."""
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


def find_divergence(
    own: Sequence[LeaderEpoch], own_end: int, leader: Sequence[LeaderEpoch], leader_end: int
) -> int:
    """Return the offset up to which a log has its leader's records, by the epochs of both.

    The newest epoch that both know is the last whose records can be the same: up to where the
    shorter of the two logs ends in it. Without one all is the leader's only where its log begins.
    Kafka: ``LeaderEpochFileCache.endOffsetFor`` asked until both agree (KIP-101, KIP-279).
    """
    known = {entry.epoch for entry in leader}
    common = max((entry.epoch for entry in own if entry.epoch in known), default=None)
    if common is None:
        first = leader[0].start_offset if leader else 0
        return min(own_end, first if own else leader_end)
    return min(_end_of(common, own, own_end), _end_of(common, leader, leader_end))


def _end_of(epoch: int, lineage: Sequence[LeaderEpoch], log_end: int) -> int:
    later = (entry.start_offset for entry in lineage if entry.epoch > epoch)
    return min(later, default=log_end)


def truncate_log(files: FileSystem, directory: Path, offset: int) -> int:
    """Remove every batch that reaches to ``offset`` or beyond; returns the log end offset.

    A batch is kept whole or goes whole, so the end may lie below ``offset``. At least one segment
    stays, empty if need be.
    """
    listing = list_partition(directory, files)
    kept, *gone = [s for s in listing.segments if s.base_offset <= offset][-1:] + [
        s for s in listing.segments if s.base_offset > offset
    ]
    for segment in reversed(gone):
        for path in retire_segments(files, directory, [segment.base_offset]):
            files.unlink(path)
    size, end = _size_below(files, kept, offset)
    if size < kept.size_bytes:
        _cut(files, kept, size)
    _forget_behind(files, listing, end)
    return end


def cut_torn_tail(files: FileSystem, directory: Path) -> int:
    """Cut the end of the active segment that cannot be read; returns how many bytes.

    What a crash tears is the last that was written, and was never acknowledged. Producer snapshots
    and leader epochs that speak of what is gone go too, also where whole batches are. An epoch is
    written before its first record, and would be given to what is replicated there.
    """
    listing = list_partition(directory, files)
    tail = find_tail(listing, files)
    if tail.torn_at is not None:
        _cut(files, listing.active, tail.valid_bytes)
    _forget_behind(files, listing, tail.log_end)
    return 0 if tail.torn_at is None else listing.active.size_bytes - tail.valid_bytes


def restart_log(files: FileSystem, directory: Path, offset: int) -> None:
    """Remove all of a log and let it begin, empty, at ``offset``.

    Kafka: ``UnifiedLog.truncateFullyAndStartAt``.
    """
    clear_log(files, directory)
    begin_log(files, directory, offset)


def clear_log(files: FileSystem, directory: Path) -> None:
    """Remove all of a log, from the end to the front: a crash leaves a beginning of it, or none."""
    listing = list_partition(directory, files)
    for segment in reversed(listing.segments):
        for path in retire_segments(files, directory, [segment.base_offset]):
            files.unlink(path)
    _forget_behind(files, listing, -1)


def begin_log(files: FileSystem, directory: Path, offset: int) -> None:
    """Make the first segment, empty, of a log that begins at ``offset``."""
    with contextlib.closing(files.open_write(directory / segment_file(offset, LOG))) as handle:
        handle.fsync()
    files.fsync_directory(directory)


def _size_below(files: FileSystem, segment: SegmentFiles, offset: int) -> tuple[int, int]:
    """Return the bytes and the end offset of the batches that end below ``offset``."""
    end = segment.base_offset
    with reading(files, segment.log_path) as handle:
        for window in read_windows(
            handle, segment.log_path, WindowBuffers(), end=segment.size_bytes
        ):
            for i in range(window.batches):
                last_offset = int(window.table[i, t.LAST_OFFSET])
                if last_offset >= offset:
                    return window.position + int(window.table[i, t.POSITION]), end
                end = last_offset + 1
    return segment.size_bytes, end


def _cut(files: FileSystem, segment: SegmentFiles, size_bytes: int) -> None:
    """Leave the first ``size_bytes`` of a segment; its indexes are made again when it is opened."""
    path = segment.log_path
    beside = path.with_name(path.name + DELETED)
    with reading(files, path) as handle, contextlib.closing(files.open_write(beside)) as out:
        out.copy_from(handle, 0, size_bytes)
        out.fsync()
    files.copy_owner_and_mode(path, beside)
    there = set(files.listdir(segment.directory))
    for kind in (INDEX, TIME_INDEX, TXN_INDEX):
        # First: an index that leads past the end of its log is worse than none.
        if segment.path(kind).name in there:
            files.unlink(segment.path(kind))
    files.fsync_directory(segment.directory)
    files.rename(beside, path)
    files.fsync_directory(segment.directory)


def _forget_behind(files: FileSystem, listing: PartitionFiles, end: int) -> None:
    """Remove producer snapshots and leader epochs that speak of what is gone."""
    for offset in listing.snapshots:
        path = listing.path / segment_file(offset, SNAPSHOT)
        if offset > end and files.exists(path):
            files.unlink(path)
    path = listing.path / LEADER_EPOCH_CHECKPOINT
    if files.exists(path):
        try:
            epochs = leader_epoch.decode(files.read_bytes(path, BYTES_MAX))
        except CorruptError as error:
            raise error.located(str(path)) from error
        left = [entry for entry in epochs if entry.start_offset < end]
        if len(left) < len(epochs):
            files.write_durable(path, leader_epoch.encode(left))
    files.fsync_directory(listing.path)
