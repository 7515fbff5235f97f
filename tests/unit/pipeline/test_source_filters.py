"""What filters leave to read: never less than what matches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from keeplast.model.partition import TopicPartition
from keeplast.pipeline.source_filters import Pushed, push
from keeplast.read.log_ranges import ALL, Wanted

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThan(("offset",), 5)], Wanted(6)),
        ([GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 9)], Wanted(5, 9)),
        ([LessThanOrEqual(("offset",), 9)], Wanted(0, 10)),
        ([EqualTo(("offset",), 9)], Wanted(9, 10)),
        ([In(("offset",), (4, 9, 7))], Wanted(4, 10)),
        ([GreaterThan(("timestamp",), at(1001))], Wanted(first_ms=2)),
        ([GreaterThanOrEqual(("timestamp",), at(2000))], Wanted(first_ms=2)),
        ([LessThan(("timestamp",), at(2001))], Wanted(last_ms=2)),
        ([EqualTo(("timestamp",), at(-1500))], Wanted(first_ms=-1, last_ms=-2)),
    ],
)
def test_ranges_of_offsets_and_times(filters: list[Filter], expected: Wanted) -> None:
    assert expected == push(Pushed(), filters).wanted


@pytest.mark.parametrize(
    "nothing",
    [
        IsNotNull(("offset",)),
        Not(EqualTo(("offset",), 5)),
        EqualTo(("key",), b"k"),
        GreaterThan(("timestamp",), datetime(2020, 1, 1)),
        EqualTo(("offset",), None),
        In(("partition",), ()),
    ],
)
def test_what_says_nothing_leaves_everything(nothing: Filter) -> None:
    pushed = push(Pushed(), [nothing])
    assert ALL == pushed.wanted
    assert pushed.holds(TopicPartition("t", 0))


def test_topics_and_partitions_are_chosen_by_all_filters_together() -> None:
    pushed = push(
        Pushed(),
        [In(("topic",), ("t", "u")), EqualTo(("topic",), "u"), In(("partition",), (1, 2))],
    )
    chosen = [TopicPartition(topic, n) for topic in "tu" for n in range(3)]
    assert ["u-1", "u-2"] == [str(each) for each in chosen if pushed.holds(each)]
