"""Every reason why a log is cleaned so far and no further, as it is said."""

from __future__ import annotations

import pytest

from keeplast.cleaner.explanation import (
    Dating,
    active_limit,
    bound_sentence,
    dating_sentences,
    eligible_sentence,
    find_dating,
    given_limit,
    lag_limit,
    nothing_sentence,
    ratio_sentence,
    transaction_limit,
    watermark_limit,
)
from keeplast.model.offsets import INT64_MAX
from keeplast.model.segment import SegmentSummary

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def segment(base_offset: int, largest: int, *, mtime: int = NOW_MS) -> SegmentSummary:
    return SegmentSummary(base_offset, 100, mtime, largest, 0, 0)


def lag_words(largest: int, *, mtime: int = NOW_MS) -> str:
    """Return what is said of segment 812 with a least lag of an hour."""
    return lag_limit(
        segment(812, largest, mtime=mtime), min_compaction_lag_ms=HOUR_MS, now_ms=NOW_MS
    )


def test_a_young_segment_says_how_much_is_missing() -> None:
    limit = lag_words(NOW_MS - 56 * MINUTE_MS)
    assert (
        "not cleaned past offset 812: segment 812 is 4 min younger than min.compaction.lag.ms (1 h)"
        == bound_sentence(bound=812, uncleanable=812, limit=limit)
    )


def test_a_segment_without_timestamps_says_that_its_file_is_young() -> None:
    assert (
        "segment 812 has no timestamps, and its file is 30 min younger than "
        "min.compaction.lag.ms (1 h)" == lag_words(-1, mtime=NOW_MS - 30 * MINUTE_MS)
    )


def test_a_segment_from_the_future_says_how_far_and_how_long_it_waits() -> None:
    assert (
        "segment 812 is dated 3 d in the future and waits 3 d for min.compaction.lag.ms (1 h)"
        == lag_words(NOW_MS + 3 * DAY_MS)
    )


@pytest.mark.parametrize(
    ("limit", "bound", "uncleanable", "expected"),
    [
        (active_limit(900), 900, 900, "900: the active segment starts at 900"),
        (
            watermark_limit(815), 812, 815,
            "812: the high watermark is 815, what follows may not be on every replica, "
            "and a segment is cleaned as a whole",
        ),
        (
            transaction_limit(815), 812, 815,
            "812: a transaction is open since offset 815, and a segment is cleaned as a whole",
        ),
        (transaction_limit(812), 812, 812, "812: a transaction is open since offset 812"),
        (given_limit(812), 812, 812, "812: 812 was given as the first uncleanable offset"),
    ],
)  # fmt: skip
def test_where_a_round_ends(limit: str, bound: int, uncleanable: int, expected: str) -> None:
    found = bound_sentence(bound=bound, uncleanable=uncleanable, limit=limit)
    assert f"not cleaned past offset {expected}" == found


@pytest.mark.parametrize(
    ("first_dirty", "first_base", "active_base", "expected"),
    [
        (0, 0, 0, "there is only the active segment, from 0; --roll-active closes it"),
        (900, 0, 900, "all is clean up to the active segment at 900"),
        (905, 0, 900, "all is clean up to the active segment at 900"),
        (500, 0, 900, "a transaction is open since offset 815"),
    ],
)
def test_why_there_is_nothing_to_clean(
    first_dirty: int, first_base: int, active_base: int, expected: str
) -> None:
    found = nothing_sentence(
        first_dirty=first_dirty,
        first_base=first_base,
        active_base=active_base,
        limit=transaction_limit(815),
    )
    assert f"nothing to clean: {expected}" == found


def test_too_little_is_dirty() -> None:
    assert (
        "dirty ratio 0.312 is not above min.cleanable.dirty.ratio 0.5; --force cleans anyway"
        == ratio_sentence(ratio=0.3125, threshold=0.5)
    )


@pytest.mark.parametrize(
    ("ratio", "delay_ms", "expected"),
    [
        (0.1, 3 * HOUR_MS, "3 h overdue, max.compaction.lag.ms is 1 d"),
        (0.9, 3 * HOUR_MS, "3 h overdue, max.compaction.lag.ms is 1 d"),
        (0.9, 0, "dirty ratio 0.900 is above min.cleanable.dirty.ratio 0.5"),
        (0.5, 0, "forced, dirty ratio 0.500 with min.cleanable.dirty.ratio 0.5"),
    ],
)
def test_why_a_log_is_cleaned(ratio: float, delay_ms: int, expected: str) -> None:
    found = eligible_sentence(
        ratio=ratio, threshold=0.5, delay_ms=delay_ms, max_compaction_lag_ms=DAY_MS
    )
    assert f"eligible: {expected}" == found


def test_odd_dates_are_counted_from_the_first_dirty_segment_to_the_active_one() -> None:
    log = [
        segment(0, NOW_MS + 9 * DAY_MS),
        segment(10, NOW_MS - DAY_MS),
        segment(20, NOW_MS + DAY_MS),
        segment(30, -1),
        segment(40, NOW_MS - 2 * DAY_MS),
        segment(50, NOW_MS + 7 * DAY_MS),
    ]
    assert Dating(future=1, missing=1, backdated=2, ahead_ms=DAY_MS) == find_dating(
        log, first_dirty=10, now_ms=NOW_MS
    )
    # Segment 0 contains offset 5; the active one is nobody's concern yet.
    assert Dating(future=2, missing=1, backdated=2, ahead_ms=9 * DAY_MS) == find_dating(
        log, first_dirty=5, now_ms=NOW_MS
    )
    assert Dating() == find_dating(log, first_dirty=50, now_ms=NOW_MS)


def test_a_date_in_the_future_does_not_make_those_behind_it_old() -> None:
    log = [segment(0, NOW_MS + DAY_MS), segment(10, NOW_MS), segment(20, NOW_MS)]
    assert 0 == find_dating(log, first_dirty=0, now_ms=NOW_MS).backdated


def test_odd_dates_are_said_with_what_follows_for_the_lag() -> None:
    dating = Dating(future=1, missing=2, backdated=1, ahead_ms=3 * DAY_MS)
    assert [
        "1 dirty segment is dated in the future, by up to 3 d: min.compaction.lag.ms holds back "
        "what follows until then",
        "2 dirty segments are without timestamps: the file's time counts for min.compaction.lag.ms",
        "1 dirty segment is dated before what is in front of it: min.compaction.lag.ms protects "
        "for less than 1 h after the append",
    ] == dating_sentences(dating, min_compaction_lag_ms=HOUR_MS, max_compaction_lag_ms=INT64_MAX)
    assert [
        "1 dirty segment is dated in the future, by up to 3 d: max.compaction.lag.ms counts from "
        "then",
        "2 dirty segments are without timestamps: max.compaction.lag.ms never makes them overdue",
    ] == dating_sentences(dating, min_compaction_lag_ms=0, max_compaction_lag_ms=DAY_MS)


def test_without_a_lag_odd_dates_change_nothing_and_are_not_said() -> None:
    dating = Dating(1, 1, 1, DAY_MS)
    assert [] == dating_sentences(dating, min_compaction_lag_ms=0, max_compaction_lag_ms=INT64_MAX)
    assert [] == dating_sentences(
        Dating(), min_compaction_lag_ms=HOUR_MS, max_compaction_lag_ms=DAY_MS
    )
