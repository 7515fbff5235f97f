"""The data source's columns are what the format's codec reads, record by record.

Random batches of every magic and codec, windows and columns of every size; random transactions of
several producers over rolled segments, cut into splits of every size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keeplast.api.open_log import open_log
from keeplast.columns import batches as t
from keeplast.format.compression import Codec
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType, decode_control_type
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.read import record_source
from keeplast.read.log_view import ALL, Wanted
from keeplast.read.record_source import ColumnCollector, RecordColumns
from tests.support.drawn_batches import Drawn, drawn_batches
from tests.support.kernel_window import windows_of, workspace
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS, SMALL_SEGMENTS
from tests.support.reader import read_partition
from tests.support.record_rows import LogRow, expected_rows, rows_of
from tests.support.source_reading import read_log, read_log_state, splits_of, view_of
from tests.support.state_in_parts import parts_of_log, rows_by_buckets, rows_by_threads
from tests.support.state_model import read_state
from tests.support.turns import examples


def collect(data: bytes, window_bytes: int, bounds: Wanted) -> Iterator[RecordColumns]:
    """Read all of ``data`` through the columns."""
    collector = ColumnCollector()
    for window in windows_of(data, window_bytes=window_bytes):
        window.table[: window.batches, t.VERDICT] = t.RETAIN_EMPTY
        for first, last in workspace().uncovered(window):
            yield from collector.add(window, workspace().scratch, first, last, bounds.bounds())
    yield from collector.finish()


@pytest.fixture(params=[1, 3, 1 << 12], ids=["one row", "three rows", "many rows"])
def small_columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make columns that are soon full of rows, bytes and headers."""
    rows = int(request.param)
    monkeypatch.setattr(record_source, "ROWS", rows)
    monkeypatch.setattr(record_source, "BYTES", 64 if rows < 100 else 1 << 16)
    monkeypatch.setattr(record_source, "HEADERS", rows)
    monkeypatch.setattr(record_source, "HEADER_BYTES", 4 * rows)
    return rows


@pytest.mark.parametrize("window_bytes", [61, 1000, 1 << 20])
def test_every_record_becomes_its_row(small_columns: int, window_bytes: int) -> None:
    @given(batches=drawn_batches())
    @settings(max_examples=examples(25))
    def check(batches: list[Drawn]) -> None:
        data = b"".join(batch.encode() for batch in batches)
        found = list(collect(data, window_bytes, ALL))
        assert all(columns.rows <= small_columns for columns in found)
        assert expected_rows(read_batches(data)) == rows_of(found)

    check()


@given(batches=drawn_batches(), bounds=st.lists(st.integers(-2, 400), min_size=2, max_size=2))
@settings(max_examples=examples(100))
def test_bounds_select_the_rows_between_them(batches: list[Drawn], bounds: list[int]) -> None:
    data = b"".join(batch.encode() for batch in batches)
    low, high = sorted(bounds)
    expected = expected_rows(read_batches(data))
    by_offset = [row for row in expected if low <= row.offset < high]
    assert by_offset == rows_of(collect(data, 1000, Wanted(low, high)))
    first, last = NOW_MS + low * 2000, NOW_MS + high * 2000
    by_time = [
        row
        for row in expected
        if row.timestamp is not None and first * 1000 <= row.timestamp <= last * 1000
    ]
    assert by_time == rows_of(collect(data, 1000, Wanted(first_ms=first, last_ms=last)))


SEND, COMMIT, ABORT, PLAIN, ROLL = range(5)
STEPS = st.lists(
    st.tuples(st.sampled_from([SEND, SEND, COMMIT, ABORT, PLAIN, ROLL]), st.integers(0, 2)),
    max_size=40,
)


def write_steps(directory: Path, steps: list[tuple[int, int]]) -> None:
    """Write a log in which three producers send, commit and abort as the steps say."""
    log = LogBuilder(directory, SMALL_SEGMENTS.__class__(cleanup_policy=frozenset({"compact"})))
    producers = [log.producer(7 + i) for i in range(3)]
    is_open = [False] * 3
    for number, (step, who) in enumerate(steps):
        version = (number * 7919 % 11).to_bytes(8, "big")
        new = NewRecord(
            b"%d" % (number % 5),
            b"%d" % number if number % 4 else None,
            NOW_MS + number * 7919 % 13,
            ((b"version", version),) if number % 3 else (),
        )
        if step == SEND:
            producers[who].send_records(new, new, codec=list(Codec)[number % 5])
            is_open[who] = True
        elif step == PLAIN:
            log.append(new)
        elif step == ROLL and log.log_end > log.active_base:
            log.roll()
        elif step in (COMMIT, ABORT) and is_open[who]:
            producers[who].commit() if step == COMMIT else producers[who].abort()
            is_open[who] = False
    log.close()


def committed_offsets(batches: Iterable[Batch]) -> set[int]:
    """Return the offsets of data outside transactions and of those that committed."""
    committed: set[int] = set()
    waiting: dict[int, set[int]] = {}
    for batch in batches:
        offsets = {record.offset for record in batch.records()}
        if batch.is_control:
            (record,) = batch.records()
            ended = waiting.pop(batch.producer_id, set())
            if decode_control_type(record.key) is ControlType.COMMIT:
                committed |= ended
        elif batch.is_transactional:
            waiting.setdefault(batch.producer_id, set()).update(offsets)
        else:
            committed |= offsets
    return committed


@given(steps=STEPS, split_bytes=st.sampled_from([1, 300, 1 << 30]), indexed=st.booleans())
@settings(max_examples=examples(25))
def test_committed_rows_are_those_of_a_read_committed_consumer(
    steps: list[tuple[int, int]], split_bytes: int, indexed: bool
) -> None:
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "t-0"
        write_steps(directory, steps)
        readable = read_partition(directory)
        view = view_of(directory)
        visible = committed_offsets(readable.batches)
        if not indexed:
            for path in [*directory.glob("*.index"), *directory.glob("*.txnindex")]:
                path.unlink()
        everything = expected_rows(readable.batches)
        assert everything == read_log(directory, committed=False, split_bytes=split_bytes)
        expected = [
            row for row in everything if row.offset in visible and row.offset < view.last_stable
        ]
        assert expected == read_log(directory, split_bytes=split_bytes)


def ranked_by(strategy: Strategy) -> TopicConfig:
    """Return a topic whose versions, where they count, are in the header that steps write."""
    header = "version" if strategy is Strategy.HEADER else None
    return TopicConfig(strategy=strategy, strategy_header=header)


@given(steps=STEPS, strategy=st.sampled_from(Strategy))
@settings(max_examples=examples(40))
def test_state_is_what_the_library_says_by_every_rank(
    steps: list[tuple[int, int]], strategy: Strategy
) -> None:
    topic = ranked_by(strategy)
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "t-0"
        write_steps(directory, steps)
        state, _ = read_state(open_log(directory).batches, topic)
        assert list(state.items()) == list(open_log(directory).state(topic).items())
        rows = read_log_state(directory, topic=topic)
        assert [(each.offset, each.key, each.value) for each in state.values()] == [
            (row.offset, row.key, row.value) for row in rows
        ]


@given(
    steps=STEPS,
    strategy=st.sampled_from(Strategy),
    split_bytes=st.sampled_from([1, 300, 1 << 30]),
    buckets=st.sampled_from([1, 3, 200]),
)
@settings(max_examples=examples(30))
def test_a_state_in_parts_in_rounds_and_of_exchanged_keys_is_the_state(
    steps: list[tuple[int, int]], strategy: Strategy, split_bytes: int, buckets: int
) -> None:
    topic = ranked_by(strategy)
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "t-0"
        write_steps(directory, steps)
        whole = read_log_state(directory, topic=topic)
        # A map is too large as soon as it exists, so each slice is a round.
        assert whole == read_log_state(directory, topic=topic, key_bytes_max=1)
        splits = splits_of(view_of(directory), split_bytes=split_bytes)
        assert whole == [
            row for part in splits for row in read_log_state(directory, part.wanted, topic=topic)
        ]
        parts = parts_of_log(directory, topic, split_bytes=split_bytes, buckets=buckets)
        assert whole == rows_by_threads(parts)
        assert whole == rows_by_buckets(parts)


@given(steps=STEPS)
@settings(max_examples=examples(25))
def test_state_is_the_last_value_of_every_key(steps: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "t-0"
        write_steps(directory, steps)
        last: dict[bytes | None, LogRow] = {}
        for row in read_log(directory):
            last[row.key] = row
        expected = [row for row in last.values() if row.value is not None]
        assert sorted(expected, key=lambda row: row.offset) == read_log_state(directory)


def test_a_record_larger_than_the_columns_gets_columns_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(record_source, "BYTES", 100)
    monkeypatch.setattr(record_source, "HEADERS", 1)
    monkeypatch.setattr(record_source, "HEADER_BYTES", 10)
    log = LogBuilder(tmp_path / "t-0", SMALL_SEGMENTS.__class__())
    headers = ((b"h" * 50, b"x" * 60), (b"\xff\xfe", None))
    log.append(NewRecord(b"k" * 500, b"v" * 9000, NOW_MS, headers))
    log.append(NewRecord(b"small", b"one", NOW_MS))
    log.close()
    rows = read_log(tmp_path / "t-0")
    assert [500, 5] == [len(row.key or b"") for row in rows]
    assert (("h" * 50, b"x" * 60), ("��", None)) == rows[0].headers
    assert rows == expected_rows(read_partition(tmp_path / "t-0").batches)


def test_columns_are_not_shared_between_batches() -> None:
    collector = ColumnCollector()
    first, second = collector._columns, None
    list(collector.finish())
    second = collector._columns
    assert not np.shares_memory(first.longs, second.longs)
