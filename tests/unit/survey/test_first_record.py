"""KIP-354's first message: overdue by the first record, with Kafka's rules by the first batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cleaner.log_order import Order
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from keeplast.inspect.status import find_status
from keeplast.log.files import LocalFiles
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.report import RoundReport
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    clean_request,
    coordinator,
    last_round,
    one,
    write_partition,
)

TOPIC = replace(
    COMPACT, max_compaction_lag_ms=7 * DAY_MS, min_cleanable_dirty_ratio=1.0, segment_ms=7 * DAY_MS
)


def old_and_young(first_ms: int = NOW_MS - 8 * DAY_MS) -> bytes:
    """Return one batch: its first record was written long before its last."""
    return encode_batch(
        [Record(0, first_ms, b"a", b"1"), Record(1, NOW_MS - 3_600_000, b"a", b"2")]
    )


def planned(directory: Path, order: Order) -> RoundReport:
    request = clean_request(directory, topic=TOPIC)
    asked = replace(request, force=False, order=order, rolls_idle=order is Order.OVERDUE_FIRST)
    return last_round(coordinator(clock=ManualClock(NOW_MS)).plan(asked))


def test_a_log_is_overdue_by_its_first_record_whatever_follows_it_in_the_batch(
    tmp_path: Path,
) -> None:
    directory = write_partition(tmp_path, {0: old_and_young(), 2: one(2, b"b", timestamp=NOW_MS)})
    found = planned(directory, Order.OVERDUE_FIRST)
    assert (False, DAY_MS) == (found.skipped, found.compaction_delay_ms)
    assert any("overdue for 1 d" in note for note in found.notes)


def test_by_kafkas_rules_a_log_is_overdue_by_its_first_batch(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: old_and_young(), 2: one(2, b"b", timestamp=NOW_MS)})
    found = planned(directory, Order.KAFKA)
    assert (True, 0) == (found.skipped, found.compaction_delay_ms)


@pytest.mark.parametrize(("days", "is_left"), [(8, True), (6, False)])
def test_an_idle_active_segment_is_left_by_its_first_record(
    tmp_path: Path, days: int, is_left: bool
) -> None:
    directory = write_partition(tmp_path, {0: old_and_young(NOW_MS - days * DAY_MS)})
    found = planned(directory, Order.OVERDUE_FIRST)
    assert is_left == (not found.skipped)


def test_status_counts_the_deadline_from_the_first_record(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: old_and_young(), 2: one(2, b"b", timestamp=NOW_MS)})
    request = clean_request(directory, topic=TOPIC)
    checkpoints = load_checkpoints(LocalFiles(), directory.parent)
    found = find_status(
        request.partitions[0], request, checkpoints, LocalFiles(), NOW_MS, timestamp_ahead_max_ms=0
    )
    assert NOW_MS - DAY_MS == found.deadline_ms
