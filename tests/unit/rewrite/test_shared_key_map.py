"""Threads that put into one key map leave what one thread leaves, however they meet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from keeplast.columns import version_ranks
from keeplast.columns.version_ranks import HAS_VERSION, RANK_WORDS, RankedKeyMap
from keeplast.columns.winners import SHARDS, new_ledger
from keeplast.rewrite.stage_work import SharedKeyMap

KEYS = 20_000
BLOCKS = 12


def block_of(first_offset: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return every key once, with a version that does not ascend with the offset."""
    random = np.random.default_rng(first_offset)
    hashes = np.random.default_rng(0).integers(0, 1 << 64, (KEYS, 2), np.uint64)
    block, starts = np.empty((KEYS, RANK_WORDS), np.uint64), np.zeros(SHARDS + 1, np.int64)
    version_ranks.sort_ranks_by_shard(
        hashes, np.arange(first_offset, first_offset + KEYS), random.integers(0, 1 << 40, KEYS),
        np.full(KEYS, HAS_VERSION, np.uint8), np.ones(KEYS, np.uint8), 0, KEYS, block,
        np.empty(KEYS, np.int32), starts,
    )  # fmt: skip
    return block, starts


def known(key_map: RankedKeyMap) -> list[list[int]]:
    block, _ = key_map.to_block()
    return sorted(block.tolist())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_leave_the_winners_and_notes_of_one_thread(threads: int) -> None:
    end = (BLOCKS + 1) * KEYS
    alone = RankedKeyMap(new_ledger(KEYS, end, end))
    shared = SharedKeyMap(RankedKeyMap(new_ledger(KEYS, end, end)))
    dirty = [block_of(number * KEYS) for number in range(1, BLOCKS + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda each: shared.put(*each), dirty))
        list(pool.map(lambda each: shared.raise_known(*each), [block_of(0)]))
    for block, starts in dirty:
        alone.put(block, starts)
    alone.raise_known(*block_of(0))
    assert isinstance(shared.key_map, RankedKeyMap)
    assert known(alone) == known(shared.key_map)
    assert np.array_equal(alone.ledger.standings, shared.key_map.ledger.standings)
    assert KEYS == len(shared.key_map)
