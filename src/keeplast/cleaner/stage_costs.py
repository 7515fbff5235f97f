"""What the stages of a round take, in seconds, and how long a round takes in each shape.

A reader must not break: these figures choose how work is cut and are told to people; nothing that
decides what stays of a log may look at them. They are slopes, measured in processor time of one
core of the machine in docs/design/spark.md, which says how. Another machine is faster or slower as
a whole, which moves a choice little: shapes are compared with each other on the same machine. The
disk is not in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from keeplast.model.shape import Shape

INDEX_SECONDS_A_BYTE = 0.13e-9
INDEX_SECONDS_A_RECORD = 55e-9
INDEX_SECONDS_A_KEY = 130e-9
"""The first pass: headers and keys are read, values stepped over; a new key makes the map grow."""

REWRITE_SECONDS_A_BYTE = 0.25e-9
REWRITE_SECONDS_A_RECORD = 22e-9
WRITE_SECONDS_A_BYTE = 1.1e-9
"""The second pass: every byte has its checksum proven; what is written is read once more."""

UNPACK_SECONDS_A_BYTE = (0.0, 3.1e-9, 0.9e-9, 0.6e-9, 1.25e-9)
PACK_SECONDS_A_BYTE = (0.0, 19e-9, 0.5e-9, 1.8e-9, 3.3e-9)
"""By codec, as bits 0 to 2 of a batch's attributes have it: none, gzip, snappy, lz4, zstd. A byte
is one of the records, before it is compressed."""

JOB_SECONDS = 0.08
TASK_SECONDS = 0.06
"""What Spark takes to start a job, and a task of a Python worker that runs already."""

COLD_STAGES_SECONDS = 1.0
"""Spark's first stages of a session cost it that much more than its first single task."""

COLLECT_SECONDS_A_BYTE = 8e-9
SEND_SECONDS_A_BYTE = 6e-9
"""From a task to the driver by way of two Java processes, and from it to all tasks."""

MERGE_SECONDS_A_ROW = 110e-9
"""A row of another map is put into the driver's: the one part that no core shares."""

NOTED_OFFSETS_MAX = 1 << 27
"""The driver notes of so many dirty records who wins, a byte each; what lies above is looked up."""

SHUFFLE_SECONDS_A_BYTE = 16e-9
ASK_SECONDS_A_ROW = 150e-9
RESOLVE_SECONDS_A_ROW = 150e-9
LOOK_UP_SECONDS_A_ROW = 170e-9
"""With buckets: a row is put with others of its bucket, travels, is answered, and is parsed and
hashed once more where the answer is wanted."""


JOINT_SECONDS = 0.02
EXCHANGE_SECONDS_A_ROW = 110e-9
"""Tasks that meet: two meetings; a row of one task is written, read, put into a map and found."""

JOINT_OFFSETS_MAX = 1 << 26
"""A task that meets others notes a byte an offset; more would not fit what most have."""

COLD_JOINT_SECONDS = 0.2
"""Several workers that start at once cost the first job of a session that much more than one."""


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds of one core that both passes of a round take."""

    index: float
    rewrite: float

    @property
    def whole(self) -> float:
        """Return what one task takes."""
        return self.index + self.rewrite


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """What the stages of a round are made of.

    ``dirty_rows`` of all ``rows`` are indexed and have ``dirty_keys``; a row is ``row_bytes`` where
    it travels. ``largest_part`` is the greatest share [0, 1] that one segment has of the bytes.
    ``is_joint`` where tasks that run at once may do the round in one job.
    """

    seconds: StageSeconds
    rows: int
    dirty_rows: int
    dirty_keys: int
    row_bytes: int
    map_bytes: int
    dirty_segments: int
    groups: int
    largest_part: float
    is_joint: bool = False

    @property
    def is_all_dirty(self) -> bool:
        """Say whether no row lies below the dirty section."""
        return self.dirty_rows >= self.rows


def index_seconds(size_bytes: float, records: float, keys: float) -> float:
    """Return what the first pass takes for plain records, ``keys`` of them new."""
    return (
        size_bytes * INDEX_SECONDS_A_BYTE
        + records * INDEX_SECONDS_A_RECORD
        + keys * INDEX_SECONDS_A_KEY
    )


def rewrite_seconds(size_bytes: float, records: float, written_bytes: float) -> float:
    """Return what the second pass takes for plain records, with the check of what it writes."""
    return (
        size_bytes * REWRITE_SECONDS_A_BYTE
        + records * REWRITE_SECONDS_A_RECORD
        + written_bytes * WRITE_SECONDS_A_BYTE
    )


def predict_seconds(
    shape: Shape, counts: WorkCounts, *, tasks: int, buckets: int = 1, is_cold: bool = False
) -> float:
    """Return what a round takes by the clock on Spark when so many of its tasks run at once.

    ``is_cold`` where the session has not run a job yet. What starts Spark and its workers is left
    out: it is the same for every shape.
    """
    seconds = counts.seconds
    if shape is Shape.PARTITION:
        return JOB_SECONDS + TASK_SECONDS + seconds.whole
    if counts.is_joint and min(tasks, counts.groups) > 1:
        return _joint_seconds(counts, min(tasks, counts.groups), is_cold=is_cold)
    staged = 2 * JOB_SECONDS + (COLD_STAGES_SECONDS if is_cold else 0.0)
    at_once = min(tasks, counts.dirty_segments)
    indexing = _longest(counts.dirty_segments, tasks, counts.largest_part)
    rewriting = _longest(counts.groups, tasks, counts.largest_part)
    staged += seconds.index * indexing + seconds.rewrite * rewriting + TASK_SECONDS
    if shape is Shape.BROADCAST:
        staged += TASK_SECONDS
        sent = _distinct_sent(counts, at_once)
        staged += sent * (counts.row_bytes * COLLECT_SECONDS_A_BYTE + MERGE_SECONDS_A_ROW)
        unnoted = max(counts.dirty_rows - NOTED_OFFSETS_MAX, 0)
        staged += unnoted * LOOK_UP_SECONDS_A_ROW * rewriting
        is_asked = unnoted or not counts.is_all_dirty
        return staged + (counts.map_bytes * SEND_SECONDS_A_BYTE if is_asked else 0.0)
    sent = _distinct_sent(counts, counts.dirty_segments) + counts.rows - counts.dirty_rows
    travels = sent * counts.row_bytes * SHUFFLE_SECONDS_A_BYTE + counts.rows * ASK_SECONDS_A_ROW
    answers = sent * RESOLVE_SECONDS_A_ROW / min(tasks, buckets)
    looked_up = counts.rows * LOOK_UP_SECONDS_A_ROW
    # Units of a round with buckets share no task.
    starts = TASK_SECONDS * math.ceil(counts.groups / tasks)
    return staged + travels * indexing + answers + looked_up * rewriting + starts


def _joint_seconds(counts: WorkCounts, tasks: int, *, is_cold: bool) -> float:
    """Return what tasks that meet take, each of which does a run of groups; whatever the shape."""
    starts = JOB_SECONDS + TASK_SECONDS + JOINT_SECONDS + (COLD_JOINT_SECONDS if is_cold else 0.0)
    exchange = _distinct_sent(counts, tasks) * EXCHANGE_SECONDS_A_ROW / tasks
    return starts + counts.seconds.whole * _longest(counts.groups, tasks, 0.0) + exchange


def _longest(parts: int, tasks: int, largest_part: float) -> float:
    """Return the share of a stage that the task with most of it has."""
    return max(math.ceil(parts / tasks) / max(parts, 1), largest_part)


def _distinct_sent(counts: WorkCounts, parts: int) -> float:
    """Return how many rows leave so many parts of the dirty section, each key once a part.

    Keys are taken to recur anywhere; where they recur close together, fewer leave.
    """
    keys = max(counts.dirty_keys, 1)
    return parts * keys * -math.expm1(-counts.dirty_rows / max(parts, 1) / keys)
