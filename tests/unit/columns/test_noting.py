"""A ledger says of each record what the key map would, without being asked by key."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from keeplast.columns import retained, winners
from keeplast.columns.retained import DISORDER
from keeplast.columns.version_ranks import NotingKeyMap
from keeplast.columns.winners import LOSES, SHARDS, UNKNOWN, WINS, new_ledger


def block_of(
    keys: list[int], offsets: list[int]
) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64]]:
    """Return the rows as a block, each row's origin, and the shards' starts."""
    count = len(keys)
    hashes = np.array([[key << 60 | key, key] for key in keys], np.uint64).reshape(-1, 2)
    block = np.empty((count, 3), np.uint64)
    rows = np.empty(count, np.int32)
    starts = np.zeros(SHARDS + 1, np.int64)
    winners.sort_by_shard(
        hashes, np.array(offsets, np.int64), np.ones(count, np.uint8), 0, count, block, rows, starts
    )
    return block, rows, starts


@given(
    windows=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=5),
    gaps=st.integers(1, 3),
)
def test_notes_are_what_the_map_answers(windows: list[list[int]], gaps: int) -> None:
    first, key_map = 100, NotingKeyMap(new_ledger(100, 100 + 60 * gaps, 1 << 20))
    at, rows = first, []
    for keys in windows:
        offsets = [at + gaps * i for i in range(len(keys))]
        at += gaps * len(keys)
        rows += list(zip(keys, offsets, strict=True))
        block, _, starts = block_of(keys, offsets)
        key_map.put(block, starts)
    found = np.zeros(len(rows), np.uint8)
    block, origins, starts = block_of([key for key, _ in rows], [offset for _, offset in rows])
    key_map.find(block, starts, origins, found)
    assert found.tolist() == [key_map.ledger.standings[at - first] for _, at in rows]
    assert len(rows) == np.count_nonzero(key_map.ledger.standings)


def test_records_outside_the_ledger_are_not_noted() -> None:
    ledger = new_ledger(10, 1000, 4)
    key_map = NotingKeyMap(ledger)
    for offset in (9, 10, 13, 14):
        block, _, starts = block_of([1], [offset])
        key_map.put(block, starts)
    assert [LOSES, UNKNOWN, UNKNOWN, LOSES] == ledger.standings.tolist()


def test_an_announced_key_has_no_record_that_could_lose() -> None:
    key_map = NotingKeyMap(new_ledger(0, 3, 3))
    block, rows, starts = block_of([5], [2])
    key_map.announce(block, starts, rows, np.zeros(1, np.uint8))
    key_map.put(block, starts)
    assert [UNKNOWN, UNKNOWN, WINS] == key_map.ledger.standings.tolist()


def test_forgotten_notes_leave_the_map_to_be_asked() -> None:
    key_map = NotingKeyMap(new_ledger(0, 8, 8))
    block, rows, starts = block_of([1, 2], [3, 4])
    key_map.put(block, starts)
    key_map.forget_notes()
    assert 0 == len(key_map.ledger.standings)
    later, _, later_starts = block_of([1], [5])
    key_map.put(later, later_starts)
    found = np.zeros(2, np.uint8)
    key_map.find(block, starts, rows, found)
    assert [LOSES, WINS] == found.tolist()


def test_offsets_that_do_not_ascend_are_noticed() -> None:
    offsets = np.array([4, 5, 9, 9], np.int64)
    assert 9 == retained.last_ascending(0, 3, 3, offsets)
    assert DISORDER == retained.last_ascending(0, 4, 3, offsets)
    assert DISORDER == retained.last_ascending(0, 1, 4, offsets)
    assert -1 == retained.last_ascending(0, 0, -1, offsets)


@given(runs=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=4))
def test_maps_of_runs_and_their_notes_make_those_of_the_whole(runs: list[list[int]]) -> None:
    end = 100 + sum(map(len, runs))
    expected, merged = (NotingKeyMap(new_ledger(100, end, 1 << 20)) for _ in range(2))
    parts, at = [], 100
    for keys in runs:
        own = NotingKeyMap(new_ledger(at, at + len(keys), 1 << 20))
        block, _, starts = block_of(keys, list(range(at, at + len(keys))))
        at += len(keys)
        expected.put(block, starts)
        own.put(block, starts)
        parts.append(own)
    for own in reversed(parts):
        assert len(own.ledger.standings) == merged.ledger.add(own.ledger)
        merged.merge(*own.to_block())
    assert expected.ledger.standings.tolist() == merged.ledger.standings.tolist()
    assert len(expected) == len(merged)
