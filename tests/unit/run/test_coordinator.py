"""One call of clean or plan: what it writes, what it leaves, and what it says."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    RefusedError,
    UnavailableError,
)
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    INCOMPLETE,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import Buffer, FileSystem, LocalFiles, ReadHandle, WriteHandle
from keeplast.model.document import Verdict, encode
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents, RoundWork
from keeplast.run.foresight import RESERVE_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.receipt_book import read_receipts
from keeplast.survey.report import RoundReport
from tests.support.flipped import flip
from tests.support.mixed_log import LEFT_ALONE, segments, write_mixed_log
from tests.support.observed_files import ObservedFiles
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    PARTITION,
    SMALL_SEGMENTS,
    bases_of,
    clean,
    clean_at,
    clean_request,
    coordinator,
    last_round,
    one,
    records_of,
    write_partition,
)
from tests.support.replay import tree

BOUND = 60


def checkpoint(root: Path) -> Mapping[TopicPartition, int]:
    return read_checkpoint(LocalFiles(), root, CLEANER_CHECKPOINT)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_mixed_log(tmp_path / "data")


def failure(report: RoundReport) -> Exception:
    assert report.failure is not None
    assert report.error is not None
    assert type(report.failure).__name__ == report.error.error_class
    return report.failure


# --- in place ---


def test_winners_stay_with_their_offsets(directory: Path) -> None:
    before = {record.offset: record for record in records_of(directory)}
    report = clean(clean_request(directory))
    after = {record.offset: record for record in records_of(directory)}
    assert after.items() <= before.items()
    # 18 is a tombstone whose horizon has only begun; 60 and 61 are beyond the bound.
    assert {18, 20, 21, 30, 31, 33, 34, 43, 50, 51, 52, 53, 54, 60, 61} == set(after)
    assert (BOUND, BOUND) == (report.bound, report.end_offset)
    assert {PARTITION: BOUND} == checkpoint(directory.parent)


def test_active_segment_and_foreign_files_are_as_they_were(directory: Path) -> None:
    (directory / "notes.txt").write_bytes(b"mine")
    for name in (CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT):
        (directory.parent / name).write_bytes(b"0\n0\n")
    kept = {
        name: state
        for name, state in tree(directory).items()
        if name.startswith(f"{BOUND:020d}") or not name[0].isdigit()
    }
    clean(clean_request(directory))
    assert kept.items() <= tree(directory).items()
    assert {CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT} <= set(os.listdir(directory.parent))


def test_snapshots_of_merged_bases_go_and_the_others_stay(directory: Path) -> None:
    clean(clean_request(directory, topic=replace(COMPACT, segment_bytes=700)))
    bases = bases_of(directory)
    snapshots = sorted(int(path.stem) for path in directory.glob("*.snapshot"))
    assert [base for base in bases if base in (10, 20, 30, 40, 50, 60)] == snapshots


def test_group_that_loses_nothing_is_left_alone(directory: Path) -> None:
    path = directory / f"{LEFT_ALONE:020d}.log"
    before = path.stat()
    report = clean(clean_request(directory, topic=SMALL_SEGMENTS))
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert report.stats is not None
    assert report.stats.segments_left_alone >= 1
    assert segments()[LEFT_ALONE] == path.read_bytes()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_group_that_loses_nothing_gets_the_indexes_it_should_have(
    directory: Path, suffix: str
) -> None:
    path = directory / f"{LEFT_ALONE:020d}{suffix}"
    expected = path.read_bytes()
    path.unlink()
    report = clean(clean_request(directory, topic=SMALL_SEGMENTS))
    assert expected == path.read_bytes()
    assert any("indexes rebuilt" in note for note in report.notes)


def test_second_round_changes_nothing_that_a_reader_can_see(directory: Path) -> None:
    clean(clean_request(directory))
    before = records_of(directory)
    clean_at(directory, NOW_MS + 1)
    assert before == records_of(directory)


def test_output_has_mode_and_time_of_its_source(directory: Path) -> None:
    source = directory / f"{10:020d}.log"
    source.chmod(0o640)
    clean(clean_request(directory, topic=SMALL_SEGMENTS))
    for suffix in (".log", ".index", ".timeindex"):
        status = (directory / f"{10:020d}{suffix}").stat()
        assert (0o640, NOW_MS) == (status.st_mode & 0o7777, status.st_mtime_ns // 10**6)


def test_rounds_until_a_bounded_map_has_seen_everything(directory: Path) -> None:
    cleaner = CleanerConfig(key_map_bytes=24 * 5, load_factor=1.0)
    request = replace(clean_request(directory, cleaner=cleaner), rounds=None)
    (partition,) = coordinator().clean(request).partitions
    ends = [round_.end_offset for round_ in partition.rounds]
    assert len(ends) > 2
    assert BOUND == ends[-1]
    assert ends == sorted(set(ends), key=ends.index)
    starts = [round_.first_dirty for round_ in partition.rounds]
    assert [0, *ends[:-1]] == starts
    assert {PARTITION: BOUND} == checkpoint(directory.parent)


def test_given_number_of_rounds_is_not_exceeded(directory: Path) -> None:
    cleaner = CleanerConfig(key_map_bytes=24 * 2, load_factor=1.0)
    request = replace(clean_request(directory, cleaner=cleaner), rounds=3)
    (partition,) = coordinator().clean(request).partitions
    assert len(partition.rounds) == 3
    assert partition.rounds[-1].end_offset != BOUND


# --- what a directory's checkpoints say ---


def test_checkpoints_of_the_directory_bound_a_round(directory: Path) -> None:
    root = directory.parent
    for name, offset in (
        (CLEANER_CHECKPOINT, 10), (LOG_START_CHECKPOINT, 5), (REPLICATION_CHECKPOINT, 45),
    ):  # fmt: skip
        (root / name).write_bytes(encode_offsets({PARTITION: offset}))
    report = clean(clean_request(directory))
    assert (10, 45, 40, 5) == (
        report.first_dirty, report.uncleanable, report.bound, report.log_start,
    )  # fmt: skip


@pytest.mark.parametrize("offset", [-5, 1000])
def test_checkpoint_outside_the_log_is_repaired_even_when_nothing_is_cleaned(
    directory: Path, offset: int
) -> None:
    (directory.parent / CLEANER_CHECKPOINT).write_bytes(encode_offsets({PARTITION: offset}))
    request = replace(clean_request(directory), uncleanable_offset=0)
    report = clean(request)
    assert report.skipped
    assert report.stats is None
    assert (0, {PARTITION: 0}) == (report.end_offset, checkpoint(directory.parent))


def test_malformed_checkpoint_stops_the_partition(directory: Path) -> None:
    """X45: the file is named; nothing is touched."""
    path = directory.parent / CLEANER_CHECKPOINT
    path.write_bytes(b"0\n2\nt 0 5\n")
    before = tree(directory)
    error = failure(last_round(coordinator().clean(clean_request(directory))))
    assert isinstance(error, CorruptError)
    assert str(path) == error.path
    assert before == tree(directory)


def test_low_ratio_is_skipped_with_a_reason_and_force_cleans(directory: Path) -> None:
    (directory.parent / CLEANER_CHECKPOINT).write_bytes(encode_offsets({PARTITION: 40}))
    request = replace(clean_request(directory), force=False)
    report = clean(request)
    assert report.skipped
    assert report.reason is not None
    assert "min.cleanable.dirty.ratio" in report.reason
    assert {PARTITION: 40} == checkpoint(directory.parent)
    assert not clean(replace(request, force=True)).skipped


# --- failures ---


class ChangedMeanwhile:
    """A runner during whose work somebody else writes to the partition."""

    def __init__(self, path: Path, change: bytes) -> None:
        self._path = path
        self._change = change
        self._inner = LocalRunner(cores=1)

    slots = 1
    shares_memory = True

    def run(self, tasks: list[PartitionTask], progressed: Progressed) -> list[TaskResult]:
        results = list(self._inner.run(tasks, progressed))
        with self._path.open("ab") as file:
            file.write(self._change)
        return results

    def __enter__(self) -> ChangedMeanwhile:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("base", [10, BOUND])
def test_partition_that_changes_meanwhile_is_left_alone(directory: Path, base: int) -> None:
    path = directory / f"{base:020d}.log"
    before = contents(directory)
    runner = ChangedMeanwhile(path, one(62, b"new"))
    changed = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())  # type: ignore[arg-type]
    error = failure(last_round(changed.clean(clean_request(directory))))
    assert isinstance(error, ConflictError)
    after = contents(directory)
    assert before[path.name] + one(62, b"new") == after.pop(path.name)
    del before[path.name]
    assert before == after
    assert checkpoint(directory.parent) == {}


@pytest.mark.parametrize("base", [0, 30, 50])
def test_failed_round_leaves_the_directory_as_it_was(directory: Path, base: int) -> None:
    """Groups before the damage are not swapped in either: differences.md (e)."""
    path = directory / f"{base:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 0xFF
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    before = tree(directory)
    report = last_round(coordinator().clean(clean_request(directory, topic=SMALL_SEGMENTS)))
    error = failure(report)
    assert isinstance(error, CorruptError)
    assert str(path) == error.path
    assert before == tree(directory)
    assert checkpoint(directory.parent) == {}


def test_damage_in_a_clean_segment_stops_the_round_too(directory: Path) -> None:
    path = directory / f"{20:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    (directory.parent / CLEANER_CHECKPOINT).write_bytes(encode_offsets({PARTITION: 30}))
    before = tree(directory)
    error = failure(last_round(coordinator().clean(clean_request(directory))))
    assert isinstance(error, CorruptError)
    assert before == tree(directory)
    assert {PARTITION: 30} == checkpoint(directory.parent)


def test_damage_beyond_the_round_does_not_matter(directory: Path) -> None:
    path = directory / f"{50:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    report = clean(replace(clean_request(directory), high_watermark=45))
    assert report.bound == 40


def test_full_disk_while_staging_leaves_the_directory_as_it_was(directory: Path) -> None:
    class Full(LocalFiles):
        opened = 0

        def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
            self.opened += 1
            if self.opened == 6:
                raise OSError(28, "No space left on device")
            return super().open_write(path, append=append)

    before = tree(directory)
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    report = last_round(coordinator(files=Full()).clean(request))
    assert isinstance(failure(report), OSError)
    assert before == tree(directory)


def test_other_partitions_go_on_after_a_failure(directory: Path) -> None:
    sound = directory.parent / "u-3"
    write_partition(directory.parent / "aside", {0: one(0, b"a") + one(1, b"a"), 2: b""}).rename(
        sound
    )
    (directory / f"{10:020d}.log").write_bytes(b"text where batches should be, long enough")
    request = clean_request(directory)
    second = replace(request.partitions[0], partition=TopicPartition("u", 3), path=sound)
    both = replace(request, partitions=(request.partitions[0], second))
    first_report, second_report = coordinator().clean(both).partitions
    assert isinstance(first_report.rounds[-1].failure, CorruptError)
    assert second_report.rounds[-1].failure is None
    assert {TopicPartition("u", 3): 2} == checkpoint(directory.parent)


def test_leftovers_of_a_crash_are_dealt_with_first(directory: Path) -> None:
    stray = directory / f"{0:020d}.log.cleaned"
    stray.write_bytes(b"worthless")
    (directory / f"{10:020d}.log.0a1b.deleted").write_bytes(b"worthless")
    clean(clean_request(directory))
    assert [name for name in os.listdir(directory) if name.endswith(("cleaned", "deleted"))] == []


@pytest.mark.parametrize(
    ("cleaner", "expected"),
    [
        (CleanerConfig(load_factor=0.0), RefusedError),
        (CleanerConfig(load_factor=1.5), RefusedError),
        (CleanerConfig(key_map_bytes=23), RefusedError),
        (CleanerConfig(key_map_bytes=24, load_factor=0.9), RefusedError),
    ],
)
def test_map_without_a_usable_slot_is_refused(
    directory: Path, cleaner: CleanerConfig, expected: type[Exception]
) -> None:
    report = last_round(coordinator().clean(clean_request(directory, cleaner=cleaner)))
    assert isinstance(failure(report), expected)


def test_negative_first_dirty_offset_is_invalid(directory: Path) -> None:
    request = replace(clean_request(directory), first_dirty_offset=-1)
    assert isinstance(failure(last_round(coordinator().clean(request))), InvalidError)


# --- to another place ---


def test_target_receives_what_cleaning_in_place_would_leave(tmp_path: Path) -> None:
    source, in_place = (write_mixed_log(tmp_path / name) for name in ("source", "place"))
    target = tmp_path / "target"
    before = tree(source), tree(source.parent)
    clean(replace(clean_request(source), target=target))
    clean(clean_request(in_place))
    assert before == (tree(source), tree(source.parent))
    assert contents(in_place) == contents(target / source.name)
    assert {PARTITION: BOUND} == checkpoint(target)
    logs = {path.name: path.stat().st_mtime_ns for path in in_place.glob("*.log")}
    assert logs == {p.name: p.stat().st_mtime_ns for p in (target / source.name).glob("*.log")}


def test_target_gets_identity_and_checkpoints_of_the_source(
    directory: Path, tmp_path: Path
) -> None:
    root = directory.parent
    (root / "meta.properties").write_bytes(b"version=1\n")
    (root / LOG_START_CHECKPOINT).write_bytes(encode_offsets({PARTITION: 0}))
    (root / ".lock").write_bytes(b"")
    target = tmp_path / "target"
    clean(replace(clean_request(directory), target=target))
    assert {"meta.properties", LOG_START_CHECKPOINT, CLEANER_CHECKPOINT, "t-0"} == set(
        os.listdir(target)
    )


def test_further_rounds_go_on_at_the_target(directory: Path, tmp_path: Path) -> None:
    cleaner = CleanerConfig(key_map_bytes=24 * 5, load_factor=1.0)
    target = tmp_path / "target"
    before = tree(directory)
    request = replace(clean_request(directory, cleaner=cleaner), target=target, rounds=None)
    (partition,) = coordinator().clean(request).partitions
    assert [round_.failure for round_ in partition.rounds] == [None] * len(partition.rounds)
    assert len(partition.rounds) > 2
    assert {PARTITION: BOUND} == checkpoint(target)
    assert before == tree(directory)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def test_skipped_partition_is_copied_to_the_target(directory: Path, target: Path) -> None:
    request = replace(clean_request(directory), target=target, uncleanable_offset=0)
    assert clean(request).skipped
    assert contents(directory) == contents(target / directory.name)


def test_target_that_holds_something_is_refused(directory: Path, target: Path) -> None:
    for other in ("x", f"{directory.name}/x"):
        (target / other).parent.mkdir(parents=True)
        (target / other).write_bytes(b"")
        before = tree(target)
        with pytest.raises(RefusedError, match="--despite existing-target"):
            coordinator().clean(replace(clean_request(directory), target=target))
        assert before == tree(target)
        shutil.rmtree(target)


def test_files_at_a_target_are_replaced_only_on_request(directory: Path, target: Path) -> None:
    request = replace(clean_request(directory), target=target)
    clean(request)
    expected = contents(target / directory.name)
    (target / "note.txt").write_bytes(b"mine")
    (target / directory.name / f"{1:020d}.log").write_bytes(b"of another log")
    (target / LOG_START_CHECKPOINT).write_bytes(encode_offsets({PARTITION: 40}))
    clean(replace(request, overwrites=True))
    assert expected == contents(target / directory.name)
    assert b"mine" == (target / "note.txt").read_bytes()
    assert {} == read_checkpoint(LocalFiles(), target, LOG_START_CHECKPOINT)


@pytest.mark.parametrize("ids", [("A" * 21 + "Q", "B" * 21 + "Q"), (None, "B" * 21 + "Q")])
def test_another_topic_of_the_same_name_at_a_target_is_no_earlier_copy(
    directory: Path, target: Path, ids: tuple[str | None, str]
) -> None:
    request = replace(clean_request(directory), target=target, overwrites=True)
    clean(replace(request, overwrites=False))
    for place, topic_id in zip((directory, target / directory.name), ids, strict=True):
        if topic_id is not None:
            text = f"version: 0\ntopic_id: {topic_id}\n"
            (place / PARTITION_METADATA).write_text(text)
    before = tree(target)
    if ids[0] is None:  # unknown of a source that says none
        clean(request)
        return
    failed = last_round(coordinator().clean(request))
    assert isinstance(failure(failed), RefusedError)
    assert "another topic of the same name lies at --to" in str(failure(failed))
    assert before == tree(target)


def test_a_log_at_a_target_that_goes_further_than_the_source_is_not_replaced(
    directory: Path, target: Path
) -> None:
    request = replace(clean_request(directory), target=target)
    clean(request)
    copy = target / directory.name
    with LogAppender(copy, LocalFiles(), topic=TopicConfig()) as log:
        log.append([NewRecord(b"later", b"1", NOW_MS)])
    before = tree(target)
    failed = last_round(coordinator().clean(replace(request, overwrites=True)))
    assert isinstance(failure(failed), RefusedError)
    assert "goes further than the source" in str(failure(failed))
    assert before == tree(target)


class Unreadable(LocalFiles):
    """Files of which one has a broken sector."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open_read(self, path: Path) -> ReadHandle:
        if path == self._path:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return super().open_read(path)


@pytest.mark.parametrize("name", ["checkpoint", "damaged", "copied", "skipped", "no room"])
def test_a_source_that_cannot_be_read_does_not_cost_the_earlier_target(
    directory: Path, target: Path, name: str
) -> None:
    request = replace(clean_request(directory), target=target)
    clean(request)
    for checkpoint, offset in ((LOG_START_CHECKPOINT, 3), (CLEANER_CHECKPOINT, 5)):
        (target / checkpoint).write_bytes(encode_offsets({PARTITION: offset}))
    before = tree(target)
    files: FileSystem = LocalFiles()
    if name == "checkpoint":
        (directory.parent / REPLICATION_CHECKPOINT).write_bytes(b"no checkpoint")
    elif name == "damaged":
        path = directory / f"{10:020d}.log"
        flip(path)
    elif name == "copied":
        files = Unreadable(directory / LEADER_EPOCH_CHECKPOINT)
    elif name == "skipped":
        (directory.parent / CLEANER_CHECKPOINT).write_bytes(encode_offsets({PARTITION: BOUND}))
        files = Unreadable(directory / LEADER_EPOCH_CHECKPOINT)
    else:
        files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN)
    again = replace(request, overwrites=True, force=name != "skipped")
    assert last_round(coordinator(files=files).clean(again)).failure is not None
    assert before == tree(target)


def test_an_earlier_target_is_read_to_the_end_of_the_commit(directory: Path, target: Path) -> None:
    """A crash at any operation leaves the earlier log, a mark, or all of the new one."""
    place = target / directory.name
    request = replace(clean_request(directory), target=target)
    clean(request)
    expected = contents(place)
    (place / f"{1:020d}.log").write_bytes(b"of another log")
    earlier = contents(place)
    seen: list[str] = []

    class Looking(LocalFiles):
        def look(self) -> None:
            if INCOMPLETE in os.listdir(place):
                seen.append("marked")
                return
            found = {n: d for n, d in contents(place).items() if not n.endswith(".deleted")}
            assert found in (earlier, expected)
            seen.append("earlier" if found == earlier else "new")

        def rename(self, source: Path, target: Path) -> None:
            self.look()
            super().rename(source, target)
            self.look()

        def unlink(self, path: Path) -> None:
            self.look()
            super().unlink(path)
            self.look()

        def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
            self.look()
            return super().open_write(path, append=append)

    report = last_round(coordinator(files=Looking()).clean(replace(request, overwrites=True)))
    assert report.failure is None
    assert expected == contents(place)
    assert ["earlier", "marked", "new"] == list(dict.fromkeys(seen))


@pytest.mark.parametrize("overwrites", [False, True])
def test_a_link_at_a_target_is_refused_and_what_it_points_to_stays(
    target: Path, directory: Path, tmp_path: Path, overwrites: bool
) -> None:
    other = tmp_path / "other" / directory.name
    shutil.copytree(directory, other)
    for pointed in (directory, other):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        (target / directory.name).symlink_to(pointed)
        before = tree(pointed)
        request = replace(clean_request(directory), target=target, overwrites=overwrites)
        try:
            (partition,) = coordinator().clean(request).partitions
        except RefusedError:
            assert not overwrites
        else:
            assert isinstance(partition.rounds[-1].failure, RefusedError)
        assert before == tree(pointed)


def test_checkpoints_at_a_target_with_an_empty_partition_become_those_of_the_source(
    directory: Path, target: Path
) -> None:
    (target / directory.name).mkdir(parents=True)
    (target / LOG_START_CHECKPOINT).write_bytes(encode_offsets({PARTITION: BOUND}))
    clean(replace(clean_request(directory), target=target))
    assert {} == read_checkpoint(LocalFiles(), target, LOG_START_CHECKPOINT)


def test_two_rounds_of_one_call_at_one_place_are_refused(directory: Path, tmp_path: Path) -> None:
    link = tmp_path / "link" / directory.name
    link.parent.mkdir()
    link.symlink_to(directory)
    request = clean_request(directory)
    (one,) = request.partitions
    before = tree(tmp_path)
    for other, target in ((one, None), (replace(one, path=link), None), (one, tmp_path / "new")):
        with pytest.raises(RefusedError, match="two rounds of one call"):
            coordinator().clean(replace(request, partitions=(one, other), target=target))
    assert before == tree(tmp_path)


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_round_at_all_is_refused(directory: Path, rounds: int) -> None:
    with pytest.raises(InvalidError, match="at least one round"):
        replace(clean_request(directory), rounds=rounds)


def test_a_target_within_a_partition_is_refused(directory: Path) -> None:
    before = tree(directory)
    for place in (directory, directory / "new"):
        with pytest.raises(RefusedError, match="--to lies in the data directory"):
            coordinator().clean(replace(clean_request(directory), target=place, overwrites=True))
    assert before == tree(directory)


def test_a_target_that_was_not_finished_is_taken_up_as_it_is(directory: Path, target: Path) -> None:
    (target / directory.name).mkdir(parents=True)
    (target / directory.name / INCOMPLETE).write_bytes(b"an earlier run")
    (target / CLEANER_CHECKPOINT).write_bytes(encode_offsets({}))
    clean(replace(clean_request(directory), target=target))
    assert INCOMPLETE not in os.listdir(target / directory.name)


def receipts_that_cannot_be(place: Path, log: Path) -> list[Path]:
    """Return places where no receipt can be: nowhere, a directory, below a file, a log, a link."""
    (place / "dir").mkdir()
    (place / "file").write_bytes(b"{}\n")
    (place / "link").symlink_to(place / "elsewhere")
    return [
        place / "no" / "such",
        place / "dir",
        place / "file" / "below",
        log / f"{0:020d}.log",
        place / "link",
    ]


@pytest.mark.parametrize("number", range(5))
def test_a_receipt_that_cannot_be_written_leaves_all_as_it_was(
    directory: Path, tmp_path: Path, number: int
) -> None:
    place = tmp_path / "receipts"
    place.mkdir()
    receipt = receipts_that_cannot_be(place, directory)[number]
    before = tree(tmp_path)
    request = replace(clean_request(directory), receipt=receipt, roll_active=True)
    with pytest.raises(RefusedError, match="--receipt"):
        coordinator().clean(request)
    with pytest.raises(RefusedError, match="--receipt"):
        coordinator().expire(request)
    with pytest.raises(RefusedError, match="--receipt"):
        coordinator().clean(replace(request, roll_active=False, target=tmp_path / "new"))
    assert before == tree(tmp_path)


class NoRoomFor(LocalFiles):
    """Appending to one file fails half-way, as on a full disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append_durable(self, path: Path, data: Buffer) -> None:
        if path == self._path:
            with path.open("ab") as out:
                out.write(bytes(data)[:100])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().append_durable(path, data)


def test_a_receipt_that_does_not_fit_any_more_leaves_the_log_as_it_was(
    directory: Path, tmp_path: Path
) -> None:
    receipt, before = tmp_path / "receipt", tree(directory.parent)
    copy = tmp_path / "copy" / directory.name
    shutil.copytree(directory, copy)
    request = replace(clean_request(directory), receipt=receipt)
    report = last_round(coordinator(files=NoRoomFor(receipt)).clean(request))
    assert isinstance(report.failure, OSError)
    assert before == tree(directory.parent)
    # And the next round, with room, is proven by its receipt.
    clean(request)
    found = Verifier(LocalFiles(), VerifySettings()).verify_pair(
        copy, directory, read_receipts(receipt, LocalFiles())
    )
    assert [] == [check.name for check in found.checks if check.verdict is Verdict.BROKEN]


def test_a_round_that_conflicts_takes_its_receipt_back(directory: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt"

    class Changing(LocalFiles):
        def append_durable(self, path: Path, data: Buffer) -> None:
            super().append_durable(path, data)
            if path == receipt:
                with (directory / f"{10:020d}.log").open("ab") as out:
                    out.write(b"x")

    line = b'{"version":2,"topic":"t"}\n'
    receipt.write_bytes(line)
    request = replace(clean_request(directory), receipt=receipt)
    report = last_round(coordinator(files=Changing()).clean(request))
    assert isinstance(report.failure, ConflictError)
    assert line != receipt.read_bytes()  # who changed the log is not undone, nor named


@pytest.mark.parametrize(
    "name",
    [
        CLEANER_CHECKPOINT,
        f"{CLEANER_CHECKPOINT}.tmp",
        "meta.properties",
        ".lock",
        "keeplast-set-aside",
        f"{PARTITION}/receipt",
        f"{PARTITION}/{200:020d}.log",
    ],
)
def test_a_receipt_that_would_be_taken_for_another_file_is_refused(
    directory: Path, name: str
) -> None:
    before = tree(directory.parent)
    with pytest.raises(RefusedError, match="the receipt would be taken for a file"):
        clean(replace(clean_request(directory), receipt=directory.parent / name))
    assert before == tree(directory.parent)


@pytest.mark.parametrize(
    "text", [b'{"mine":1}', b'{"mine":1}\n', b'{\n "version": 2\n}\n', b"mine"]
)
def test_a_foreign_file_is_no_receipt_and_stays(
    directory: Path, tmp_path: Path, text: bytes
) -> None:
    receipt = tmp_path / "mine.json"
    receipt.write_bytes(text)
    before = tree(tmp_path)
    with pytest.raises(RefusedError, match="what is there is no receipt"):
        clean(replace(clean_request(directory), receipt=receipt))
    assert before == tree(tmp_path)


def test_a_line_that_a_crash_cut_off_at_its_beginning_is_replaced(
    directory: Path, tmp_path: Path
) -> None:
    receipt = tmp_path / "receipt"
    receipt.write_bytes(b'{"versi')
    clean(replace(clean_request(directory), receipt=receipt))
    assert 1 == len(read_receipts(receipt, LocalFiles()))


def test_a_line_of_a_round_that_did_not_happen_proves_nothing(
    directory: Path, tmp_path: Path
) -> None:
    receipt, copy = tmp_path / "receipt", tmp_path / "copy" / directory.name
    shutil.copytree(directory, copy)
    clean(replace(clean_request(directory), receipt=receipt))
    receipts = read_receipts(receipt, LocalFiles())
    # The crash was before the swap: the log is what it was.
    found = Verifier(LocalFiles(), VerifySettings()).verify_pair(copy, copy, receipts)
    assert Verdict.HOLDS is found.verdict


@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_receipt_holds_for_a_round_before_which_the_active_segment_was_rolled(
    directory: Path, tmp_path: Path, is_in_place: bool
) -> None:
    receipt, before = tmp_path / "receipt", tmp_path / "before" / directory.name
    shutil.copytree(directory, before)
    target = None if is_in_place else tmp_path / "target"
    request = replace(clean_request(directory), receipt=receipt, roll_active=True, target=target)
    assert clean(request).failure is None
    after = directory if target is None else target / directory.name
    found = Verifier(LocalFiles(), VerifySettings()).verify_pair(
        before, after, read_receipts(receipt, LocalFiles())
    )
    assert [] == [check.name for check in found.checks if check.verdict is Verdict.BROKEN]


def test_a_data_directory_whose_checkpoint_cannot_be_replaced_is_left_as_it_was(
    directory: Path,
) -> None:
    class ReadOnlyRoot(LocalFiles):
        def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
            if path.parent == directory.parent:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return super().open_write(path, append=append)

    before = tree(directory.parent)
    request = replace(clean_request(directory), roll_active=True)
    report = last_round(coordinator(files=ReadOnlyRoot()).clean(request))
    assert isinstance(failure(report), PermissionError)
    assert before == tree(directory.parent)


def test_source_as_its_own_target_is_refused(directory: Path) -> None:
    before = tree(directory)
    request = replace(clean_request(directory), target=directory.parent)
    assert isinstance(failure(last_round(coordinator().clean(request))), RefusedError)
    assert before == tree(directory)


def test_interrupted_swap_in_the_source_is_refused(directory: Path, tmp_path: Path) -> None:
    (directory / f"{0:020d}.log.swap").write_bytes(b"")
    request = replace(clean_request(directory), target=tmp_path / "target")
    assert isinstance(failure(last_round(coordinator().clean(request))), RefusedError)


def test_failed_round_to_a_target_leaves_room_for_another_try(
    directory: Path, target: Path
) -> None:
    path = directory / f"{50:020d}.log"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])
    request = replace(clean_request(directory, topic=SMALL_SEGMENTS), target=target)
    assert isinstance(failure(last_round(coordinator().clean(request))), CorruptError)
    assert os.listdir(target / directory.name) == [INCOMPLETE]
    path.write_bytes(sound)
    clean(request)


# --- a new active segment ---


def test_rolling_makes_the_active_segment_cleanable(directory: Path) -> None:
    report = clean(replace(clean_request(directory), roll_active=True))
    assert (62, 62) == (report.bound, report.end_offset)
    assert bases_of(directory)[-1] == 62
    assert (directory / f"{62:020d}.snapshot").exists()
    offsets = [record.offset for record in records_of(directory) if record.key == b"a"]
    assert offsets == [60]


def test_rolling_an_empty_active_segment_does_nothing(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a"), 1: b""})
    clean(replace(clean_request(directory), roll_active=True))
    assert bases_of(directory) == [0, 1]


def test_rolling_a_torn_active_segment_is_corrupt(directory: Path) -> None:
    path = directory / f"{BOUND:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    request = replace(clean_request(directory), roll_active=True)
    assert isinstance(failure(last_round(coordinator().clean(request))), CorruptError)
    assert bases_of(directory)[-1] == BOUND


def test_torn_active_segment_is_reported_and_not_cut(directory: Path) -> None:
    path = directory / f"{BOUND:020d}.log"
    torn = path.read_bytes()[:-1]
    path.write_bytes(torn)
    report = clean(clean_request(directory))
    assert any("torn" in note for note in report.notes)
    assert (61, torn) == (report.log_end, path.read_bytes())


def test_a_roll_that_was_asked_for_happens_at_the_target(directory: Path, tmp_path: Path) -> None:
    before = tree(directory.parent)
    target = tmp_path / "target"
    report = clean(replace(clean_request(directory), roll_active=True, target=target))
    assert (62, 62) == (report.bound, report.end_offset)
    assert before == tree(directory.parent)
    clean(replace(clean_request(directory), roll_active=True))
    assert contents(directory) == contents(target / directory.name)
    assert {PARTITION: 62} == checkpoint(target)


# --- receipts and plans ---


def test_every_round_leaves_a_line_of_json(directory: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "receipts.jsonl"
    cleaner = CleanerConfig(key_map_bytes=24 * 5, load_factor=1.0)
    request = replace(clean_request(directory, cleaner=cleaner), rounds=None, receipt=receipt)
    sizes = {int(path.stem): path.stat().st_size for path in directory.glob("*.log")}
    (partition,) = coordinator().clean(request).partitions
    lines = [json.loads(line) for line in receipt.read_text().splitlines()]
    assert len(partition.rounds) == len(lines)
    # A line is written before what it names is put in place: it cannot know how long that took.
    for line in lines:
        stats = line["round"]["stats"]
        for name in [name for name in stats if name.endswith("seconds")]:
            del stats[name]
        for name in NOT_COUNTED:
            del stats[name]
    assert [counted(round_) for round_ in partition.rounds] == [line["round"] for line in lines]
    assert sizes == {source["base"]: source["bytes"] for source in lines[0]["inputs"]}
    assert NOW_MS == lines[0]["now_ms"]
    outputs = {output["base"]: output["bytes"] for output in lines[-1]["outputs"]}
    assert (
        outputs.items()
        <= {int(path.stem): path.stat().st_size for path in directory.glob("*.log")}.items()
    )


def test_failed_and_skipped_rounds_leave_no_receipt(directory: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "receipts.jsonl"
    request = replace(clean_request(directory), receipt=receipt)
    clean(replace(request, uncleanable_offset=0))
    (directory / f"{10:020d}.log").write_bytes(b"\x00" * 100)
    coordinator().clean(request)
    assert not receipt.exists()


NOT_COUNTED = ("peak_rss_bytes", "segments_left_alone", "copied_bytes")


def counted(report: RoundReport) -> dict[str, object]:
    """Return the parts of a report that do not depend on time or on having written."""
    document: dict[str, Any] = encode(report)
    stats = document["stats"]
    for name in list(stats):
        if name.endswith("seconds") or name in NOT_COUNTED:
            del stats[name]
    return document


@pytest.mark.parametrize("topic", [COMPACT, SMALL_SEGMENTS, replace(COMPACT, segment_bytes=700)])
@pytest.mark.parametrize("slots", [None, 5])
def test_exact_plan_counts_what_cleaning_counts_and_writes_nothing(
    directory: Path, topic: TopicConfig, slots: int | None
) -> None:
    cleaner = CleanerConfig(None if slots is None else 24 * slots, 1.0)
    request = clean_request(directory, topic=topic, cleaner=cleaner)
    before = tree(directory), tree(directory.parent)
    files = ObservedFiles()
    planned = last_round(coordinator(files=files).plan(request, exact=True))
    assert files.operations == []
    assert before == (tree(directory), tree(directory.parent))
    assert counted(clean(request)) == counted(planned)


def test_plan_gives_bounds_and_groups_and_writes_nothing(directory: Path) -> None:
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    files = ObservedFiles()
    report = last_round(coordinator(files=files).plan(request))
    assert files.operations == []
    assert report.stats is None
    assert report.groups is not None
    assert [(0,), (10,), (20,), (30,), (40,), (50,)] == [group.bases for group in report.groups]
    assert BOUND == report.bound


def test_plan_of_a_bounded_map_cannot_know_the_groups(directory: Path) -> None:
    request = clean_request(directory, cleaner=CleanerConfig(key_map_bytes=240))
    assert last_round(coordinator().plan(request)).groups is None


def test_progress_adds_up_to_what_was_announced(directory: Path) -> None:
    class Sums(NoEvents):
        planned_bytes = read_bytes = rounds = 0

        def __init__(self) -> None:
            self.works: list[RoundWork | None] = []
            self.whose: set[TopicPartition | None] = set()

        def planned(self, total_bytes: int, work: RoundWork | None = None) -> None:
            self.planned_bytes += total_bytes
            self.works.append(work)

        def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
            self.read_bytes += read_bytes
            self.whose.add(partition)

        def finished(self, partition: TopicPartition, report: RoundReport) -> None:
            self.rounds += 1

    sums = Sums()
    coordinator(events=sums).clean(clean_request(directory))
    assert sums.planned_bytes == sums.read_bytes > 0
    assert sums.rounds == 1
    # And it is known whose bytes they are, the first pass's apart.
    (work,) = sums.works
    assert work is not None
    assert PARTITION == work.partition
    assert 0 < (work.index_bytes or 0) < sums.planned_bytes
    assert {PARTITION} == sums.whose


# --- a runner that fails ---


class _FailingRunner(LocalRunner):
    """Does the work and then loses it, as a cluster does whose driver lost its connection."""

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        for _ in super().run(tasks, progressed):
            raise UnavailableError("the cluster is gone")
        yield from ()


def test_failed_runner_leaves_the_partition_as_it_was_and_nothing_staged(directory: Path) -> None:
    before = contents(directory)
    with _FailingRunner(1) as runner:
        coordinator_ = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
        report = coordinator_.clean(clean_request(directory))
    assert UnavailableError is type(failure(last_round(report)))
    assert before == contents(directory)
    assert {} == checkpoint(directory.parent)


# --- a log without segments ---


@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_directory_without_segments_is_an_empty_log(tmp_path: Path, is_in_place: bool) -> None:
    """As for a broker, which makes the first segment when it starts."""
    directory = tmp_path / "data" / str(PARTITION)
    directory.mkdir(parents=True)
    (directory / PARTITION_METADATA).write_bytes(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    (directory.parent / LOG_START_CHECKPOINT).write_bytes(encode_offsets({PARTITION: 7}))
    before = tree(tmp_path)
    request = replace(
        clean_request(directory), roll_active=True, rolls_idle=True, retention=True, expired=True,
        target=None if is_in_place else tmp_path / "target",
    )  # fmt: skip
    for report in (coordinator().plan(request), coordinator().clean(request)):
        (partition,) = report.partitions
        (round_,) = partition.rounds
        assert (True, None) == (round_.skipped, round_.failure)
        assert (7, 7) == (round_.log_start, round_.log_end)
        assert "nothing to clean: the log is empty" == round_.reason
        assert partition.expiry is None
    assert before.items() <= tree(tmp_path).items()
    if not is_in_place:
        assert [PARTITION_METADATA] == os.listdir(tmp_path / "target" / str(PARTITION))


@pytest.mark.parametrize("suffix", [".index", ".snapshot", ".log.swap", ".log.deleted"])
def test_a_directory_with_parts_of_segments_is_no_empty_log(tmp_path: Path, suffix: str) -> None:
    directory = tmp_path / str(PARTITION)
    directory.mkdir()
    (directory / f"{5:020d}{suffix}").write_bytes(b"")
    report = last_round(coordinator().plan(clean_request(directory)))
    assert isinstance(report.failure, RefusedError)
