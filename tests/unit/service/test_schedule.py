"""When a partition that failed is tried again, and which failures last."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    InvariantError,
    RefusedError,
    UnavailableError,
)
from keeplast.model.partition import TopicPartition
from keeplast.service.schedule import RETRY_MS_MAX, RETRY_MS_MIN, Schedule, is_lasting, retry_ms

DIRECTORY = Path("/data/t-0")
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (CorruptError("crc mismatch", path="/data/t-0/00000000000000000000.log"), True),
        (CorruptError("crc mismatch"), True),
        (CorruptError("not a checkpoint", path="/data/cleaner-offset-checkpoint"), False),
        (InvariantError("cannot be"), True),
        (IndexError("a defect"), True),
        (OSError(5, "input/output error"), False),
        (MemoryError(), False),
        (UnavailableError("lost"), False),
        (ConflictError("changed"), False),
        (RefusedError("disk full"), False),
        (InvalidError("bad setting"), False),
    ],
)
def test_damage_and_defects_last_and_all_else_may_pass(error: Exception, lasts: bool) -> None:
    assert lasts == is_lasting(error, DIRECTORY)


def test_pauses_double_up_to_a_limit() -> None:
    assert [15_000, 30_000, 60_000] == [retry_ms(n, 15_000) for n in (1, 2, 3)]
    assert RETRY_MS_MAX == retry_ms(50, 15_000) == retry_ms(10**9, 15_000)
    assert RETRY_MS_MIN == retry_ms(1, 0)
    assert 10 * RETRY_MS_MAX == retry_ms(7, 10 * RETRY_MS_MAX)


def test_a_failure_waits_and_a_success_forgets_it() -> None:
    schedule = Schedule()
    assert 1000 == schedule.failed(A, OSError(), backoff_ms=1000, now_ms=0)
    assert 2000 == schedule.failed(A, OSError(), backoff_ms=1000, now_ms=1000)
    assert schedule.is_waiting(A, 2999)
    assert not schedule.is_waiting(A, 3000)
    assert not schedule.is_waiting(B, 0)
    schedule.recovered(A)
    assert 1000 == schedule.failed(A, OSError(), backoff_ms=1000, now_ms=5000)


def test_a_pause_that_began_by_a_clock_that_was_ahead_does_not_last_until_then() -> None:
    schedule, year_ms = Schedule(), 365 * 24 * 60 * 60 * 1000
    schedule.failed(A, OSError(), backoff_ms=1000, now_ms=year_ms)
    assert schedule.is_waiting(A, year_ms + 999)
    assert not schedule.is_waiting(A, 5000)


def test_a_partition_that_was_passed_over_is_counted_until_the_turn_comes() -> None:
    schedule = Schedule()
    for partition in (A, B):
        schedule.history(partition)
    for _ in range(2):
        schedule.passed_over({A, B}, {A})
    assert (0, 2) == (schedule.history(A).passed_over, schedule.history(B).passed_over)
    schedule.passed_over({A}, {A})
    assert 0 == schedule.history(B).passed_over


def test_histories_of_what_is_gone_are_dropped() -> None:
    schedule = Schedule()
    for partition in (A, B):
        schedule.history(partition)
    schedule.keep({B})
    assert [B] == list(schedule.histories)
