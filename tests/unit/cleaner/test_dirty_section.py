"""The dirty section as one value: when it is worth a round, and what a round before it takes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import FirstDirty, FirstUncleanable
from keeplast.cleaner.dirty_section import (
    DirtySection,
    due_reason,
    find_dirty_section,
    section_notes,
    skip_reason,
)
from keeplast.cleaner.reasons import (
    ActiveLimit,
    AllClean,
    BoundNote,
    CheckpointRepaired,
    DirtyEnough,
    Forced,
    Overdue,
)
from keeplast.model.partition import SegmentSummary
from keeplast.model.topic_config import TopicConfig
from tests.support.durations import HOUR_MS

NOW_MS = 100 * HOUR_MS
SEGMENTS = (
    SegmentSummary(0, 300, NOW_MS, NOW_MS - 5 * HOUR_MS, 0, 0, NOW_MS - 6 * HOUR_MS),
    SegmentSummary(10, 300, NOW_MS, NOW_MS - 3 * HOUR_MS, 0, 0, NOW_MS - 4 * HOUR_MS),
    SegmentSummary(20, 100, NOW_MS, -1, 0, 0),
)


def section_from(first_dirty: int, topic: TopicConfig) -> DirtySection:
    return find_dirty_section(
        SEGMENTS,
        topic,
        first_dirty=FirstDirty(first_dirty),
        uncleanable=FirstUncleanable(20, ActiveLimit(20)),
        now_ms=NOW_MS,
    )


@pytest.mark.parametrize(
    ("ratio", "is_forced", "is_skipped"),
    [(0.5, False, True), (0.49, False, False), (0.5, True, False)],
)
def test_a_ratio_equal_to_the_threshold_is_not_enough(
    ratio: float, is_forced: bool, is_skipped: bool
) -> None:
    topic = TopicConfig(min_cleanable_dirty_ratio=ratio)
    reason = skip_reason(section_from(10, topic), SEGMENTS, topic, is_forced=is_forced)
    assert is_skipped == (reason is not None)


def test_an_overdue_section_needs_no_ratio_and_an_empty_one_is_never_worth_it() -> None:
    topic = TopicConfig(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR_MS)
    overdue = section_from(10, topic)
    assert 3 * HOUR_MS == overdue.compaction_delay_ms
    assert skip_reason(overdue, SEGMENTS, topic, is_forced=False) is None
    clean = section_from(20, topic)
    reason = skip_reason(clean, SEGMENTS, topic, is_forced=True)
    assert AllClean(20) == reason


def test_a_round_before_the_dirty_section_takes_none_of_it() -> None:
    section = section_from(15, TopicConfig())
    before = section.before(10)
    assert (10, 10, 0) == (
        before.first_dirty.offset,
        before.cleanable.bound,
        before.cleanable.cleanable_bytes,
    )
    assert section.cleanable.clean_bytes == before.cleanable.clean_bytes
    assert 300 == section.cleanable.cleanable_bytes


def test_where_the_checkpoint_was_repaired_comes_before_how_far() -> None:
    section = section_from(10, TopicConfig())
    assert [BoundNote(20, 20, ActiveLimit(20))] == section_notes(section)
    repaired = CheckpointRepaired(5, 10)
    section = replace(section, first_dirty=FirstDirty(10, repaired))
    assert [repaired, BoundNote(20, 20, ActiveLimit(20))] == section_notes(section)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (TopicConfig(min_cleanable_dirty_ratio=0.1), DirtyEnough(0.5, 0.1)),
        (TopicConfig(min_cleanable_dirty_ratio=0.5), Forced(0.5, 0.5)),
        (
            TopicConfig(min_cleanable_dirty_ratio=0.1, max_compaction_lag_ms=HOUR_MS),
            Overdue(3 * HOUR_MS, HOUR_MS),
        ),
    ],
)
def test_an_overdue_log_is_due_for_that_first(topic: TopicConfig, expected: object) -> None:
    assert expected == due_reason(section_from(10, topic), topic)
