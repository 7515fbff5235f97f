"""Spark as a runner: what it says, what it refuses, and that its driver alone commits."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.api.open_log import open_log
from keeplast.clock import SystemClock
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.runner import SparkRunner
from keeplast.pipeline.stages import own_versions
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents, RoundWork
from keeplast.run.foresight import RESERVE_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.mixed_log import write_mixed_log
from tests.support.observed_files import ObservedFiles
from tests.support.partition_maker import clean_request, last_round
from tests.support.replay import tree
from tests.support.scenario_log import PARTITION as LOG_PARTITION
from tests.support.versioned_history import write_history
from tests.support.versioned_log import BY_HEADER, BY_TIMESTAMP

pytestmark = pytest.mark.spark

OBJECTS_OF_MODULES = 50_000
"""A process that has imported nothing of ours has a tenth of them."""


class CountingEvents(NoEvents):
    """Adds up what was planned and what progressed."""

    def __init__(self) -> None:
        self.planned_bytes = 0
        self.read_bytes = 0

    def planned(self, total_bytes: int, work: RoundWork | None = None) -> None:
        self.planned_bytes += total_bytes

    def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
        self.read_bytes += read_bytes


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_mixed_log(tmp_path / "data")


def test_progress_of_the_workers_reaches_the_driver(
    spark_runner: SparkRunner, directory: Path
) -> None:
    events = CountingEvents()
    coordinator = Coordinator(spark_runner, SystemClock(), LocalFiles(), events)
    report = last_round(coordinator.clean(clean_request(directory)))
    assert report.error is None
    assert 0 < events.planned_bytes == events.read_bytes


def test_no_staged_file_is_left(spark_runner: SparkRunner, directory: Path) -> None:
    coordinator = Coordinator(spark_runner, SystemClock(), LocalFiles(), NoEvents())
    coordinator.clean(clean_request(directory))
    assert [] == [name for name in tree(directory) if name.endswith(".deleted")]


def test_executor_with_other_codecs_is_refused(
    spark_runner: SparkRunner, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(directory)
    other = replace(own_versions(), cramjam="0.0.1")
    monkeypatch.setattr("keeplast.pipeline.jobs.own_versions", lambda: other)
    coordinator = Coordinator(spark_runner, SystemClock(), LocalFiles(), NoEvents())
    report = last_round(coordinator.clean(clean_request(directory)))
    assert report.error is not None
    assert "RefusedError" == report.error.error_class
    assert "0.0.1" in report.error.message
    assert before == tree(directory)


def test_fewer_than_one_core_is_invalid() -> None:
    with pytest.raises(InvalidError):
        SparkRunner(cores=0)


def run_clean(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "keeplast",
        "clean",
        str(directory),
        "--json",
        "--despite",
        "dirty-ratio",
    ]
    return subprocess.run(
        [*command, "--runner", "spark", "--config", "cleanup.policy=compact"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_stdout_holds_the_document_and_nothing_else(directory: Path) -> None:
    done = run_clean(directory)
    assert 0 == done.returncode, done.stderr
    assert 1 == json.loads(done.stdout)["version"]
    assert "WARN" not in done.stderr


DRIVER_THAT_DIES = """
import os, signal
from pyspark import SparkContext
from keeplast.errors import UnavailableError
from keeplast.pipeline.runner import SparkRunner

def kill(process, progressed):
    os.kill(process, signal.SIGKILL)

try:
    with SparkRunner(cores=1) as runner:
        list(runner.each(kill, [SparkContext._gateway.proc.pid], lambda count: None))
except UnavailableError as error:
    print(error)
"""


def test_a_driver_process_that_dies_is_said_with_what_helps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER_THAT_DIES], capture_output=True, text=True, check=True
    )
    assert "Spark's driver process has ended" in done.stdout
    assert "SPARK_DRIVER_MEMORY" in done.stdout


def test_missing_java_names_the_package_and_the_way_without(
    directory: Path, tmp_path: Path
) -> None:
    before = tree(directory)
    done = run_clean(directory, JAVA_HOME=str(tmp_path / "nowhere"))
    assert 4 == done.returncode
    assert "openjdk-17-jre-headless" in done.stderr
    assert "leave --runner spark and --master out" in done.stderr
    assert before == tree(directory)


@pytest.mark.rotates(4)
@pytest.mark.parametrize(
    ("room_bytes", "waves_min"), [(1 << 30, 1), (1500, 3)], ids=["one wave", "waves"]
)
@pytest.mark.parametrize("topic", [BY_HEADER, BY_TIMESTAMP], ids=["header", "timestamp"])
def test_ranked_by_version_both_runners_leave_the_same_bytes(
    spark_runner: SparkRunner, tmp_path: Path, topic: TopicConfig, room_bytes: int, waves_min: int
) -> None:
    """Versions travel in the map that one wave hands to the next."""
    log = write_history(tmp_path / "spark", topic, seed=3)
    copy = write_history(tmp_path / "local", topic, seed=3)
    state = open_log(log.directory).state(topic)
    with LocalRunner(cores=1) as local:
        for chosen, directory in ((spark_runner, log.directory), (local, copy.directory)):
            files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + room_bytes)
            coordinator = Coordinator(chosen, SystemClock(), files, NoEvents())
            request = CleanRequest(
                (PartitionRequest(LOG_PARTITION, directory, topic),),
                now_ms=log.now_ms,
                is_unsafe=True,
                force=True,
            )
            assert last_round(coordinator.clean(request)).error is None
            assert files.waves() >= waves_min
    assert log.closed_files() == copy.closed_files()
    assert state == open_log(log.directory).state(topic)


def test_a_worker_is_born_with_what_a_task_imports_and_a_task_imports_nothing_more(
    spark_runner: SparkRunner, directory: Path
) -> None:
    def look(_: int, progressed: object) -> tuple[int, int, frozenset[str]]:
        return os.getpid(), gc.get_freeze_count(), frozenset(sys.modules)

    def noted() -> dict[int, frozenset[str]]:
        found = list(spark_runner.each(look, range(8), lambda _: None))
        assert min(frozen for _, frozen, _ in found) > OBJECTS_OF_MODULES
        return {process: names for process, _, names in found}

    before = noted()
    coordinator = Coordinator(spark_runner, SystemClock(), LocalFiles(), NoEvents())
    assert last_round(coordinator.clean(clean_request(directory))).error is None
    after = noted()
    ours = {
        process: {name for name in names - before[process] if name.startswith("keeplast")}
        for process, names in after.items()
        if process in before
    }
    assert {frozenset(names) for names in ours.values()} == {frozenset()}
