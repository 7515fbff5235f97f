"""What a user reads of settings that are accepted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.cleaner.settings import find_hazards, hazards_of
from keeplast.model.topic_config import Strategy, TopicConfig
from tests.support.durations import DAY_MS

LATE = TopicConfig(frozenset({"compact"}), strategy=Strategy.TIMESTAMP)


@pytest.mark.parametrize(
    ("segment_ms", "max_lag_ms", "late"),
    [
        (DAY_MS - 1, DAY_MS - 1, []),
        (DAY_MS, DAY_MS - 1, ["segment.ms"]),
        (DAY_MS - 1, DAY_MS, ["max.compaction.lag.ms"]),
        (DAY_MS, DAY_MS, ["segment.ms", "max.compaction.lag.ms"]),
    ],
)
def test_a_deleted_key_may_come_back_unless_rounds_are_sooner_than_tombstones_go(
    segment_ms: int, max_lag_ms: int, late: list[str]
) -> None:
    config = replace(LATE, segment_ms=segment_ms, max_compaction_lag_ms=max_lag_ms)
    found = find_hazards("t", config)
    assert bool(late) == bool(found)
    for key in late:
        assert f"{key}=" in found[0]
    assert () == find_hazards("t", replace(config, keep_versioned_tombstones=True))
    assert () == find_hazards("t", replace(config, strategy=Strategy.OFFSET))


def test_a_hazard_of_a_topic_is_said_once_and_of_a_topic_that_is_not_compacted_never() -> None:
    deleted = replace(LATE, cleanup_policy=frozenset({"delete"}))
    found = hazards_of([("a", LATE), ("a", LATE), ("b", deleted), ("c", LATE)])
    assert ["topic=a", "topic=c"] == [sentence.split()[-1] for sentence in found]
    assert () == hazards_of([("a", TopicConfig(frozenset({"compact"})))])
