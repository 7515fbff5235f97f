"""A log of small segments, and one call that expires what of it may go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from keeplast.format import leader_epoch
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import FileSystem
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.report import ExpiryReport
from keeplast.survey.request import CleanRequest
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import (
    NOW_MS,
    PARTITION,
    clean_request,
    coordinator,
    one,
    write_partition,
    write_snapshot,
)

BOTH = TopicConfig(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=-1)
RECORD_BYTES = len(one(0, b"k00"))


def write_log(
    root: Path,
    *,
    segments: int = 3,
    records: int = 5,
    times: Mapping[int, int] | None = None,
    timestamp_ms: int = NOW_MS,
) -> Path:
    """Make a log of ``segments`` segments of ``records`` batches of one record.

    The last one is active. ``times`` gives a segment's timestamps by its number, ``timestamp_ms``
    those of the others. Each segment but the first has a producer snapshot, and a leader epoch of
    its number.
    """
    directory = write_partition(
        root,
        {
            number * records: b"".join(
                one(at, b"k%02d" % at, timestamp=(times or {}).get(number, timestamp_ms))
                for at in range(number * records, (number + 1) * records)
            )
            for number in range(segments)
        },
    )
    for number in range(1, segments):
        write_snapshot(directory, number * records)
    epochs = [LeaderEpoch(number, number * records) for number in range(segments)]
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(leader_epoch.encode(epochs))
    return directory


def expire(
    directory: Path,
    topic: TopicConfig = BOTH,
    *,
    high_watermark: int | None = None,
    now_ms: int = NOW_MS,
    files: FileSystem | None = None,
) -> ExpiryReport:
    """Expire what of the log may go; a failure is raised."""
    request = expiry_request(directory, topic, high_watermark=high_watermark, now_ms=now_ms)
    (partition,) = coordinator(files=files).expire(request).partitions
    assert partition.expiry is not None
    if partition.expiry.failure is not None:
        raise partition.expiry.failure
    return partition.expiry


def expiry_request(
    directory: Path,
    topic: TopicConfig = BOTH,
    *,
    high_watermark: int | None = None,
    now_ms: int = NOW_MS,
) -> CleanRequest:
    """Return the request of :func:`expire`."""
    request = clean_request(directory, topic=topic)
    return replace(request, high_watermark=high_watermark, now_ms=now_ms, retention=True)


def set_log_start(directory: Path, offset: int) -> None:
    """Write the log start offset as ``DeleteRecords`` leaves it."""
    update_checkpoint(UnsyncedFiles(), directory.parent, LOG_START_CHECKPOINT, {PARTITION: offset})


def log_start_line(directory: Path) -> int | None:
    """Return the log start offset that the checkpoint names."""
    return read_checkpoint(UnsyncedFiles(), directory.parent, LOG_START_CHECKPOINT).get(PARTITION)


def set_cleaner_checkpoint(directory: Path, offset: int) -> None:
    """Write where the next round starts."""
    update_checkpoint(UnsyncedFiles(), directory.parent, CLEANER_CHECKPOINT, {PARTITION: offset})


def cleaner_checkpoint(directory: Path) -> int | None:
    """Return where the next round starts."""
    return read_checkpoint(UnsyncedFiles(), directory.parent, CLEANER_CHECKPOINT).get(PARTITION)


def epochs_of(directory: Path) -> list[tuple[int, int]]:
    """Return the leader epochs and where they start."""
    found = leader_epoch.decode((directory / LEADER_EPOCH_CHECKPOINT).read_bytes())
    return [(entry.epoch, entry.start_offset) for entry in found]


def snapshots_of(directory: Path) -> list[int]:
    """Return the offsets of the producer snapshots."""
    return sorted(int(path.stem) for path in directory.glob("*.snapshot"))
