"""Which dates of dirty segments cannot be taken for their age, and for which lags that matters."""

from __future__ import annotations

from keeplast.cleaner.dirty_section import Dating, dating_notes, find_dating
from keeplast.model.partition import SegmentSummary
from keeplast.model.topic_config import TopicConfig
from tests.support.durations import DAY_MS

NOW_MS = 1_700_000_000_000


def segment(base_offset: int, largest: int) -> SegmentSummary:
    return SegmentSummary(base_offset, 100, NOW_MS, largest, 0, 0)


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
    # Segment 0 contains offset 5; the active one does not count yet.
    assert Dating(future=2, missing=1, backdated=2, ahead_ms=9 * DAY_MS) == find_dating(
        log, first_dirty=5, now_ms=NOW_MS
    )
    assert Dating() == find_dating(log, first_dirty=50, now_ms=NOW_MS)


def test_a_date_in_the_future_does_not_make_later_ones_old() -> None:
    log = [segment(0, NOW_MS + DAY_MS), segment(10, NOW_MS), segment(20, NOW_MS)]
    assert 0 == find_dating(log, first_dirty=0, now_ms=NOW_MS).backdated


def test_without_a_lag_odd_dates_change_nothing_and_are_not_said() -> None:
    assert [] == dating_notes(Dating(1, 1, 1, DAY_MS), TopicConfig())
    lags = TopicConfig(min_compaction_lag_ms=1, max_compaction_lag_ms=DAY_MS)
    assert [] == dating_notes(Dating(), lags)
