"""Cuts a log off at an offset. The only place that does.

From the end to the front, so that a crash leaves a longer prefix of the log and never a hole; a
segment is cut by writing its beginning anew beside it and renaming that over it. Indexes of a cut
segment, producer snapshots and leader epochs behind the cut go with it. Asked for explicitly only:
``inspect``, ``plan`` and ``clean`` never get here. Answers to ``UnifiedLog.truncateTo``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format import leader_epoch
from keeplast.format.filename import (
    DELETED,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.checkpoints import BYTES_MAX
from keeplast.log.files import FileSystem, reading
from keeplast.log.log_start import retire_segments
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, find_tail, list_partition
from keeplast.log.windows import WindowBuffers, read_windows


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

    What a crash tears is the last that was written, and nobody was told that it is there. Producer
    snapshots and leader epochs that speak of what is gone go too, also where whole batches are: an
    epoch is written before its first record, and would be given to what is replicated there.
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
    handle = files.open_write(directory / segment_file(offset, LOG))
    try:
        handle.fsync()
    finally:
        handle.close()
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
    with reading(files, path) as handle:
        out = files.open_write(beside)
        try:
            out.copy_from(handle, 0, size_bytes)
            out.fsync()
        finally:
            out.close()
    files.copy_owner_and_mode(path, beside)
    there = set(files.listdir(segment.directory))
    for kind in (INDEX, TIME_INDEX, TXN_INDEX):
        # First: an index that leads behind the end of its log is worse than none.
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
