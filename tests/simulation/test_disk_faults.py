"""A disk that fails: every operation of ``clean`` once, and from some operation on for good.

The report names what failed and where. The log is then as it was, or as the last whole wave left
it; nothing of ours lies about where it could be removed; and the next call on a sound disk ends
where it would have ended at once.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from keeplast.cli.frame.command import CORRUPT, FAILED, round_exit_code
from keeplast.format.filename import CLEANED_FOR, parse_segment_file
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.run.foresight import RESERVE_BYTES_MIN
from keeplast.survey.report import RoundReport
from tests.support.crash_logs import MERGING
from tests.support.faulty_files import FaultyFiles, ShortReads, Verb
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    clean,
    clean_request,
    coordinator,
    last_round,
)
from tests.support.reader import read_partition
from tests.support.replay import tree
from tests.support.turns import Turn

ROOM = RESERVE_BYTES_MIN + 1500


class Fault(Struct, frozen=True):
    """What the disk says to which operations."""

    verbs: frozenset[Verb]
    code: int


FAULTS = {
    "full disk": Fault(frozenset({"open", "write"}), errno.ENOSPC),
    "sync of a file": Fault(frozenset({"fsync"}), errno.EIO),
    "sync of a directory": Fault(frozenset({"flush"}), errno.EIO),
    "rename": Fault(frozenset({"rename"}), errno.EIO),
}
READ_ONLY = Fault(frozenset({"open", "rename", "unlink", "time"}), errno.EROFS)


class Limited(FaultyFiles):
    """Room for a few groups at once, so that there are several waves."""

    def free_bytes(self, path: Path) -> int:
        return ROOM


def report_of(directory: Path, files: FileSystem) -> RoundReport:
    return last_round(coordinator(files=files).clean(clean_request(directory, topic=MERGING)))


def staged_names(directory: Path) -> list[str]:
    parsed = {path.name: parse_segment_file(path.name) for path in directory.iterdir()}
    return sorted(name for name, file in parsed.items() if file is not None and file.stage)


def states(directory: Path) -> list[dict[bytes, bytes]]:
    log = read_partition(directory)
    return log.final_values_from(range(log.end_offset + 1))


class Outcome(Struct, frozen=True):
    """A log before and after a clean that met a fault."""

    directory: Path
    before: dict[str, tuple[str, int]]
    report: RoundReport
    files: Limited


def outcomes(root: Path, fault: Fault, turn: Turn, *, lasts: bool) -> Iterator[Outcome]:
    """Fail at the operations whose turn it is, each time with a new log."""
    counting = Limited(fault.verbs, fault.code, fail_at=None)
    assert report_of(write_mixed_log(root / "counting"), counting).error is None
    for fail_at in (number for number in range(counting.count) if turn.takes(number, 3)):
        directory = write_mixed_log(root / str(fail_at))
        before = tree(directory)
        files = Limited(fault.verbs, fault.code, fail_at=fail_at, lasts=lasts)
        yield Outcome(directory, before, report_of(directory, files), files)
        shutil.rmtree(directory.parent)


@pytest.fixture
def expected(tmp_path: Path) -> list[dict[bytes, bytes]]:
    """What readers of the log see, wherever they start."""
    return states(write_mixed_log(tmp_path / "original"))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_passes_leaves_a_whole_log_and_says_where(
    tmp_path: Path, expected: list[dict[bytes, bytes]], turn: Turn, name: str
) -> None:
    for each in outcomes(tmp_path, FAULTS[name], turn, lasts=False):
        assert_is_named(each.report, each.files)
        if not each.files.renames:
            assert each.before == tree(each.directory)
        assert expected == states(each.directory)
        assert [] == staged_names(each.directory)
        clean(clean_request(each.directory, topic=MERGING))
        assert expected == states(each.directory)


@pytest.mark.parametrize("fault", [*FAULTS.values(), READ_ONLY], ids=[*FAULTS, "read-only"])
def test_a_fault_that_stays_leaves_what_the_next_call_finishes(
    tmp_path: Path, expected: list[dict[bytes, bytes]], turn: Turn, fault: Fault
) -> None:
    for each in outcomes(tmp_path, fault, turn, lasts=True):
        assert_is_named(each.report, each.files)
        if not each.files.renames:
            live = {n: f for n, f in tree(each.directory).items() if n in each.before}
            assert each.before == live
        clean(clean_request(each.directory, topic=MERGING))
        assert expected == states(each.directory)
        assert [] == staged_names(each.directory)


def assert_is_named(report: RoundReport, files: FaultyFiles) -> None:
    if report.error is None:
        # The round is over: a note that stays behind it says what the checkpoint does.
        assert {CLEANED_FOR} == {Path(path).name for path in files.failed_paths}
        return
    assert FAILED == round_exit_code(report)
    assert report.error.path in files.failed_paths
    assert report.error.path in report.error.message


@pytest.mark.parametrize("lasts", [False, True])
def test_a_file_that_cannot_be_removed_is_left_for_the_next_call(
    tmp_path: Path, expected: list[dict[bytes, bytes]], turn: Turn, lasts: bool
) -> None:
    """The log is clean, only the room is not there yet."""
    fault = Fault(frozenset({"unlink"}), errno.EIO)
    for each in outcomes(tmp_path, fault, turn, lasts=lasts):
        assert each.report.error is None
        assert expected == states(each.directory)
        # What a checkpoint is tried with before the round is no file of the log, nor is a note.
        assert staged_names(each.directory) or all(
            p.endswith((".tmp", CLEANED_FOR)) for p in each.files.failed_paths
        )
        clean(replace(clean_request(each.directory, topic=MERGING), first_dirty_offset=0))
        assert expected == states(each.directory)
        assert [] == staged_names(each.directory)


def test_a_file_that_ends_early_is_corrupt_and_nothing_is_changed(
    tmp_path: Path, turn: Turn
) -> None:
    counting = ShortReads(short_at=None)
    assert report_of(write_mixed_log(tmp_path / "counting"), counting).error is None
    failed = 0
    for short_at in (number for number in range(counting.count) if turn.takes(number, 3)):
        directory = write_mixed_log(tmp_path / str(short_at))
        before, expected = tree(directory), states(directory)
        files = ShortReads(short_at=short_at)
        report = report_of(directory, files)
        if files.short_path is None or report.error is None:
            # An index was made again from the batches, or the last byte was of no interest.
            assert expected == states(directory)
            continue
        failed += 1
        assert round_exit_code(report) in (CORRUPT, FAILED)
        assert report.error.path is not None
        assert before == tree(directory)
    assert failed > 0


@pytest.mark.parametrize("name", ["full disk", "sync of a file"])
def test_other_partitions_are_cleaned_all_the_same(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    directory = write_mixed_log(tmp_path)
    other = directory.with_name("t-1")
    shutil.copytree(directory, other)
    first = clean_request(directory, topic=MERGING)
    (partition,) = first.partitions
    second = replace(partition, partition=TopicPartition("t", 1), path=other)
    # The first file that is opened tries the checkpoint, which both have in common.
    files = Limited(fault.verbs, fault.code, fail_at=int("open" in fault.verbs))
    request = replace(first, partitions=(partition, second))
    broken, sound = coordinator(files=files).clean(request).partitions
    assert broken.rounds[-1].error is not None
    assert sound.rounds[-1].error is None
