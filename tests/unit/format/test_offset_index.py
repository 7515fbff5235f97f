from __future__ import annotations

import numpy as np
import pytest

from keeplast.errors import CorruptError, InvariantError
from keeplast.format.offset_index import decode, encode, find_position, find_problem

ENTRIES = [(5, 4096), (9, 8200)]


def test_entry_of_the_specification() -> None:
    assert bytes.fromhex("0000000500001000") == encode([(5, 4096)])
    assert decode(bytes.fromhex("0000000500001000")).tolist() == [[5, 4096]]


def test_no_entries() -> None:
    assert decode(b"").shape == (0, 2)
    assert encode([]) == b""


def test_cut_entry_is_corrupt() -> None:
    with pytest.raises(CorruptError) as caught:
        decode(bytes(19))
    assert caught.value.position == 16


@pytest.mark.parametrize("entry", [(-1, 0), (0, 1 << 31)])
def test_entry_that_does_not_fit_is_our_bug(entry: tuple[int, int]) -> None:
    with pytest.raises(InvariantError):
        encode([entry])


def test_sound_index_has_no_problem() -> None:
    assert find_problem(decode(encode(ENTRIES)), 8201) is None
    assert find_problem(decode(b""), 0) is None


@pytest.mark.parametrize(
    ("entries", "size", "word"),
    [
        (ENTRIES, 8200, "past the end"),
        ([(5, 10), (5, 20)], 100, "offsets do not ascend"),
        ([(5, 20), (6, 20)], 100, "positions do not ascend"),
        ([(5, 20), (0, 0), (0, 0)], 100, "do not ascend"),
        ([(-5, 20)], 100, "negative"),
        ([(5, -20), (6, 30)], 100, "negative"),
        ([(5, 20), (6, -30)], 100, "negative"),
    ],
)
def test_problem_is_named(entries: list[tuple[int, int]], size: int, word: str) -> None:
    assert word in str(find_problem(np.array(entries, np.int64), size))


@pytest.mark.parametrize(
    ("relative_offset", "position"), [(0, 0), (4, 0), (5, 4096), (8, 4096), (9, 8200), (99, 8200)]
)
def test_position_is_that_of_the_greatest_entry_not_above(
    relative_offset: int, position: int
) -> None:
    assert position == find_position(decode(encode(ENTRIES)), relative_offset)


def test_position_without_entries_is_the_start() -> None:
    assert find_position(decode(b""), 7) == 0
