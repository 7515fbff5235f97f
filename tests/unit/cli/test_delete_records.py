"""``keeplast delete-records`` as its user sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.expiring_log import log_start_line, write_log
from tests.support.partition_maker import bases_of
from tests.unit.cli.conftest import Command

POLICY = ("--config", "cleanup.policy=compact,delete")
WHERE = ("--topic", "t", "--partition", 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A partition of three segments, from 0, 5 and 10."""
    return write_log(tmp_path / "data")


def test_it_says_what_moved_and_when_the_bytes_go(keeplast: Command, log: Path) -> None:
    run = keeplast("delete-records", log.parent, *WHERE, "--before-offset", 7, *POLICY, code=0)
    assert "t-0: log start moved from 0 to 7; readers see 7..15" in run.out
    assert "1 segment wholly below (0, " in run.out
    said = "removed now by --remove, later by a broker's next retention check, or by the next"
    assert f"{said} clean or run, unless its round joins it with what follows" in run.out
    assert "segment 5 (" in run.out
    assert 7 == log_start_line(log)


@pytest.mark.parametrize(
    ("segment_bytes", "removes", "expected"),
    [(1 << 20, False, [0, 10]), (14, False, [5, 10]), (1 << 20, True, [5, 10])],
)
def test_a_round_may_join_what_is_below_with_what_follows_unless_it_was_removed(
    keeplast: Command, log: Path, segment_bytes: int, removes: bool, expected: list[int]
) -> None:
    """A round in which each segment stays alone takes what is below off the disk behind it."""
    where = [*WHERE, "--before-offset", 7, *POLICY, *(["--remove"] if removes else [])]
    assert 0 == keeplast("delete-records", log.parent, *where).code
    more = ("--config", f"segment.bytes={segment_bytes}", "--config", "retention.ms=-1")
    keeplast(
        "clean",
        log.parent,
        *WHERE,
        *POLICY,
        *more,
        "--despite",
        "dirty-ratio",
        "--selection",
        "kafka",
        code=0,
    )
    assert expected == bases_of(log)


def test_a_dry_run_changes_nothing(keeplast: Command, log: Path) -> None:
    run = keeplast("delete-records", log.parent, *WHERE, "--before-offset", 7, *POLICY, "--dry-run")
    assert "log start would be moved from 0 to 7" in run.out
    assert log_start_line(log) is None


def test_the_document(keeplast: Command, log: Path) -> None:
    run = keeplast(
        "delete-records", log, *WHERE, "--before-offset", -1, *POLICY, "--remove", "--json"
    )
    document = run.document
    assert (0, 15, True, True, False) == tuple(
        document[name]
        for name in ("log_start_before", "log_start", "changed", "removed", "dry_run")
    )
    assert [0, 5] == [segment["base"] for segment in document["below"]]
    assert 10 == document["partly"]["base"]
    assert [10] == bases_of(log)


def test_a_topic_that_only_deletes_is_refused_because_no_round_will_do_it(
    keeplast: Command, log: Path
) -> None:
    policy = ("--config", "cleanup.policy=delete")
    run = keeplast("delete-records", log.parent, *WHERE, "--before-offset", 5, *policy)
    assert "removed by --remove, or by a broker's next retention check" in run.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--before-offset", 7), 4, "cleanup.policy of the topic is unknown"),
        (("--before-offset", 7, "--config", "cleanup.policy=compact"), 4, "without delete"),
        (("--before-offset", 16, *POLICY), 4, "above the high watermark"),
        (("--before-offset", 9, "--high-watermark", 8, *POLICY), 4, "above the high watermark"),
        (("--before-offset", -2, *POLICY), 2, ""),
        (POLICY, 2, ""),
    ],
)
def test_what_is_refused(
    keeplast: Command, log: Path, arguments: tuple[object, ...], code: int, words: str
) -> None:
    run = keeplast("delete-records", log.parent, *WHERE, *arguments, code=code)
    assert words in run.err
    assert log_start_line(log) is None


def test_nothing_to_delete_is_said(keeplast: Command, log: Path) -> None:
    run = keeplast("delete-records", log.parent, *WHERE, "--before-offset", 0, *POLICY)
    assert (0, "t-0: nothing to delete, the log starts at 0 already\n") == (run.code, run.out)
