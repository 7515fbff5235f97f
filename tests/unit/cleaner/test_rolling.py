"""When an idle active segment has to be left."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import IdleRoll, find_idle_roll
from keeplast.model.topic_config import TopicConfig
from tests.support.partition_maker import COMPACT, DAY_MS, NOW_MS

LAGGING = replace(COMPACT, segment_ms=7 * DAY_MS, max_compaction_lag_ms=DAY_MS)


def reason(
    topic: TopicConfig, first_ms: int | None, *, size_bytes: int = 100, now_ms: int = NOW_MS
) -> IdleRoll | None:
    return find_idle_roll(topic, size_bytes=size_bytes, first_timestamp_ms=first_ms, now_ms=now_ms)


@pytest.mark.parametrize(
    ("max_lag_ms", "age_ms", "expected"),
    [
        (DAY_MS, DAY_MS, None),
        (DAY_MS, DAY_MS + 1, IdleRoll(DAY_MS + 1, DAY_MS, "max.compaction.lag.ms")),
        (8 * DAY_MS, 7 * DAY_MS, None),
        (8 * DAY_MS, 9 * DAY_MS, IdleRoll(9 * DAY_MS, 7 * DAY_MS, "segment.ms")),
    ],
)
def test_it_rolls_when_older_than_the_lesser_of_two(
    max_lag_ms: int, age_ms: int, expected: IdleRoll | None
) -> None:
    topic = replace(LAGGING, max_compaction_lag_ms=max_lag_ms)
    assert expected == reason(topic, NOW_MS - age_ms)


@pytest.mark.parametrize("first_ms", [None, -1, NOW_MS + DAY_MS])
def test_without_a_first_timestamp_or_with_one_to_come_nothing_is_forced(
    first_ms: int | None,
) -> None:
    assert reason(LAGGING, first_ms) is None


def test_an_empty_segment_stays() -> None:
    assert reason(LAGGING, 0, size_bytes=0) is None


def test_only_compacted_topics_are_rolled() -> None:
    assert reason(replace(LAGGING, cleanup_policy=frozenset({"delete"})), 0) is None
    assert reason(replace(LAGGING, cleanup_policy=frozenset({"compact", "delete"})), 0) is not None
