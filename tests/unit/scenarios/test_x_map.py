"""Derived scenarios: how far the key map reaches (cleaning.md section 8.7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.log_builder import record_of, records_of
from tests.support.scenario_log import SMALL, ScenarioLog
from tests.unit.scenarios.conftest import MakeLog

A, B, K = b"a", b"b", b"k"
ONE_KEY = 2
"""Slots of a map of which one is usable."""


def kept(log: ScenarioLog) -> list[tuple[int, bytes | None]]:
    """Return offset and key of every record."""
    return [(record.offset, record.key) for record in log.records()]


def test_x13_a_full_map_does_not_take_a_key_that_it_has(log: ScenarioLog) -> None:
    for _ in range(3):
        log.append(record_of(K))
    log.roll()
    indexed, found = log.index(0, 3, capacity=ONE_KEY)
    assert (1, {K: 0}) == (indexed.end_offset, found)
    assert 1 == log.clean(0, capacity=ONE_KEY).end_offset
    assert [0, 1, 2] == log.offsets


def test_x14_a_completed_keyless_batch_extends_what_a_full_map_covers(log: ScenarioLog) -> None:
    for key in (K, None, K):
        log.append(record_of(key))
    log.roll()
    assert 2 == log.clean(0, capacity=ONE_KEY).end_offset
    assert [(0, K), (2, K)] == kept(log)


def test_x15_records_below_the_first_dirty_offset_are_counted_and_not_indexed(
    log: ScenarioLog,
) -> None:
    log.append(*records_of([A, B, A]))
    log.roll()
    indexed, found = log.index(1, 3)
    assert {A: 2, B: 1} == found
    assert 3 == indexed.stats.messages_read


def test_x16_a_map_that_fills_inside_a_batch_leaves_the_batch_as_it_is(log: ScenarioLog) -> None:
    log.append(*records_of([A, B]))
    log.roll()
    before = log.path(0).read_bytes()
    assert 1 == log.clean(0, capacity=ONE_KEY).end_offset
    assert before == log.path(0).read_bytes()


def test_x17_a_keyless_record_stays_until_the_map_reaches_it(log: ScenarioLog) -> None:
    for key in (A, B, None):
        log.append(record_of(key))
    log.append(record_of(K))
    log.roll()
    report = log.clean(0, capacity=ONE_KEY)
    assert 1 == report.end_offset
    assert [(0, A), (1, B), (2, None), (3, K)] == kept(log)
    assert report.stats is not None
    assert 0 == report.stats.invalid_messages_read
    report = log.clean(1)
    assert [(0, A), (1, B), (3, K)] == kept(log)
    assert report.stats is not None
    assert 1 == report.stats.invalid_messages_read


def test_x18_an_aborted_batch_goes_even_where_the_map_does_not_reach(log: ScenarioLog) -> None:
    log.append(record_of(A))
    log.append(record_of(B))
    p = log.producer(1)
    p.send(7)
    p.abort()
    p.send(8)
    p.commit()
    log.roll()
    assert 1 == log.clean(0, capacity=ONE_KEY).end_offset
    assert [(0, A), (1, B), (4, b"8")] == kept(log)
    assert [0, 1, 3, 4, 5] == log.base_offsets


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        pytest.param(4096, [3], id="read from the start"),
        pytest.param(0, [0, 3], id="read from behind the marker"),
    ],
)
def test_x59_an_abort_before_the_first_dirty_offset(
    make_log: MakeLog, interval: int, expected: list[int]
) -> None:
    """As Kafka does it (F5): where the offset index lets the first pass start behind the marker,
    committed data of the same producer counts as aborted, and an older value stays a round longer.
    """
    log = make_log(replace(SMALL, index_interval_bytes=interval))
    log.record(1, 1)
    p = log.producer(7)
    p.send(9)
    p.abort()
    p.send(1)
    p.commit()
    log.roll()
    log.clean(3)
    assert expected == [record.offset for record in log.records()]
    log.clean(0)
    assert [3] == [record.offset for record in log.records()]
