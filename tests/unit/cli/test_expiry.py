"""What ``plan`` and ``clean`` say of retention and of rolling, and how they are switched off."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.cli.frame.command import report_errors, report_exit_code
from keeplast.cli.show.output import print_result
from keeplast.cli.show.rounds import expiry_table
from keeplast.errors import CorruptError
from keeplast.survey.report import (
    CleanReport,
    ExpiredReport,
    ExpiryReport,
    PartitionReport,
    RoundReport,
    describe_error,
)
from tests.support.existing import existing
from tests.unit.cli.conftest import Command, FakeCoordinator

COMPACT = ("--config", "cleanup.policy=compact", "--runner", "local")


def report(expiry: ExpiryReport) -> CleanReport:
    return CleanReport((PartitionReport("t", 0, (RoundReport(),), expiry),))


def shown(expiry: ExpiryReport, capsys: pytest.CaptureFixture[str], **how: bool) -> str:
    table = existing(expiry_table(report(expiry), "expired", **how))
    print_result(table)
    return " ".join(capsys.readouterr().out.split())


BY_TWO_RULES = ExpiryReport(
    log_start_before=7,
    log_start=15,
    segments=(
        ExpiredReport(0, 100, None, "log_start", "all of it is below the log start offset 7"),
        ExpiredReport(5, 2048, 1, "time", "its newest record is 8 d old, retention.ms is 7 d"),
    ),
    notes=("segment 15 stays: its newest record is 2 d old, retention.ms is 7 d",),
)


def test_a_line_for_each_rule_and_why_the_next_segment_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(BY_TWO_RULES, capsys)
    assert "t-0 by log start offset 1 100 B 7 -> 15 segment 0: all of it" in text
    assert "by retention.ms 1 2,048 B 7 -> 15 segment 5: its newest record is 8 d old" in text
    assert "segment 15 stays:" in text


def test_nothing_to_say_is_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    kept = ExpiryReport(log_start_before=0, log_start=0, notes=("segment 0 stays: it is young",))
    assert expiry_table(report(kept), "expired") is None
    assert expiry_table(report(ExpiryReport()), "expired", explains=True) is None
    assert "t-0 nothing 0 0 B 0 segment 0 stays: it is young" in shown(kept, capsys, explains=True)


def test_an_expiry_that_failed_is_an_error_of_its_partition() -> None:
    error = CorruptError("crc mismatch", path="x.log")
    failed = report(ExpiryReport(error=describe_error(error), failure=error))
    assert (3, ["t-0: crc mismatch. path=x.log"]) == (
        report_exit_code(failed), report_errors(failed),
    )  # fmt: skip
    assert expiry_table(failed, "expired") is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), (True, True)),
        (("--no-retention",), (True, False)),
        (("--selection", "kafka"), (False, True)),
    ],
)
@pytest.mark.parametrize("command", ["plan", "clean"])
def test_it_happens_unless_switched_off(
    keeplast: Command,
    coordinator: FakeCoordinator,
    data_dir: Path,
    command: str,
    flags: tuple[str, ...],
    expected: tuple[bool, bool],
) -> None:
    keeplast(command, data_dir, *COMPACT, *flags, code=0)
    (request,) = coordinator.requests
    assert expected == (request.rolls_idle, request.retention)
