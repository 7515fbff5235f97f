"""What of a log may be cleaned now, and how urgent that is.

CM ids are those of Kafka's LogCleanerManagerTest (cleaning.md section 8.2), X ids of section 8.7.
"""

from __future__ import annotations

import pytest

from keeplast.cleaner.cleanable_range import (
    FirstUncleanable,
    find_cleanable_range,
    find_expired_bound,
    find_first_dirty,
    find_first_uncleanable,
    find_kept_transaction,
    non_active_from,
    segments_between,
)
from keeplast.cleaner.dirty_section import delay_ms, find_overdue_from
from keeplast.cleaner.reasons import (
    ActiveLimit,
    CheckpointRepaired,
    KeptLimit,
    LagLimit,
    TransactionLimit,
    WatermarkLimit,
)
from keeplast.errors import InvalidError
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.partition import INT64_MAX, SegmentSummary
from tests.support.durations import HOUR_MS

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 24 * HOUR_MS


def segment(
    base_offset: int,
    *,
    size: int = 100,
    largest: int = NOW_MS,
    mtime: int = NOW_MS,
    first: int | None = None,
) -> SegmentSummary:
    """Return a segment that ends where the next one begins."""
    return SegmentSummary(base_offset, size, mtime, largest, 0, 0, first)


def segments(*largest: int) -> list[SegmentSummary]:
    """Return segments of ten offsets with these largest timestamps; the last one is active."""
    return [segment(10 * i, largest=stamp) for i, stamp in enumerate(largest)]


EIGHT = segments(*[NOW_MS] * 8)
ACTIVE_BASE = 70


def bound_of(
    log: list[SegmentSummary],
    *,
    lag_ms: int = 0,
    first_dirty: int = 0,
    high_watermark: int = INT64_MAX,
    open_transaction: int | None = None,
    kept_transaction: int | None = None,
    now_ms: int = NOW_MS,
) -> FirstUncleanable:
    """Return the first uncleanable offset."""
    return find_first_uncleanable(
        log,
        first_dirty=first_dirty,
        high_watermark=high_watermark,
        open_transaction=open_transaction,
        kept_transaction=kept_transaction,
        min_compaction_lag_ms=lag_ms,
        now_ms=now_ms,
    )


def test_cm22_nothing_is_cleaned_past_the_high_watermark() -> None:
    found = bound_of(EIGHT, high_watermark=50)
    assert 50 == found.offset
    assert WatermarkLimit(50) == found.limit


def test_cm23_nothing_is_cleaned_past_the_base_of_the_active_segment() -> None:
    found = bound_of(EIGHT, high_watermark=80)
    assert ACTIVE_BASE == found.offset
    assert ActiveLimit(ACTIVE_BASE) == found.limit


def test_cm24_segments_younger_than_the_lag_wait() -> None:
    t0, t1 = NOW_MS, NOW_MS + HOUR_MS + 1
    log = segments(t0, t0, t0, t1, t1, t1, t1, t1)
    assert 30 == bound_of(log, lag_ms=HOUR_MS, now_ms=t1).offset


def test_cm25_segments_older_than_the_lag_do_not_wait() -> None:
    assert ACTIVE_BASE == bound_of(EIGHT, lag_ms=HOUR_MS, now_ms=NOW_MS + HOUR_MS + 1).offset


@pytest.mark.parametrize(
    ("log_start", "checkpoint", "expected", "repaired"),
    [
        (10, 15, 15, None),
        (20, 15, 20, CheckpointRepaired(15, 20)),
        (20, 25, 20, CheckpointRepaired(25, 20, log_end=20)),
    ],
)
def test_cm26_a_checkpoint_outside_the_log_is_repaired(
    log_start: int, checkpoint: int, expected: int, repaired: CheckpointRepaired | None
) -> None:
    found = find_first_dirty(checkpoint, log_start=log_start, log_end=20)
    assert (expected, repaired) == (found.offset, found.repaired)


def test_cm27_undecided_transactions_wait_and_then_the_lag_counts() -> None:
    later = NOW_MS + HOUR_MS + 1
    undecided = [segment(0), segment(3)]
    found = bound_of(undecided, high_watermark=3, open_transaction=0, lag_ms=HOUR_MS, now_ms=later)
    assert 0 == found.offset
    assert TransactionLimit(0) == found.limit
    # The marker at 3 ends the transaction, and is itself too young.
    decided = [segment(0), segment(3, largest=later), segment(4, largest=later)]
    assert 3 == bound_of(decided, high_watermark=4, lag_ms=HOUR_MS, now_ms=later).offset
    assert 4 == bound_of(decided, high_watermark=4, lag_ms=HOUR_MS, now_ms=later + HOUR_MS).offset


@pytest.mark.parametrize("checkpoint", [5, 12, 20])
def test_x01_log_start_and_log_end_are_checkpoints_like_any_other(checkpoint: int) -> None:
    found = find_first_dirty(checkpoint, log_start=5, log_end=20)
    assert (checkpoint, False, None) == (found.offset, found.repairs, found.repaired)


def test_without_a_checkpoint_everything_is_dirty() -> None:
    found = find_first_dirty(None, log_start=5, log_end=20)
    assert (5, False) == (found.offset, found.repairs)


@pytest.mark.parametrize(("age_ms", "expected"), [(HOUR_MS, 10), (HOUR_MS - 1, 0)])
def test_x03_a_segment_as_old_as_the_lag_is_cleanable(age_ms: int, expected: int) -> None:
    log = segments(NOW_MS - age_ms, NOW_MS)
    assert expected == bound_of(log, lag_ms=HOUR_MS).offset


def test_x04_an_old_segment_after_a_young_one_waits_too() -> None:
    old, young = NOW_MS - 2 * HOUR_MS, NOW_MS
    assert 10 == bound_of(segments(old, young, old, old), lag_ms=HOUR_MS).offset


def test_x05_one_record_from_the_future_holds_everything_back() -> None:
    old = NOW_MS - 2 * HOUR_MS
    log = segments(NOW_MS + YEAR_MS, old, old)
    found = bound_of(log, lag_ms=1)
    assert 0 == found.offset
    assert LagLimit(0, -YEAR_MS, 1) == found.limit
    assert 20 == bound_of(log, lag_ms=0).offset


@pytest.mark.parametrize(("mtime_ms", "expected"), [(NOW_MS, 0), (NOW_MS - HOUR_MS, 10)])
def test_x06_without_timestamps_the_file_time_counts(mtime_ms: int, expected: int) -> None:
    log = [segment(0, largest=-1, mtime=mtime_ms), segment(10)]
    assert expected == bound_of(log, lag_ms=HOUR_MS).offset


def test_the_lag_is_looked_at_from_the_first_dirty_offset_on() -> None:
    log = segments(NOW_MS, NOW_MS - HOUR_MS, NOW_MS)
    assert 20 == bound_of(log, lag_ms=HOUR_MS, first_dirty=10).offset
    assert 5 == bound_of(log, lag_ms=HOUR_MS, first_dirty=5).offset


def test_the_lowest_of_all_limits_is_the_one_that_is_named() -> None:
    log = segments(NOW_MS - 2 * HOUR_MS, NOW_MS, NOW_MS)
    for watermark, opened, lag_ms, expected in (
        (25, None, 0, ActiveLimit(20)),
        (15, None, 0, WatermarkLimit(15)),
        (15, 12, 0, TransactionLimit(12)),
        (12, 12, 0, WatermarkLimit(12)),
        (15, 12, HOUR_MS, LagLimit(10, 0, HOUR_MS)),
    ):
        found = bound_of(log, high_watermark=watermark, open_transaction=opened, lag_ms=lag_ms)
        assert expected == found.limit


def test_the_bound_is_never_below_the_first_dirty_offset() -> None:
    assert 35 == bound_of(EIGHT, first_dirty=35, high_watermark=20).offset


@pytest.mark.parametrize(
    ("log", "first_dirty", "expected"),
    [
        *(
            pytest.param([segment(0, first=first), segment(10, first=0)], 0, expected, id=words)
            for first, expected, words in (
                (NOW_MS - HOUR_MS, 0, "as old as the lag"),
                (NOW_MS - HOUR_MS - 1, 1, "a millisecond older"),
                (0, 0, "0 is no time"),
                (-1, 0, "none"),
                (None, 0, "empty segment"),
            )
        ),
        pytest.param(
            [
                segment(0, first=1),
                segment(10, first=NOW_MS - 3 * HOUR_MS),
                segment(20, first=NOW_MS - 5 * HOUR_MS),
                segment(30, first=1),
            ],
            10,
            4 * HOUR_MS,
            id="the oldest dirty one decides and the active one does not",
        ),
    ],
)
def test_x07_overdue_by_the_millisecond(
    log: list[SegmentSummary], first_dirty: int, expected: int
) -> None:
    overdue_from = find_overdue_from(log, first_dirty=first_dirty, max_compaction_lag_ms=HOUR_MS)
    assert expected == delay_ms(overdue_from, NOW_MS)


def test_without_a_largest_lag_nothing_is_ever_overdue() -> None:
    log = [segment(0, first=1), segment(10)]
    assert None is find_overdue_from(log, first_dirty=0, max_compaction_lag_ms=INT64_MAX)
    assert 0 == delay_ms(None, NOW_MS)


def test_x10_a_segment_that_holds_the_first_dirty_offset_counts_twice() -> None:
    log = [segment(0), segment(10), segment(20, size=50), segment(30)]
    found = find_cleanable_range(log, first_dirty=15, uncleanable=30)
    assert (30, 200, 150) == (found.bound, found.clean_bytes, found.cleanable_bytes)
    assert 150 / 350 == found.ratio


def test_x11_the_bound_is_rounded_down_to_a_segment() -> None:
    found = find_cleanable_range(EIGHT, first_dirty=0, uncleanable=21)
    assert (20, 0, 200) == (found.bound, found.clean_bytes, found.cleanable_bytes)


def test_an_uncleanable_offset_after_the_active_base_is_rounded_to_it() -> None:
    assert ACTIVE_BASE == find_cleanable_range(EIGHT, first_dirty=0, uncleanable=75).bound


def test_a_checkpoint_inside_the_active_segment_leaves_nothing() -> None:
    found = find_cleanable_range(EIGHT, first_dirty=75, uncleanable=75)
    assert (ACTIVE_BASE, 800, 0) == (found.bound, found.clean_bytes, found.cleanable_bytes)
    assert 0.0 == found.ratio


def test_an_empty_log_has_no_ratio() -> None:
    assert 0.0 == find_cleanable_range([segment(0, size=0)], first_dirty=0, uncleanable=0).ratio


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 0, []),
        (-1, 20, [0, 10]),
        (0, 20, [0, 10]),
        (5, 20, [0, 10]),
        (10, 21, [10, 20]),
        (75, 80, [70]),
    ],
)
def test_segments_of_a_range_begin_with_the_one_that_contains_its_start(
    start: int, end: int, expected: list[int]
) -> None:
    assert expected == [s.base_offset for s in segments_between(EIGHT, start, end)]


def test_a_range_that_ends_before_it_begins_is_invalid() -> None:
    with pytest.raises(InvalidError):
        segments_between(EIGHT, 2, 1)


def test_after_the_active_base_there_are_no_closed_segments() -> None:
    assert [60] == [s.base_offset for s in non_active_from(EIGHT, 65)]
    assert () == tuple(non_active_from(EIGHT, 70))
    assert () == tuple(non_active_from(EIGHT, 71))


@pytest.mark.parametrize(
    ("first_dirty", "bound", "end"),
    [(30, 70, 30), (35, 70, 30), (70, 70, 70), (99, 70, 70), (35, 20, 20), (0, 70, 0)],
)
def test_what_has_expired_is_looked_for_in_whole_clean_segments(
    first_dirty: int, bound: int, end: int
) -> None:
    assert end == find_expired_bound(EIGHT, first_dirty=first_dirty, bound=bound)


@pytest.mark.parametrize(
    ("clean_elsewhere_to", "expected"),
    [(None, None), (0, 3), (8, 3), (9, 12), (20, 12), (21, None)],
)
def test_an_aborted_transaction_is_kept_until_the_rest_of_the_log_is_clean_after_it(
    clean_elsewhere_to: int | None, expected: int | None
) -> None:
    aborted = [
        (0, [AbortedTransaction(7, 3, 8, 9)]),
        (10, [AbortedTransaction(9, 14, 16, 12), AbortedTransaction(8, 12, 20, 21)]),
    ]
    assert expected == find_kept_transaction(aborted, clean_elsewhere_to)


def test_records_after_a_kept_transaction_stay() -> None:
    found = bound_of(EIGHT, kept_transaction=33)
    assert found.offset == 33
    assert KeptLimit(33) == found.limit
    assert bound_of(EIGHT, kept_transaction=33, open_transaction=20).offset == 20
