"""A real cluster on loopback that loses executors, attempts and drivers, one at a chosen place.

Whatever happens, the bytes are LocalRunner's, and no staged file of any attempt is left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark import SparkContext

from keeplast.attach.held.outputs import work_name
from keeplast.attach.held.stored_segment import check_stored
from keeplast.cleaner.shapes import ShapeChoice
from keeplast.cli.show.progress import ProgressEvents
from keeplast.clock import SystemClock
from keeplast.format.remote_log_metadata import RemoteLogSegmentId
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Shape, Strategy, TopicConfig
from keeplast.pipeline import export_tasks
from keeplast.pipeline.driven_round import slots_at_once
from keeplast.pipeline.export import Workers, export_state
from keeplast.pipeline.runner import LOCAL_OPTIONS, SparkRunner
from keeplast.pipeline.source_options import read_options
from keeplast.rewrite.task import Runner
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from tests.support.attached_world import PARTITION as ATTACHED
from tests.support.cleanings import Reshaped
from tests.support.cluster_driver import FAULT, KILL, Step
from tests.support.cluster_faults import (
    Act,
    Fault,
    Moment,
    Stage,
    inject,
    inject_into_export,
)
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import NOW_MS, SMALL_SEGMENTS, clean_request, last_round
from tests.support.plain_log import write_plain_log
from tests.support.replay import tree
from tests.support.shared_spark import SharedSpark
from tests.support.spark_cluster import (
    SETTINGS,
    SPECULATION,
    Cluster,
    session_settings,
    source_environment,
    standalone_cluster,
)
from tests.support.verified_world import VerifiedWorld
from tests.support.waiting import SECONDS_MAX, wait_for_end, wait_until
from tests.unit.attach.test_attached_rounds import LINEAGE, MERGING, write_history

pytestmark = pytest.mark.spark

WHOLE = ShapeChoice(Shape.PARTITION)
BROADCAST = ShapeChoice(Shape.BROADCAST)
BUCKET = ShapeChoice(Shape.BUCKET, 3)
BY_TIMESTAMP = replace(SMALL_SEGMENTS, strategy=Strategy.TIMESTAMP)
Files = dict[str, tuple[str, int]]
"""Digest and time of files by name, as of :func:`tests.support.replay.tree`."""

PLACES = [
    (WHOLE, Stage.WHOLE),
    *((BROADCAST, stage) for stage in (Stage.INDEX, Stage.RAISE, Stage.SCAN, Stage.REWRITE)),
    *((BUCKET, stage) for stage in (Stage.ASK, Stage.RESOLVE, Stage.REWRITE)),
]
"""Every stage of every shape. Only a rank by version has a stage that raises."""

KILLS = [
    *product(PLACES, Moment, (Act.EXECUTOR, Act.WORKER, Act.HOST)),
    # Where a round in stages begins nothing is reported while headers are read.
    *product([(BUCKET, Stage.MARK)], (Moment.BEFORE, Moment.AFTER), (Act.WORKER, Act.HOST)),
]
SHORT = [
    ((WHOLE, Stage.WHOLE), Moment.DURING, Act.EXECUTOR),
    ((BUCKET, Stage.MARK), Moment.AFTER, Act.HOST),
    ((BROADCAST, Stage.INDEX), Moment.AFTER, Act.HOST),
    ((BROADCAST, Stage.RAISE), Moment.DURING, Act.WORKER),
    ((BROADCAST, Stage.SCAN), Moment.BEFORE, Act.EXECUTOR),
    ((BROADCAST, Stage.REWRITE), Moment.DURING, Act.HOST),
    ((BUCKET, Stage.ASK), Moment.DURING, Act.HOST),
    ((BUCKET, Stage.RESOLVE), Moment.DURING, Act.EXECUTOR),
    ((BUCKET, Stage.REWRITE), Moment.AFTER, Act.HOST),
]
LONG = [pytest.param(*kill, marks=pytest.mark.slow) for kill in KILLS if kill not in SHORT]


@pytest.fixture(scope="module")
def cluster(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    # A process has one session, and here it is one of the cluster.
    shared_spark.end()
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def runner(cluster: Cluster) -> Iterator[SparkRunner]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_SUBMIT_OPTS", LOCAL_OPTIONS)
        with session_settings(SETTINGS), SparkRunner(cluster.master) as started:
            yield started


def cleaned(runner: Runner, directory: Path, *, by_timestamp: bool = False) -> RoundReport:
    coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
    topic = BY_TIMESTAMP if by_timestamp else SMALL_SEGMENTS
    first_dirty = 33 if by_timestamp else 0
    request = replace(clean_request(directory, topic=topic), first_dirty_offset=first_dirty)
    report = last_round(coordinator.clean(request))
    assert report.error is None, report.error
    return report


def staged(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.endswith((".deleted", ".swap"))]


@pytest.mark.rotates(9)
@pytest.mark.parametrize(("place", "moment", "act"), [*SHORT, *LONG])
def test_lost_work_is_done_again(
    runner: SparkRunner,
    place: tuple[ShapeChoice, Stage],
    moment: Moment,
    act: Act,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape, stage = place
    expected = write_mixed_log(tmp_path / "expected")
    directory = shutil.copytree(expected.parent, tmp_path / "data") / expected.name
    scratch = tmp_path / "fault"
    scratch.mkdir()
    fault = Fault(stage, moment, act, scratch)
    by_timestamp = stage is Stage.RAISE
    cleaned(LocalRunner(cores=1), expected, by_timestamp=by_timestamp)
    inject(monkeypatch, fault)
    cleaned(Reshaped(runner, shape), directory, by_timestamp=by_timestamp)
    assert fault.has_struck
    assert tree(expected) == tree(directory)


LOST_TASKS = [
    (Moment.DURING, Act.HOST),
    pytest.param(Moment.BEFORE, Act.WORKER, marks=pytest.mark.slow),
    pytest.param(Moment.AFTER, Act.EXECUTOR, marks=pytest.mark.slow),
]


@pytest.mark.repeats("tests/spark/test_standalone_cluster.py::test_lost_work_is_done_again")
@pytest.mark.parametrize(("moment", "act"), LOST_TASKS)
def test_tasks_that_meet_begin_again_when_one_is_lost(
    runner: SparkRunner, moment: Moment, act: Act, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = write_plain_log(tmp_path / "expected")
    directory = shutil.copytree(expected.parent, tmp_path / "data") / expected.name
    scratch = tmp_path / "fault"
    scratch.mkdir()
    fault = Fault(Stage.JOINT, moment, act, scratch)
    cleaned(LocalRunner(cores=1), expected)
    # An executor that an earlier test has killed may not be back, and one task meets no other.
    context = SparkContext.getOrCreate()
    wait_until(lambda: slots_at_once(context) >= int(SETTINGS["spark.cores.max"]))
    inject(monkeypatch, fault)
    cleaned(Reshaped(runner, BUCKET), directory)
    assert fault.has_struck
    assert tree(expected) == tree(directory)


LOST_EXPORTS = [
    (Stage.ASK, Moment.DURING, Act.HOST),
    pytest.param(Stage.RESOLVE, Moment.DURING, Act.EXECUTOR, marks=pytest.mark.slow),
    pytest.param(Stage.SHOW, Moment.DURING, Act.HOST, marks=pytest.mark.slow),
    pytest.param(Stage.SHOW, Moment.AFTER, Act.EXECUTOR, marks=pytest.mark.slow),
]


@pytest.mark.repeats("tests/spark/test_standalone_cluster.py::test_lost_work_is_done_again")
@pytest.mark.parametrize(("stage", "moment", "act"), LOST_EXPORTS)
def test_an_export_does_lost_work_again(
    runner: SparkRunner,
    stage: Stage,
    moment: Moment,
    act: Act,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = write_mixed_log(tmp_path / "data").parent
    monkeypatch.setattr(export_tasks, "PART_BYTES_MIN", 1)

    def exported(workers: Workers, name: str, task_memory_bytes: int) -> list[dict[str, Any]]:
        done = export_state(
            read_options({"path": str(data)}, is_streaming=False), tmp_path / name, workers,
            ProgressEvents(name), topic_config=lambda topic: TopicConfig(),
            task_memory_bytes=task_memory_bytes,
        )  # fmt: skip
        (how,) = done.partitions
        assert (how.tasks > 1) == (task_memory_bytes < 1 << 20)
        paths = sorted((tmp_path / name / "t/partition=0").iterdir())
        assert all(path.name.startswith("part-") for path in paths)
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    with LocalRunner(cores=1) as local:
        expected = exported(local, "whole", 1 << 30)
    scratch = tmp_path / "fault"
    scratch.mkdir()
    fault = Fault(stage, moment, act, scratch)
    inject_into_export(monkeypatch, fault)
    assert expected == exported(runner, "cut", 1024)
    assert fault.has_struck


class Driver:
    """``keeplast clean`` as a process of its own that has the cluster work for it."""

    def __init__(
        self, cluster: Cluster, data: Path, scratch: Path, shape: ShapeChoice, **faults: str
    ) -> None:
        """Start it; ``faults`` are environment variables of :mod:`tests.support.cluster_driver`."""
        configuration = scratch / "conf"
        configuration.mkdir(parents=True)
        lines = [f"{name} {value}" for name, value in SETTINGS.items()]
        (configuration / "spark-defaults.conf").write_text("\n".join(lines))
        command = [
            sys.executable, "-m", "tests.support.cluster_driver", "clean", str(data),
            "--master", cluster.master, "--json", "--despite", "dirty-ratio",
            "--now-ms", str(NOW_MS), "--despite", "log-bounds",
            "--shape", shape.shape, "--first-dirty-offset", "0", "--memory", "64m",
            "--config", "cleanup.policy=compact",
            "--config", f"segment.bytes={SMALL_SEGMENTS.segment_bytes}",
        ]  # fmt: skip
        environment = {
            **source_environment(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(configuration),
            **faults,
        }
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def is_running(self) -> bool:
        """Say whether it is."""
        return self._process.poll() is None

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; returns exit code and what it printed."""
        out, err = self._process.communicate(timeout=SECONDS_MAX)
        return self._process.returncode, out, err


def held_driver(
    cluster: Cluster, directory: Path, scratch: Path, shape: ShapeChoice, stage: Stage
) -> tuple[Driver, Fault]:
    """Return a driver one of whose tasks waits in the middle of ``stage``, and the fault."""
    fault = Fault(stage, Moment.DURING, Act.HOLD, scratch / "fault")
    fault.scratch.mkdir(parents=True)
    words = f"{stage} {fault.moment} {fault.act} {fault.scratch}"
    driver = Driver(cluster, directory.parent, scratch, shape, **{FAULT: words})
    wait_until(
        lambda: bool(fault.attempts()), by=driver.is_running, words=lambda: str(driver.end())
    )
    return driver, fault


def executors_of(cluster: Cluster, fault: Fault) -> list[int]:
    """Return the processes that work for the driver that ``fault`` holds; they may outlive it."""
    ((_, process),) = fault.attempts()
    return cluster.application_of(process)


STOPPED = [
    pytest.param(WHOLE, Stage.WHOLE, marks=pytest.mark.slow),
    pytest.param(BROADCAST, Stage.INDEX, marks=pytest.mark.slow),
    pytest.param(BROADCAST, Stage.REWRITE, marks=pytest.mark.slow),
    pytest.param(BUCKET, Stage.ASK, marks=pytest.mark.slow),
    (BUCKET, Stage.REWRITE),
]


@pytest.mark.repeats("tests/simulation/test_signals.py::test_a_signal_ends_a_clean_at_a_safe_point")
@pytest.mark.parametrize(("shape", "stage"), STOPPED)
def test_a_driver_that_is_stopped_leaves_nothing(
    cluster: Cluster, shape: ShapeChoice, stage: Stage, tmp_path: Path
) -> None:
    directory = write_mixed_log(tmp_path / "data")
    before = tree(directory)
    driver, fault = held_driver(cluster, directory, tmp_path, shape, stage)
    executors = executors_of(cluster, fault)
    driver.send(signal.SIGTERM)
    fault.release()
    code, out, err = driver.end()
    assert 143 == code, err
    assert "StoppedError" == json.loads(out)["partitions"][0]["error"]["class"]
    assert before == tree(directory)
    wait_for_end(executors)
    assert before == tree(directory)


@pytest.mark.repeats("tests/simulation/test_kill.py::test_a_killed_process_loses_nothing")
@pytest.mark.parametrize(("shape", "stage"), STOPPED)
def test_a_driver_that_is_killed_in_a_stage(
    cluster: Cluster, runner: SparkRunner, shape: ShapeChoice, stage: Stage, tmp_path: Path
) -> None:
    expected = write_mixed_log(tmp_path / "expected")
    directory = shutil.copytree(expected.parent, tmp_path / "data") / expected.name
    cleaned(LocalRunner(cores=1), expected)
    driver, fault = held_driver(cluster, directory, tmp_path, shape, stage)
    executors = executors_of(cluster, fault)
    driver.send(signal.SIGKILL)
    fault.release()
    assert -signal.SIGKILL == driver.end()[0]
    wait_for_end(executors)
    cleaned(Reshaped(runner, shape), directory)
    assert tree(expected) == tree(directory)


STEPS = [
    (Step.ANNOUNCE, 0),
    pytest.param(Step.ANNOUNCE, 2, marks=pytest.mark.slow),
    pytest.param(Step.DECIDE, 0, marks=pytest.mark.slow),
    pytest.param(Step.DECIDE, 4, marks=pytest.mark.slow),
    pytest.param(Step.RETIRE, 0, marks=pytest.mark.slow),
    pytest.param(Step.RETIRE, 3, marks=pytest.mark.slow),
    pytest.param(Step.INSTALL, 0, marks=pytest.mark.slow),
    (Step.INSTALL, 2),
    pytest.param(Step.REMOVE, 0, marks=pytest.mark.slow),
    pytest.param(Step.REMOVE, 5, marks=pytest.mark.slow),
    pytest.param(Step.CHECKPOINT, 0, marks=pytest.mark.slow),
    pytest.param(Step.END, 0, marks=pytest.mark.slow),
]


def without_snapshots(files: Files) -> Files:
    """Leave out producer snapshots: a start-up, ours as Kafka's, removes those within a swap."""
    return {name: file for name, file in files.items() if not name.endswith(".snapshot")}


@pytest.mark.repeats("tests/simulation/test_crash_states.py::test_no_crash_loses_anything")
@pytest.mark.parametrize(("step", "number"), STEPS)
def test_a_driver_that_is_killed_in_a_commit(
    cluster: Cluster, runner: SparkRunner, step: Step, number: int, tmp_path: Path
) -> None:
    expected = write_mixed_log(tmp_path / "expected")
    directory = shutil.copytree(expected.parent, tmp_path / "data") / expected.name
    cleaned(LocalRunner(cores=1), expected)
    once = without_snapshots(tree(expected))
    cleaned(LocalRunner(cores=1), expected)
    twice = without_snapshots(tree(expected))
    killed = Driver(cluster, directory.parent, tmp_path, BUCKET, **{KILL: f"{step} {number}"})
    code, _, err = killed.end()
    assert -signal.SIGKILL == code, err
    cleaned(Reshaped(runner, BROADCAST), directory)
    # What was in place before it died has been cleaned once more, which lets a marker go.
    assert without_snapshots(tree(directory)) in [once, twice]


def attached_world(root: Path) -> VerifiedWorld:
    """Return a partition of a live cluster that was never compacted."""
    return VerifiedWorld(root, write_history(root / "logs", count=150), LINEAGE)


def clean_attached(world: VerifiedWorld, runner: Runner | None = None) -> None:
    world.clean(MERGING, margin=4000, runner=runner)


def logs(world: VerifiedWorld) -> list[bytes]:
    return [world.tier.log_of(each) for each in world.tier.served()]


def stored(world: VerifiedWorld) -> set[bytes]:
    return {each.segment_id for each in world.tier.layout.list(ATTACHED)}


def check_attached(world: VerifiedWorld, expected: VerifiedWorld) -> int:
    """Check what brokers serve, and that all else is known as ours; return how much that is.

    Whatever attempts wrote, each object of what was decided is there, whole, and reads.
    """
    assert logs(expected) == logs(world)
    for each in world.tier.served():
        check_stored(world.tier.layout, each)
    known = {each.id.segment_id for each in world.cluster.cache().segments}
    left = stored(world) - known
    words = {work_name(RemoteLogSegmentId(ATTACHED, each)) for each in left}
    assert words <= {*world.tier.own()}
    # No broker has heard of them: the next round removes them before it does anything.
    clean_attached(world)
    assert logs(expected) == logs(world)
    world.collect()
    assert {each.id.segment_id for each in world.tier.served()} == stored(world)
    assert not left & stored(world)
    return len(left)


LOST_OUTPUTS = [
    (BROADCAST, Stage.REWRITE, Moment.AFTER, Act.HOST),
    pytest.param(WHOLE, Stage.WHOLE, Moment.AFTER, Act.EXECUTOR, marks=pytest.mark.slow),
    pytest.param(BUCKET, Stage.REWRITE, Moment.BEFORE, Act.WORKER, marks=pytest.mark.slow),
]


@pytest.mark.repeats("tests/spark/test_standalone_cluster.py::test_lost_work_is_done_again")
@pytest.mark.parametrize(("shape", "stage", "moment", "act"), LOST_OUTPUTS)
def test_an_attached_output_whose_writer_is_lost_is_written_again(
    runner: SparkRunner,
    shape: ShapeChoice,
    stage: Stage,
    moment: Moment,
    act: Act,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AT-34: under another id; what was written before stays unannounced, and goes."""
    expected, world = attached_world(tmp_path / "expected"), attached_world(tmp_path / "data")
    clean_attached(expected)
    scratch = tmp_path / "fault"
    scratch.mkdir()
    fault = Fault(stage, moment, act, scratch)
    with monkeypatch.context() as patch:
        inject(patch, fault)
        clean_attached(world, Reshaped(runner, shape))
    assert fault.has_struck
    left = check_attached(world, expected)
    assert left or moment is Moment.BEFORE
    for each in (world, expected):
        each.close()


# Last: a process has one session, and this one needs settings of its own.
TWICE = [
    (WHOLE, Stage.WHOLE, Moment.DURING, Act.WAIT),
    (BROADCAST, Stage.INDEX, Moment.DURING, Act.WAIT),
    (BROADCAST, Stage.REWRITE, Moment.DURING, Act.WAIT),
    (BROADCAST, Stage.REWRITE, Moment.BEFORE, Act.LATE),
    (BUCKET, Stage.ASK, Moment.AFTER, Act.WAIT),
    (BUCKET, Stage.REWRITE, Moment.DURING, Act.LATE),
]


ATTACHED_TWICE = [
    (BROADCAST, Stage.REWRITE, Moment.AFTER, Act.WAIT),
    (WHOLE, Stage.WHOLE, Moment.BEFORE, Act.LATE),
]
"""Objects cannot be seen half written: both have written all, or one begins when all is decided."""


@pytest.mark.repeats(
    "tests/spark/test_late_attempts.py::test_staged_files_of_late_attempts_are_gone_when_the_runner_ends"
)
def test_attempts_that_overlap_leave_the_files_of_one(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow task and its speculative twin; the twin is also let win while the other goes on.

    AT-34: so it is where they write objects that brokers will serve.
    """
    expected = write_mixed_log(tmp_path / "expected")
    cases = []
    for number, (shape, stage, moment, act) in enumerate(TWICE):
        scratch = tmp_path / f"fault{number}"
        scratch.mkdir()
        directory = shutil.copytree(expected.parent, tmp_path / f"data{number}") / expected.name
        cases.append((shape, Fault(stage, moment, act, scratch), directory))
    cleaned(LocalRunner(cores=1), expected)
    served = attached_world(tmp_path / "attached")
    clean_attached(served)
    attached = []
    for number, (shape, stage, moment, act) in enumerate(ATTACHED_TWICE):
        scratch = tmp_path / f"attached-fault{number}"
        scratch.mkdir()
        world = attached_world(tmp_path / f"attached{number}")
        attached.append((shape, Fault(stage, moment, act, scratch), world))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    with session_settings({**SETTINGS, **SPECULATION}), SparkRunner(cluster.master) as runner:
        for shape, fault, directory in cases:
            with monkeypatch.context() as patch:
                inject(patch, fault)
                cleaned(Reshaped(runner, shape), directory)
            contents = {n: c for n, c in tree(directory).items() if not n.endswith(".deleted")}
            assert tree(expected) == contents, fault
        for shape, fault, world in attached:
            with monkeypatch.context() as patch:
                inject(patch, fault)
                clean_attached(world, Reshaped(runner, shape))
            assert logs(served) == logs(world), fault
    for fault in (*(each for _, each, _ in cases), *(each for _, each, _ in attached)):
        attempts = fault.attempts()
        assert 2 <= len({attempt for attempt, _ in attempts}), (fault, attempts)
        assert 2 <= len({process for _, process in attempts}), (fault, attempts)
    for _, fault, directory in cases:
        assert tree(expected) == tree(directory), fault
    for _, fault, world in attached:
        wait_for_end([process for _, process in fault.attempts()])
        check_attached(world, served)
        world.close()
    served.close()
