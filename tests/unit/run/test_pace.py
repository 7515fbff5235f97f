"""Small rounds stay with one thread while that is quick; large ones and slow disks get threads."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from keeplast.columns import retained
from keeplast.log.files import FilesRecipe, LocalRecipe, WriteHandle
from keeplast.log.paths import place_path
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import IndexStats, PartitionTask, TaskResult
from keeplast.run import pace
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.run.pace import (
    QUICK_SECONDS_MAX,
    SLOW_IN_TURN,
    SMALL_BYTES_MAX,
    TRIED_AGAIN,
    Publishing,
    Quickness,
    is_small,
)
from keeplast.survey.report import CleanReport
from keeplast.tier.objects.object_files import MountedRecipe
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import (
    NOW_MS,
    bases_of,
    clean_request,
    one,
    records_of,
    write_partition,
)
from tests.support.waiting import SECONDS_MAX

QUICK_MS = round(QUICK_SECONDS_MAX * 1000)


def _piece(pace: Quickness, clock: ManualClock, milliseconds: int) -> None:
    with pace.measured():
        clock.advance(milliseconds)


def _slow(clock: ManualClock) -> Quickness:
    made = Quickness(clock)
    for _ in range(SLOW_IN_TURN):
        assert made.takes_next()
        _piece(made, clock, QUICK_MS + 1)
    return made


def test_pieces_stay_here_until_so_many_in_turn_were_slow() -> None:
    clock = ManualClock(NOW_MS)
    made = Quickness(clock)
    for _ in range(3):
        for _ in range(SLOW_IN_TURN - 1):
            _piece(made, clock, QUICK_MS + 1)
        assert made.takes_next()
        _piece(made, clock, QUICK_MS - 1)
    assert made.takes_next()


def test_what_was_slow_is_tried_again_once_in_so_many() -> None:
    clock = ManualClock(NOW_MS)
    made = _slow(clock)
    for _ in range(2):
        assert [False] * TRIED_AGAIN == [made.takes_next() for _ in range(TRIED_AGAIN)]
        assert made.takes_next()
        _piece(made, clock, QUICK_MS + 1)


def test_one_that_is_quick_again_brings_the_others_back() -> None:
    clock = ManualClock(NOW_MS)
    made = _slow(clock)
    while not made.takes_next():
        pass
    _piece(made, clock, 0)
    assert [True] * 3 == [made.takes_next() for _ in range(3)]


def test_a_piece_that_fails_counts_by_its_time() -> None:
    clock = ManualClock(NOW_MS)
    made = Quickness(clock)

    def fail() -> None:
        with made.measured():
            clock.advance(QUICK_MS + 1)
            raise OSError("disk")

    for _ in range(SLOW_IN_TURN):
        with pytest.raises(OSError, match="disk"):
            fail()
    assert not made.takes_next()


class _Task(Struct, frozen=True):
    """What of a task says whether it is small."""

    cost_bytes: int
    files: FilesRecipe
    target: Path


def _is_small(cost_bytes: int, files: FilesRecipe, target: Path) -> bool:
    return is_small(cast(PartitionTask, _Task(cost_bytes, files, target)))


@pytest.mark.parametrize(
    ("cost_bytes", "expected"), [(0, True), (SMALL_BYTES_MAX, True), (SMALL_BYTES_MAX + 1, False)]
)
def test_a_round_that_reads_few_bytes_is_small(
    tmp_path: Path, cost_bytes: int, *, expected: bool
) -> None:
    assert expected is _is_small(cost_bytes, LocalRecipe(), tmp_path)


def test_a_round_in_a_store_is_never_small() -> None:
    target = place_path("s3://bucket/logs/t-0")
    assert not _is_small(0, MountedRecipe(()), target)


def _wave(number: int) -> TaskResult:
    return TaskResult(
        number, (), 0, (), np.zeros(retained.COUNTERS, np.int64), IndexStats(), 0, 0, 0.0, 0
    )


def test_a_small_commit_is_done_here_and_brings_what_has_ended_elsewhere() -> None:
    here, may_end, ended_there = threading.get_ident(), threading.Event(), threading.Event()
    by: dict[int, int] = {}

    def commit(result: TaskResult) -> None:
        by[result.number] = threading.get_ident()
        if result.number == 0:
            assert may_end.wait(SECONDS_MAX)
            ended_there.set()

    with Publishing(commit, ManualClock(NOW_MS)) as publishing:
        assert [] == publishing.take(_wave(0), among=3)
        small = publishing.take(_wave(1), among=3, is_small=True)
        assert [1] == [result.number for result, _ in small]
        may_end.set()
        assert ended_there.wait(SECONDS_MAX)
        last = publishing.take(_wave(2), among=3, is_small=True)
        rest = [each for some in publishing.rest() for each in some]
    assert [0, 2] == sorted(result.number for result, _ in (*last, *rest))
    assert [False, True, True] == [by[number] == here for number in range(3)]


class _Slow(ManualClock):
    """Between any two looks at it more time passes than a small piece may take."""

    def seconds(self) -> float:
        """Return the time, later than ever before."""
        self.advance(QUICK_MS + 1)
        return super().seconds()


class _Watched(UnsyncedFiles):
    """Remembers which threads stage the log of a partition, and which put it in place."""

    def __init__(self) -> None:
        self.staged_by: dict[str, int] = {}
        self.swapped_by: dict[str, int] = {}

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Remember who begins a staged log."""
        if ".log." in path.name:
            self.staged_by[path.parent.name] = threading.get_ident()
        return super().open_write(path, append=append)

    def rename(self, source: Path, target: Path) -> None:
        """Remember who swaps."""
        if target.name.endswith(".log.swap"):
            self.swapped_by[target.parent.name] = threading.get_ident()
        super().rename(source, target)


def _clean(
    root: Path, count: int, clock: ManualClock, files: UnsyncedFiles, *, cores: int = 2
) -> CleanReport:
    """Clean so many copies of one small log; the first one has a value of 4 KiB as well."""
    first = write_partition(root, {0: one(0, b"k") + one(1, b"k"), 2: b""})
    partitions = [TopicPartition("t", number) for number in range(count)]
    for each in partitions[1:]:
        shutil.copytree(first, root / str(each))
    shutil.rmtree(first)
    write_partition(root, {0: one(0, b"k") + one(1, b"k", bytes(4096)), 2: b""})
    request = clean_request(first)
    asked = tuple(
        replace(request.partitions[0], partition=each, path=root / str(each)) for each in partitions
    )
    with LocalRunner(cores, files=files, clock=clock) as runner:
        made = Coordinator(runner, clock, files, NoEvents())
        report = made.clean(replace(request, partitions=asked))
    assert [None] * count == [each.rounds[-1].failure for each in report.partitions]
    assert [1] * count == [len(records_of(root / str(each))) for each in partitions]
    assert [[0, 2]] * count == [bases_of(root / str(each)) for each in partitions]
    return report


@pytest.mark.parametrize("cores", [1, 2])
def test_small_rounds_are_done_and_committed_by_the_thread_that_asks(
    tmp_path: Path, cores: int
) -> None:
    files = _Watched()
    _clean(tmp_path, 6, ManualClock(NOW_MS), files, cores=cores)
    here = {f"t-{number}": threading.get_ident() for number in range(6)}
    assert here == files.staged_by
    assert here == files.swapped_by


@pytest.mark.parametrize("cores", [1, 2])
def test_a_large_round_gets_a_thread_next_to_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(pace, "SMALL_BYTES_MAX", 1024)
    files = _Watched()
    _clean(tmp_path, 5, ManualClock(NOW_MS), files, cores=cores)
    here = threading.get_ident()
    for by in (files.staged_by, files.swapped_by):
        assert ["t-0"] == [name for name, thread in by.items() if thread != here]


@pytest.mark.parametrize("cores", [1, 2])
def test_where_small_rounds_are_slow_threads_do_them(tmp_path: Path, cores: int) -> None:
    files = _Watched()
    count = 3 * SLOW_IN_TURN
    _clean(tmp_path, count, _Slow(NOW_MS), files, cores=cores)
    here = threading.get_ident()
    for by in (files.staged_by, files.swapped_by):
        names = [f"t-{number}" for number in range(count)]
        assert names[:SLOW_IN_TURN] == [name for name in names if by[name] == here]
