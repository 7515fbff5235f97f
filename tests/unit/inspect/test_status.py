"""Each field of a log's status, against logs whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.cleaner.reasons import NothingBelow, RatioTooLow
from keeplast.inspect.status import LogStatus, TombstoneReading, find_status
from keeplast.log.append import NewRecord
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import CleanerConfig
from keeplast.survey.bounds import Checkpoints
from keeplast.survey.notes import RollNote
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.wording import basis_words
from tests.support.durations import HOUR_MS
from tests.support.log_builder import LogBuilder
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import COMPACT, DAY_MS, NOW_MS, PARTITION

LAG_MS = 30 * DAY_MS


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogBuilder]:
    """Three segments: hours 0 and 1, hours 2 and 3, hours 4 and 5, the last one active."""
    builder = LogBuilder(tmp_path / "t-0", COMPACT)
    for hour in range(6):
        if hour in (2, 4):
            builder.roll()
        builder.append(NewRecord(b"key", b"value", NOW_MS + hour * HOUR_MS))
    yield builder
    builder.close()


def status(
    log: LogBuilder,
    *,
    first_dirty: int | None = None,
    watermark: int | None = None,
    now_ms: int = NOW_MS + DAY_MS,
    ahead_ms: int = INT64_MAX,
    cleaner: CleanerConfig | None = None,
    **changes: Any,
) -> LogStatus:
    settings = {"segment_ms": 365 * DAY_MS, "max_compaction_lag_ms": LAG_MS} | changes
    request = PartitionRequest(
        PARTITION, log.directory, replace(COMPACT, **settings), cleaner or CleanerConfig()
    )
    checkpoints = Checkpoints(
        {} if first_dirty is None else {PARTITION: first_dirty},
        {},
        {} if watermark is None else {PARTITION: watermark},
    )
    return find_status(
        request, CleanRequest((request,), rolls_idle=True), checkpoints, UnsyncedFiles(), now_ms,
        timestamp_ahead_max_ms=ahead_ms, tombstones=TombstoneReading.SKIP,
    )  # fmt: skip


def size(log: LogBuilder, *bases: int) -> int:
    return sum(log.path(base).stat().st_size for base in bases)


def test_bytes_and_offsets_are_those_of_the_files(log: LogBuilder) -> None:
    found = status(log, first_dirty=2)
    assert (0, 6, 2, 4) == (
        found.log_start,
        found.log_end,
        found.figures.first_dirty,
        found.figures.cleanable.bound,
    )
    assert size(log, 0) == found.figures.cleanable.clean_bytes
    assert size(log, 2) == found.figures.cleanable.cleanable_bytes
    assert size(log, 4) == found.figures.uncleanable_bytes
    assert size(log, 0, 2, 4) == found.size_bytes
    assert 0.5 == found.figures.cleanable.ratio
    assert isinstance(found.decision, RatioTooLow | NothingBelow)
    assert found.stages is None


def test_the_deadline_is_that_of_the_first_dirty_segment(log: LogBuilder) -> None:
    assert NOW_MS + LAG_MS == status(log).deadline_ms
    assert NOW_MS + 2 * HOUR_MS + LAG_MS == status(log, first_dirty=2).deadline_ms
    assert NOW_MS + 4 * HOUR_MS + LAG_MS == status(log, first_dirty=4).deadline_ms
    assert status(log, max_compaction_lag_ms=INT64_MAX).deadline_ms is None
    late_ms = NOW_MS + LAG_MS + 7
    assert (7, NOW_MS + LAG_MS) == (
        status(log, now_ms=late_ms).figures.compaction_delay_ms,
        status(log, now_ms=late_ms).deadline_ms,
    )


def test_the_active_segment_is_due_last(log: LogBuilder) -> None:
    assert NOW_MS + 4 * HOUR_MS + LAG_MS + 1 == status(log).eligibility.by_ms


def test_an_active_segment_that_is_due_to_be_left_counts_as_left(log: LogBuilder) -> None:
    now_ms = NOW_MS + LAG_MS + DAY_MS
    found = status(log, now_ms=now_ms)
    assert (6, 0) == (found.figures.cleanable.bound, found.figures.uncleanable_bytes)
    assert now_ms == found.eligibility.by_ms
    assert isinstance(found.notes[0], RollNote)


def test_an_open_transaction_leaves_it_without_a_bound(log: LogBuilder) -> None:
    log.producer(7).send(1)
    why = basis_words(status(log).eligibility.basis)
    assert "no date, because a transaction is open since offset 6" == why


def test_so_does_a_high_watermark_below_the_end(log: LogBuilder) -> None:
    why = basis_words(status(log, watermark=3).eligibility.basis)
    assert why.startswith("no date, because the high watermark is 3")


@pytest.mark.parametrize(
    ("changes", "regions"),
    [
        ({}, "dirty dirty active"),
        ({"first_dirty": 2}, "clean dirty active"),
        ({"first_dirty": 3}, "clean dirty active"),
        ({"first_dirty": 6}, "clean clean clean"),
        ({"watermark": 3}, "dirty unstable active"),
        ({"min_compaction_lag_ms": DAY_MS - 2 * HOUR_MS}, "dirty uncleanable active"),
    ],
)
def test_every_segment_is_in_one_region(
    log: LogBuilder, changes: dict[str, Any], regions: str
) -> None:
    assert regions.split() == [each.value for each in status(log, **changes).regions]


def test_the_least_lag_looks_into_the_active_segment(log: LogBuilder) -> None:
    future_ms = NOW_MS + 3 * DAY_MS
    log.append(NewRecord(b"key", b"value", future_ms))
    found = status(log, ahead_ms=0, min_compaction_lag_ms=DAY_MS, max_compaction_lag_ms=DAY_MS)
    assert future_ms + DAY_MS == found.eligibility.by_ms


def test_a_bounded_map_may_take_rounds(log: LogBuilder) -> None:
    found = status(log, ahead_ms=0, cleaner=CleanerConfig(key_map_bytes=4 * 24))
    assert 1 + 6 // 3 == found.eligibility.rounds_max


def test_files_left_by_a_crash_are_counted_by_their_bytes(log: LogBuilder) -> None:
    assert 0 == status(log).leftover_bytes
    (log.directory / f"{0:020d}.log.deleted").write_bytes(bytes(12))
    assert 12 == status(log).leftover_bytes


@pytest.mark.parametrize("first_dirty", [6, 4])
def test_clean_up_to_the_end_is_clean(log: LogBuilder, first_dirty: int) -> None:
    assert (first_dirty == 6) == status(log, first_dirty=first_dirty).eligibility.is_clean
