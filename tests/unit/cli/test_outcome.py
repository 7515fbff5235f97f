"""The last line of a command: exit code 0 that hides nothing; failures stand once, in full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.cleaner.reasons import NotCompacted
from keeplast.cli.show.output import print_result
from keeplast.cli.show.rounds import checks_line, closing_line, ends_line
from keeplast.cli.show.tables import summary_table
from keeplast.errors import CorruptError
from keeplast.inspect.verified_log import Check, VerificationReport
from keeplast.model.document import Verdict
from keeplast.rewrite.stats import FilterStats, Reasons, Stats
from keeplast.survey.report import (
    CleanReport,
    PartitionReport,
    RoundReport,
    describe_error,
    joined_reports,
)
from tests.unit.cli.conftest import FakeCoordinator, Run

WHY = "cleanup.policy is delete: the topic is not compacted"
DONE = RoundReport(end_offset=4)
DAMAGE = CorruptError("crc mismatch", path="/d/t-0/x.log", position=7, expected="1", found="2")
FAILED = RoundReport(error=describe_error(DAMAGE), failure=DAMAGE)


def skipped(policy: str) -> RoundReport:
    return RoundReport(skipped=True, cause=NotCompacted(policy))


def report(*rounds: RoundReport) -> CleanReport:
    return CleanReport(tuple(PartitionReport("t", i, (each,)) for i, each in enumerate(rounds)))


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ((DONE, skipped("delete")), f"1 cleaned; 1 skipped: {WHY}"),
        ((skipped("delete"), skipped("delete")), f"2 skipped: {WHY}"),
        ((skipped("a"), skipped("b")), "2 skipped: the reasons stand above"),
        ((DONE, DONE, FAILED), "2 cleaned; 1 failed: the errors follow on stderr"),
        ((), "no partition was looked at"),
    ],
)
def test_the_closing_line_counts_how_partitions_ended(
    rounds: tuple[RoundReport, ...], expected: str
) -> None:
    assert expected == closing_line(report(*rounds))


@pytest.mark.parametrize(
    ("ends", "failed", "expected"),
    [
        ({"copied (2 segments)": 1, "had nothing new": 0}, 0, "1 copied (2 segments)"),
        ({"copied": 1, "had nothing new": 3}, 0, "1 copied; 3 had nothing new"),
        ({"copied": 1}, 2, "1 copied; 2 failed: the errors stand on stderr"),
        ({}, 1, "1 failed: the errors stand on stderr"),
        ({"copied": 0}, 0, "no partition was looked at"),
    ],
)
def test_a_step_of_the_tier_counts_what_happened_to_partitions(
    ends: dict[str, int], failed: int, expected: str
) -> None:
    assert expected == ends_line(ends, failed=failed)


@pytest.mark.parametrize("command", ["clean", "plan"])
def test_a_call_that_skipped_everything_ends_with_0_and_says_so(
    keeplast: Callable[..., Run],
    coordinator: FakeCoordinator,
    data_dir: Path,
    command: str,
) -> None:
    coordinator.answer = lambda: skipped("delete")
    run = keeplast(command, data_dir, "--config", "cleanup.policy=compact")
    said = f"1 skipped: {WHY}"
    assert (0, said) == (run.code, run.out.splitlines()[-1])


def test_a_failure_is_reported_once_and_in_full(
    keeplast: Callable[..., Run], coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = lambda: FAILED
    run = keeplast("clean", data_dir, "--config", "cleanup.policy=compact")
    said = "crc mismatch. path=/d/t-0/x.log position=7 expected=1 found=2"
    assert (3, 1) == (run.code, (run.out + run.err).count(said))
    assert f"error: t-0: {said}" == run.err.splitlines()[-1]
    assert "see below" not in run.out
    assert "failed" in run.out.splitlines()[1].split()
    assert "1 failed: the errors follow on stderr" == run.out.splitlines()[-1]


def test_parts_that_cannot_be_judged_are_named_with_exit_code_0() -> None:
    unjudged = Check("winners", "all", Verdict.UNJUDGED, 0, (), ("records are gone",))
    held = VerificationReport("t-0", (Check("readable", "all", Verdict.HOLDS, 0, (), ()),))
    reports = [held, VerificationReport("t-1", (unjudged,))]
    counts = "1 verified, 1 cannot be judged"
    why = ": the reasons stand above; with --strict that is exit code 1"
    assert counts + why == checks_line(reports, is_strict=False)
    assert counts == checks_line(reports, is_strict=True)
    assert "no partition was checked" == checks_line([], is_strict=False)


def test_a_round_that_filters_shortened_shows_the_log_and_how_many_records_went(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Records that were not read are not counted."""
    filters = FilterStats(
        clean_segments=9, clean_bytes=9000, skipped_segments=8, skipped_bytes=8000
    )
    round_ = RoundReport(
        clean_bytes=9000, cleanable_bytes=1000, filters=filters,
        stats=Stats(
            messages_read=200, messages_written=150, bytes_read=2000, bytes_written=1500,
            tombstones_read=4, tombstones_written=3,
        ),
        reasons=Reasons(superseded_records=48, marker_records=1, tombstone_records=1),
    )  # fmt: skip
    later = RoundReport(
        stats=Stats(messages_read=100, messages_written=90, bytes_read=800, bytes_written=700),
        reasons=Reasons(superseded_records=10), filters=filters,
    )  # fmt: skip
    for shown, cells in (
        (round_, ["10,000", "B", "->", "9,500", "B", "-50", "-1"]),
        (joined_reports(round_, later), ["10,000", "B", "->", "9,400", "B", "-60", "-1"]),
    ):
        print_result(summary_table(report(shown)))
        assert ["t-0", *cells] == capsys.readouterr().out.splitlines()[1].split()


def test_a_round_in_chunks_shows_the_log_before_and_after(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = RoundReport(
        stats=Stats(messages_read=264, messages_written=105, bytes_read=900, bytes_written=400),
        reasons=Reasons(superseded_records=159),
    )
    second = RoundReport(
        stats=Stats(messages_read=180, messages_written=99, bytes_read=700, bytes_written=350),
        reasons=Reasons(superseded_records=80, marker_records=1),
    )
    joined = joined_reports(first, second)
    print_result(summary_table(report(joined)))
    row = capsys.readouterr().out.splitlines()[1].split()
    assert ["t-0", "1,200", "B", "->", "350", "B", "339", "->", "99", "0", "->", "0"] == row
    assert "last_chunk" not in joined.as_document()
