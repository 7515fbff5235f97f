"""What leaves the local disk, by both readings of the KIP."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.host.partition_host import plan_local_retention
from keeplast.model.partition import SegmentSummary
from keeplast.model.topic_config import TopicConfig
from tests.support.durations import HOUR_MS
from tests.support.partition_maker import COMPACT, NOW_MS

BY_TIME = replace(COMPACT, local_retention_ms=HOUR_MS, local_retention_bytes=-1)
REQUIRES_CLEAN = replace(
    BY_TIME, local_delete_requires_clean=True, local_delete_max_extra_ms=HOUR_MS
)
OLD, VERY_OLD, YOUNG = NOW_MS - HOUR_MS - 1, NOW_MS - 2 * HOUR_MS - 1, NOW_MS - 1


def segments(*stamps: int) -> list[SegmentSummary]:
    """Closed segments of ten offsets and 100 bytes each, and an active one behind them."""
    closed = [SegmentSummary(10 * i, 100, NOW_MS, stamp, 0, 0) for i, stamp in enumerate(stamps)]
    return [*closed, SegmentSummary(10 * len(stamps), 100, NOW_MS, OLD, 0, 0)]


def dropped(
    topic: TopicConfig, *stamps: int, remote_end: int, first_dirty: int, high_watermark: int = 99
) -> int:
    plan = plan_local_retention(
        topic, segments(*stamps), log_end=10 * len(stamps) + 5,
        high_watermark=min(high_watermark, 10 * len(stamps) + 5), remote_end=remote_end,
        first_dirty=first_dirty, now_ms=NOW_MS,
    )  # fmt: skip
    assert plan.to == 10 * plan.segments
    assert plan.bytes == 100 * plan.segments
    return plan.segments


@pytest.mark.parametrize(
    ("stamps", "remote_end", "first_dirty", "r_a", "r_b"),
    [
        pytest.param((OLD, OLD), 20, 20, 2, 2, id="uploaded, cleaned, expired"),
        pytest.param((OLD, OLD), 20, 0, 2, 0, id="uploaded, dirty, expired"),
        pytest.param((OLD, OLD), 20, 10, 2, 1, id="one of two cleaned"),
        pytest.param((OLD, OLD), 20, 15, 2, 1, id="straddles the first dirty offset"),
        pytest.param((OLD, OLD), 10, 20, 1, 1, id="one of two uploaded"),
        pytest.param((OLD, OLD), 15, 20, 1, 1, id="straddles the remote end"),
        pytest.param((OLD, OLD), 0, 20, 0, 0, id="not uploaded"),
        pytest.param((YOUNG, OLD), 20, 20, 0, 0, id="young before old: no hole"),
        pytest.param((OLD, YOUNG), 20, 20, 1, 1, id="young behind old"),
        pytest.param((VERY_OLD, OLD), 20, 0, 2, 1, id="dirty for longer than it may wait"),
        pytest.param((VERY_OLD, VERY_OLD), 10, 0, 1, 1, id="longer than it may wait, not uploaded"),
        pytest.param((), 5, 5, 0, 0, id="active alone"),
        pytest.param((OLD,), 15, 15, 1, 1, id="active stays though it is uploaded"),
    ],
)
def test_st_16_local_retention(
    stamps: tuple[int, ...], remote_end: int, first_dirty: int, r_a: int, r_b: int
) -> None:
    """ST-16: the matrix of both readings."""
    found = tuple(
        dropped(topic, *stamps, remote_end=remote_end, first_dirty=first_dirty)
        for topic in (BY_TIME, REQUIRES_CLEAN)
    )
    assert (r_a, r_b) == found


def test_st_16_what_a_replica_lacks_stays() -> None:
    assert dropped(BY_TIME, OLD, OLD, remote_end=20, first_dirty=20, high_watermark=15) == 1


def test_st_16_size_counts_the_active_segment() -> None:
    topic = replace(COMPACT, local_retention_ms=-1, local_retention_bytes=250)
    assert dropped(topic, OLD, OLD, OLD, remote_end=30, first_dirty=0) == 1
    waits = replace(topic, local_delete_requires_clean=True, local_delete_max_extra_bytes=100)
    assert dropped(waits, OLD, OLD, OLD, remote_end=30, first_dirty=0) == 0
    assert dropped(waits, OLD, OLD, OLD, OLD, remote_end=40, first_dirty=0) == 1
    assert dropped(waits, OLD, OLD, OLD, remote_end=30, first_dirty=10) == 1


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_st_16_as_the_total_by_default(policy: str) -> None:
    """-2 is ``retention.*``, for compacted logs too; only compacted ones wait to be cleaned."""
    topic = TopicConfig(
        cleanup_policy=frozenset({policy}), retention_ms=HOUR_MS, local_delete_requires_clean=True
    )
    expected = 0 if policy == "compact" else 2
    assert expected == dropped(topic, OLD, OLD, remote_end=20, first_dirty=0)
    assert dropped(replace(topic, retention_ms=-1), OLD, remote_end=10, first_dirty=10) == 0


def test_st_16_says_what_keeps_a_segment() -> None:
    plan = plan_local_retention(
        REQUIRES_CLEAN, segments(OLD, OLD), log_end=25, high_watermark=25, remote_end=20,
        first_dirty=10, now_ms=NOW_MS,
    )  # fmt: skip
    assert plan.kept == "segment 10 stays: not cleaned yet"
