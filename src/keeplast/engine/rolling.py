"""Leaves the active segment of a log before a round, or says that a round would.

A segment with a torn tail stays: where it ends is recovery's business. Answers to
:mod:`keeplast.cleaner.rolling`, which decides when.
"""

from __future__ import annotations

from dataclasses import replace

from keeplast.cleaner.rolling import find_idle_roll
from keeplast.engine.request import CleanRequest, PartitionRequest
from keeplast.log.append import LogAppender
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentFiles,
    Tail,
    find_tail,
    list_partition,
    read_first_batch_timestamp,
)
from keeplast.model.topic_config import TopicConfig


def roll_active(files: FileSystem, partition: PartitionRequest) -> None:
    """Start a new active segment at the log end; CorruptError when the present one is torn."""
    with LogAppender(partition.path, files, topic=partition.topic) as appender:
        appender.roll()


def roll_idle(
    files: FileSystem, partition: PartitionRequest, request: CleanRequest, now_ms: int
) -> str | None:
    """Leave an idle active segment if its age asks for it; return what is to be told of that.

    With a target the log stays as it is, which is told as well.
    """
    listing = list_partition(partition.path, files)
    tail = find_tail(listing, files)
    reason = idle_reason(listing, tail, partition.topic, files, now_ms)
    if reason is None:
        return None
    if request.target is not None:
        return f"the active segment is not rolled, --to leaves the source as it is ({reason})"
    roll_active(files, partition)
    return f"the active segment was rolled ({reason})"


def idle_reason(
    listing: PartitionFiles, tail: Tail, topic: TopicConfig, files: FileSystem, now_ms: int
) -> str | None:
    """Return why the active segment is too old to stay, None when it may."""
    if tail.torn_at is not None:
        return None
    roll = find_idle_roll(
        topic,
        size_bytes=listing.active.size_bytes,
        first_timestamp_ms=read_first_batch_timestamp(listing.active, files),
        now_ms=now_ms,
    )
    return None if roll is None else str(roll)


def foreseen(listing: PartitionFiles, tail: Tail) -> tuple[PartitionFiles, Tail]:
    """Return the log as it will be when its active segment is left: one more, empty segment.

    That one has no file yet; nobody reads an empty segment.
    """
    if listing.active.size_bytes == 0 or tail.torn_at is not None:
        return listing, tail
    active = SegmentFiles(listing.path, tail.log_end, 0, listing.active.mtime_ns)
    return replace(listing, segments=(*listing.segments, active)), Tail(tail.log_end, 0)
