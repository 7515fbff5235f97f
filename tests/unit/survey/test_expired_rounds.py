"""Rounds for what has expired alone: what they remove, what they leave, and when there is one."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.format.batch import encode_batch
from keeplast.format.checkpoint import decode_offsets
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.format.record import ControlType, Record
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.log.partition_log import list_partition
from keeplast.model.topic_config import Strategy
from keeplast.run.undo import undo_newest
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest
from keeplast.survey.tombstone_horizons import (
    HOP_BYTES,
    Examination,
    Expired,
    HorizonBook,
    read_horizons,
)
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    PARTITION,
    batches_of,
    clean,
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

LATER_MS = NOW_MS + DAY_MS
"""The horizon that a round at NOW_MS stamps has passed."""


def write_log(root: Path) -> Path:
    """Two closed segments: a tombstone, a transaction whose data goes, and values that stay."""
    return write_partition(
        root,
        {
            0: one(0, b"a") + one(1, b"a", None) + data_batch(2, 7, [b"b"]),
            3: marker(3, 7, ControlType.COMMIT) + one(4, b"b") + one(5, b"c") + one(6, b"c"),
            7: one(7, b"d"),
        },
    )


def expired_request(directory: Path, now_ms: int = LATER_MS) -> CleanRequest:
    return replace(clean_request(directory), force=False, expired=True, now_ms=now_ms)


def checkpoint(directory: Path) -> int:
    return decode_offsets((directory.parent / CLEANER_CHECKPOINT).read_bytes())[PARTITION]


def offsets(directory: Path) -> list[int]:
    return [record.offset for record in records_of(directory)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log that was cleaned twice: its tombstone and its marker have their horizons."""
    directory = write_log(tmp_path)
    clean(clean_request(directory))
    assert [1, 4, 6, 7] == offsets(directory)
    return directory


def test_only_what_has_expired_goes_and_the_checkpoint_stays(directory: Path) -> None:
    assert 7 == checkpoint(directory)
    report = clean(expired_request(directory))
    assert [4, 6, 7] == offsets(directory)
    assert report.is_expired_round
    assert report.reasons is not None
    assert 1 == report.reasons.tombstone_records
    assert 0 == report.reasons.superseded_records
    assert (7, 7, 7) == (report.first_dirty, report.bound, report.end_offset)
    assert 7 == checkpoint(directory)
    assert "a round for what has expired: 1 tombstone batch" in report.notes[0]


def test_nothing_happens_before_the_time_has_passed(directory: Path) -> None:
    before = tree(directory)
    report = last_round(coordinator().clean(expired_request(directory, LATER_MS - 1)))
    assert report.skipped
    assert before == tree(directory)


def test_nothing_happens_unasked(directory: Path) -> None:
    request = replace(expired_request(directory), expired=False)
    assert last_round(coordinator().clean(request)).skipped


def test_a_plan_says_what_would_happen_and_changes_nothing(directory: Path) -> None:
    before = tree(directory)
    for exact in (False, True):
        report = last_round(coordinator().plan(expired_request(directory), exact=exact))
        assert report.is_expired_round
        assert before == tree(directory)


def test_the_dirty_section_stays_as_it_is(directory: Path) -> None:
    """Values that a later record supersedes are not this round's business."""
    (directory / "00000000000000000007.log").unlink()
    write_partition(
        directory.parent, {7: one(7, b"c") + one(8, b"e"), 9: one(9, b"c"), 10: one(10, b"d")}
    )
    request = expired_request(directory)
    topic = replace(COMPACT, min_cleanable_dirty_ratio=1.0)
    request = replace(request, partitions=(replace(request.partitions[0], topic=topic),))
    report = clean(request)
    assert report.is_expired_round
    assert [4, 6, 7, 8, 9, 10] == offsets(directory)
    assert 7 == checkpoint(directory)


def test_a_tombstone_in_the_segment_that_is_partly_dirty_stays(directory: Path) -> None:
    request = replace(expired_request(directory), first_dirty_offset=2)
    report = last_round(coordinator().clean(replace(request, uncleanable_offset=2)))
    assert report.skipped
    assert [1, 4, 6, 7] == offsets(directory)


def repeated(directory: Path, times: list[int]) -> list[RoundReport]:
    cleaning = coordinator()
    return [last_round(cleaning.clean(expired_request(directory, now))) for now in times]


def test_one_round_is_enough_for_one_horizon(tmp_path: Path) -> None:
    """What stays although its time has passed is no reason for round after round."""
    value = encode_batch([Record(0, NOW_MS, b"a", b"v")], delete_horizon_ms=NOW_MS + 1)
    directory = write_partition(tmp_path, {0: value, 1: one(1, b"z")})
    clean(clean_request(directory))
    assert [NOW_MS + 1, None] == [batch.delete_horizon_ms for batch in batches_of(directory)]
    first, second = repeated(directory, [LATER_MS, LATER_MS + 1])
    assert not first.skipped
    assert second.skipped


def test_a_tombstone_that_a_round_has_stamped_with_its_own_time_goes_with_the_next_one(
    tmp_path: Path,
) -> None:
    """With ``delete.retention.ms`` 0 the horizon has passed when the round that sets it ends."""
    first = one(0, b"a") + one(1, b"a", None)
    directory = write_partition(tmp_path, {0: first, 2: one(2, b"z")})
    request = expired_request(directory, NOW_MS)
    topic = replace(COMPACT, delete_retention_ms=0)
    request = replace(request, partitions=(replace(request.partitions[0], topic=topic),))
    cleaning = coordinator()
    first_round, second, third = (
        last_round(cleaning.clean(replace(request, now_ms=NOW_MS + turn))) for turn in range(3)
    )
    assert not first_round.skipped
    assert second.is_expired_round
    assert third.skipped
    assert [2] == offsets(directory)


def test_what_stays_of_a_horizon_that_its_own_round_has_set_is_asked_for_once(
    tmp_path: Path,
) -> None:
    """A value that came in one batch with a tombstone has its horizon, and stays."""
    both = encode_batch([Record(0, NOW_MS, b"a", None), Record(1, NOW_MS, b"b", b"v")])
    directory = write_partition(tmp_path, {0: both, 2: one(2, b"z")})
    request = expired_request(directory, NOW_MS)
    topic = replace(COMPACT, delete_retention_ms=0)
    request = replace(request, partitions=(replace(request.partitions[0], topic=topic),))
    cleaning = coordinator()
    rounds = [
        last_round(cleaning.clean(replace(request, now_ms=NOW_MS + turn))) for turn in range(4)
    ]
    assert [False, False, True, True] == [each.skipped for each in rounds]
    assert [1, 2] == offsets(directory)


def test_clean_until_done_ends(directory: Path) -> None:
    (report,) = coordinator().clean(replace(expired_request(directory), rounds=None)).partitions
    assert 1 == len(report.rounds)


class CountingFiles(LocalFiles):
    """Remembers which logs were opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open_read(self, path: Path) -> ReadHandle:
        self.opened.append(path.name)
        return super().open_read(path)


def test_headers_are_read_once_a_file(directory: Path) -> None:
    files = CountingFiles()
    book = HorizonBook(files)
    closed = list_partition(directory, files).segments[:-1]
    assert Expired(1, 0) == book.expired(directory, closed, Examination(LATER_MS))
    files.opened.clear()
    assert Expired(1, 0) == book.expired(directory, closed, Examination(LATER_MS))
    assert Expired() == book.expired(directory, closed, Examination(LATER_MS - 1))
    assert [] == files.opened
    book.examined(directory, Examination(LATER_MS), closed)
    assert Expired() == book.expired(directory, closed, Examination(LATER_MS + DAY_MS))


def test_what_an_undo_puts_back_is_a_reason_for_a_round_in_the_process_that_removed_it(
    tmp_path: Path,
) -> None:
    topic = replace(COMPACT, undo_retention_ms=7 * DAY_MS)
    directory = write_log(tmp_path)
    clean(clean_request(directory, topic=topic))
    process = coordinator(clock=ManualClock(LATER_MS))
    request = replace(
        expired_request(directory), partitions=clean_request(directory, topic=topic).partitions
    )
    assert last_round(process.clean(request)).is_expired_round
    assert [4, 6, 7] == offsets(directory)
    (entry,) = open_data_directory(tmp_path, UnsyncedFiles()).partitions
    undone = undo_newest(
        UnsyncedFiles(), entry, receipt=tmp_path / "receipts", now_ms=LATER_MS, warned=pytest.fail
    )
    assert undone is not None
    assert [1, 4, 6, 7] == offsets(directory)
    assert last_round(process.clean(replace(request, now_ms=LATER_MS + 1))).is_expired_round
    assert [4, 6, 7] == offsets(directory)
    assert last_round(process.clean(replace(request, now_ms=LATER_MS + 2))).skipped


@pytest.mark.parametrize("size", [10, 2 * HOP_BYTES])
def test_large_batches_are_not_read_for_their_headers(tmp_path: Path, size: int) -> None:
    count = 200
    batches = b"".join(
        encode_batch([Record(i, -1, b"k%d" % i, b"x" * size if i % 3 else None)])
        for i in range(count)
    )
    directory = write_partition(tmp_path, {0: batches, count: one(count, b"z")})
    clean(clean_request(directory))
    segment = list_partition(directory, LocalFiles()).segments[0]
    stamped = sum(batch.delete_horizon_ms is not None for batch in batches_of(directory))
    assert {LATER_MS: stamped} == read_horizons(segment, LocalFiles()).tombstones
    assert 67 == stamped


def version(number: int) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"ver", struct.pack(">q", number)),)


BY_HEADER = replace(
    COMPACT, strategy=Strategy.HEADER, strategy_header="ver", min_cleanable_dirty_ratio=0.99
)


def write_versions(root: Path, *, late: bool) -> Path:
    """A tombstone of version 5 that is clean, and perhaps a value of version 4 behind it."""
    tombstone = encode_batch([Record(0, NOW_MS, b"a", None, version(5))])
    closed = {0: tombstone + one(1, b"b"), 2: one(2, b"z")}
    directory = write_partition(root, closed)
    request = clean_request(directory, topic=BY_HEADER)
    clean(request)
    assert [0, 1, 2] == offsets(directory)
    if late:
        value = encode_batch([Record(2, NOW_MS, b"a", b"old", version(4))])
        (directory / "00000000000000000002.log").unlink()
        write_partition(root, {2: value, 3: one(3, b"z")})
    return directory


def test_by_version_a_late_record_does_not_outlive_the_tombstone_that_beats_it(
    tmp_path: Path,
) -> None:
    """cleaning.md 9.3, rule 5: what lies behind is indexed before the tombstone may go."""
    directory = write_versions(tmp_path, late=True)
    request = expired_request(directory)
    partition = replace(request.partitions[0], topic=BY_HEADER)
    request = replace(request, partitions=(partition,))
    cleaning = coordinator()
    first = last_round(cleaning.clean(request))
    assert not first.is_expired_round
    assert "a round for what has expired" in first.notes[0]
    assert [0, 1, 3] == offsets(directory)
    # The key was in the map, so its tombstone waits for the next round.
    second = last_round(coordinator().clean(request))
    assert second.is_expired_round
    assert [1, 3] == offsets(directory)


def test_by_version_nothing_has_to_be_indexed_where_nothing_is_dirty(tmp_path: Path) -> None:
    directory = write_versions(tmp_path, late=False)
    request = expired_request(directory)
    partition = replace(request.partitions[0], topic=BY_HEADER)
    report = clean(replace(request, partitions=(partition,)))
    assert report.is_expired_round
    assert [1, 2] == offsets(directory)


def test_verify_finds_nothing_wrong_with_such_a_round(directory: Path, tmp_path: Path) -> None:
    before = tmp_path / "before" / directory.name
    shutil.copytree(directory, before)
    receipt = tmp_path / "receipt"
    clean(replace(expired_request(directory), receipt=receipt))
    for arguments in ([str(before), str(directory)], ["--receipt", str(receipt), str(directory)]):
        result = CliRunner().invoke(
            app,
            ["verify", *arguments, "--now-ms", str(LATER_MS), "--config", "cleanup.policy=compact"],
        )
        assert 0 == result.exit_code, result.output
