"""What readers may see of a log, by its data directory's checkpoints and by what a caller gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.holds import holds_by_partition, read_holds
from keeplast.log.partition_log import PartitionFiles, Tail
from keeplast.model.hold import Hold
from keeplast.model.partition import TopicPartition
from keeplast.survey.given import log_start_lifts, watermark_lifts
from keeplast.survey.notes import Lift
from keeplast.survey.request import CleanRequest


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What the data directory's checkpoint files say, and which holds it has, also those over."""

    cleaner: Mapping[TopicPartition, int]
    log_start: Mapping[TopicPartition, int]
    high_watermark: Mapping[TopicPartition, int]
    holds: Mapping[TopicPartition, tuple[Hold, ...]] = field(default_factory=dict)


def load_checkpoints(files: FileSystem, root: Path) -> Checkpoints:
    """Read the three checkpoint files that a round depends on, and the holds."""
    return Checkpoints(
        read_checkpoint(files, root, CLEANER_CHECKPOINT),
        read_checkpoint(files, root, LOG_START_CHECKPOINT),
        read_checkpoint(files, root, REPLICATION_CHECKPOINT),
        holds_by_partition(read_holds(files, root)),
    )


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What readers may see of a log: ``[log_start, high_watermark)``; both within the log.

    ``lifts`` says where that is more or less of it than the directory says.
    """

    log_start: int
    high_watermark: int
    lifts: tuple[Lift, ...] = ()


def find_bounds(
    tp: TopicPartition,
    request: CleanRequest,
    checkpoints: Checkpoints,
    listing: PartitionFiles,
    tail: Tail,
) -> LogBounds:
    """Return the bounds as the request gives them, else as the directory's checkpoints do.

    Without either the log starts at its first segment and is replicated to its end.
    """
    actual_start = actual_log_start(tp, checkpoints, listing)
    log_start = max(
        actual_start if request.log_start_offset is None else request.log_start_offset,
        listing.segments[0].base_offset,
    )
    if not request.is_unsafe:
        # Below the actual start is what was deleted: nothing there may count as part of the log.
        log_start = max(log_start, actual_start)
    actual = min(checkpoints.high_watermark.get(tp, tail.log_end), tail.log_end)
    watermark = actual if request.high_watermark is None else request.high_watermark
    return LogBounds(
        log_start,
        min(max(watermark, log_start), tail.log_end),
        (
            *log_start_lifts(request.log_start_offset, actual_start),
            *watermark_lifts(request.high_watermark, actual),
        ),
    )


def actual_log_start(tp: TopicPartition, checkpoints: Checkpoints, listing: PartitionFiles) -> int:
    """Return the log start as the directory says it, whatever was given."""
    return max(checkpoints.log_start.get(tp, 0), listing.segments[0].base_offset)
