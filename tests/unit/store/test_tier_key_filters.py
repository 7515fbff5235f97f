"""One key of a store: what filters say it is not in is not read, and the answer is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keeplast.format.filename import LOG
from keeplast.format.record import ControlType
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.remains import SearchedKey
from keeplast.model.topic_config import TopicConfig
from keeplast.read.transactions import TransactionOutcome
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.store.explain import explain_stored
from keeplast.store.look import FirstTimestamps, look_at_remote
from keeplast.tier.objects.filters import FilterKey
from keeplast.tier.objects.object_store import ObjectStore
from tests.support.counting_objects import CountingObjects
from tests.support.keyed_history import (
    CLEAN_SEGMENTS,
    KEYS_OF_A_SEGMENT,
    TOPIC,
    KeyedHistory,
    overwrite,
    parts_of,
)
from tests.support.log_builder import text
from tests.support.partition_maker import (
    DAY_MS,
    NOW_MS,
    PARTITION,
    data_batch,
    marker,
    one,
    write_partition,
)
from tests.support.tiered_log import FILTER_KEY, Tiered


def explain(
    tiered: Tiered,
    key: bytes | None,
    *,
    topic: TopicConfig = TOPIC,
    objects: ObjectStore | None = None,
    asks: bool = True,
    offset: int | None = None,
) -> SearchedKey:
    objects = tiered.objects if objects is None else objects
    now_ms = tiered.clock.now_ms()
    look = look_at_remote(
        tiered.state, tiered.store.orphans(PARTITION), topic, FirstTimestamps(objects), now_ms
    )
    return explain_stored(
        look, objects, AskedKey(key, offset), now_ms, Workspace(MEMORY_BYTES_MIN),
        filter_key=FilterKey.of_fact(FILTER_KEY) if asks else None,
        planned=lambda count: None, progressed=lambda count: None,
    )  # fmt: skip


HEAD = 61


def log_bytes(counting: CountingObjects) -> dict[str, int]:
    return {key: count for key, count in counting.read.items() if key.endswith(LOG)}


def test_segments_without_the_key_are_not_read(history: KeyedHistory) -> None:
    state = history.tiered.state
    sizes = [state.segments[each.segment_id].size_bytes for each in state.routes]
    counting = CountingObjects(history.tiered.objects)
    for number in range(CLEAN_SEGMENTS):
        counting.forget()
        answer = explain(history.tiered, text(100 * number), objects=counting)
        (record,) = answer.found.records
        holding = [each.base_offset for each in state.routes].index(record.record.segment)
        assert sum(sizes) - sizes[holding] == answer.left_out[1]
        # Of each a look reads the head of its first batch, to see whether it is understood.
        assert [sizes[holding] + HEAD] == [
            count for count in log_bytes(counting).values() if count > HEAD
        ]
    counting.forget()
    absent = explain(history.tiered, b"nobody's", objects=counting)
    assert ((), CLEAN_SEGMENTS) == (absent.found.records, absent.left_out[0])
    assert {HEAD} == {*log_bytes(counting).values()}


def test_replaced_and_dirty_segments_answer_alike(history: KeyedHistory) -> None:
    """What is dirty has no filter yet, what was replaced has its own."""
    history.write(1, deletes=True)
    history.round()
    history.write(2)
    history.take_in()
    assert history.tiered.store.orphans(PARTITION)
    left_out = 0
    for number in range(CLEAN_SEGMENTS + 1):
        for key in range(KEYS_OF_A_SEGMENT + 1):
            name = text(100 * number + key)
            with_filters = explain(history.tiered, name)
            assert parts_of(explain(history.tiered, name, asks=False)) == parts_of(with_filters)
            left_out += with_filters.left_out[0]
    assert left_out > 0


def test_an_offset_asks_for_the_key_that_it_has(history: KeyedHistory) -> None:
    answer = explain(history.tiered, None, offset=0)
    assert (text(0), CLEAN_SEGMENTS - 1) == (answer.found.key, answer.left_out[0])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
        lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
        None,
    ],
    ids=["cut", "empty", "head", "words", "missing"],
)
def test_a_filter_that_is_no_good_is_none(
    history: KeyedHistory, spoil: Callable[[bytes], bytes] | None
) -> None:
    objects, key = history.tiered.objects, history.tiered.filter_key(0)
    data = bytes(objects.read_range(key, 0, objects.stat(key).size_bytes))
    objects.delete([key])
    if spoil is not None:
        overwrite(objects, key, spoil(data))
    assert_left_out(history.tiered, CLEAN_SEGMENTS - 1)


def test_a_filter_of_other_bytes_or_another_store_is_none(history: KeyedHistory) -> None:
    objects = history.tiered.objects
    first, second = (
        history.tiered.filter_key(each.base_offset) for each in history.tiered.state.routes[:2]
    )
    data = bytes(objects.read_range(second, 0, objects.stat(second).size_bytes))
    objects.delete([first])
    overwrite(objects, first, data)
    assert_left_out(history.tiered, CLEAN_SEGMENTS - 1)
    tiered, now_ms = history.tiered, history.tiered.clock.now_ms()
    look = look_at_remote(tiered.state, (), TOPIC, FirstTimestamps(objects), now_ms)
    answer = explain_stored(
        look, objects, AskedKey(text(0)), now_ms, Workspace(MEMORY_BYTES_MIN),
        filter_key=FilterKey(1, 2), planned=lambda count: None, progressed=lambda count: None,
    )  # fmt: skip
    assert (0, 1) == (answer.left_out[0], len(answer.found.records))


def assert_left_out(tiered: Tiered, expected: int) -> None:
    answer = explain(tiered, b"nobody's")
    assert ((), expected) == (answer.found.records, answer.left_out[0])


def test_markers_in_a_segment_without_the_key_still_decide_its_transaction(tmp_path: Path) -> None:
    """The data is in one segment, the marker in the next, which has other keys."""
    directory = write_partition(
        tmp_path / "data",
        {
            0: one(0, b"a") + data_batch(1, 7, [b"k"]),
            2: one(2, b"b") + marker(3, 7, ControlType.COMMIT) + one(4, b"c"),
            5: one(5, b"d"),
            6: one(6, b"e"),
        },
    )
    topic = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=14)
    tiered = Tiered(tmp_path / "store", directory)
    tiered.clean(topic)
    answer = explain(tiered, b"k", topic=topic)
    (record,) = answer.found.records
    assert TransactionOutcome.COMMITTED is record.record.outcome
    assert answer.left_out[0] >= 2
    assert parts_of(explain(tiered, b"k", topic=topic, asks=False)) == parts_of(answer)


@settings(max_examples=6)
@given(
    drawn=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=8),
        min_size=2,
        max_size=6,
    ),
    rounds=st.sets(st.integers(1, 5)),
)
def test_no_history_has_a_key_that_filters_hide(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[list[tuple[int, bool]]],
    rounds: set[int],
) -> None:
    root = tmp_path_factory.mktemp("filters")
    topic = TopicConfig(
        cleanup_policy=frozenset({"compact"}), segment_bytes=14, delete_retention_ms=DAY_MS
    )
    segments, ends, at = {}, [], 0
    for records in drawn:
        segments[at] = b"".join(
            one(at + number, b"%d" % key, None if deletes else b"v")
            for number, (key, deletes) in enumerate(records)
        )
        at += len(records)
        ends.append(at)
    directory = write_partition(root, {**segments, at: one(at, b"end")})
    tiered = Tiered(root / "store", directory, now_ms=NOW_MS, high_watermark=ends[0])
    for number, end in enumerate(ends):
        tiered.take_in(directory, high_watermark=end)
        if number in rounds:
            tiered.clean(topic)
            tiered.clock.advance(DAY_MS + 1)
    for key in range(10):
        name = b"%d" % key
        expected = parts_of(explain(tiered, name, topic=topic, asks=False))
        assert expected == parts_of(explain(tiered, name, topic=topic))
