"""Rounds that tasks do together: the bytes of one task, or nothing at all and then the stages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.cleaner.shapes import ShapeChoice
from keeplast.clock import SystemClock
from keeplast.columns.winners import SHARDS, new_ledger
from keeplast.errors import UnavailableError
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Shape
from keeplast.rewrite import joint_run
from keeplast.rewrite.joint_run import KeyFile
from keeplast.rewrite.standings import bucket_of, parts_of
from keeplast.rewrite.task import Runner
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from tests.support.cleanings import Altered, expects_no_transactions, untimed
from tests.support.flipped import flip
from tests.support.heard_calls import hear
from tests.support.joint_runner import JointRunner
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    SMALL_SEGMENTS,
    clean_request,
    last_round,
    one,
    write_partition,
)
from tests.support.replay import tree

BOUNDED = 64
"""So few bytes for the keys of a task that every block of them is written out by itself."""

CHOICES = [
    ShapeChoice(Shape.BROADCAST),
    ShapeChoice(Shape.BUCKET, 5),
    ShapeChoice(Shape.BUCKET, 130, task_memory_bytes=BOUNDED),
]


def cleaned(runner: Runner, directory: Path, *, first_dirty: int = 0) -> RoundReport:
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    request = replace(request, first_dirty_offset=first_dirty)
    return last_round(Coordinator(runner, SystemClock(), LocalFiles(), NoEvents()).clean(request))


def both_ways(
    directory: Path, choice: ShapeChoice, threads: LocalRunner, *, first_dirty: int = 0
) -> JointRunner:
    """Clean a log by one task and a copy jointly, or as far as that goes; they must agree."""
    twin = shutil.copytree(directory.parent, directory.parent.with_name("twin")) / directory.name
    whole = cleaned(LocalRunner(cores=1), directory, first_dirty=first_dirty)
    joint = JointRunner(threads)
    report = cleaned(Altered(joint, choice, expects_no_transactions), twin, first_dirty=first_dirty)
    assert untimed(whole) == untimed(report)
    assert tree(directory) == tree(twin)
    return joint


def write_log(root: Path, keys: list[bytes], at: list[int] | None = None) -> Path:
    """Write a log of these keys, ten records a segment, with an active one behind them."""
    offsets = list(range(len(keys))) if at is None else at
    segments: dict[int, bytes] = {}
    for first in range(0, len(keys), 10):
        some = zip(offsets[first : first + 10], keys[first : first + 10], strict=True)
        segments[first] = b"".join(one(offset, key, b"v%d" % offset) for offset, key in some)
    return write_partition(root, {**segments, len(keys): one(len(keys), b"k")})


@pytest.fixture
def small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_run, "MAP_BYTES_MIN", 1)


@pytest.mark.parametrize("choice", CHOICES)
def test_tasks_that_meet_leave_the_bytes_of_one(
    choice: ShapeChoice, threads: LocalRunner, tmp_path: Path, small_maps: None
) -> None:
    keys = [b"%d" % (n * n % 37) for n in range(90)]
    joint = both_ways(write_log(tmp_path / "data", keys), choice, threads)
    assert (1, 0) == (joint.joined, joint.gave_up)


@settings(max_examples=15, deadline=None)
@given(keys=st.lists(st.integers(0, 12), min_size=40, max_size=70), number=st.integers(0, 2))
def test_tasks_that_meet_leave_the_bytes_of_one_whatever_the_keys(
    keys: list[int], number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch, LocalRunner(cores=1) as inner:
        patch.setattr(joint_run, "MAP_BYTES_MIN", 1)
        log = write_log(root / "data", [b"%d" % key for key in keys])
        joint = both_ways(log, CHOICES[number], inner)
    assert (1, 0) == (joint.joined, joint.gave_up)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_transaction_makes_all_give_up(
    choice: ShapeChoice, threads: LocalRunner, tmp_path: Path
) -> None:
    joint = both_ways(write_mixed_log(tmp_path / "data"), choice, threads)
    assert (0, 1) == (joint.joined, joint.gave_up)


def test_a_clean_section_is_not_for_tasks_that_meet(threads: LocalRunner, tmp_path: Path) -> None:
    log = write_log(tmp_path / "data", [b"%d" % (n % 7) for n in range(60)])
    joint = both_ways(log, CHOICES[0], threads, first_dirty=20)
    assert (0, 0) == (joint.joined, joint.gave_up)


def test_notes_that_do_not_fit_make_all_give_up(
    threads: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(first: int, end: int, bytes_max: int) -> object:
        return new_ledger(first, end, 5)

    monkeypatch.setattr(joint_run, "new_ledger", short)
    joint = both_ways(write_log(tmp_path / "data", [b"k"] * 60), CHOICES[0], threads)
    assert (0, 1) == (joint.joined, joint.gave_up)


def test_offsets_out_of_order_make_all_give_up(threads: LocalRunner, tmp_path: Path) -> None:
    at = list(range(60))
    at[31], at[32] = at[32], at[31]
    log = write_log(tmp_path / "data", [b"%d" % (n % 3) for n in range(60)], at)
    joint = both_ways(log, CHOICES[0], threads)
    assert (0, 1) == (joint.joined, joint.gave_up)


def test_a_task_that_cannot_read_keys_makes_all_give_up(
    threads: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def fails_once(key_files: list[KeyFile], bucket: int, *_: object) -> None:
        if bucket == 1:
            raise OSError("no such disk")

    hear(monkeypatch, joint_run, "find_losers", fails_once)
    joint = both_ways(write_log(tmp_path / "data", [b"k"] * 60), CHOICES[0], threads)
    assert (0, 1) == (joint.joined, joint.gave_up)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_damaged_log_is_reported_and_left_as_it_was(
    choice: ShapeChoice, threads: LocalRunner, tmp_path: Path
) -> None:
    directory = write_log(tmp_path / "data", [b"%d" % (n % 7) for n in range(60)])
    path = directory / f"{30:020d}.log"
    flip(path, -3)
    before = tree(directory)
    joint = JointRunner(threads)
    report = cleaned(Altered(joint, choice, expects_no_transactions), directory)
    assert report.error is not None
    assert "CorruptError" == report.error.error_class
    assert str(path) == report.error.path
    assert before == tree(directory)


def test_a_file_of_keys_that_is_short_here_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(bytes(100))
    with pytest.raises(UnavailableError, match="shorter here than where it was written"):
        joint_run.find_losers([KeyFile(path, (0,))], 0, 1, LocalFiles())


@given(cells=st.integers(1, 700), data=st.data())
def test_every_cell_has_one_bucket(cells: int, data: st.DataObject) -> None:
    buckets = cells
    bucket = data.draw(st.integers(0, buckets - 1))
    first, last = joint_run.cells_of_bucket(bucket, buckets)
    assert all(bucket == bucket_of(cell, buckets) for cell in range(first, last))
    before = joint_run.cells_of_bucket(bucket - 1, buckets)[1] if bucket else 0
    assert before == first
    if bucket == buckets - 1:
        assert SHARDS * parts_of(buckets) == last


@given(costs=st.lists(st.integers(0, 50), min_size=1, max_size=40), runs=st.integers(1, 9))
def test_runs_keep_the_order_and_are_no_more_than_asked_for(costs: list[int], runs: int) -> None:
    found = joint_run.cut_runs(costs, lambda cost: cost, runs)
    assert costs == [cost for run in found for cost in run]
    assert 1 <= len(found) <= runs
    assert all(found)
    assert max(map(sum, found)) <= sum(costs) / runs + max(costs)
