"""A round in several waves, where the disk has no room for all of it at once."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import RefusedError
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.document import Verdict
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.stats import Stats
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.rewrite.wave import failed_result
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.foresight import RESERVE_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.receipt_book import read_receipts
from keeplast.survey.report import RoundReport
from tests.support.mixed_log import segments, write_mixed_log
from tests.support.observed_files import ObservedFiles
from tests.support.partition_maker import (
    COMPACT,
    SMALL_SEGMENTS,
    bases_of,
    clean,
    clean_request,
    coordinator,
    last_round,
)
from tests.support.replay import tree

LARGEST = max(len(data) for data in segments().values())
UNTIMED = {
    "index_seconds": 0.0, "clean_seconds": 0.0, "total_seconds": 0.0, "removal_seconds": 0.0,
    "peak_rss_bytes": 0,
}  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def log_times(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.glob("*.log")}


def cleaned_with_room(
    directory: Path, room: int, topic: TopicConfig
) -> tuple[Stats, ObservedFiles]:
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + room)
    report = clean(clean_request(directory, topic=topic), files=files)
    assert report.stats is not None
    return replace(report.stats, **UNTIMED), files


@pytest.mark.parametrize("topic", [SMALL_SEGMENTS, replace(COMPACT, segment_bytes=700)])
@pytest.mark.parametrize("room", [700, 1000, 1500])
def test_several_waves_leave_the_same_bytes_as_one(
    tmp_path: Path, room: int, topic: TopicConfig
) -> None:
    at_once, in_waves = (write_mixed_log(tmp_path / name) for name in ("once", "waves"))
    expected, one_wave = cleaned_with_room(at_once, 1 << 30, topic)
    actual, several = cleaned_with_room(in_waves, room, topic)
    assert contents(at_once) == contents(in_waves)
    assert contents(at_once.parent) == contents(in_waves.parent)
    assert log_times(at_once) == log_times(in_waves)
    # A later wave has no notes of the first pass, and decompresses what they would have decided.
    assert expected.batches_decompressed <= actual.batches_decompressed
    decompressed = {
        name: getattr(expected, name) for name in ("batches_decompressed", "decompressed_bytes")
    }
    assert expected == replace(actual, **decompressed)
    assert one_wave.waves() == 1
    assert several.waves() > 1


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_mixed_log(tmp_path)


def test_replaced_files_are_gone_before_the_next_wave_is_staged(directory: Path) -> None:
    _, files = cleaned_with_room(directory, 700, SMALL_SEGMENTS)
    staged = removed = 0
    for operation in files.operations:
        verb, name, *_ = operation.split()
        if verb == "open" and ".log." in name:
            staged += 1
        if verb == "unlink" and name.endswith(".log.deleted"):
            removed += 1
        if verb == "open":
            assert staged - removed <= 3
    assert staged == removed > 3


def test_checkpoint_is_written_once_and_after_everything(directory: Path) -> None:
    _, files = cleaned_with_room(directory, 700, SMALL_SEGMENTS)
    writes = [i for i, operation in enumerate(files.operations) if operation.startswith("write")]
    assert len(writes) == 1
    renames = [i for i, operation in enumerate(files.operations) if operation.startswith("rename")]
    assert max(renames) < writes[0]


def test_no_room_for_even_one_group_is_refused_before_anything_is_read(directory: Path) -> None:
    before = tree(directory)
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + LARGEST - 1)
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    report = last_round(coordinator(files=files).clean(request))
    assert isinstance(report.failure, RefusedError)
    assert before == tree(directory)
    assert bases_of(directory) == sorted(segments())


def test_room_for_exactly_the_largest_group_is_enough(directory: Path) -> None:
    stats, _ = cleaned_with_room(directory, LARGEST, SMALL_SEGMENTS)
    assert stats.messages_read > 0


class FailingRunner:
    """A runner whose tasks fail from wave ``number`` on, counted from 0."""

    def __init__(self, files: FileSystem, number: int) -> None:
        self._inner = LocalRunner(cores=1, files=files)
        self._left = number
        self.slots, self.shares_memory = self._inner.slots, self._inner.shares_memory

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        for result in self._inner.run(tasks, progressed):
            if self._left:
                self._left -= 1
                yield result
            else:
                yield failed_result(tasks[0], OSError(errno.EIO, "Input/output error"))


class InWaves(Struct, frozen=True):
    """A log that is cleaned in waves with a receipt, and what it was ``before``."""

    before: Path
    after: Path
    receipt: Path

    def clean(self, *, fails_at: int = -1) -> RoundReport:
        files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + 700)
        request = replace(clean_request(self.after, topic=SMALL_SEGMENTS), receipt=self.receipt)
        runner = FailingRunner(files, fails_at)
        return last_round(
            Coordinator(runner, SystemClock(), files, NoEvents()).clean(request)  # type: ignore[arg-type]
        )

    def lines(self) -> int:
        return self.receipt.read_bytes().count(b"\n") if self.receipt.exists() else 0

    def verified(self) -> tuple[list[str], list[str]]:
        """Return the checks that are broken, and the notes about an interruption."""
        receipts = read_receipts(self.receipt, LocalFiles())
        verifier = Verifier(LocalFiles(), VerifySettings())
        pair = verifier.verify_pair(self.before, self.after, receipts)
        alone = verifier.verify_in_place(self.after, receipts)
        broken = {
            check.name
            for report in (pair, alone)
            for check in report.checks
            if check.verdict is Verdict.BROKEN
        }
        return sorted(broken), [note for note in pair.notes if "was interrupted" in note]


@pytest.fixture
def in_waves(tmp_path: Path) -> InWaves:
    after = write_mixed_log(tmp_path / "data")
    before = tmp_path / "before" / after.name
    shutil.copytree(after, before)
    return InWaves(before, after, tmp_path / "receipt")


def test_every_wave_has_its_line_and_a_round_is_read_once(in_waves: InWaves) -> None:
    assert in_waves.clean().failure is None
    assert in_waves.lines() > 2
    (receipt,) = read_receipts(in_waves.receipt, LocalFiles())
    *found, _active = receipt.inputs
    assert sorted(segments())[:-1] == [entry.base_offset for entry in found]
    assert all(entry.crc32c is not None for entry in (*found, *receipt.outputs))
    assert receipt.producers is not None
    assert receipt.has_ended
    assert [entry["base"] for entry in receipt.document["outputs"]] == [
        group["bases"][0] for group in receipt.document["round"]["groups"]
    ]
    assert ([], []) == in_waves.verified()


@pytest.mark.parametrize(("fails_at", "groups"), [(1, 2), (2, 5)])
def test_a_round_that_failed_between_two_waves_is_known_by_its_receipt(
    in_waves: InWaves, fails_at: int, groups: int
) -> None:
    assert isinstance(in_waves.clean(fails_at=fails_at).failure, OSError)
    assert fails_at == in_waves.lines()
    broken, (note,) = in_waves.verified()
    assert [] == broken
    assert f"{groups} of the {groups} groups" in note
    assert "more were to follow" in note
    # And so is the round that comes to the end.
    assert in_waves.clean().failure is None
    assert ([], []) == in_waves.verified()


def test_what_an_interrupted_round_did_not_touch_may_not_change_either(in_waves: InWaves) -> None:
    in_waves.clean(fails_at=2)
    last = sorted(in_waves.after.glob("*.log"))[-2]
    shutil.copy(in_waves.after / f"{10:020d}.log", last)
    assert "receipt" in in_waves.verified()[0]


@pytest.mark.parametrize("is_ascending", [True, False])
def test_a_finished_round_is_not_taken_for_an_interrupted_one(
    in_waves: InWaves, is_ascending: bool
) -> None:
    """The checkpoint has moved: a segment of before that is back was put there by somebody."""
    assert in_waves.clean().failure is None
    changed = [
        path
        for path in sorted(in_waves.after.glob("*.log"))
        if path.read_bytes() != (in_waves.before / path.name).read_bytes()
    ]
    shutil.copy(in_waves.before / changed[-1 if is_ascending else 0].name, in_waves.after)
    if not is_ascending:
        (in_waves.after.parent / CLEANER_CHECKPOINT).unlink()
    broken, notes = in_waves.verified()
    assert "receipt" in broken
    assert [] == notes
