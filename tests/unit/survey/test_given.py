"""What a caller gives in place of what a directory says: it holds a round back, or is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import keeplast
from keeplast.cleaner.log_order import Order
from keeplast.errors import RefusedError
from keeplast.format.batch import RecordBatch
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.document import encode
from keeplast.model.topic_config import Shape, Strategy, TopicConfig
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    PARTITION,
    bases_of,
    clean_request,
    coordinator,
    data_batch,
    last_round,
    marker,
    one,
    records_of,
    write_partition,
)
from tests.support.replay import tree

EXPIRING = replace(COMPACT, cleanup_policy=frozenset({"compact", "delete"}))
"""A value that each option lifts a limit with, of the log that ``log`` writes."""
LIFTS: list[tuple[dict[str, Any], str]] = [
    ({"first_dirty_offset": 6}, "--first-dirty-offset 6 is above the first dirty offset, 4"),
    ({"high_watermark": 9}, "--high-watermark 9 is above the high watermark, 8"),
    ({"log_start_offset": 3}, "--log-start-offset 3 is above the log start, 2"),
    (
        {"uncleanable_offset": 10},
        "--uncleanable-offset 10 is above the first uncleanable offset, 8",
    ),
    ({"now_ms": NOW_MS + 1}, f"--now-ms {NOW_MS + 1} is ahead of the clock, {NOW_MS}"),
]
LOWER: list[dict[str, Any]] = [
    {"first_dirty_offset": 2},
    {"high_watermark": 6},
    {"log_start_offset": 0},
    {"uncleanable_offset": 6},
    {"now_ms": NOW_MS - 1},
]


def point(root: Path, name: str, offset: int) -> None:
    """Write a checkpoint of the partition."""
    (root / name).write_bytes(encode_offsets({PARTITION: offset}))


def checkpoint(root: Path) -> int | None:
    return read_checkpoint(LocalFiles(), root, CLEANER_CHECKPOINT).get(PARTITION)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Segments of two records from 0 to 10; start 2, clean to 4, replicated to 8."""
    directory = write_partition(
        tmp_path / "data",
        {base: one(base, b"a") + one(base + 1, b"%d" % base) for base in range(0, 12, 2)},
    )
    point(directory.parent, LOG_START_CHECKPOINT, 2)
    point(directory.parent, CLEANER_CHECKPOINT, 4)
    point(directory.parent, REPLICATION_CHECKPOINT, 8)
    return directory


def asked(directory: Path, *, topic: TopicConfig = COMPACT, **given: Any) -> CleanRequest:
    """Return a request without force."""
    request = replace(clean_request(directory, topic=topic), now_ms=None, is_unsafe=False)
    return replace(request, **given)


def clean(request: CleanRequest) -> RoundReport:
    """Clean by a clock that says :data:`NOW_MS`, and return the last round."""
    report = last_round(coordinator(clock=ManualClock(NOW_MS)).clean(request))
    assert report.failure is None, report.failure
    return report


@pytest.mark.parametrize(("given", "why"), LIFTS)
def test_what_lifts_a_limit_is_refused_before_anything_is_written(
    log: Path, tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    before = tree(log.parent)
    for how in ({}, {"roll_active": True}, {"target": tmp_path / "new"}):
        with pytest.raises(RefusedError, match=re.escape(why)) as caught:
            coordinator(clock=ManualClock(NOW_MS)).clean(asked(log, **how, **given))
        assert "--despite log-bounds" in str(caught.value)
    assert before == tree(log.parent)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("given", "why"), LIFTS)
def test_a_plan_shows_what_a_lift_would_do_and_says_that_clean_refuses_it(
    log: Path, given: dict[str, Any], why: str
) -> None:
    request = asked(log, **given)
    report = last_round(coordinator(clock=ManualClock(NOW_MS)).plan(request))
    assert report.failure is None
    assert f"clean refuses this: {why}" in " ".join(report.notes)


@pytest.mark.parametrize(("given", "why"), LIFTS)
def test_the_receipt_of_an_unsafe_round_says_what_was_lifted(
    log: Path, tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    receipt = tmp_path / "receipt"
    clean(asked(log, is_unsafe=True, receipt=receipt, **given))
    (line,) = map(json.loads, receipt.read_text().splitlines())
    assert line["unsafe"] is True
    assert why in " ".join(line["lifts"])


@pytest.mark.parametrize("given", LOWER)
def test_a_value_that_holds_back_lifts_no_limit(
    log: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    receipt = tmp_path / "receipt"
    report = clean(asked(log, receipt=receipt, **given))
    (line,) = map(json.loads, receipt.read_text().splitlines())
    assert (False, []) == (line["unsafe"], line["lifts"])
    assert (report.bound or 0) <= 8


@pytest.mark.parametrize("given", [{"uncleanable_offset": 9}, {"high_watermark": 9}])
def test_an_undecided_record_supersedes_nothing_whatever_is_given(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    directory = write_partition(
        tmp_path, {0: one(0, b"k", b"committed"), 1: data_batch(1, 7, [b"k"]), 2: one(2, b"x")}
    )
    point(tmp_path, REPLICATION_CHECKPOINT, 1)
    with pytest.raises(RefusedError, match="--despite log-bounds"):
        coordinator(clock=ManualClock(NOW_MS)).clean(asked(directory, **given))
    clean(asked(directory))
    assert [b"committed"] == [r.value for r in records_of(directory) if r.offset == 0]


def test_nothing_given_beyond_the_active_segment_is_a_lift_where_the_bound_is_the_same(
    log: Path,
) -> None:
    point(log.parent, REPLICATION_CHECKPOINT, 12)
    assert 10 == clean(asked(log, uncleanable_offset=11)).bound


def test_an_unsafe_first_dirty_offset_leaves_the_checkpoint_where_the_log_is_clean(
    log: Path,
) -> None:
    report = clean(asked(log, first_dirty_offset=6, is_unsafe=True))
    assert (6, 8) == (report.first_dirty, report.end_offset)
    assert 4 == checkpoint(log.parent)
    # And so the next round finds what that one left out.
    assert 4 == clean(asked(log)).first_dirty
    assert 8 == checkpoint(log.parent)


def test_an_unsafe_log_start_leaves_the_checkpoint_where_the_log_is_clean(log: Path) -> None:
    clean(asked(log, log_start_offset=6, is_unsafe=True))
    assert 4 == checkpoint(log.parent)
    # Also where no round follows: a checkpoint below the given start is no reason to move it.
    clean(asked(log, log_start_offset=6, is_unsafe=True, uncleanable_offset=0))
    assert 4 == checkpoint(log.parent)


def test_later_rounds_of_an_unsafe_call_begin_where_the_log_is_clean(log: Path) -> None:
    request = asked(log, first_dirty_offset=6, is_unsafe=True, rounds=None)
    cleaner = replace(request.partitions[0].cleaner, key_map_bytes=24, load_factor=1.0)
    partitions = (replace(request.partitions[0], cleaner=cleaner),)
    report = coordinator(clock=ManualClock(NOW_MS)).clean(replace(request, partitions=partitions))
    assert [6, 4] == [each.first_dirty for each in report.partitions[0].rounds][:2]


def test_a_clock_that_is_late_dates_no_horizon_before_the_machines_clock(
    tmp_path: Path,
) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"k", None), 1: one(1, b"x"), 2: b""})
    clean(asked(directory, now_ms=1000))
    (first, *_) = read_batches((directory / f"{0:020d}.log").read_bytes())
    assert isinstance(first, RecordBatch)
    assert NOW_MS + DAY_MS == first.delete_horizon_ms
    # The next round, by the clock that everybody has, still finds the tombstone.
    clean(asked(directory, first_dirty_offset=0))
    assert 0 in [record.offset for record in records_of(directory)]


@pytest.mark.parametrize("shape", [None, Shape.BUCKET, Shape.BROADCAST])
@pytest.mark.parametrize("given", [{}, {"first_dirty_offset": 0}, {"log_start_offset": 0}])
def test_a_deleted_record_outranks_nothing(
    tmp_path: Path, given: dict[str, Any], shape: Shape | None
) -> None:
    topic = replace(COMPACT, strategy=Strategy.TIMESTAMP)
    directory = write_partition(
        tmp_path, {0: one(0, b"k", b"deleted", 100), 1: one(1, b"k", b"kept", 50), 2: b""}
    )
    point(tmp_path, LOG_START_CHECKPOINT, 1)
    clean(asked(directory, topic=topic, shape=shape, **given))
    assert b"kept" in [record.value for record in records_of(directory)]


def test_deleting_above_the_high_watermark_of_the_directory_is_refused(log: Path) -> None:
    before = tree(log.parent)
    opened = keeplast.open_log(log)
    with pytest.raises(RefusedError, match="--high-watermark 9 is above the high watermark, 8"):
        opened.delete_records(EXPIRING, before_offset=9, high_watermark=9)
    assert before == tree(log.parent)
    report = opened.delete_records(EXPIRING, before_offset=9, high_watermark=9, is_unsafe=True)
    assert ["--high-watermark 9 is above the high watermark, 8"] == encode(report)["lifts"]
    assert 9 == opened.log_start_offset()


def test_expiring_by_a_clock_that_is_ahead_is_refused(tmp_path: Path) -> None:
    old = {0: one(0, b"a", b"v", NOW_MS), 1: one(1, b"b", b"v", NOW_MS), 2: b""}
    directory = write_partition(tmp_path, old)
    topic = replace(EXPIRING, retention_ms=DAY_MS)
    request = asked(directory, topic=topic, now_ms=NOW_MS + 2 * DAY_MS)
    (report,) = coordinator(clock=ManualClock(NOW_MS)).expire(request).partitions
    assert report.expiry is not None
    assert isinstance(report.expiry.failure, RefusedError)
    assert [0, 1, 2] == bases_of(directory)
    # An unsafe call does what it says, and what follows a round of a refused one is refused too.
    with pytest.raises(RefusedError, match="ahead of the clock"):
        coordinator(clock=ManualClock(NOW_MS)).clean(replace(request, retention=True))
    unsafe = replace(request, is_unsafe=True)
    coordinator(clock=ManualClock(NOW_MS)).expire(unsafe)
    assert [2] == bases_of(directory)


def test_an_aborted_transaction_stays_undecided_above_the_high_watermark(tmp_path: Path) -> None:
    directory = write_partition(
        tmp_path,
        {
            0: one(0, b"k", b"committed"),
            1: data_batch(1, 7, [b"k"]) + marker(2, 7, ControlType.ABORT),
            3: one(3, b"x"),
        },
    )
    point(tmp_path, REPLICATION_CHECKPOINT, 2)
    assert 1 == clean(asked(directory)).bound
    with pytest.raises(RefusedError, match="--despite log-bounds"):
        coordinator(clock=ManualClock(NOW_MS)).clean(asked(directory, high_watermark=3))


WIDER: list[dict[str, Any]] = [
    {},
    {"force": True},
    {"expired": True},
    {"roll_active": True},
    {"rolls_idle": True},
    {"rounds": 3},
    {"rounds": None},
    {"order": Order.KAFKA},
    {"shape": Shape.BUCKET},
]


def undecided(root: Path) -> Path:
    """Return a log with a transaction open from 2 on, and another record of its key behind it."""
    return write_partition(
        root,
        {
            0: one(0, b"k", b"committed", 1000) + one(1, b"k", b"again", 1000),
            2: data_batch(2, 7, [b"k"]),
            3: one(3, b"k", b"behind", 1000),
        },
    )


@pytest.mark.parametrize("option", WIDER, ids=str)
def test_no_option_moves_the_end_of_a_round(tmp_path: Path, option: dict[str, Any]) -> None:
    topic = replace(EXPIRING, segment_ms=1, max_compaction_lag_ms=1, min_cleanable_dirty_ratio=0.0)
    open_ = undecided(tmp_path / "open")
    assert 2 == clean(asked(open_, topic=topic, **option)).bound
    assert {1, 2, 3} <= {record.offset for record in records_of(open_)}
    behind = undecided(tmp_path / "behind")
    point(behind.parent, REPLICATION_CHECKPOINT, 1)
    assert 0 == clean(asked(behind, topic=topic, **option)).bound
    assert [0, 1, 2, 3] == [record.offset for record in records_of(behind)]
    young = write_partition(tmp_path / "young", {0: one(0, b"a", b"v", NOW_MS), 1: one(1, b"a")})
    lagging = replace(COMPACT, min_compaction_lag_ms=DAY_MS)
    assert 0 == clean(asked(young, topic=lagging, **option)).bound


@pytest.mark.parametrize(
    "changes",
    [
        {"min_compaction_lag_ms": 0},
        {"max_compaction_lag_ms": 1},
        {"min_cleanable_dirty_ratio": 0.0},
        {"segment_ms": 1},
        {"segment_bytes": 14},
        {"delete_retention_ms": 0},
        {"retention_ms": 1, "cleanup_policy": frozenset({"compact", "delete"})},
    ],
    ids=" and ".join,
)
def test_no_setting_moves_the_end_of_a_round(tmp_path: Path, changes: dict[str, Any]) -> None:
    directory = undecided(tmp_path)
    point(tmp_path, REPLICATION_CHECKPOINT, 2)
    request = asked(directory, topic=replace(COMPACT, **changes), rolls_idle=True, retention=True)
    assert 2 == clean(request).bound
    assert {2, 3} <= {record.offset for record in records_of(directory)}


@pytest.mark.parametrize("given", [13, 900])
def test_a_high_watermark_beyond_the_log_end_is_refused_without_a_checkpoint_too(
    log: Path, given: int
) -> None:
    (log.parent / REPLICATION_CHECKPOINT).unlink()
    before = tree(log.parent)
    why = f"--high-watermark {given} is above the high watermark, 12"
    with pytest.raises(RefusedError, match=why):
        clean(asked(log, high_watermark=given))
    opened = keeplast.open_log(log)
    with pytest.raises(RefusedError, match=why):
        opened.delete_records(EXPIRING, before_offset=4, high_watermark=given)
    expired = opened.expire(EXPIRING, high_watermark=given)
    assert why in str(expired.failure)
    assert before == tree(log.parent)
    planned = last_round(
        coordinator(clock=ManualClock(NOW_MS)).plan(asked(log, high_watermark=given))
    )
    assert any(why in note and "--despite log-bounds" in note for note in planned.notes)
    assert clean(asked(log, high_watermark=12)).end_offset == 10
