"""Versions as the kernels read them and rank by them, against the value of one record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from keeplast.columns import retained, version_ranks
from keeplast.columns.version_ranks import HAS_VERSION, RankedKeyMap
from keeplast.columns.winners import LOSES, SHARDS, UNKNOWN, WINS, new_ledger
from keeplast.format.batch import TimestampType, encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Header, Record, header_version
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.rewrite.ranking import VersionCounts, ranking_of
from keeplast.rewrite.workspace import DecompressedCache
from tests.support.kernel_window import HASH_KEY, window_of, workspace
from tests.support.record_rank import Rank, rank_of

NAME = b"ver"
LOWEST = -(2**63)
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([LOWEST, -LOWEST - 1]))


def headers() -> st.SearchStrategy[tuple[Header, ...]]:
    names = st.sampled_from([NAME, b"Ver", b"ve", b"", b"other"])
    values = st.one_of(
        NUMBERS.map(lambda n: n.to_bytes(8, "big", signed=True)), st.none(), st.binary(max_size=9)
    )
    return st.lists(st.tuples(names, values), max_size=4).map(tuple)


@given(
    drawn=st.lists(st.tuples(headers(), st.binary(max_size=200), NUMBERS), min_size=1, max_size=8),
    codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
    is_append_time=st.booleans(),
    strategy=st.sampled_from([Strategy.HEADER, Strategy.TIMESTAMP]),
)
def test_versions_are_those_of_the_records(
    drawn: list[tuple[tuple[Header, ...], bytes, int]],
    codec: Codec,
    is_append_time: bool,
    strategy: Strategy,
) -> None:
    records = [
        Record(i, stamp, b"k", value, found) for i, (found, value, stamp) in enumerate(drawn)
    ]
    data = encode_batch(
        records,
        codec=codec,
        timestamp_type=(
            TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
        ),
        max_timestamp=77 if is_append_time else None,
    )
    w, ranking = workspace(), ranking_of(TopicConfig(strategy=strategy, strategy_header="ver"))
    window = window_of(data)
    retained.select_indexed(window.table, 0, window.batches)
    (part,) = w.slices(window, 0, HASH_KEY, DecompressedCache(0), keeps=False)
    w.marks[: part.rows] = 1
    counts = ranking.read_versions(window, part, w)
    versions, _ = w.room_for_ranks()
    effective = [
        Record(r.offset, 77 if is_append_time else r.timestamp, r.key, r.value, r.headers)
        for r in records
    ]
    expected = [rank_of(record, strategy, NAME) for record in effective]
    found = [
        (bool(w.flags[r] & HAS_VERSION), int(versions[r]), int(w.offsets[r]))
        for r in range(part.rows)
    ]
    assert expected == found
    if strategy is Strategy.HEADER:
        missing = sum(all(key != NAME for key, _ in r.headers) for r in records)
        without = sum(header_version(r.headers, NAME) is None for r in records)
        assert VersionCounts(missing, without - missing) == counts


def block_of(
    rows: list[tuple[int, Rank]],
) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64]]:
    """Return (key, rank) pairs as a block, each row's origin, and the shards' starts."""
    count = len(rows)
    hashes = np.array([[key << 60 | key, key] for key, _ in rows], np.uint64).reshape(-1, 2)
    block = np.empty((count, version_ranks.RANK_WORDS), np.uint64)
    origins = np.empty(count, np.int32)
    starts = np.zeros(SHARDS + 1, np.int64)
    version_ranks.sort_ranks_by_shard(
        hashes,
        np.array([rank[2] for _, rank in rows], np.int64),
        np.array([rank[1] for _, rank in rows], np.int64),
        np.array([HAS_VERSION if rank[0] else 0 for _, rank in rows], np.uint8),
        np.ones(count, np.uint8), 0, count, block, origins, starts,
    )  # fmt: skip
    return block, origins, starts


def standings(key_map: RankedKeyMap, rows: list[tuple[int, Rank]]) -> list[int]:
    block, origins, starts = block_of(rows)
    found = np.full(len(rows), 99, np.uint8)
    key_map.find(block, starts, origins, found)
    return found.tolist()


def keyed_versions(size: int) -> st.SearchStrategy[list[tuple[int, int | None]]]:
    return st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), NUMBERS)), max_size=size)


@given(clean=keyed_versions(12), windows=st.lists(keyed_versions(12), max_size=4))
def test_map_and_ledger_equal_a_dictionary_of_ranks(
    clean: list[tuple[int, int | None]], windows: list[list[tuple[int, int | None]]]
) -> None:
    def ranked(drawn: list[tuple[int, int | None]], first: int) -> list[tuple[int, Rank]]:
        return [
            (key, (version is not None, version or 0, first + i))
            for i, (key, version) in enumerate(drawn)
        ]

    first_dirty = len(clean)
    key_map = RankedKeyMap(new_ledger(first_dirty, 1000, 1000))
    dirty: list[tuple[int, Rank]] = []
    for drawn in windows:
        rows = ranked(drawn, first_dirty + len(dirty))
        dirty += rows
        block, _, starts = block_of(rows)
        key_map.put(block, starts)
    below = ranked(clean, 0)
    block, _, starts = block_of(below)
    key_map.raise_known(block, starts)

    known = {key for key, _ in dirty}
    winners = {key: max(r for k, r in below + dirty if k == key) for key in known}
    expected = [
        UNKNOWN if key not in known else WINS if rank == winners[key] else LOSES
        for key, rank in below + dirty
    ]
    assert expected == standings(key_map, below + dirty)
    notes = key_map.ledger.standings
    assert expected[first_dirty:] == notes[: len(dirty)].tolist()
    assert len(known) == len(key_map)


@pytest.mark.parametrize("offset", [0, 1, 2**62, 2**63 - 2])
@pytest.mark.parametrize("version", [None, LOWEST, -1, 0, -LOWEST - 1])
def test_any_rank_is_stored_exactly(offset: int, version: int | None) -> None:
    rank = (version is not None, version or 0, offset)
    key_map = RankedKeyMap(new_ledger(0, 0, 0))
    block, _, starts = block_of([(1, rank)])
    key_map.put(block, starts)
    same_version = [
        (1, (rank[0], rank[1], offset + step)) for step in (-1, 0) if offset + step >= 0
    ]
    assert [LOSES, WINS][-len(same_version) :] == standings(key_map, same_version)


def test_an_announced_key_is_not_raised() -> None:
    key_map = RankedKeyMap(new_ledger(0, 0, 0))
    block, origins, starts = block_of([(1, (True, 5, 3))])
    key_map.announce(block, starts, origins, np.zeros(1, np.uint8))
    key_map.raise_known(block, starts)
    assert [UNKNOWN] == standings(key_map, [(1, (True, 5, 3))])
    key_map.put(block, starts)
    assert [WINS] == standings(key_map, [(1, (True, 5, 3))])
    assert 1 == len(key_map)
