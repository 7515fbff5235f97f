"""DeleteRecords: what moves, what is refused, and what stays on the disk for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.log.lock import locked
from keeplast.model.topic_config import TopicConfig
from keeplast.run.expiry import DeleteRecordsReport, delete_records
from tests.support.expiring_log import (
    BOTH,
    cleaner_checkpoint,
    epochs_of,
    expire,
    expiry_request,
    log_start_line,
    set_cleaner_checkpoint,
    set_log_start,
    write_log,
)
from tests.support.observed_files import ObservedFiles, UnsyncedFiles
from tests.support.partition_maker import COMPACT, bases_of, clean_request, coordinator, last_round

DELETE = TopicConfig()


def delete(
    directory: Path,
    before_offset: int,
    *,
    topic: TopicConfig = BOTH,
    high_watermark: int | None = None,
    removes: bool = False,
    writes: bool = True,
) -> DeleteRecordsReport:
    return delete_records(
        expiry_request(directory, topic).partitions[0],
        UnsyncedFiles(),
        before_offset=before_offset,
        high_watermark=high_watermark,
        removes=removes,
        writes=writes,
        warned=pytest.fail,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_log(tmp_path)


def test_the_log_start_moves_and_nothing_else_of_the_log(directory: Path) -> None:
    segments = {path.name: path.read_bytes() for path in directory.glob("0*")}
    report = delete(directory, 7)
    assert (0, 7, True) == (report.log_start_before, report.log_start, report.changed)
    assert ([0], 5) == ([s.base for s in report.below], report.partly and report.partly.base)
    assert 7 == log_start_line(directory)
    assert [(1, 7), (2, 10)] == epochs_of(directory)
    assert segments == {path.name: path.read_bytes() for path in directory.glob("0*")}


def test_minus_one_is_the_high_watermark(tmp_path: Path) -> None:
    assert 12 == delete(write_log(tmp_path), -1, high_watermark=12).log_start


@pytest.mark.parametrize("offset", [26, 101])
def test_ul24_the_log_start_cannot_pass_the_high_watermark(tmp_path: Path, offset: int) -> None:
    directory = write_log(tmp_path, segments=20)
    with pytest.raises(RefusedError):
        delete(directory, offset, high_watermark=25)
    assert log_start_line(directory) is None
    assert 25 == delete(directory, 25, high_watermark=25).log_start


@pytest.mark.parametrize("offset", [0, 3, 7])
def test_an_offset_that_is_not_above_the_log_start_is_no_error(
    directory: Path, offset: int
) -> None:
    set_log_start(directory, 7)
    report = delete(directory, offset)
    assert (False, 7, 7) == (report.changed, report.log_start, log_start_line(directory))


def test_another_negative_offset_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(InvalidError):
        delete(write_log(tmp_path), -2)


@pytest.mark.parametrize("policy", [{"compact"}, set[str]()])
def test_a_policy_without_delete_is_refused(tmp_path: Path, policy: set[str]) -> None:
    with pytest.raises(RefusedError):
        delete(write_log(tmp_path), 7, topic=TopicConfig(cleanup_policy=frozenset(policy)))


def test_a_topic_that_is_not_compacted_may_too_and_keeps_its_old_cleaner_checkpoint(
    directory: Path,
) -> None:
    set_cleaner_checkpoint(directory, 5)
    delete(directory, 12, topic=DELETE)
    assert (12, 5) == (log_start_line(directory), cleaner_checkpoint(directory))


def test_x53_the_checkpoint_of_a_compacted_log_is_repaired_with_it(directory: Path) -> None:
    set_cleaner_checkpoint(directory, 5)
    delete(directory, 12)
    assert 12 == cleaner_checkpoint(directory)


def test_a_directory_in_use_is_refused_and_a_rehearsal_is_not(
    directory: Path, tmp_path: Path
) -> None:
    with locked(tmp_path):
        with pytest.raises(RefusedError):
            delete(directory, 7)
        assert 7 == delete(directory, 7, writes=False).log_start
    assert log_start_line(directory) is None


def test_segments_below_can_go_at_once(tmp_path: Path) -> None:
    directory = write_log(tmp_path, timestamp_ms=0)
    report = delete(directory, 7, removes=True)
    assert (True, [5, 10], 7) == (report.removed, bases_of(directory), log_start_line(directory))
    # Nothing but the log start was looked at: retention would have taken the rest as well.
    report = delete(directory, 10, removes=True)
    assert ([10], None) == (bases_of(directory), log_start_line(directory))


def test_all_of_a_log_may_be_deleted_and_its_end_stays(directory: Path) -> None:
    report = delete(directory, -1, removes=True)
    assert (15, 15, [10]) == (report.log_start, report.log_end, bases_of(directory))
    assert report.partly is not None
    assert 10 == report.partly.base


def test_a_log_start_beyond_the_end_is_corrupt(directory: Path) -> None:
    set_log_start(directory, 16)
    with pytest.raises(CorruptError):
        delete(directory, 1)


def test_what_a_crash_left_of_a_swap_is_dealt_with_first(directory: Path) -> None:
    (directory / f"{0:020d}.log.cleaned").write_bytes(b"half")
    delete(directory, 7)
    assert not list(directory.glob("*.cleaned"))


def test_a_file_that_cannot_be_removed_is_said(tmp_path: Path) -> None:
    class Stubborn(ObservedFiles):
        def unlink(self, path: Path) -> None:
            raise PermissionError(1, "not permitted", str(path))

    directory = write_log(tmp_path)
    said: list[str] = []
    report = delete_records(
        expiry_request(directory).partitions[0],
        Stubborn(),
        before_offset=5,
        removes=True,
        warned=said.append,
    )
    assert (5, [5, 10]) == (report.log_start, bases_of(directory))
    assert 3 == len(said)
    expire(directory)
    assert not list(directory.glob("*.deleted"))


def test_a_round_starts_at_the_log_start_and_keeps_what_lies_before_it_in_its_segment(
    directory: Path,
) -> None:
    """X61: records below the log start are treated like any other as long as they are there."""
    delete(directory, 7)
    request = clean_request(directory, topic=COMPACT)
    planned = last_round(coordinator().plan(request))
    done = last_round(coordinator().clean(request))
    assert (7, 7, 10) == (done.log_start, done.first_dirty, done.bound)
    assert (7, 7, 10) == (planned.log_start, planned.first_dirty, planned.bound)
    assert [0, 10] == bases_of(directory)
