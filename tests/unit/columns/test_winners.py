"""The key map. OM01 to OM06 are Kafka's ``OffsetMapTest`` (cleaning.md 8.5)."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from keeplast.columns import winners
from keeplast.columns.winners import LOAD_MAX, LOSES, SHARDS, UNKNOWN, WINS, KeyMap
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import SLOT_BYTES
from tests.support.standings import ABSENT, winning_offsets

BYTES_PER_KEY_MAX = 40


class Numbered:
    """A key map whose keys are numbers; rows go in and out as the passes hand them over."""

    def __init__(self, seed: int = 1) -> None:
        self.map = KeyMap()
        self._seed = seed

    def _hashes(self, keys: NDArray[np.int64]) -> NDArray[np.uint64]:
        mixed = (keys.astype(np.uint64) + np.uint64(self._seed)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        return np.ascontiguousarray(np.stack([mixed, keys.astype(np.uint64)], axis=1))

    def _block(
        self, keys: list[int] | NDArray[np.int64], offsets: list[int] | NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
        count = len(keys)
        block = np.empty((count, 3), np.uint64)
        rows = np.empty(count, np.int32)
        starts = np.zeros(SHARDS + 1, np.int64)
        sorted_rows = winners.sort_by_shard(
            self._hashes(np.array(keys, np.int64)), np.array(offsets, np.int64),
            np.ones(count, np.uint8), 0, count, block, rows, starts,
        )  # fmt: skip
        assert count == sorted_rows
        return block, starts, rows

    def put(
        self, keys: list[int] | NDArray[np.int64], offsets: list[int] | NDArray[np.int64]
    ) -> None:
        block, starts, _ = self._block(keys, offsets)
        self.map.put(block, starts)

    def get(self, keys: list[int]) -> list[int]:
        return winning_offsets(len(keys), lambda offsets: self.standings(keys, offsets))

    def standings(
        self, keys: list[int], offsets: list[int] | NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        block, starts, rows = self._block(keys, offsets)
        found = np.full(len(keys), 99, np.uint8)
        self.map.find(block, starts, rows, found)
        return found

    def announce(self, keys: list[int]) -> list[int]:
        block, starts, rows = self._block(keys, [0] * len(keys))
        is_new = np.full(len(keys), 7, np.uint8)
        self.map.announce(block, starts, rows, is_new)
        return is_new.tolist()


@pytest.fixture
def numbered() -> Numbered:
    return Numbered()


@pytest.mark.parametrize("items", [10, 100, 1000, 5000])
def test_om01_every_key_finds_its_offset(numbered: Numbered, items: int) -> None:
    keys = list(range(items))
    numbered.put(keys, keys)
    assert keys == numbered.get(keys)
    assert items == len(numbered.map)


def test_om02_an_empty_map_finds_nothing() -> None:
    """A round starts with a new map; there is nothing to clear."""
    assert [ABSENT] * 10 == Numbered().get(list(range(10)))
    assert len(Numbered().map) == 0


def test_om03_a_map_at_its_limit_still_answers_for_an_unknown_key(numbered: Numbered) -> None:
    keys = [37 + i for i in range(4096 // SLOT_BYTES)]
    numbered.put(keys, keys)
    assert [ABSENT, keys[-1]] == numbered.get([36, keys[-1]])


def test_om04_knowing_a_key_without_an_offset_changes_no_entry(numbered: Numbered) -> None:
    """Where a bounded map ends is the pass's business; announced keys count as absent."""
    numbered.put([37, 40], [37, 40])
    numbered.announce([40, 41])
    assert [37, 40, ABSENT] == numbered.get([37, 40, 41])


def test_om05_the_greatest_offset_put_wins_whenever_it_comes(numbered: Numbered) -> None:
    numbered.put([5, 6, 5], [10, 11, 12])
    assert [12, 11] == numbered.get([5, 6])
    numbered.put([5], [3])
    assert [12, 11] == numbered.get([5, 6])


def test_om06_number_of_keys_after_each_put(numbered: Numbered) -> None:
    found = []
    for key in (1, 2, 2, 3, 1):
        numbered.put([key], [0])
        found.append(len(numbered.map))
    assert found == [1, 2, 2, 3, 3]


def test_a_record_loses_only_below_its_keys_winner(numbered: Numbered) -> None:
    numbered.put([1, 2, 3], [10, 10, 10])
    numbered.announce([4])
    expected = [LOSES, WINS, WINS, UNKNOWN, UNKNOWN]
    assert expected == numbered.standings([1, 2, 3, 4, 5], [9, 10, 11, 0, 0]).tolist()


@pytest.mark.parametrize("offset", [0, 1, 2**32, INT64_MAX])
def test_any_offset_is_stored_exactly(numbered: Numbered, offset: int) -> None:
    numbered.put([1], [offset])
    assert [offset, ABSENT] == numbered.get([1, 2])


def test_announced_keys_are_new_once(numbered: Numbered) -> None:
    numbered.put([1], [1])
    assert [0, 1, 1, 0, 0] == numbered.announce([1, 2, 3, 2, 1])
    assert len(numbered.map) == 3
    numbered.put([2], [9])
    assert [1, 9, ABSENT] == numbered.get([1, 2, 3])
    assert len(numbered.map) == 3


@pytest.mark.parametrize(
    ("is_new", "room", "expected"),
    [
        ([1, 1, 1], 3, 3),
        ([1, 1, 1], 2, 2),
        ([1, 0, 0, 1], 1, 1),
        ([0, 0, 1, 1], 1, 3),
        ([0, 1], 0, 0),
        ([], 0, 0),
        ([0, 0], 1, 2),
    ],
)
def test_overflow_is_the_row_after_the_last_free_slot(
    is_new: list[int], room: int, expected: int
) -> None:
    """Room is tested before the key is looked up, so that row may hold a known key."""
    marks = np.array(is_new, np.uint8)
    assert expected == winners.find_overflow(marks, 0, len(is_new), room)


def test_rows_that_are_not_wanted_stay_out_of_a_block() -> None:
    hashes = np.array([[i << 58, i] for i in range(8)], np.uint64)
    block = np.empty((8, 3), np.uint64)
    rows = np.empty(8, np.int32)
    starts = np.zeros(SHARDS + 1, np.int64)
    wanted = np.array([1, 0, 1, 1, 0, 1, 1, 1], np.uint8)
    count = winners.sort_by_shard(
        hashes, np.arange(8, dtype=np.int64), wanted, 2, 7, block, rows, starts
    )
    assert [2, 3, 5, 6] == rows[:count].tolist()
    assert [2, 3, 5, 6] == block[:count, 2].tolist()
    assert count == starts[SHARDS]


def test_keys_with_one_home_do_not_disturb_each_other() -> None:
    key_map = KeyMap()
    block = np.array([[3 << 58, i, i + 100] for i in range(500)], np.uint64)
    starts = np.zeros(SHARDS + 1, np.int64)
    starts[4:] = len(block)
    key_map.put(block, starts)
    found = np.zeros(500, np.uint8)
    key_map.find(block, starts, np.arange(500, dtype=np.int32), found)
    assert {WINS} == set(found.tolist())
    block[:, 2] -= np.uint64(1)
    key_map.find(block, starts, np.arange(500, dtype=np.int32), found)
    assert {LOSES} == set(found.tolist())


@pytest.mark.parametrize("count", [10, 10_000])
def test_a_map_that_was_sent_answers_and_grows_after_the_sender_is_gone(count: int) -> None:
    numbered, keys = Numbered(), np.arange(count)
    numbered.put(keys, keys)
    sender = numbered.map
    numbered.map = pickle.loads(pickle.dumps(sender))
    for table in sender._tables:
        table[:] = 0
    assert {WINS} == set(numbered.standings(keys.tolist(), keys).tolist())
    more = np.arange(20 * count)
    numbered.put(more, more + 1)
    assert 20 * count == len(numbered.map)
    assert {LOSES} == set(numbered.standings(more.tolist(), more).tolist())


def test_rows_of_other_shards_are_left_to_their_own_tasks() -> None:
    numbered, keys = Numbered(), np.arange(10_000)
    block, starts, _ = numbered._block(keys, keys)
    numbered.map.put_shards(8, 16, block, starts)
    found = np.empty(len(keys), np.uint8)
    numbered.map.find(block, starts, np.arange(len(keys), dtype=np.int32), found)
    assert {WINS} == set(found[starts[8] : starts[16]].tolist())
    assert {UNKNOWN} == set(found[: starts[8]].tolist()) | set(found[starts[16] :].tolist())
    assert starts[16] - starts[8] == len(numbered.map)


def test_a_million_keys_take_40_bytes_each_at_most(numbered: Numbered) -> None:
    count = 1_000_000
    keys = np.arange(count)
    for part in np.array_split(keys, 20):
        numbered.put(part, part)
    assert count == len(numbered.map)
    assert numbered.map.size_bytes <= BYTES_PER_KEY_MAX * count
    assert numbered.map.size_bytes >= SLOT_BYTES * count / LOAD_MAX
    sample = list(range(0, count, 997))
    assert sample == numbered.get(sample)


def test_keys_that_come_again_do_not_make_the_map_grow(numbered: Numbered) -> None:
    """A step reserves a slot for each of its rows; that is paid once, not at every repetition."""
    keys = np.arange(300_000)
    numbered.put(keys, keys)
    numbered.put(keys, keys)
    before = numbered.map.size_bytes
    assert before <= BYTES_PER_KEY_MAX * len(keys)
    for _ in range(3):
        numbered.put(keys, keys)
    assert before == numbered.map.size_bytes


@given(
    puts=st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1000)), max_size=30), max_size=8
    ),
    seed=st.integers(0, 2**63),
)
def test_map_equals_a_dictionary(puts: list[list[tuple[int, int]]], seed: int) -> None:
    numbered = Numbered(seed)
    model: dict[int, int] = {}
    for pairs in puts:
        numbered.put([key for key, _ in pairs], [offset for _, offset in pairs])
        for key, offset in pairs:
            model[key] = max(offset, model.get(key, offset))
    assert [model.get(key, ABSENT) for key in range(41)] == numbered.get(list(range(41)))
    assert len(model) == len(numbered.map)
