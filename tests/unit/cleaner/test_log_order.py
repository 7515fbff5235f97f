"""Which log comes first, and that none waits for ever.

CM ids are those of Kafka's LogCleanerManagerTest (cleaning.md section 8.2), X ids of section 8.7.
"""

from __future__ import annotations

import math
import random

import pytest
from msgspec.structs import replace

from keeplast.cleaner.log_order import PASSED_OVER_MAX, Candidate, Order, choose
from keeplast.model.partition import TopicPartition


def log(number: int, ratio: float = 0.6, **facts: int) -> Candidate:
    return Candidate(TopicPartition("t", number), ratio, **facts)  # type: ignore[arg-type]


def chosen(*candidates: Candidate, count: int = 1, order: Order = Order.OVERDUE_FIRST) -> list[int]:
    return [each.partition.partition for each in choose(candidates, count, order)]


DIRTY_SERIES = (log(1, 5 / 25), log(2, 10 / 30))
"""20, 25 and 30 records of which 20 are clean; the first log has nothing dirty."""


@pytest.mark.parametrize("order", Order)
def test_cm02_the_dirtiest_log_comes_first(order: Order) -> None:
    assert [2] == chosen(*DIRTY_SERIES, order=order)


@pytest.mark.parametrize("order", Order)
def test_cm04_the_next_worker_takes_the_next_log(order: Order) -> None:
    assert [2, 1] == chosen(*DIRTY_SERIES, count=2, order=order)


def test_cm05_there_may_be_nothing_to_take() -> None:
    assert [] == chosen()


def test_x09_kafka_takes_the_dirtiest_first_and_keeplast_the_overdue_one() -> None:
    a, b = log(0, 0.1, compaction_delay_ms=1), log(1, 0.9)
    assert [1, 0] == chosen(a, b, count=2, order=Order.KAFKA)
    assert [0, 1] == chosen(a, b, count=2)


def test_the_earliest_deadline_comes_first() -> None:
    logs = [log(i, 0.1 * i, compaction_delay_ms=delay) for i, delay in enumerate([5, 0, 90, 7])]
    assert [2, 3, 0, 1] == chosen(*logs, count=4)


def test_rounds_for_what_has_expired_come_last() -> None:
    assert [1, 0] == chosen(log(0, 0.5, is_expired_round=True), log(1, 0.2), count=2)


def test_equals_are_taken_in_the_order_they_come_by_kafka_and_by_name_here() -> None:
    logs = [log(3), log(1), log(2)]
    assert [3, 1, 2] == chosen(*logs, count=3, order=Order.KAFKA)
    assert [1, 2, 3] == chosen(*logs, count=3)


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        (log(0, 0.625), "dirty ratio 0.62"),
        (log(0, compaction_delay_ms=7_200_000), "overdue for 2 h"),
        (log(0, passed_over=PASSED_OVER_MAX), f"passed over {PASSED_OVER_MAX} times"),
        (log(0, 0.1, is_expired_round=True), "only expired tombstones and markers"),
    ],
)
def test_a_choice_says_why(candidate: Candidate, why: str) -> None:
    assert why == choose([candidate], 1)[0].why


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_no_partition_waits_longer_than_promised(slots: int, seed: int) -> None:
    """Every log is eligible all the time; some are hotter, and some are always overdue."""
    rng = random.Random(seed)
    logs = [
        log(number, rng.random(), compaction_delay_ms=rng.choice([0, 0, rng.randrange(10**9)]))
        for number in range(12)
    ]
    waits = dict.fromkeys((each.partition for each in logs), 0)
    longest = 0
    for _ in range(300):
        taken = {each.partition for each in choose(logs, slots)}
        assert slots == len(taken)
        for each in logs:
            waits[each.partition] = 0 if each.partition in taken else waits[each.partition] + 1
        longest = max(longest, *waits.values())
        logs = [replace(each, passed_over=waits[each.partition]) for each in logs]
    assert longest < PASSED_OVER_MAX + math.ceil(len(logs) / slots)


def test_kafka_starves_a_partition_that_is_never_the_dirtiest() -> None:
    logs = [log(0, 0.9), log(1, 0.6, passed_over=1000, compaction_delay_ms=10**9)]
    assert [0] == chosen(*logs, order=Order.KAFKA)
