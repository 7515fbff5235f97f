"""How the partitions of an export are cut: chosen once for all of them, before anything runs.

A partition is one task unless it would keep others waiting, or its keys might fit no task. One that
is cut is read in parts, ranges of its offsets, by whoever is free: threads fill one key map, Spark
tasks send keys to buckets (:mod:`keeplast.read.state_parts`). What is written is the same rows
either way; a part is a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keeplast.cleaner.shapes import (
    RECORDS_PER_BYTE_MAX,
    SMALLEST_CUT_BYTES,
    Ground,
    ShapeChoice,
    buckets_for,
    in_mib,
    map_bytes,
)
from keeplast.log.files import FilesRecipe
from keeplast.model.shape import Shape
from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_ranges import Wanted, plan_splits
from keeplast.read.log_view import LogView
from keeplast.read.state_parts import CutState, StatePart

PARTS_PER_SLOT = 4
PART_BYTES_MIN = 16 << 20
PART_BYTES_MAX = 128 << 20
"""A part is so large that starting its task costs little, and so small that slots end together."""

OFFSET_BYTES = 8
"""Beside its slot of the key map a key needs room for the offset of its winner."""


@dataclass(frozen=True, slots=True)
class ExportedState:
    """What is known of a partition before its state is read: the offsets ``wanted`` of ``view``.

    ``resume_offset`` is where to read on behind it. With ``decided_before`` transactions count as
    they were decided at that offset.
    """

    view: LogView
    wanted: Wanted
    topic: TopicConfig
    resume_offset: int
    decided_before: int | None = None

    @property
    def key_bytes_max(self) -> int:
        """Return the most that its keys can take; every record has an offset of its own."""
        offsets = self.wanted.end_offset - self.wanted.first_offset
        keys = min(offsets, self.view.size_bytes * RECORDS_PER_BYTE_MAX)
        return map_bytes(self.topic.strategy, keys) + OFFSET_BYTES * keys


def choose_cuts(states: Sequence[ExportedState], ground: Ground) -> Iterator[ShapeChoice]:
    """Yield how each partition of an export is cut."""
    total = sum(state.view.size_bytes for state in states)
    for state in states:
        yield _choose(state, total // max(ground.slots, 1), ground)


def _choose(state: ExportedState, share: int, ground: Ground) -> ShapeChoice:
    size, room = state.view.size_bytes, ground.task_memory_bytes
    if room is not None and state.key_bytes_max > room:
        why = f"keys of up to {in_mib(state.key_bytes_max)} do not fit a task of {in_mib(room)}"
        return ShapeChoice(Shape.BUCKET, _buckets(state, ground.slots, room), why)
    if ground.slots == 1:
        return ShapeChoice(Shape.PARTITION, why="one task at a time")
    if size < SMALLEST_CUT_BYTES or size <= share:
        return ShapeChoice(Shape.PARTITION, why="small enough for one task")
    why = "too large for one task"
    if room is None:
        return ShapeChoice(Shape.BROADCAST, why=why)
    return ShapeChoice(Shape.BUCKET, _buckets(state, ground.slots, room), why)


def _buckets(state: ExportedState, slots: int, room: int) -> int:
    """Return how many buckets it takes for each to fit a task, and for every slot to have one."""
    return max(slots, buckets_for(state.key_bytes_max, room))


def parts_of_state(
    state: ExportedState,
    choice: ShapeChoice,
    number: int,
    slots: int,
    memory_bytes: int,
    files: FilesRecipe,
) -> tuple[StatePart, ...]:
    """Return the parts of a partition that is cut, in log order; none when it has no records."""
    wished = state.view.size_bytes // (slots * PARTS_PER_SLOT)
    part_bytes = min(max(wished, PART_BYTES_MIN), PART_BYTES_MAX)
    splits = list(
        plan_splits(
            state.view, state.wanted, files.open(), split_bytes=part_bytes,
            decided_before=state.decided_before,
        )
    )  # fmt: skip
    cut = CutState(
        number,
        state.topic,
        tuple(split.wanted.first_offset for split in splits),
        max(1, choice.buckets),
        memory_bytes,
        files=files,
    )
    return tuple(StatePart(cut, i, split) for i, split in enumerate(splits))
