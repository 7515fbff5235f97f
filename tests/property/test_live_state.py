"""What a consumer folds of a topic is the state that keeplast reads from its log.

Random histories of three producers with transactions that commit, abort and stay open, by every
strategy, cleaned or not; and consumers that are given some records twice.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import keeplast
from keeplast.errors import InvalidError
from keeplast.format.record import Record
from keeplast.model.topic_config import Strategy, TopicConfig
from tests.property.test_columns_equal_format import (
    STEPS,
    committed_offsets,
    ranked_by,
    write_steps,
)
from tests.support.partition_maker import NOW_MS
from tests.support.reader import read_partition
from tests.support.source_reading import view_of
from tests.support.turns import examples


def received(directory: Path) -> list[Record]:
    """Return what a consumer of committed records is given of a log, in order."""
    readable = read_partition(directory)
    visible = committed_offsets(readable.batches)
    last_stable = view_of(directory).last_stable
    every = [
        record for batch in readable.batches if not batch.is_control for record in batch.records()
    ]
    return [record for record in every if record.offset in visible and record.offset < last_stable]


def take(state: keeplast.LiveState, record: Record, partition: int = 0) -> bool:
    return state.apply(
        partition=partition, offset=record.offset, timestamp_ms=record.timestamp, key=record.key,
        value=record.value, headers=[(name.decode(), value) for name, value in record.headers],
    )  # fmt: skip


def values_of(state: keeplast.LiveState) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (record.offset, record.value) for (_, key), record in state.items()}


@given(steps=STEPS, strategy=st.sampled_from(Strategy), again=st.integers(0, 60))
@settings(max_examples=examples(40))
def test_a_consumer_holds_what_the_log_says_before_and_after_cleaning(
    steps: list[tuple[int, int]], strategy: Strategy, again: int
) -> None:
    topic = replace(ranked_by(strategy), cleanup_policy=frozenset({"compact"}))
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "t-0"
        write_steps(directory, steps)
        log = keeplast.open_log(directory)
        expected = {key: (each.offset, each.value) for key, each in log.state(topic).items()}
        records = received(directory)
        state = keeplast.LiveState(topic)
        for at, record in enumerate(records):
            take(state, record)
            if at == again:
                # As after a rebalance.
                taken = [take(state, each) for each in records[: at + 1]]
                assert not any(taken)
        assert expected == values_of(state)
        cleaned = log.clean(topic, force=True, is_unsafe=True, now_ms=NOW_MS)
        assert not [done.error for done in cleaned.rounds if done.error is not None]
        late = keeplast.LiveState(topic)
        for record in received(directory):
            take(late, record)
        assert expected == values_of(late)


BY_TIME = TopicConfig(strategy=Strategy.TIMESTAMP)
ONE = Record(0, 50, b"k", b"v")


def test_a_tombstone_keeps_older_records_out_until_it_is_forgotten() -> None:
    state = keeplast.LiveState(BY_TIME)
    assert take(state, ONE)
    assert take(state, replace(ONE, offset=1, timestamp=70, value=None))
    assert not state
    assert not take(state, replace(ONE, offset=2, timestamp=60))
    assert state.forget_tombstones(70) == 0
    assert state.forget_tombstones(71) == 1
    assert take(state, replace(ONE, offset=3, timestamp=60))
    assert state[0, b"k"].offset == 3


def test_partitions_are_apart_and_say_where_to_go_on() -> None:
    state = keeplast.LiveState(BY_TIME)
    take(state, ONE)
    take(state, replace(ONE, offset=7, value=b"other"), partition=1)
    take(state, replace(ONE, offset=9, key=None), partition=1)
    assert [(0, b"k"), (1, b"k")] == list(state)
    assert {0: 1, 1: 10} == state.positions


@pytest.mark.parametrize(("partition", "offset"), [(-1, 0), (0, -1)])
def test_a_record_that_no_consumer_gives_is_refused(partition: int, offset: int) -> None:
    state = keeplast.LiveState(BY_TIME)
    with pytest.raises(InvalidError, match=f"partition={partition} offset={offset}"):
        take(state, replace(ONE, offset=offset), partition=partition)
    assert not state.positions
