"""Winners of parts against each other: the greatest offset of a key, and no other, is left."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from keeplast.columns.version_ranks import PartKeyMap, RivalKeyMap
from keeplast.columns.winners import LOSES, SHARDS, WINS, ReasonLedger, sort_by_shard

PART = st.lists(st.integers(0, 200), max_size=60)


def hashes_of(keys: list[int]) -> NDArray[np.uint64]:
    """Return two halves for each key that fall into few shards, close together."""
    halves = np.array([(key % 3) << 62 | (key // 5) << 30 for key in keys], np.uint64)
    return np.stack([halves, np.array(keys, np.uint64)], axis=1).reshape(-1, 2)


def filled(keys: list[int], first_offset: int) -> PartKeyMap:
    """Return a map of records with these keys and ascending offsets."""
    count = len(keys)
    part = PartKeyMap(ReasonLedger(first_offset, np.zeros(count, np.uint8)))
    block, rows = np.empty((count, 3), np.uint64), np.empty(count, np.int32)
    starts = np.zeros(SHARDS + 1, np.int64)
    offsets = np.arange(first_offset, first_offset + count)
    sort_by_shard(hashes_of(keys), offsets, np.ones(count, np.uint8), 0, count, block, rows, starts)
    part.put(block, starts)
    return part


@given(st.lists(PART, min_size=1, max_size=4))
def test_what_parts_note_and_what_loses_between_them_leaves_the_last_of_each_key(
    parts: list[list[int]],
) -> None:
    maps, at = [], 0
    for keys in parts:
        maps.append(filled(keys, at))
        at += len(keys)
    rivals = RivalKeyMap()
    blocks = [each.to_block() for each in maps]
    for each, (rows, starts) in zip(maps, blocks, strict=True):
        assert len(each) == len(rows) == starts[-1]
        rivals.merge(rows, starts)
    winners = []
    for each, (rows, starts) in zip(maps, blocks, strict=True):
        losers = rivals.losers(rows, starts)
        assert np.all(each.ledger.standings[losers - each.ledger.first_offset] == WINS)
        each.ledger.standings[losers - each.ledger.first_offset] = LOSES
        kept = np.flatnonzero(each.ledger.standings == WINS) + each.ledger.first_offset
        winners.extend(kept.tolist())
    every = [key for keys in parts for key in keys]
    last = {key: offset for offset, key in enumerate(every)}
    assert sorted(last.values()) == winners
    assert len(last) == len(rivals)


@given(PART)
def test_the_rows_of_a_part_are_those_that_any_key_map_gives(keys: list[int]) -> None:
    part = filled(keys, 7)
    rows, starts = part.to_block()
    expected = np.concatenate(list(part.rows()))
    assert np.array_equal(expected, rows)
    assert np.all(starts[:-1] <= starts[1:])


class Watched(RivalKeyMap):
    """Keeps the rows of one shard as they come."""

    __slots__ = ("came",)

    def __init__(self) -> None:
        super().__init__()
        self.came: list[NDArray[np.uint64]] = []

    def put_shard(self, shard: int, block: NDArray[np.uint64], first: int, last: int) -> None:
        if shard == 0:
            self.came.append(block[first:last, 0].copy())
        super().put_shard(shard, block, first, last)


def rows_of_a_table(seed: int, keys: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the rows of a map with so many keys, all of shard 0, as they lie there."""
    part = PartKeyMap(ReasonLedger(0, np.zeros(keys, np.uint8)))
    random = np.random.default_rng(seed)
    block = random.integers(0, 1 << 58, (keys, 3), dtype=np.uint64)
    block[:, 2] = np.arange(keys)
    starts = np.full(SHARDS + 1, keys, np.int64)
    starts[0] = 0
    part.put(block, starts)
    return part.to_block()


def test_rows_of_another_table_come_from_all_over_it_where_this_one_may_grow() -> None:
    first, second = (rows_of_a_table(seed, 20_000) for seed in (1, 2))
    rivals = Watched()
    rivals.merge(*first)
    rivals.merge(*second)
    assert len(rivals) == 40_000
    assert not len(rivals.losers(*first))
    as_it_lay, spread = rivals.came
    assert np.array_equal(as_it_lay, first[0][:, 0])
    assert np.array_equal(np.sort(spread), np.sort(second[0][:, 0]))
    # A fiftieth of the rows has been over the whole table.
    soon = spread[: len(spread) // 50]
    assert soon.min() < 1 << 53
    assert soon.max() > (1 << 58) - (1 << 53)
