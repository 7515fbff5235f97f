"""Kafka's UnifiedLogTest, what of it is about retention and the log start (cleaning.md 8.6, UL)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cleaner.segment_expiry import ExpiryRule, plan_expiry
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import list_partition
from keeplast.model.partition import SegmentSummary
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.survey import survey_partition
from tests.support.expiring_log import (
    BOTH,
    RECORD_BYTES,
    epochs_of,
    expire,
    expiry_request,
    log_start_line,
    set_log_start,
    snapshots_of,
    write_log,
)
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    bases_of,
    clean_request,
    data_batch,
    one,
    write_partition,
    write_snapshot,
)

AGED = replace(BOTH, retention_ms=999)
OLD_MS = NOW_MS - 1000
"""A millisecond older than what AGED keeps."""


def test_ul06_snapshots_of_segments_that_expired_go(tmp_path: Path) -> None:
    directory = write_log(tmp_path, records=1, timestamp_ms=OLD_MS)
    expire(directory, AGED)
    assert ([3], [3]) == (bases_of(directory), snapshots_of(directory))


def test_ul07_a_second_expiry_finds_nothing(tmp_path: Path) -> None:
    """The middle segment is older than what lies before and behind it."""
    directory = write_log(tmp_path, segments=4, records=1, times={1: OLD_MS})
    set_log_start(directory, 1)
    first, second = expire(directory, AGED), expire(directory, AGED)
    assert ["log_start", "time"] == [segment.rule for segment in first.segments]
    assert () == second.segments
    assert [2, 3] == bases_of(directory)


def test_ul08_snapshots_below_the_log_start_go(tmp_path: Path) -> None:
    directory = write_log(tmp_path, records=1)
    set_log_start(directory, 2)
    expire(directory)
    assert ([2], [2]) == (bases_of(directory), snapshots_of(directory))


def test_ul15_all_that_is_old_goes_and_the_log_end_stays(tmp_path: Path) -> None:
    directory = write_log(tmp_path, segments=20, timestamp_ms=OLD_MS)
    report = expire(directory, AGED)
    assert (20, 100, True) == (len(report.segments), report.log_start, report.rolled_active)
    assert [100] == bases_of(directory)
    assert [(19, 100)] == epochs_of(directory)
    assert 0 == list_partition(directory, LocalFiles()).active.size_bytes
    again = expire(directory, AGED)
    assert ((), [100]) == (again.segments, bases_of(directory))


@pytest.mark.parametrize("high_watermark", [0, *range(25, 31), 100])
def test_ul15_ul16_ul17_the_log_start_never_passes_the_high_watermark(
    tmp_path: Path, high_watermark: int
) -> None:
    directory = write_log(tmp_path, segments=20, timestamp_ms=OLD_MS)
    report = expire(directory, AGED, high_watermark=high_watermark)
    assert high_watermark // 5 * 5 == report.log_start == bases_of(directory)[0]
    if high_watermark < 100:
        stays = f"segment {report.log_start} stays: it reaches above the high watermark"
        assert (f"{stays} {high_watermark}",) == report.notes


@pytest.mark.parametrize(("offset", "left"), [(1, 3), (6, 2), (15, 1)])
def test_ul18_segments_below_deleted_records_go(tmp_path: Path, offset: int, left: int) -> None:
    directory = write_log(tmp_path)
    set_log_start(directory, offset)
    report = expire(directory)
    assert left == len(bases_of(directory))
    assert (offset, offset) == (report.log_start_before, report.log_start)
    # A broker keeps the line only where the first segment's name says less.
    assert offset == log_start_line(directory)


@pytest.mark.parametrize(("limit", "left"), [(10, 2), (15, 3), (14, 3), (9, 2), (5, 1), (0, 1)])
def test_ul19_size(tmp_path: Path, limit: int, left: int) -> None:
    directory = write_log(tmp_path)
    expire(directory, replace(BOTH, retention_bytes=limit * RECORD_BYTES))
    assert left == len(bases_of(directory))
    assert (limit == 0) == (list_partition(directory, LocalFiles()).active.size_bytes == 0)


@pytest.mark.parametrize(("timestamp_ms", "left"), [(OLD_MS, 1), (OLD_MS + 1, 3), (NOW_MS, 3)])
def test_ul20_time(tmp_path: Path, timestamp_ms: int, left: int) -> None:
    directory = write_log(tmp_path, timestamp_ms=timestamp_ms)
    expire(directory, AGED)
    assert left == len(bases_of(directory))


def test_ul21_compact_alone_expires_nothing(tmp_path: Path) -> None:
    directory = write_log(tmp_path, timestamp_ms=10)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    topic = replace(AGED, cleanup_policy=frozenset({"compact"}), retention_bytes=0)
    assert () == expire(directory, topic).segments
    assert before == {path.name: path.read_bytes() for path in directory.iterdir()}


def test_ul22_compact_and_delete_expires(tmp_path: Path) -> None:
    directory = write_log(tmp_path, timestamp_ms=10)
    expire(directory, AGED)
    assert 1 == len(bases_of(directory))


def test_ul23_compact_alone_lets_go_what_lies_below_the_log_start(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    set_log_start(directory, 5)
    expire(directory, COMPACT)
    assert [5, 10] == bases_of(directory)
    assert log_start_line(directory) is None


@pytest.mark.parametrize(("log_start", "expires"), [(5, False), (8, True)])
def test_ul25_an_open_transaction_begins_at_the_log_start_for_readers(
    tmp_path: Path, log_start: int, expires: bool
) -> None:
    """From 0; cut inside its segment, or with its first segment gone."""
    directory = write_partition(
        tmp_path,
        {
            0: data_batch(0, 7, [b"k%d" % i for i in range(8)]),
            8: data_batch(8, 7, [b"a", b"b"], sequence=8),
            10: one(10, b"c"),
        },
    )
    write_snapshot(directory, 8, [ProducerEntry(7, 0, 7, 7, 7, NOW_MS, -1, 0)])
    write_snapshot(directory, 10, [ProducerEntry(7, 0, 9, 9, 1, NOW_MS, -1, 0)])
    set_log_start(directory, log_start)
    if expires:
        expire(directory)
        assert [8, 10] == bases_of(directory)
    request = clean_request(directory)
    checkpoints = load_checkpoints(LocalFiles(), tmp_path)
    survey = survey_partition(request.partitions[0], request, checkpoints, LocalFiles(), NOW_MS)
    assert log_start == survey.last_stable


def test_where_the_log_start_lies_between_batches_what_follows_counts(tmp_path: Path) -> None:
    """All that the transaction has before the gap is deleted: its segment may be cleaned."""
    directory = write_partition(
        tmp_path,
        {
            0: data_batch(0, 7, [b"k%d" % i for i in range(4)]),
            20: data_batch(20, 7, [b"a"], sequence=4),
            30: b"",
        },
    )
    write_snapshot(directory, 20, [ProducerEntry(7, 0, 3, 3, 3, NOW_MS, -1, 0)])
    write_snapshot(directory, 30, [ProducerEntry(7, 0, 4, 20, 0, NOW_MS, -1, 0)])
    set_log_start(directory, 10)
    request = clean_request(directory)
    checkpoints = load_checkpoints(LocalFiles(), tmp_path)
    survey = survey_partition(request.partitions[0], request, checkpoints, LocalFiles(), NOW_MS)
    assert (20, 20) == (survey.last_stable, survey.section.cleanable.bound)


@pytest.mark.parametrize(
    ("sizes", "high_watermark", "expected", "rolls"),
    [
        ([1] * 10, 100, list(range(0, 100, 10)), True),
        ([1] * 10, 95, list(range(0, 90, 10)), False),
        ([1] * 10, 50, [0, 10, 20, 30, 40], False),
        ([1] * 9 + [0], 90, list(range(0, 90, 10)), False),
        ([0], 0, [], False),
        ([1], 10, [0], True),
    ],
)
def test_ul26_only_what_comes_first_goes_and_never_an_empty_last_one(
    sizes: list[int], high_watermark: int, expected: list[int], rolls: bool
) -> None:
    segments = [
        SegmentSummary(i * 10, size, NOW_MS, NOW_MS - DAY_MS, 0, 0) for i, size in enumerate(sizes)
    ]
    log_end = len(sizes) * 10 - (0 if sizes[-1] else 10)
    plan = plan_expiry(
        AGED, segments, log_start=0, log_end=log_end, high_watermark=high_watermark, now_ms=NOW_MS
    )
    assert expected == [each.segment.base_offset for each in plan.expired]
    assert {ExpiryRule.TIME} >= {each.rule for each in plan.expired}
    assert rolls == plan.rolls_active


def test_ul26_a_young_segment_ends_the_walk(tmp_path: Path) -> None:
    directory = write_log(tmp_path, segments=5, timestamp_ms=OLD_MS, times={2: NOW_MS})
    report = expire(directory, AGED)
    assert [0, 5] == [segment.base for segment in report.segments]
    assert ("segment 10 stays: its newest record is 0 ms old, retention.ms is 999 ms",) == (
        report.notes
    )


@pytest.mark.parametrize("records", [0, 1, 25])
def test_ul27_the_log_end_is_where_it_was(tmp_path: Path, records: int) -> None:
    data = b"".join(one(i, b"k%d" % i, timestamp=OLD_MS) for i in range(records))
    directory = write_partition(tmp_path, {0: data})
    expire(directory, AGED)
    request = expiry_request(directory, AGED)
    checkpoints = load_checkpoints(LocalFiles(), tmp_path)
    survey = survey_partition(request.partitions[0], request, checkpoints, LocalFiles(), NOW_MS)
    assert ([records], records) == (bases_of(directory), survey.tail.log_end)
