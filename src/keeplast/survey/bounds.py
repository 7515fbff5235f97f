"""Bounds of a round that are not in the log itself: checkpoints, and what a caller gives.

A caller's value in place of a directory's may hold a round back, and lifts nothing. A high
watermark, a first dirty or uncleanable offset may only be lower than the directory's own, a log
start not higher, a clock not ahead. Anything else would let a round take records that are still
needed, so a writer asks :func:`check_lifts` first. ``is_unsafe`` lets such a value stand, and is
written down with the round.

The same checkpoints and values bound what readers may see of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from keeplast.cleaner.cleanable_range import FirstUncleanable, find_cleanable_range
from keeplast.errors import CompactionError, Despite, RefusedError
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import PartitionFiles, Tail
from keeplast.log.root_files import holds_by_partition, read_holds
from keeplast.model.hold import Hold
from keeplast.model.partition import SegmentSummary, TopicPartition
from keeplast.survey.notes import GivenOption, Lift, LiftNote
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.wording import lift_words


def lifts_above(option: GivenOption, given: int | None, actual: int) -> tuple[Lift, ...]:
    """Say what a value above the actual one lifts.

    With a clock in the future horizons, lags and retention end early. What lies between is taken
    for deleted with a log start, and stays unclean with a first dirty offset. A high watermark
    beyond the log end lifts too: it is of another log, or a mistake in writing.
    """
    return () if given is None or given <= actual else (Lift(option, given, actual),)


def uncleanable_lifts(
    given: int | None,
    segments: Sequence[SegmentSummary],
    actual: FirstUncleanable,
    *,
    first_dirty: int,
) -> tuple[Lift, ...]:
    """Say what an uncleanable offset above the actual one lifts.

    A bound is the offset rounded down to its segment: where both are the same, nothing is lifted.
    """
    if given is None or given <= actual.offset:
        return ()
    bound, actual_bound = (
        find_cleanable_range(segments, first_dirty=first_dirty, uncleanable=offset).bound
        for offset in (given, actual.offset)
    )
    if bound <= actual_bound:
        return ()
    return (Lift(GivenOption.UNCLEANABLE, given, actual.offset, actual.limit),)


def check_lifts(lifts: Sequence[Lift], request: CleanRequest, where: object) -> None:
    """Raise RefusedError when something would be lifted at ``where`` and the caller does not insist
    on it.
    """
    if lifts and not request.is_unsafe:
        raise RefusedError(
            f"what was given lifts a limit of the log: {'; '.join(map(lift_words, lifts))}; "
            f"leave it out; {Despite.LOG_BOUNDS.remedy}. path={where}",
            code="K162",
        )


def check_given(
    request: CleanRequest, lifts_of: Callable[[PartitionRequest], Sequence[Lift]]
) -> None:
    """Raise RefusedError when what was given lifts a limit of any partition.

    For before anything is written anywhere. What ``lifts_of`` cannot say now, with CompactionError
    or OSError, is left to the partition's round, which asks again.
    """
    given = (
        request.now_ms,
        request.high_watermark,
        request.log_start_offset,
        request.first_dirty_offset,
        request.uncleanable_offset,
    )
    if request.is_unsafe or all(each is None for each in given):
        return
    for partition in request.partitions:
        try:
            lifts = lifts_of(partition)
        except (CompactionError, OSError):
            continue
        check_lifts(lifts, request, partition.path)


def lift_notes(lifts: Sequence[Lift], *, writes: bool) -> tuple[LiftNote, ...]:
    """Return what a report says of lifts: that they stood, or that clean would refuse them."""
    return tuple(LiftNote(lift, stands=writes) for lift in lifts)


class Checkpoints(Struct, frozen=True):
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


class LogBounds(Struct, frozen=True):
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
            *lifts_above(GivenOption.LOG_START, request.log_start_offset, actual_start),
            *lifts_above(GivenOption.HIGH_WATERMARK, request.high_watermark, actual),
        ),
    )


def actual_log_start(tp: TopicPartition, checkpoints: Checkpoints, listing: PartitionFiles) -> int:
    """Return the log start as the directory says it, whatever was given."""
    return max(checkpoints.log_start.get(tp, 0), listing.segments[0].base_offset)
