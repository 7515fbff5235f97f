"""By when an overwritten value is gone: each term of the bound, and each reason for none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.cleaner.erasure import (
    BasisKind,
    DirtyLog,
    Eligibility,
    ErasureBasis,
    Pace,
    find_deadline,
    find_eligibility,
    find_turn_ms,
)
from keeplast.cleaner.log_order import PASSED_OVER_MAX
from keeplast.cleaner.reasons import TransactionLimit
from keeplast.model.partition import INT64_MAX, SegmentSummary
from keeplast.survey.wording import basis_words
from tests.support.durations import HOUR_MS
from tests.support.partition_maker import COMPACT, DAY_MS, NOW_MS

LAG_MS = 2 * DAY_MS
LAGGING = replace(COMPACT, max_compaction_lag_ms=LAG_MS, segment_ms=DAY_MS)


def segment(base_offset: int, first_ms: int | None = None, largest_ms: int = -1) -> SegmentSummary:
    return SegmentSummary(base_offset, 100, NOW_MS, largest_ms, 0, 0, first_ms)


def log_of(*segments: SegmentSummary, log_end: int = 30, first_dirty: int = 0) -> DirtyLog:
    """Return a log whose active segment begins at 20 and ends at ``log_end``."""
    return DirtyLog(
        (*segments, segment(20)), first_dirty, log_end, bound=20, is_eligible=False,
        active_first_ms=NOW_MS - HOUR_MS,
    )  # fmt: skip


CLOSED = (segment(0, NOW_MS - 3 * HOUR_MS), segment(10, NOW_MS - 2 * HOUR_MS))


def eligibility(
    log: DirtyLog,
    *,
    ahead_ms: int = INT64_MAX,
    capacity: int | None = None,
    now_ms: int = NOW_MS,
    **changes: Any,
) -> Eligibility:
    return find_eligibility(
        log, replace(LAGGING, **changes), timestamp_ahead_max_ms=ahead_ms,
        key_capacity=capacity, now_ms=now_ms,
    )  # fmt: skip


def test_the_active_segment_is_the_last_to_be_overdue() -> None:
    found = eligibility(log_of(*CLOSED))
    assert NOW_MS - HOUR_MS + LAG_MS + 1 == found.by_ms
    assert ErasureBasis(BasisKind.MAX_LAG_AFTER_FIRST, 20) == found.basis


def test_without_data_in_it_the_last_closed_one_is() -> None:
    found = eligibility(log_of(*CLOSED, log_end=20))
    assert NOW_MS - 2 * HOUR_MS + LAG_MS + 1 == found.by_ms


def test_overdue_means_now() -> None:
    now_ms = NOW_MS + 5 * DAY_MS
    assert Eligibility(now_ms, ErasureBasis(BasisKind.OVERDUE, 20)) == eligibility(
        log_of(*CLOSED), now_ms=now_ms
    )


def test_an_eligible_log_without_active_data_is_due_now_even_without_a_lag() -> None:
    log = replace(log_of(*CLOSED, log_end=20), is_eligible=True)
    found = eligibility(log, max_compaction_lag_ms=INT64_MAX)
    assert Eligibility(NOW_MS, ErasureBasis(BasisKind.NEXT_ROUND)) == found


def test_everything_clean_has_nothing_to_wait_for() -> None:
    assert eligibility(log_of(*CLOSED, first_dirty=30)).is_clean


@pytest.mark.parametrize(
    ("log", "changes", "why"),
    [
        (log_of(*CLOSED), {"max_compaction_lag_ms": INT64_MAX}, "max.compaction.lag.ms is not set"),
        (
            replace(log_of(*CLOSED), limit=TransactionLimit(4)),
            {},
            "no date, because a transaction is open since offset 4",
        ),
        (replace(log_of(*CLOSED), active_first_ms=-1), {}, "segment 20 begins without a timestamp"),
        (replace(log_of(*CLOSED), active_first_ms=None), {}, "begins without a timestamp"),
        (log_of(*CLOSED), {"min_compaction_lag_ms": 1}, "message.timestamp.after.max.ms is not"),
    ],
)
def test_what_leaves_it_without_a_bound_is_named(
    log: DirtyLog, changes: dict[str, int], why: str
) -> None:
    found = eligibility(log, **changes)
    assert found.by_ms is None
    assert why in basis_words(found.basis)


def test_the_least_lag_waits_for_what_may_still_be_appended() -> None:
    left_ms = NOW_MS - HOUR_MS + DAY_MS + 1
    found = eligibility(log_of(*CLOSED), ahead_ms=DAY_MS, min_compaction_lag_ms=LAG_MS)
    assert left_ms + DAY_MS + LAG_MS == found.by_ms
    assert "min.compaction.lag.ms after the last record of segment 20" == basis_words(found.basis)


def test_the_least_lag_waits_for_dirty_segments_dated_in_the_future_and_not_for_clean_ones() -> (
    None
):
    segments = (segment(0, NOW_MS, NOW_MS + 9 * DAY_MS), segment(10, NOW_MS, NOW_MS + 8 * DAY_MS))
    log = log_of(*segments, log_end=20)
    assert NOW_MS + 10 * DAY_MS == eligibility(log, min_compaction_lag_ms=DAY_MS).by_ms
    log = replace(log, first_dirty=10)
    assert NOW_MS + 9 * DAY_MS == eligibility(log, min_compaction_lag_ms=DAY_MS).by_ms


def test_a_bounded_map_counts_from_the_last_record_and_needs_rounds() -> None:
    segments = (segment(0, NOW_MS), segment(10, NOW_MS, NOW_MS + HOUR_MS))
    found = eligibility(log_of(*segments, log_end=20), capacity=6)
    assert (NOW_MS + HOUR_MS + LAG_MS + 1, 4) == (found.by_ms, found.rounds_max)


def test_the_deadline_is_that_of_the_oldest_dirty_segment() -> None:
    log = log_of(*CLOSED)
    assert NOW_MS - 3 * HOUR_MS + LAG_MS == find_deadline(log, LAGGING)
    assert NOW_MS - HOUR_MS + LAG_MS == find_deadline(replace(log, first_dirty=20), LAGGING)
    assert find_deadline(replace(log, first_dirty=30), LAGGING) is None
    assert find_deadline(log, COMPACT) is None
    assert find_deadline(DirtyLog((segment(0),), 0, 5, 0, False), LAGGING) is None


def test_the_wait_is_for_turns_of_others_and_the_round_itself() -> None:
    pace = Pace(bytes_per_second=100, round_ms=7, slots=2, backoff_ms=1000)
    one, two = pace.duration_ms(100), pace.duration_ms(200)
    assert (1007, 2007) == (one, two)
    sizes = [100, 200, 100]
    assert 2000 + (PASSED_OVER_MAX + 1) * two + two + one == find_turn_ms(sizes, pace)
