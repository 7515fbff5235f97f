"""Kafka's LogCleanerTest: which records stay, and what a round counts (cleaning.md section 8.1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.log_builder import START_MS, record_of, text, tombstone_of
from tests.support.scenario_log import DAY_MS, FOREVER, SMALL, ScenarioLog
from tests.unit.scenarios.conftest import MakeLog

ODD = (1, 3, 5, 7, 9)


def superseded(keys: range | tuple[int, ...]) -> dict[bytes, int]:
    """Return a key map in which every record of ``keys`` has a later one."""
    return {text(key): FOREVER for key in keys}


def test_ct03_superseded_records_go_and_every_byte_is_read(log: ScenarioLog) -> None:
    log.fill_segments(4)
    before, sources = log.keys, log.bases[:3]
    size = log.closed_bytes()
    result = log.clean_with(superseded(ODD), sources=sources)
    assert [key for key in before if key not in ODD] == log.keys
    assert [0, log.active_base] == list(log.segments())
    assert size == result.groups[0].size_bytes


def test_ct03_bytes_read_are_those_of_the_segments(log: ScenarioLog) -> None:
    log.fill_segments(4)
    size = log.closed_bytes()
    report = log.clean(0)
    assert report.stats is not None
    assert size == report.stats.bytes_read


def test_ct05_the_output_has_its_real_length(make_log: MakeLog) -> None:
    log = make_log()
    for key in (0, 1, 0, 1, 0):
        log.record(key, 0)
    log.roll()
    log.clean(2, capacity=2)
    assert log.segments()[0] == sum(b.size_bytes for b in log.batches() if b.base_offset < 5)
    assert log.segments()[0] < SMALL.segment_bytes


def test_ct23_tombstones_remove_their_keys(log: ScenarioLog) -> None:
    log.fill_segments(2)
    written = log.log_end
    for key in range(0, written, 2):
        log.tombstone(key)
    log.fill_segments(4)
    log.clean(0)
    remaining = set(log.keys)
    assert set() == {key for key in remaining if key < written and key % 2 == 0}
    assert set(range(1, written, 2)) <= remaining


def test_ct24_statistics_of_a_round_that_starts_mid_log(log: ScenarioLog) -> None:
    for key in (0, 1, 0, 1, 0):
        log.record(key, key)
    log.roll()
    before = log.closed_bytes()
    report = log.clean(2, capacity=4)
    assert 5 == report.end_offset
    assert report.stats is not None
    assert (5, before) == (report.stats.messages_read, report.stats.bytes_read)
    assert (2, log.closed_bytes()) == (report.stats.messages_written, report.stats.bytes_written)
    assert 0 == report.stats.invalid_messages_read
    assert report.stats.total_seconds >= 0


def test_ct28_a_map_of_one_key_covers_one_record_a_round(log: ScenarioLog) -> None:
    for key in (0, 1, 0, 1, 0):
        log.record(key, key)
    log.roll()
    assert 3 == log.clean(2, capacity=2).end_offset
    assert ([1, 0, 1, 0], [1, 2, 3, 4]) == (log.keys, log.offsets)
    assert 4 == log.clean(3, capacity=2).end_offset
    assert ([0, 1, 0], [2, 3, 4]) == (log.keys, log.offsets)
    assert 5 == log.clean(4, capacity=2).end_offset
    assert ([1, 0], [3, 4]) == (log.keys, log.offsets)


def test_ct29_nothing_at_or_above_the_bound_changes(log: ScenarioLog) -> None:
    log.fill_segments(3, keys=10)
    bound = log.log_end + 1
    log.fill_segments(6, keys=10)
    bases = log.bases
    before = {base: log.path(base).read_bytes() for base in bases}
    report = log.clean(0, bound=bound)
    assert bases[2] == report.bound == report.end_offset
    cleaned = [r for r in log.records() if r.offset < bases[2]]
    assert 10 == len(cleaned) == len({r.key for r in cleaned}) < bases[2]
    for base in bases[2:]:
        assert before[base] == log.path(base).read_bytes()


@pytest.fixture
def six_segments(make_log: MakeLog) -> ScenarioLog:
    """Return a log of six segments of one record each, the last one active."""
    log = make_log(replace(SMALL, segment_bytes=100))
    log.fill_segments(6)
    return log


def test_ct30_sizes_of_a_log_without_a_dirty_section(six_segments: ScenarioLog) -> None:
    end = six_segments.active_base
    report = six_segments.measure(end, end)
    assert (six_segments.closed_bytes(), 0) == (report.clean_bytes, report.cleanable_bytes)
    assert 0.0 == report.ratio


def test_ct31_sizes_of_a_log_with_an_uncleanable_section(six_segments: ScenarioLog) -> None:
    bases, sizes = six_segments.bases, six_segments.segments()
    report = six_segments.measure(bases[2], bases[4])
    clean, cleanable = sizes[bases[0]] + sizes[bases[1]], sizes[bases[2]] + sizes[bases[3]]
    assert (clean, cleanable) == (report.clean_bytes, report.cleanable_bytes)
    assert report.ratio == pytest.approx(cleanable / (clean + cleanable), abs=1e-6)


def test_ct32_records_without_a_key_go_and_are_counted(log: ScenarioLog) -> None:
    while len(log.bases) < 2:
        log.append(record_of(None, text(log.log_end)))
    keyless = log.batches()
    log.fill_segments(3)
    before = log.closed_bytes()
    report = log.clean(0)
    assert all(record.key is not None for record in log.records())
    assert before - sum(batch.size_bytes for batch in keyless) == log.closed_bytes()
    assert report.stats is not None
    assert len(keyless) == report.stats.invalid_messages_read


def test_ct34_the_last_batch_of_the_round_stays_as_an_empty_header(log: ScenarioLog) -> None:
    log.fill_segments(4)
    everything = superseded(range(log.log_end))
    log.clean_with(everything, sources=log.bases[:3])
    assert [0, log.active_base] == list(log.segments())
    (batch,) = [b for b in log.batches() if b.base_offset < log.active_base]
    assert (0, log.active_base - 1) == (batch.count, batch.last_offset)


def test_ct39_the_map_covers_what_it_is_asked_for(log: ScenarioLog) -> None:
    while log.log_end < 500:
        log.record(log.log_end, log.log_end)
    end = log.roll()
    for start, stop in ((0, log.bases[1]), (log.bases[1], log.bases[3]), (log.bases[3], end)):
        indexed, found = log.index(start, stop)
        assert stop == indexed.end_offset
        assert stop - start == indexed.stats.distinct_keys == indexed.stats.messages_read
        assert {text(key): key for key in range(start, stop)} == found


def test_ct42_keys_far_apart_in_offsets(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, segment_bytes=120, segment_index_bytes=120))
    log.record(0, 0)
    log.record(1, 1, at=7206178)
    log.roll()
    indexed, found = log.index(0, 7206179)
    assert 7206179 == indexed.end_offset
    assert {text(0): 0, text(1): 7206178} == found


def test_ct43_a_map_that_fills_ends_where_it_does(log: ScenarioLog) -> None:
    for key in range(5):
        log.record(key, key)
    log.roll()
    indexed, found = log.index(2, 5, capacity=3)
    assert 4 == indexed.end_offset
    assert {text(2): 2, text(3): 3} == {key: at for key, at in found.items() if at >= 0}
    assert (2, 4) == (indexed.stats.distinct_keys, indexed.stats.messages_read)


def test_ct46_the_time_of_a_record_does_not_decide_its_tombstones_age(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, segment_bytes=1 << 30, segment_index_bytes=10 << 20))
    log.append(record_of(text(0), b"0", START_MS + DAY_MS + 10_000))
    log.roll_and_clean()
    log.append(tombstone_of(text(0), START_MS - DAY_MS - 10_000))
    log.roll()
    log.clean(1)
    assert 1 == log.last_offsets[0]
    log.append(record_of(text(1), b"1", START_MS))
    log.roll()
    log.clean(2)
    assert 1 == log.last_offsets[0]


@pytest.mark.parametrize(
    ("writes", "bound"),
    [
        pytest.param([(0, 10), (11, 12)], 11, id="one gap"),
        pytest.param([(0, 10), (15, 25), (30, 31)], 30, id="two gaps"),
    ],
)
def test_ct47_a_round_reaches_its_bound_over_missing_offsets(
    log: ScenarioLog, writes: list[tuple[int, int]], bound: int
) -> None:
    for start, end in writes:
        if start:
            log.roll(start)
        for offset in range(start, end):
            log.record(offset, offset, at=offset)
    assert bound == log.active_base
    assert bound == log.clean(0, bound=bound).end_offset
