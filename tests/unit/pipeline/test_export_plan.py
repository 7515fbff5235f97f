"""How an export is cut: by what a task may hold and by what would keep others waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.cleaner.shapes import Ground
from keeplast.log.files import LocalRecipe
from keeplast.log.partition_log import SegmentFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape, Strategy, TopicConfig
from keeplast.pipeline.export_tasks import ExportedState, choose_cuts, parts_of_state
from keeplast.read.log_view import LogView, SeenSegment, Wanted

MIB = 1 << 20
SEGMENT = 64 * MIB
RECORDS = 1 << 16
"""Offsets of a segment."""


def state(segments: int, strategy: Strategy = Strategy.OFFSET) -> ExportedState:
    """Return a partition of so many segments."""
    path = Path("/data/t-0")
    seen = tuple(
        SeenSegment(SegmentFiles(path, i * RECORDS, SEGMENT, 0), (i + 1) * RECORDS, SEGMENT, False)
        for i in range(segments)
    )
    end = segments * RECORDS
    view = LogView(TopicPartition("t", 0), path, 0, end, None, end, seen)
    return ExportedState(view, Wanted(0, end), TopicConfig(strategy=strategy), end)


def shapes(states: list[ExportedState], ground: Ground) -> list[Shape]:
    return [choice.shape for choice in choose_cuts(states, ground)]


def test_only_what_would_keep_others_waiting_is_cut() -> None:
    states = [state(40), state(1), state(1)]
    assert [Shape.BROADCAST, Shape.PARTITION, Shape.PARTITION] == shapes(states, Ground(4, None))
    assert [Shape.BUCKET, Shape.PARTITION, Shape.PARTITION] == shapes(states, Ground(4, 1 << 30))
    assert [Shape.PARTITION] * 3 == shapes(states, Ground(1, None))
    assert [Shape.PARTITION] * 4 == shapes([state(4)] * 4, Ground(4, None))


def test_keys_that_may_fit_no_task_go_to_buckets_that_do() -> None:
    room = 8 * MIB
    alike = [state(8)] * 4
    for choice, each in zip(choose_cuts(alike, Ground(4, room)), alike, strict=True):
        assert Shape.BUCKET is choice.shape
        assert 8 * RECORDS * (36 + 8) == each.key_bytes_max
        assert each.key_bytes_max <= choice.buckets * room
        assert "do not fit a task of 8 MiB" in choice.why
    assert 8 * RECORDS * (48 + 8) == state(8, Strategy.TIMESTAMP).key_bytes_max
    assert [Shape.BUCKET] == shapes([state(8)], Ground(1, room))


def test_every_slot_has_a_bucket() -> None:
    (choice,) = choose_cuts([state(40)], Ground(16, 1 << 30))
    assert 16 == choice.buckets


@pytest.mark.parametrize(("slots", "expected"), [(2, 20), (10, 40), (1000, 40)])
def test_parts_are_of_a_size_that_slots_end_together(slots: int, expected: int) -> None:
    giant = state(40)
    (choice,) = choose_cuts([giant], Ground(slots, None))
    parts = parts_of_state(giant, choice, 0, slots, 64 * MIB, LocalRecipe())
    assert expected == len(parts)
    assert [part.split.wanted.first_offset for part in parts] == list(parts[0].state.firsts)
    assert giant.view.size_bytes == sum(part.split.size_bytes for part in parts)
