"""Writes a git history as a compacted topic into a Kafka data directory.

The directory is laid out as a KRaft broker with one partition leaves it after a clean stop, so
that every other command works on it too. Segments are small for their topic: a demo that fits into
the active segment would have nothing to clean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keeplast.cli.demo.history import Commit, GitHistory
from keeplast.format import checkpoint, meta_properties
from keeplast.format.compression import Codec
from keeplast.format.filename import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from keeplast.format.meta_properties import MetaProperties
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import FileSystem
from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig

PARTITION = TopicPartition("git-tree", 0)
TOPIC_ID = b"keeplast-example"
IDENTITY = MetaProperties(1, "a2VlcGxhc3QtZGVtby1pZA", 1, "a2VlcGxhc3QtZGVtby1kcg")
SEGMENTS_WANTED = 12
SEGMENT_BYTES_MIN = 8 << 10
SEGMENT_BYTES_MAX = 64 << 20
RECORD_BYTES = 110
"""What a change takes in the log, roughly: a path, a mode and an id, and its part of a batch."""
CHANGES_PER_COMMIT = 2
BATCH_BYTES = 2 << 10
"""A quarter of the smallest segment, so that one long path cannot outgrow it."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What was written: counts, and the settings that the topic has."""

    commits: int
    records: int
    topic: TopicConfig


def topic_for(history: GitHistory) -> TopicConfig:
    """Return the settings of a topic in which ``history`` takes about a dozen segments.

    Tombstones go in the second cleaning after the one that first sees them: nobody reads along.
    """
    files = sum(1 for _ in history.tree())
    estimate = (files + CHANGES_PER_COMMIT * history.commit_count()) * RECORD_BYTES
    segment_bytes = min(max(estimate // SEGMENTS_WANTED, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)
    return TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        delete_retention_ms=0,
        segment_bytes=segment_bytes,
        # A history spans years; its segments are to end by size.
        segment_ms=INT64_MAX,
    )


def write_topic(history: GitHistory, root: Path, files: FileSystem) -> Replay:
    """Replay ``history`` into a new data directory ``root``."""
    topic = topic_for(history)
    commits = records = 0
    files.make_directory(root)
    with LogAppender(root / str(PARTITION), files, topic=topic, topic_id=TOPIC_ID) as log:
        for commit in history.commits():
            commits += 1
            for batch in _batches(commit):
                records += len(batch)
                log.append(batch, codec=Codec.NONE)
        log_end = log.log_end_offset
    _finish(root, files, log_end)
    return Replay(commits, records, topic)


def _batches(commit: Commit) -> Iterator[list[NewRecord]]:
    """Yield a commit's changes in batches of a few kilobytes."""
    batch: list[NewRecord] = []
    size = 0
    for path, value in commit.changes:
        grown = size + len(path) + len(value or b"") + 2 * 10
        if batch and grown > BATCH_BYTES:
            yield batch
            batch, grown = [], grown - size
        batch.append(NewRecord(path, value, commit.time_ms))
        size = grown
    if batch:
        yield batch


def _finish(root: Path, files: FileSystem, log_end: int) -> None:
    """Write what a broker leaves in the data directory itself."""
    everything = checkpoint.encode_offsets({PARTITION: log_end})
    nothing = checkpoint.encode_offsets({})
    for name, data in (
        (META_PROPERTIES, meta_properties.encode(IDENTITY)),
        (RECOVERY_POINT_CHECKPOINT, everything),
        (REPLICATION_CHECKPOINT, everything),
        (LOG_START_CHECKPOINT, nothing),
        (CLEANER_CHECKPOINT, nothing),
        (CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}'),
    ):
        files.write_durable(root / name, data)
