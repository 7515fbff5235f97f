"""Which parts of logs one task of a query reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keeplast.model.partition import TopicPartition
from keeplast.pipeline.log_parts import (
    PART_BYTES_MIN,
    TOGETHER_BYTES_MAX,
    LogPart,
    share_out,
)
from keeplast.read.log_view import ALL, Split

MIB = 1 << 20


def part(number: int, size_bytes: int) -> LogPart:
    return LogPart(Split(TopicPartition("t", number), Path("t"), ALL, size_bytes))


def shared(
    sizes: Sequence[int], *, tasks_min: int = 1, split_bytes: int = 128 * MIB
) -> list[list[int]]:
    """Return the sizes that each task reads."""
    parts = [part(number, size) for number, size in enumerate(sizes)]
    tasks = list(share_out(parts, tasks_min=tasks_min, split_bytes=split_bytes))
    assert parts == [each for task in tasks for each in task]
    return [[each.split.size_bytes for each in task] for task in tasks]


def test_many_tiny_parts_are_one_task() -> None:
    assert [[100] * 60] == shared([100] * 60)


def test_a_tiny_part_counts_for_the_look_at_its_directory() -> None:
    most = TOGETHER_BYTES_MAX // PART_BYTES_MIN
    assert [most, most, 1] == [len(task) for task in shared([1] * (2 * most + 1))]


def test_large_parts_stay_alone_and_small_ones_near_them_together() -> None:
    large, small = 100 * MIB, 5 * MIB
    assert [[large], [small] * 3, [small], [large]] == shared([large, *[small] * 4, large])


def test_as_many_tasks_as_are_asked_for_are_not_put_together_again() -> None:
    assert [[100]] * 8 == shared([100] * 8, tasks_min=8)
    assert [[MIB, MIB]] * 4 == shared([MIB] * 8, tasks_min=4)


def test_a_wish_for_tasks_takes_no_more_of_them_than_many_small_logs_have_without_it() -> None:
    assert shared([1000] * 10_000) == shared([1000] * 10_000, tasks_min=64)


def test_nothing_is_put_together_beyond_what_one_task_may_read() -> None:
    sizes = [3 * MIB, 3 * MIB, MIB, 4 * MIB]
    assert [sizes[:1], sizes[1:3], sizes[3:]] == shared(sizes, split_bytes=5 * MIB)


def test_nothing_to_read_is_no_task() -> None:
    assert [] == shared([])
