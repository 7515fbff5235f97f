"""What the batches of a segment say in place of the entries of its indexes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.log.indexes import IndexWalk, OffsetAnswers, TimeAnswers

BASE = 100
BATCHES = [(0, 40, 104, 7), (40, 90, 109, 5), (90, 150, 119, 9), (150, 170, 119 + 6, 9)]
"""Where each begins and ends, its last offset and its greatest timestamp."""


def table(*entries: tuple[int, int]) -> NDArray[np.int64]:
    return np.array(entries, np.int64).reshape(-1, 2)


def walk(
    offsets: NDArray[np.int64], times: NDArray[np.int64], *, at_once: int
) -> tuple[list[OffsetAnswers], list[TimeAnswers], int]:
    indexes = IndexWalk(BASE, offsets, times)
    answers = []
    for i in range(0, len(BATCHES), at_once):
        starts, ends, lasts, stamps = np.array(BATCHES[i : i + at_once], np.int64).T
        answers.append(indexes.add(starts, int(ends[-1]), lasts, stamps))
    return [each[0] for each in answers], [each[1] for each in answers], indexes.greatest_ms


def test_an_offset_entry_is_answered_by_the_batch_that_has_its_position() -> None:
    offsets = table((9, 40), (12, 100), (25, 150), (30, 170))
    for at_once in (1, 2, 4):
        found, _, _ = walk(offsets, table(), at_once=at_once)
        rows = [
            tuple(int(column[i]) for column in (
                each.numbers, each.offsets, each.positions, each.starts, each.lasts, each.floors,
            ))
            for each in found for i in range(len(each.numbers))
        ]  # fmt: skip
        assert [
            (0, 109, 40, 40, 109, 105),
            (1, 112, 100, 90, 119, 110),
            (2, 125, 150, 150, 125, 120),
        ] == rows


def test_a_time_entry_is_answered_by_the_batch_that_has_its_offset() -> None:
    times = table((7, 4), (9, 9), (9, 19), (11, 26))
    for at_once in (1, 2, 4):
        _, found, greatest = walk(table(), times, at_once=at_once)
        rows = [
            tuple(int(column[i]) for column in (
                each.numbers, each.stamps, each.offsets, each.owns, each.before, each.through,
            ))
            for each in found for i in range(len(each.numbers))
        ]  # fmt: skip
        assert [
            (0, 7, 104, 7, -1, 7), (1, 9, 109, 5, 7, 7), (2, 9, 119, 9, 7, 9),
        ] == rows  # fmt: skip
        assert 9 == greatest


def test_a_batch_that_falls_back_lowers_no_floor() -> None:
    indexes = IndexWalk(BASE, table((20, 60)), table())
    indexes.add(*columns((0, 30, 130, 1)))
    indexes.add(*columns((30, 60, 110, 1)))
    found, _ = indexes.add(*columns((60, 90, 120, 1)))
    assert [131] == found.floors.tolist()


def columns(
    row: tuple[int, int, int, int],
) -> tuple[NDArray[np.int64], int, NDArray[np.int64], NDArray[np.int64]]:
    start, end, last, stamp = row
    return np.array([start]), end, np.array([last]), np.array([stamp])
