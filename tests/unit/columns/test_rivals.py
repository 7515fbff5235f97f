"""Winners of parts against each other: the greatest offset of a key, and no other, is left."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from keeplast.columns.ledger import ReasonLedger
from keeplast.columns.rivals import PartKeyMap, RivalKeyMap
from keeplast.columns.winners import LOSES, SHARDS, WINS, sort_by_shard

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
