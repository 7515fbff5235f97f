"""Rounds in stages on Spark: the same bytes as threads give, mixed in one call."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark import RDD, Broadcast, SparkContext

from keeplast.cleaner.shapes import ShapeChoice
from keeplast.cleaner.transactions import TransactionState
from keeplast.clock import SystemClock
from keeplast.columns.winners import KeyMap
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape, Strategy, TopicConfig
from keeplast.pipeline import driven_round
from keeplast.pipeline.driven_round import SlotWatch, arrived_slots
from keeplast.pipeline.jobs import packed, runs_of
from keeplast.pipeline.runner import SparkRunner
from keeplast.rewrite.stats import Stats
from keeplast.rewrite.task import PartitionTask, Progressed, Runner, TaskResult
from keeplast.rewrite.units import Extent, IndexUnit
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from tests.support.cleanings import OF_THE_SHAPE, Alteration, Altered, expects_no_transactions
from tests.support.heard_calls import hear
from tests.support.manual_clock import ManualClock
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    SMALL_SEGMENTS,
    clean_request,
    last_round,
)
from tests.support.plain_log import write_plain_log
from tests.support.replay import tree

pytestmark = pytest.mark.spark

UNTIMED = {
    "index_seconds": 0.0, "clean_seconds": 0.0, "total_seconds": 0.0, "removal_seconds": 0.0,
    "peak_rss_bytes": 0,
}  # fmt: skip
IO_BYTES = 3000
BY_TIMESTAMP = replace(SMALL_SEGMENTS, strategy=Strategy.TIMESTAMP)


def cleaned(runner: Runner, directory: Path, topic: TopicConfig, first_dirty: int) -> Stats:
    coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
    request = replace(clean_request(directory, topic=topic), first_dirty_offset=first_dirty)
    report = last_round(coordinator.clean(request))
    assert report.error is None, report.error
    assert report.stats is not None
    return replace(report.stats, **UNTIMED)


def as_surveyed(task: PartitionTask) -> PartitionTask:
    return task


@pytest.mark.rotates(4)
@pytest.mark.parametrize(("topic", "first_dirty"), [(SMALL_SEGMENTS, 0), (BY_TIMESTAMP, 33)])
@pytest.mark.parametrize("choice", [ShapeChoice(Shape.BROADCAST), ShapeChoice(Shape.BUCKET, 5)])
@pytest.mark.parametrize("alter", [as_surveyed, expects_no_transactions])
def test_stages_on_spark_leave_the_bytes_of_one_task(
    spark_runner: SparkRunner,
    alter: Alteration,
    choice: ShapeChoice,
    topic: TopicConfig,
    first_dirty: int,
    tmp_path: Path,
) -> None:
    whole = write_mixed_log(tmp_path / "whole")
    staged = shutil.copytree(whole.parent, tmp_path / "staged") / whole.name
    with LocalRunner(cores=1) as local:
        expected = cleaned(local, whole, topic, first_dirty)
    reshaped = Altered(spark_runner, choice, alter)
    actual = cleaned(reshaped, staged, topic, first_dirty)
    assert 1 == reshaped.staged
    assert tree(whole) == tree(staged)
    cut = dict.fromkeys(OF_THE_SHAPE, 0)
    assert replace(expected, **cut) == replace(actual, **cut)


class OneCut:
    """A runner that cuts the first partition of a call, slows all down, and notes what runs."""

    slots = 2
    shares_memory = False

    def __init__(self, runner: SparkRunner) -> None:
        self._runner = runner
        self.most_jobs = 0

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        def noted(count: int) -> None:
            context = SparkContext.getOrCreate()
            self.most_jobs = max(self.most_jobs, len(context.statusTracker().getActiveJobsIds()))
            progressed(count)

        slow = [replace(task, io_bytes_per_second=IO_BYTES) for task in tasks]
        slow[0] = replace(slow[0], shape=ShapeChoice(Shape.BROADCAST))
        assert 1 == sum(task.is_staged for task in slow)
        return self._runner.run(slow, noted)

    def __enter__(self) -> OneCut:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_whole_partitions_are_cleaned_during_the_stages_of_a_cut_one(
    spark_runner: SparkRunner, tmp_path: Path
) -> None:
    first = write_mixed_log(tmp_path / "both")
    second = shutil.copytree(first, first.parent / f"{first.name[:-1]}1")
    expected = shutil.copytree(first.parent, tmp_path / "expected") / first.name
    with LocalRunner(cores=1) as local:
        cleaned(local, expected, SMALL_SEGMENTS, 0)
    counted = OneCut(spark_runner)
    coordinator = Coordinator(counted, SystemClock(), LocalFiles(), NoEvents())
    request = clean_request(first, topic=SMALL_SEGMENTS)
    one = request.partitions[0]
    other = replace(one, partition=TopicPartition(one.partition.topic, 1), path=second)
    request = replace(request, partitions=(one, other), first_dirty_offset=0)
    report = coordinator.clean(request)
    assert [None, None] == [each.rounds[-1].error for each in report.partitions]
    assert tree(expected) == tree(first) == tree(second)
    assert 2 == counted.most_jobs


def test_items_are_packed_to_about_the_same_cost_the_greatest_first() -> None:
    costs = [1, 9, 2, 8, 3, 7, 4, 6]
    packs = packed(costs, lambda cost: cost, 4)
    assert [[9, 1], [8, 2], [7, 3], [6, 4]] == packs


@pytest.mark.parametrize(
    ("age_ms", "there", "expected", "waited_ms"),
    [
        (0, [1, 1, 2], 2, 200),
        (0, [1] * 100, 1, 2000),
        (0, [0], 0, 0),
        (0, [3], 3, 0),
        (60_000, [1, 2], 1, 0),
    ],
)
def test_executors_of_a_new_session_are_waited_for(
    age_ms: int, there: list[int], expected: int, waited_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        startTime = 10**12

    found = iter(there)
    monkeypatch.setattr(driven_round, "slots_at_once", lambda context: next(found))
    clock = ManualClock(Context.startTime + age_ms)
    began = clock.now_ms()
    assert expected == arrived_slots(Context(), 2, clock)  # type: ignore[arg-type]
    assert waited_ms == clock.now_ms() - began


def test_notes_are_enough_where_all_is_dirty_and_nothing_aborted(
    spark_runner: SparkRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    hear(monkeypatch, SparkContext, "broadcast", lambda context, value: sent.append(value))
    monkeypatch.setattr(driven_round, "slots_at_once", no_slots)
    for first_dirty, maps in ((0, 0), (20, 1)):
        whole = write_plain_log(tmp_path / f"whole-{first_dirty}")
        staged = shutil.copytree(whole.parent, tmp_path / f"staged-{first_dirty}") / whole.name
        with LocalRunner(cores=1) as local:
            expected = cleaned(local, whole, SMALL_SEGMENTS, first_dirty)
        sent.clear()
        reshaped = Altered(spark_runner, ShapeChoice(Shape.BROADCAST), as_surveyed)
        actual = cleaned(reshaped, staged, SMALL_SEGMENTS, first_dirty)
        assert maps == sum(isinstance(value, KeyMap) for value in sent)
        assert tree(whole) == tree(staged)
        cut = dict.fromkeys(OF_THE_SHAPE, 0)
        assert replace(expected, **cut) == replace(actual, **cut)
        assert 0 < actual.messages_written < actual.messages_read


def test_what_sends_keys_is_kept_until_the_last_job_that_may_send_them_once_more(
    spark_runner: SparkRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    hear(monkeypatch, RDD, "collect", lambda rdd: done.append("job"))
    hear(monkeypatch, Broadcast, "unpersist", lambda sent: done.append("drop"))
    bucketed = Altered(spark_runner, ShapeChoice(Shape.BUCKET, 5), as_surveyed)
    cleaned(bucketed, write_mixed_log(tmp_path), SMALL_SEGMENTS, 0)
    assert ["job", "drop"] == [what for what, _ in groupby(done)]


def test_spark_shows_what_a_job_does_and_of_which_partition(
    spark_runner: SparkRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driven_round, "slots_at_once", no_slots)
    directory = write_plain_log(tmp_path)
    cleaned(
        Altered(spark_runner, ShapeChoice(Shape.BROADCAST), as_surveyed),
        directory,
        SMALL_SEGMENTS,
        0,
    )
    assert {f"keeplast: {act} {directory.name}" for act in ("index", "rewrite")} <= set(
        named_jobs()
    )


def no_slots(context: SparkContext) -> int:
    return 0


def named_jobs() -> list[str]:
    """Return what Spark says of the jobs of its session that say anything."""
    jobs = SparkContext.getOrCreate()._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(number).description() for number in range(jobs.size())]
    return [each.get() for each in found if each.isDefined()]


@pytest.mark.rotates(2)
@pytest.mark.parametrize("choice", [ShapeChoice(Shape.BROADCAST), ShapeChoice(Shape.BUCKET, 5)])
def test_tasks_that_run_at_once_do_a_round_in_one_job(
    spark_runner: SparkRunner, choice: ShapeChoice, tmp_path: Path
) -> None:
    whole = write_plain_log(tmp_path / "whole")
    joint = shutil.copytree(whole.parent, tmp_path / "joint") / whole.name
    with LocalRunner(cores=1) as local:
        expected = cleaned(local, whole, SMALL_SEGMENTS, 0)
    before = named_jobs()
    actual = cleaned(Altered(spark_runner, choice, as_surveyed), joint, SMALL_SEGMENTS, 0)
    after = named_jobs()
    for each in before:
        after.remove(each)
    assert [f"keeplast: index and rewrite {joint.name}"] == after
    assert tree(whole) == tree(joint)
    cut = dict.fromkeys(OF_THE_SHAPE, 0)
    assert replace(expected, **cut) == replace(actual, **cut)


def test_a_joint_job_that_fails_is_done_in_stages(
    spark_runner: SparkRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def more_than_there_are(context: SparkContext) -> int:
        return slots_at_once(context) + 1

    def at_once(watch: SlotWatch) -> bool:
        return True

    slots_at_once = driven_round.slots_at_once
    monkeypatch.setattr(driven_round, "slots_at_once", more_than_there_are)
    monkeypatch.setattr(SlotWatch, "is_hopeless", at_once)
    monkeypatch.setattr(SparkRunner, "slots", 3)
    whole = write_plain_log(tmp_path / "whole")
    staged = shutil.copytree(whole.parent, tmp_path / "staged") / whole.name
    with LocalRunner(cores=1) as local:
        expected = cleaned(local, whole, SMALL_SEGMENTS, 0)
    reshaped = Altered(spark_runner, ShapeChoice(Shape.BROADCAST), as_surveyed)
    actual = cleaned(reshaped, staged, SMALL_SEGMENTS, 0)
    assert tree(whole) == tree(staged)
    cut = dict.fromkeys(OF_THE_SHAPE, 0)
    assert replace(expected, **cut) == replace(actual, **cut)


def test_slots_that_are_lost_are_waited_for_with_an_end() -> None:
    clock = ManualClock(0)
    slots = [2]
    watch = SlotWatch(2, lambda: slots[0], clock)
    for lost, seconds, expected in ((False, 1000, False), (True, 50, False), (False, 6, False),
                                    (True, 50, False), (True, 20, True)):  # fmt: skip
        slots[0] = 1 if lost else 2
        for _ in range(seconds):
            clock.advance(1000)
            found = watch.is_hopeless()
        assert expected is found


def test_units_of_a_round_run_together_in_their_order() -> None:
    def unit(number: int, base: int) -> IndexUnit:
        return IndexUnit(number, Extent(base, 0, 10), TransactionState((), base), False, base, 10)

    units = [unit(0, base) for base in range(4)] + [unit(1, base) for base in range(2)]
    for runs, expected in (
        (1, [4, 2]),
        (2, [3, 1, 2]),
        (3, [2, 2, 2]),
        (6, [1] * 6),
        (100, [1] * 6),
    ):
        found = runs_of(units, runs)
        assert expected == [len(run) for run in found]
        assert units == [each for run in found for each in run]
