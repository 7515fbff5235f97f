"""Derived scenarios: tombstones, delete horizons, old formats' file times (section 8.7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.format.batch import RecordBatch, TimestampType
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.model.partition import INT64_MAX
from tests.support import legacy_sets
from tests.support.log_builder import START_MS, record_of, tombstone_of
from tests.support.scenario_log import DAY_MS, SMALL, ScenarioLog
from tests.unit.scenarios.conftest import MakeLog

A, B = b"a", b"b"
HORIZON = START_MS + DAY_MS


def first_batch(log: ScenarioLog) -> Batch:
    """Return the first batch that is left."""
    return log.batches()[0]


def test_x19_an_empty_key_is_a_key_and_an_empty_value_no_tombstone(log: ScenarioLog) -> None:
    log.append(record_of(b"", b"1"))
    log.append(record_of(b"", b""))
    log.record(1, 1)
    log.roll_and_clean()
    assert [(1, b"", b""), (2, b"1", b"1")] == [(r.offset, r.key, r.value) for r in log.records()]
    assert [None, None] == [batch.delete_horizon_ms for batch in log.batches()]


def test_x20_a_tombstone_takes_two_rounds_even_without_retention(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, delete_retention_ms=0))
    log.append(tombstone_of(A))
    log.record(1, 1)
    log.roll_and_clean()
    assert [0, 1] == [record.offset for record in log.records()]
    assert START_MS == first_batch(log).delete_horizon_ms
    log.clean(0)
    assert [1] == [record.offset for record in log.records()]


def test_x21_the_longest_retention_never_sets_a_horizon(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, delete_retention_ms=INT64_MAX))
    log.append(tombstone_of(A, 5))
    log.record(1, 1)
    log.roll()
    for now_ms in (START_MS, START_MS + DAY_MS, INT64_MAX):
        report = log.clean(0, now_ms=now_ms)
        assert (None, 5) == (first_batch(log).delete_horizon_ms, first_batch(log).base_timestamp)
        assert [(0, 5, None)] == [(r.offset, r.timestamp, r.value) for r in log.records()][:1]
        assert report.stats is not None
        assert 1 == report.stats.batches_rebuilt


def test_x22_the_horizon_stays_when_the_tombstone_is_gone(log: ScenarioLog) -> None:
    log.append(tombstone_of(A, 5), record_of(B, b"1", 7))
    log.record(1, 1)
    log.roll_and_clean()
    batch = first_batch(log)
    assert (HORIZON, HORIZON, 7) == (
        batch.delete_horizon_ms, batch.base_timestamp, batch.max_timestamp
    )  # fmt: skip
    assert [(A, 5), (B, 7)] == [(r.key, r.timestamp) for r in batch.records()]
    log.clean(0, now_ms=HORIZON)
    batch = first_batch(log)
    assert (HORIZON, HORIZON, 7) == (
        batch.delete_horizon_ms, batch.base_timestamp, batch.max_timestamp
    )  # fmt: skip
    assert [(B, 7)] == [(r.key, r.timestamp) for r in batch.records()]
    assert 1 == batch.last_offset


@pytest.mark.parametrize("retention_ms", [0, 2 * DAY_MS])
def test_x23_a_horizon_outlives_a_change_of_the_retention(
    log: ScenarioLog, retention_ms: int
) -> None:
    log.append(tombstone_of(A))
    log.record(1, 1)
    log.roll_and_clean()
    changed = replace(SMALL, delete_retention_ms=retention_ms)
    log.clean(0, now_ms=HORIZON - 1, topic=changed)
    assert HORIZON == first_batch(log).delete_horizon_ms
    log.clean(0, now_ms=HORIZON, topic=changed)
    assert [1] == [record.offset for record in log.records()]


def test_x24_a_superseded_tombstone_goes_before_its_horizon(log: ScenarioLog) -> None:
    log.append(tombstone_of(A), at=3)
    log.roll_and_clean()
    assert HORIZON == first_batch(log).delete_horizon_ms
    log.append(record_of(A), at=9)
    log.roll_and_clean()
    assert [9] == [record.offset for record in log.records()]


@pytest.mark.parametrize(("late_ms", "is_kept"), [(-1, True), (0, False)])
def test_x25_tombstone_and_marker_go_when_their_horizon_is_reached(
    log: ScenarioLog, late_ms: int, is_kept: bool
) -> None:
    log.append(tombstone_of(A))
    p = log.producer(1)
    p.send(1)
    p.abort()
    p.send(2)
    log.record(3, 3)
    log.roll_and_clean()
    # The marker's transaction has no batch any more: now it gets a horizon.
    log.clean(0)
    stamped = [batch.delete_horizon_ms for batch in log.batches()]
    assert [HORIZON, HORIZON, None, None] == stamped
    log.clean(0, now_ms=HORIZON + late_ms)
    assert ([0, 2] if is_kept else []) == [
        r.offset for b in log.batches() if b.base_offset < 3 for r in b.records()
    ]


def test_x26_a_tombstone_among_records_of_append_time(log: ScenarioLog) -> None:
    log.append(tombstone_of(A, 1), record_of(B, b"1", 2), append_time_ms=1000)
    log.record(1, 1)
    log.roll_and_clean()
    batch = first_batch(log)
    assert TimestampType.LOG_APPEND_TIME is batch.timestamp_type
    assert (HORIZON, 1000) == (batch.base_timestamp, batch.max_timestamp)
    assert [1000, 1000] == [record.timestamp for record in batch.records()]


@pytest.mark.parametrize(
    ("age_ms", "has_clean_section", "is_kept"),
    [
        pytest.param(DAY_MS - 1, True, True, id="younger than the horizon"),
        pytest.param(DAY_MS, True, False, id="as old as the horizon"),
        pytest.param(DAY_MS, False, True, id="no clean segment"),
    ],
)
def test_x38_file_times_decide_the_age_of_old_tombstones(
    log: ScenarioLog, age_ms: int, has_clean_section: bool, is_kept: bool
) -> None:
    log.add(legacy_sets.encode_message_set([Record(0, 5, A, None)], magic=1))
    log.roll()
    log.record(1, 1)
    log.roll()
    log.record(2, 2)
    log.roll()
    log.set_mtime(0, START_MS - age_ms)
    log.clean(2 if has_clean_section else 0)
    tombstones = [r for r in log.records() if r.value is None]
    assert ([(0, 5)] if is_kept else []) == [(r.offset, r.timestamp) for r in tombstones]
    if is_kept:
        # What is kept becomes magic 2, which has a horizon of its own from then on (F1).
        batch = first_batch(log)
        assert isinstance(batch, RecordBatch)
        assert HORIZON == batch.delete_horizon_ms
