"""Leaves the active segment of a log before a round, or says that a round would.

A segment with a torn tail stays: where it ends is recovery's business. Answers to
:mod:`keeplast.cleaner.rolling`, which decides when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from keeplast.cleaner.rolling import IdleRoll, find_idle_roll
from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, Kind
from keeplast.log.active_segment import write_like
from keeplast.log.append import LogAppender
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentFiles,
    Tail,
    find_tail,
    list_partition,
    read_first_timestamp,
    rebuild_indexes,
)
from keeplast.log.windows import WindowBuffers
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.notes import RollNote, RollStage
from keeplast.survey.producer_replay import derived_aborted
from keeplast.survey.request import PartitionRequest


def roll_active(files: FileSystem, partition: PartitionRequest) -> None:
    """Start a new active segment at the log end; CorruptError when the present one is torn."""
    with LogAppender(partition.path, files, topic=partition.topic) as appender:
        appender.roll()


def roll_idle(files: FileSystem, partition: PartitionRequest, now_ms: int) -> RollNote | None:
    """Leave an idle active segment if its age asks for it; return what is to be told of that."""
    listing = list_partition(partition.path, files)
    tail = find_tail(listing, files)
    idle = idle_reason(listing, tail, partition.topic, files, now_ms)
    if idle is None:
        return None
    roll_active(files, partition)
    return RollNote(RollStage.DONE, idle)


def idle_reason(
    listing: PartitionFiles, tail: Tail, topic: TopicConfig, files: FileSystem, now_ms: int
) -> IdleRoll | None:
    """Return why the active segment is too old to stay, None when it may."""
    if tail.torn_at is not None:
        return None
    return find_idle_roll(
        topic,
        size_bytes=listing.active.size_bytes,
        first_timestamp_ms=read_first_timestamp(listing.active, files),
        now_ms=now_ms,
    )


@dataclass(frozen=True, slots=True)
class ForeseenRoll:
    """A roll that a listing has and the directory has not: ``snapshot`` are the producers there."""

    snapshot: bytes


def roll_at_target(
    files: FileSystem,
    target: Path,
    surveyed: PartitionFiles,
    roll: ForeseenRoll,
    topic: TopicConfig,
    *,
    is_replaced: bool,
) -> None:
    """Close what was the active segment of ``surveyed`` in its copy, and begin the one behind it.

    The copy has the records up to the log end, rewritten if ``is_replaced``. Otherwise its indexes
    are an active segment's, which may lack what was appended since they were written: a closed one
    is believed, and would be taken for older than it is. Needs a file system that only puts whole
    files, as a store's.
    """
    closed, active = surveyed.segments[-2:]
    made: dict[Kind, bytes] = {LOG: b"", INDEX: b"", TIME_INDEX: b""}
    if not is_replaced:
        buffers = WindowBuffers()
        found = rebuild_indexes(closed, files, topic.index_interval_bytes, buffers)
        write_like(
            target / closed.path(INDEX).name, offset_index.encode(found.offsets.tolist()),
            closed.log_path, files,
        )  # fmt: skip
        write_like(
            target / closed.path(TIME_INDEX).name, time_index.encode(found.times.tolist()),
            closed.log_path, files,
        )  # fmt: skip
        tail = Tail(active.base_offset, 0)
        aborted = dict(derived_aborted(surveyed, tail, files, buffers)).get(closed.base_offset, ())
        if aborted:
            path = target / closed.path(TXN_INDEX).name
            write_like(path, txn_index.encode(aborted), closed.log_path, files)
    if not files.exists(target / active.path(SNAPSHOT).name):
        made[SNAPSHOT] = roll.snapshot
    for kind, data in made.items():
        path = target / active.path(kind).name
        write_like(path, data, closed.log_path, files)
        files.set_mtime(path, closed.mtime_ns)
    files.fsync_directory(target)


def foreseen(listing: PartitionFiles, tail: Tail) -> tuple[PartitionFiles, Tail]:
    """Return the log as it will be when its active segment is left: one more, empty segment.

    That one has no file yet; nobody reads an empty segment.
    """
    if listing.active.size_bytes == 0 or tail.torn_at is not None:
        return listing, tail
    active = SegmentFiles(listing.path, tail.log_end, 0, listing.active.mtime_ns)
    return replace(listing, segments=(*listing.segments, active)), Tail(tail.log_end, 0)
