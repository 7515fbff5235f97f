"""What expires, decided from sizes and times alone; Kafka's own cases are UL15 to UL26."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.cleaner.segment_expiry import (
    ExpiryPlan,
    ExpiryRule,
    StaysNote,
    TornActive,
    foresee_expiry,
    plan_expiry,
)
from keeplast.model.partition import INT64_MAX, SegmentSummary
from keeplast.model.topic_config import TopicConfig

NOW_MS = 1_000_000
TOPIC = TopicConfig(
    cleanup_policy=frozenset({"compact", "delete"}), retention_ms=100, retention_bytes=-1
)


def segment(
    number: int, *, size: int = 10, age_ms: int = 0, mtime_age_ms: int = 0
) -> SegmentSummary:
    """The segment of offsets ``[10 * number, 10 * number + 10)``; ``age_ms`` -1: no timestamps."""
    largest = -1 if age_ms < 0 else NOW_MS - age_ms
    return SegmentSummary(number * 10, size, NOW_MS - mtime_age_ms, largest, 0, 0)


def plan(
    *segments: SegmentSummary,
    topic: TopicConfig = TOPIC,
    log_start: int = 0,
    high_watermark: int | None = None,
    rules: frozenset[ExpiryRule] = frozenset(ExpiryRule),
    is_torn: bool = False,
) -> ExpiryPlan:
    log_end = len(segments) * 10
    return plan_expiry(
        topic, segments, log_start=log_start, log_end=log_end, now_ms=NOW_MS, rules=rules,
        high_watermark=log_end if high_watermark is None else high_watermark, is_torn=is_torn,
    )  # fmt: skip


def bases(found: ExpiryPlan) -> list[tuple[int, str]]:
    return [(each.segment.base_offset, each.rule.value) for each in found.expired]


@pytest.mark.parametrize(("age_ms", "goes"), [(100, False), (101, True)])
def test_the_limit_itself_is_not_too_old(age_ms: int, goes: bool) -> None:
    assert goes == bool(plan(segment(0, age_ms=age_ms), segment(1)).expired)


@pytest.mark.parametrize(("mtime_age_ms", "goes"), [(100, False), (101, True)])
def test_without_timestamps_the_file_has_the_age(mtime_age_ms: int, goes: bool) -> None:
    found = plan(segment(0, age_ms=-1, mtime_age_ms=mtime_age_ms), segment(1))
    assert goes == bool(found.expired)


@pytest.mark.parametrize(
    ("limit", "gone"), [(31, 0), (30, 0), (29, 0), (20, 1), (10, 2), (1, 2), (0, 3)]
)
def test_what_is_left_has_at_least_the_size(limit: int, gone: int) -> None:
    topic = replace(TOPIC, retention_bytes=limit)
    found = plan(segment(0), segment(1), segment(2), topic=topic)
    assert (gone, gone == 3) == (len(found.expired), found.rolls_active)


def test_a_rule_sees_what_the_one_before_has_left() -> None:
    topic = replace(TOPIC, retention_bytes=20)
    segments = [segment(0), segment(1), segment(2, age_ms=200), segment(3), segment(4)]
    found = plan(*segments, topic=topic, log_start=15)
    assert [(0, "log_start"), (10, "size"), (20, "size")] == bases(found)
    assert (15, 30, 30) == (found.log_start_before, found.log_start, found.first_base)


def test_rules_can_be_left_out() -> None:
    segments = [segment(0, age_ms=200), segment(1, age_ms=200), segment(2)]
    only = frozenset({ExpiryRule.LOG_START})
    found = plan(*segments, log_start=15, rules=only)
    assert ([(0, "log_start")], 15) == (bases(found), found.log_start)


def test_the_active_segment_never_goes_by_the_log_start() -> None:
    found = plan(segment(0), segment(1), log_start=20)
    assert ([(0, "log_start")], False, 20) == (bases(found), found.rolls_active, found.log_start)


def test_a_torn_active_segment_stays_and_says_why() -> None:
    found = plan(segment(0, age_ms=200), segment(1, age_ms=200), is_torn=True)
    assert ([(0, "time")], (StaysNote(10, TornActive()),)) == (bases(found), found.notes)


def test_nothing_expires_and_the_log_start_stays_inside_the_first_segment() -> None:
    found = plan(segment(0), segment(1), log_start=5)
    assert ((), 5, 0) == (found.expired, found.log_start, found.first_base)


@given(
    st.lists(st.tuples(st.integers(-1, 300), st.integers(0, 30)), min_size=1, max_size=6),
    st.sampled_from([-1, 0, 100, INT64_MAX]), st.sampled_from([-1, 0, 25]),
    st.integers(0, 60), st.integers(0, 60), st.booleans(),
)  # fmt: skip
def test_a_segment_has_the_first_moment_at_which_it_may_go_as_its_date(
    ages: list[tuple[int, int]], retention_ms: int, retention_bytes: int, log_start: int,
    high_watermark: int, is_torn: bool,
) -> None:  # fmt: skip
    topic = replace(TOPIC, retention_ms=retention_ms, retention_bytes=retention_bytes)
    segments = [segment(n, age_ms=age, size=size) for n, (age, size) in enumerate(ages)]
    log_end = len(segments) * 10
    start = min(log_start, log_end)
    watermark = max(start, min(high_watermark, log_end))

    def gone(now_ms: int) -> set[int]:
        found = plan_expiry(
            topic, segments, log_start=start, log_end=log_end, high_watermark=watermark,
            now_ms=now_ms, is_torn=is_torn,
        )  # fmt: skip
        return {each.segment.base_offset for each in found.expired}

    foreseen = foresee_expiry(
        topic, segments, log_start=start, log_end=log_end, high_watermark=watermark,
        now_ms=NOW_MS, is_torn=is_torn,
    )  # fmt: skip
    times = {each.from_ms for each in foreseen.values()}
    for now_ms in {NOW_MS, 10 * NOW_MS, *times, *(each - 1 for each in times)}:
        if now_ms >= NOW_MS:
            assert {base for base, each in foreseen.items() if each.from_ms <= now_ms} == gone(
                now_ms
            )
