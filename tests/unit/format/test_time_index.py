from __future__ import annotations

import numpy as np
import pytest

from keeplast.errors import CorruptError, InvariantError
from keeplast.format.time_index import decode, encode, find_problem

ENTRY = (1_700_000_000_000, 5)


def test_entry_of_the_specification() -> None:
    data = bytes.fromhex("0000018bcfe5680000000005")

    assert data == encode([ENTRY])
    assert [list(ENTRY)] == decode(data).tolist()


def test_no_entries() -> None:
    assert decode(b"").shape == (0, 2)
    assert encode([]) == b""


def test_cut_entry_is_corrupt() -> None:
    with pytest.raises(CorruptError) as caught:
        decode(bytes(13))
    assert caught.value.position == 12


def test_offset_that_does_not_fit_is_our_bug() -> None:
    with pytest.raises(InvariantError):
        encode([(0, 1 << 31)])


def test_sound_index_has_no_problem() -> None:
    assert find_problem(np.array([(1, 5), (2, 5), (3, 6)]), 100) is None
    assert find_problem(decode(b""), 0) is None


@pytest.mark.parametrize(
    ("entries", "size", "word"),
    [
        ([(2, 5), (2, 6)], 100, "timestamps do not ascend"),
        ([(2, 5), (3, 4)], 100, "offsets descend"),
        ([(-2, 5)], 100, "negative"),
        ([(2, -5), (3, 5)], 100, "negative"),
        ([(2, 5), (-3, 6)], 100, "negative"),
        ([(2, 5)], 0, "empty log"),
    ],
)
def test_problem_is_named(entries: list[tuple[int, int]], size: int, word: str) -> None:
    assert word in str(find_problem(np.array(entries, np.int64), size))
