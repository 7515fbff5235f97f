"""How the parts of a directory's status are joined: states, order, bounds, marks, receipts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import CleanableRange
from keeplast.cleaner.dirty_section import LogFigures
from keeplast.cleaner.erasure import BasisKind, Eligibility, ErasureBasis, Pace, find_turn_ms
from keeplast.cleaner.reasons import (
    ActiveLimit,
    DirtyEnough,
    ExpiredDue,
    NotCompacted,
    NothingBelow,
    RatioTooLow,
    TransactionLimit,
)
from keeplast.config.layers import flags_layer
from keeplast.config.precedence import Settings
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.inspect.status import ErasedBy, LogStatus
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.model.partition import INT64_MAX, SegmentSummary, TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.service.schedule import ROUND_BYTES_PER_SECOND, daemon_pace, failing, set_aside
from keeplast.service.status import (
    DirectoryStatus,
    PartitionStatus,
    State,
    find_last_rounds,
    find_sizes,
    find_timestamp_ahead_max,
    join_status,
    read_round_receipts,
)
from keeplast.service.status_words import erased_sentence
from keeplast.survey.report import PartitionReport, RoundReport, describe_error
from keeplast.survey.request import PartitionRequest
from tests.support.existing import existing
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    PARTITION,
    clean,
    clean_request,
    one,
    write_partition,
)

PACE = Pace(bytes_per_second=1000, round_ms=10, slots=1, backoff_ms=100)
SIZES = [100, 200]
DUE = Eligibility(NOW_MS + 50, ErasureBasis(BasisKind.OVERDUE))
WORTH_IT = DirtyEnough(0.6, 0.5)
FIGURES = LogFigures(5, CleanableRange(8, 60, 40), 0, 0, None)
FIGURE_NAMES = {"first_dirty", "cleanable", "compaction_delay_ms"}
Found = list[tuple[PartitionRequest, LogStatus | Exception]]


def request(tmp_path: Path, number: int) -> PartitionRequest:
    partition = TopicPartition("t", number)
    path = tmp_path / str(partition)
    path.mkdir(exist_ok=True)
    return PartitionRequest(partition, path, COMPACT)


def log(tmp_path: Path, number: int, **changes: Any) -> tuple[PartitionRequest, LogStatus]:
    partition = request(tmp_path, number)
    found = LogStatus(
        partition.partition, partition.path, (SegmentSummary(0, 100, 0, -1, 0, 0),), 0, 10,
        FIGURES, None, RatioTooLow(0.4, 0.5), (), False, DUE, None, 0,
    )  # fmt: skip
    mine = {name: changes.pop(name) for name in FIGURE_NAMES & changes.keys()}
    return partition, replace(found, figures=replace(FIGURES, **mine), **changes)


def joined(
    tmp_path: Path, found: Found, decided: tuple[PartitionReport, ...] = (), **marks: Any
) -> DirectoryStatus:
    return join_status(
        found, decided, root=tmp_path, files=LocalFiles(), now_ms=NOW_MS, is_locked=False,
        pace=PACE, marks=marks.get("marks", {}), failures=marks.get("failures", {}),
        last_rounds=find_last_rounds(marks.get("receipts", ())), sizes=SIZES,
    )  # fmt: skip


def only(status: DirectoryStatus) -> PartitionStatus:
    (partition,) = status.partitions
    return partition


def erased_by(status: PartitionStatus) -> ErasedBy:
    assert status.erased_by is not None
    return status.erased_by


def test_the_most_urgent_come_first(tmp_path: Path) -> None:
    damage = CorruptError("bad", path="x", position=3)
    marked = log(tmp_path, 9)
    marks = {
        marked[0].partition: set_aside(
            LocalFiles(), marked[0].partition, marked[0].path, damage, NOW_MS
        )
    }
    refusal = RefusedError("unknown")
    decided = (
        PartitionReport("d", 0, (RoundReport(skipped=True, cause=NotCompacted("delete")),)),
        PartitionReport("r", 0, (RoundReport(error=describe_error(refusal), failure=refusal),)),
    )
    found: Found = [
        log(tmp_path, 0, first_dirty=10),
        log(tmp_path, 1),
        log(tmp_path, 2, cleanable=CleanableRange(8, 10, 40)),
        log(tmp_path, 8, decision=NothingBelow(TransactionLimit(5))),
        log(tmp_path, 10, decision=NothingBelow(ActiveLimit(8))),
        log(tmp_path, 3, decision=ExpiredDue(1, 0), is_expired_round=True),
        log(tmp_path, 4, decision=WORTH_IT),
        log(tmp_path, 5, decision=WORTH_IT, compaction_delay_ms=7),
        log(tmp_path, 6, decision=WORTH_IT, compaction_delay_ms=8),
        (request(tmp_path, 7), damage),
        marked,
    ]
    status = joined(tmp_path, found, decided, marks=marks)
    assert [
        ("t-9", State.SET_ASIDE),
        ("t-7", State.UNREADABLE),
        ("r-0", State.REFUSED),
        ("t-6", State.OVERDUE),
        ("t-5", State.OVERDUE),
        ("t-4", State.ELIGIBLE),
        ("t-3", State.EXPIRED),
        ("t-2", State.NOT_DUE),
        ("t-1", State.NOT_DUE),
        ("t-10", State.NOT_DUE),
        ("t-8", State.HELD_BACK),
        ("t-0", State.CLEAN),
        ("d-0", State.NOT_COMPACTED),
    ] == [(str(each.partition), each.state) for each in status.partitions]


def test_erased_by_is_when_the_round_is_due_and_what_it_may_wait_and_take(tmp_path: Path) -> None:
    erased = erased_by(only(joined(tmp_path, [log(tmp_path, 0)])))
    assert NOW_MS + 50 + find_turn_ms(SIZES, PACE) == erased.by_ms
    assert (NOW_MS + 50, "it is overdue", False) == (
        erased.eligible_by_ms,
        erased.why,
        erased.is_gone,
    )


def test_nothing_dirty_is_gone_but_for_what_a_crash_left(tmp_path: Path) -> None:
    clean_log = {"eligibility": Eligibility(NOW_MS, ErasureBasis(BasisKind.CLEAN), is_clean=True)}
    erased = erased_by(only(joined(tmp_path, [log(tmp_path, 0, **clean_log)])))
    assert (NOW_MS, True) == (erased.by_ms, erased.is_gone)
    erased = erased_by(only(joined(tmp_path, [log(tmp_path, 0, **clean_log, leftover_bytes=1)])))
    assert (NOW_MS + find_turn_ms(SIZES, PACE), False) == (
        erased.by_ms,
        erased.is_gone,
    )


def test_rounds_kept_for_undo_are_not_gone_before_their_time(tmp_path: Path) -> None:
    turn = find_turn_ms(SIZES, PACE)
    dirty = erased_by(only(joined(tmp_path, [log(tmp_path, 0, undo_retention_ms=1000)])))
    assert (NOW_MS + 50 + turn + 1000 + turn, 1000 + turn) == (dirty.by_ms, dirty.undo_ms)
    assert " for undo, while keeplast run goes on" in erased_sentence(dirty, NOW_MS)
    clean_log = {"eligibility": Eligibility(NOW_MS, ErasureBasis(BasisKind.CLEAN), is_clean=True)}
    kept = log(tmp_path, 0, **clean_log, kept_until_ms=NOW_MS + 7, undo_retention_ms=1000)
    erased = erased_by(only(joined(tmp_path, [kept])))
    assert (NOW_MS + 7 + turn, False) == (erased.by_ms, erased.is_gone)
    assert "kept for undo" in erased.why


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            Eligibility(None, ErasureBasis(BasisKind.NO_MAX_LAG)),
            "no date: max.compaction.lag.ms is not set",
        ),
        (CorruptError("bad"), "no date while it cannot be looked at"),
    ],
)
def test_without_a_bound_the_reason_is_given(
    tmp_path: Path, found: Eligibility | Exception, why: str
) -> None:
    entry: tuple[PartitionRequest, LogStatus | Exception] = (
        log(tmp_path, 0, eligibility=found)
        if isinstance(found, Eligibility)
        else (request(tmp_path, 0), found)
    )
    erased = erased_by(only(joined(tmp_path, [entry])))
    assert (None, why) == (erased.by_ms, erased.why)


def test_nothing_is_promised_while_rounds_fail(tmp_path: Path) -> None:
    due, waiting = log(tmp_path, 0, decision=WORTH_IT, compaction_delay_ms=7), log(tmp_path, 1)
    failures = {
        each.partition: failing(LocalFiles(), each.partition, each.path, OSError("full"), NOW_MS)
        for each, _ in (due, waiting)
    }
    first, second = joined(tmp_path, [due, waiting], failures=failures).partitions
    assert (State.FAILING, "full [K530]") == (first.state, first.reason)
    assert first.log is not None
    assert (7, None, True) == (
        first.log.figures.compaction_delay_ms, erased_by(first).by_ms, erased_by(first).is_unknown,
    )  # fmt: skip
    # What needs no round now fails in none.
    assert (State.NOT_DUE, None) == (second.state, second.failing)
    (due[0].path / f"{0:020d}.log").write_bytes(b"cleaned by somebody")
    assert State.OVERDUE is only(joined(tmp_path, [due], failures=failures)).state


def test_a_mark_about_other_files_counts_no_more(tmp_path: Path) -> None:
    found = log(tmp_path, 0)
    (found[0].path / f"{0:020d}.log").write_bytes(b"old")
    mark = set_aside(LocalFiles(), found[0].partition, found[0].path, CorruptError("bad"), NOW_MS)
    marks = {found[0].partition: mark}
    status = only(joined(tmp_path, [found], marks=marks))
    assert (State.SET_ASIDE, "bad", mark) == (status.state, status.reason, status.set_aside)
    assert "no date while it is skipped" == erased_by(status).why
    (found[0].path / f"{0:020d}.log").write_bytes(b"restored")
    assert State.NOT_DUE is only(joined(tmp_path, [found], marks=marks)).state


def test_the_last_round_is_that_of_the_newest_receipt(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a") + one(1, b"a"), 2: one(2, b"b")})
    path = tmp_path / "keeplast-receipts"
    for now_ms in (NOW_MS, NOW_MS + 1):
        asked = replace(clean_request(directory), receipt=path, first_dirty_offset=0)
        report = clean(replace(asked, now_ms=now_ms))
    receipts = read_round_receipts(LocalFiles(), tmp_path, None)
    assert 2 == len(receipts)
    assert receipts == read_round_receipts(LocalFiles(), tmp_path / "none", path)
    found: Found = [log(tmp_path, PARTITION.partition)]
    last = existing(only(joined(tmp_path, found, receipts=receipts)).last_round)
    assert report.stats is not None
    assert (NOW_MS + 1, 0, 2, report.stats.bytes_read, 1) == (
        last.at_ms,
        last.first_dirty,
        last.end_offset,
        last.bytes_read,
        last.records_written,
    )
    assert () == read_round_receipts(LocalFiles(), tmp_path / "none", None)


def test_a_first_receipt_that_a_crash_cut_off_is_none(tmp_path: Path) -> None:
    (tmp_path / "keeplast-receipts").write_bytes(b'{"version":2,"top')
    assert () == read_round_receipts(LocalFiles(), tmp_path, None)
    (tmp_path / "keeplast-receipts").write_bytes(b"no receipt\n")
    with pytest.raises(InvalidError, match="not a receipt"):
        read_round_receipts(LocalFiles(), tmp_path, None)


def test_sizes_are_those_of_all_logs_in_service(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a"), 1: one(1, b"b")})
    (directory / f"{0:020d}.log.deleted").write_bytes(bytes(999))
    write_partition(tmp_path / "x", {0: one(0, b"a")}).rename(tmp_path / "u-3")
    one_size = len(one(0, b"a"))
    found = find_sizes(open_data_directory(tmp_path, LocalFiles()), LocalFiles())
    assert [2 * one_size, one_size] == [*found.values()]


def test_a_log_that_cannot_be_read_has_no_size(tmp_path: Path) -> None:
    write_partition(tmp_path, {0: one(0, b"a")})

    class Unreadable(LocalFiles):
        def listdir(self, path: Path) -> list[str]:
            if path != tmp_path:
                raise PermissionError(13, "Permission denied", str(path))
            return super().listdir(path)

    found = find_sizes(open_data_directory(tmp_path, LocalFiles()), Unreadable())
    assert [0] == [*found.values()]


def test_the_pace_is_a_slow_disks_or_the_limits_or_what_is_said() -> None:
    cleaner = CleanerConfig(backoff_ms=5)
    assert ROUND_BYTES_PER_SECOND == daemon_pace(cleaner, None).bytes_per_second
    limited = replace(cleaner, io_bytes_per_second=3000.0)
    assert 1000 == daemon_pace(limited, None).bytes_per_second
    assert 1500 == daemon_pace(cleaner, 1.5).duration_ms(10**15)
    # A daemon that works looks again after a second at the earliest.
    assert (1000, 1000) == (
        daemon_pace(cleaner, None).backoff_ms,
        daemon_pace(cleaner, 1.5).backoff_ms,
    )
    assert 2000 == daemon_pace(replace(cleaner, backoff_ms=2000), None).backoff_ms


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), INT64_MAX),
        (("message.timestamp.after.max.ms=7",), 7),
        (("message.timestamp.after.max.ms=7", "message.timestamp.difference.max.ms=5"), 5),
        (("message.timestamp.type=LogAppendTime",), 0),
    ],
)
def test_how_far_ahead_a_record_may_be_dated(flags: tuple[str, ...], expected: int) -> None:
    assert expected == find_timestamp_ahead_max(Settings([flags_layer(flags)]), "t")
