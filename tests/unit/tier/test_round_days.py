"""What rounds did is kept with the store by day and host, and decides and breaks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import insert, select, update

from keeplast.errors import CompactionError
from keeplast.tier.metadata import schema
from keeplast.tier.state.kept_rounds import (
    DAY_MS,
    DAYS_KEPT,
    HOSTS_MAX,
    KeptDay,
    RoundSums,
    key_of,
    parse_key,
    with_round,
)
from tests.support.metadata_contract import PARTITION, Opened, new_id, segment

DONE = RoundSums(1, 1000, 400, 50, 20, 700, 1500, 5)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """A store with one partition."""
    return Opened(f"sqlite:///{tmp_path / 'meta.db'}")


def publish(opened: Opened, cleaned_to: int, done: RoundSums = DONE) -> None:
    opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=cleaned_to, done=done)


def facts(opened: Opened) -> dict[str, str]:
    query = select(schema.STORE).where(schema.STORE.c.key.startswith("rounds/"))
    with opened.engine.connect() as connection:
        return {str(row[0]): str(row[1]) for row in connection.execute(query)}


def test_rounds_of_a_day_and_host_add_up(opened: Opened) -> None:
    publish(opened, 5)
    publish(opened, 6, replace(DONE, bytes_read=1, last_ms=9))
    (found,) = opened.store.round_days()
    assert (PARTITION, opened.store.holder.host) == (found.partition, found.host)
    assert 0 == found.day_ms % DAY_MS
    assert replace(DONE, rounds=2, bytes_read=1001, bytes_written=800, records_read=100,
                   records_written=40, came_bytes=1400, milliseconds=3000, last_ms=9
                   ) == found.sums  # fmt: skip
    assert 1 == len(facts(opened))


def test_a_commit_that_fails_keeps_nothing(opened: Opened) -> None:
    began = opened.state()
    publish(opened, 5)
    before = facts(opened)
    with pytest.raises(CompactionError):
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=9, began=began, done=DONE)
    with pytest.raises(CompactionError):
        opened.store.publish(PARTITION, new_id(), epoch=7, cleaned_to=9, done=DONE)
    assert before == facts(opened)


def test_days_are_forgotten_after_a_month(opened: Opened) -> None:
    publish(opened, 5)
    (key,) = facts(opened)
    row_id, today = parse_key(key) or (0, 0)
    days = [today - DAYS_KEPT, today - DAYS_KEPT + 1, today - 1]
    text = facts(opened)[key]
    with opened.engine.begin() as connection:
        for day in days:
            connection.execute(insert(schema.STORE).values(key=key_of(row_id, day), value=text))
        # Of another partition's row, which is not read any more.
        other = key_of(row_id * 10, today - 100)
        connection.execute(insert(schema.STORE).values(key=other, value=text))
    publish(opened, 6)
    assert {*(key_of(row_id, day) for day in (*days[1:], today)), other} == set(facts(opened))
    assert [day * DAY_MS for day in (*days[1:], today)] == [
        each.day_ms for each in opened.store.round_days()
    ]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", '{"hosts": 7}', '{"hosts": {"a": 7}}', '{"hosts": {"a": ["x"]}}',
     '{"hosts": {"a": [1e999, 1, 1, 1, 1, 1, 1, 1]}}', "[" * 100_000],
)  # fmt: skip
def test_a_row_that_cannot_be_read_stops_no_commit(opened: Opened, text: str) -> None:
    publish(opened, 5)
    with opened.engine.begin() as connection:
        broken = update(schema.STORE).where(schema.STORE.c.key.startswith("rounds/"))
        connection.execute(broken.values(value=text))
    assert () == opened.store.round_days()
    opened.copy(segment(0, 9))
    publish(opened, 6)
    assert [1] == [each.sums.rounds for each in opened.store.round_days()]
    assert 6 == opened.state().first_dirty()


def test_hosts_of_a_day_are_bounded() -> None:
    day: KeptDay | None = None
    for number in range(HOSTS_MAX + 5):
        day = with_round(day, f"host{number}", DONE)
    assert day is not None
    assert HOSTS_MAX == len(day.hosts)
    day = with_round(day, "host0", DONE)
    assert 2 == day.hosts["host0"].rounds
    assert day == KeptDay.decode(day.encode())
    assert 255 == max(map(len, with_round(None, "h" * 999, DONE).hosts))


def test_a_name_of_another_fact_is_none_of_a_day() -> None:
    assert (3, 20_000) == parse_key(key_of(3, 20_000))
    for key in ("mark", "rounds/", "rounds/1", "rounds/1/2/3", "rounds/a/1", "receipts/1/2"):
        assert parse_key(key) is None
