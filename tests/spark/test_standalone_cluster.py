"""A real cluster on loopback: executors are lost, and only what was reported is committed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from keeplast.cleaner.shapes import Shape, ShapeChoice
from keeplast.clock import SystemClock
from keeplast.engine.coordinator import Coordinator
from keeplast.engine.events import NoEvents
from keeplast.engine.local_runner import LocalRunner
from keeplast.engine.report import RoundReport
from keeplast.engine.runner import Runner
from keeplast.log.files import LocalFiles
from keeplast.pipeline.runner import SparkRunner
from tests.support.cleanings import Reshaped
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import SMALL_SEGMENTS, clean_request, last_round
from tests.support.replay import tree
from tests.support.spark_cluster import Cluster, standalone_cluster

pytestmark = pytest.mark.spark

SHAPES = {
    "partition": ShapeChoice(Shape.PARTITION),
    "broadcast": ShapeChoice(Shape.BROADCAST),
    "bucket": ShapeChoice(Shape.BUCKET, 3),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def runner(cluster: Cluster) -> Iterator[SparkRunner]:
    source = Path(__file__).parents[2] / "src"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with SparkRunner(cluster.master) as started:
            yield started


def cleaned(runner: Runner, directory: Path) -> RoundReport:
    coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
    request = replace(clean_request(directory, topic=SMALL_SEGMENTS), first_dirty_offset=0)
    return last_round(coordinator.clean(request))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_executor_that_is_killed_changes_nothing(
    runner: SparkRunner, cluster: Cluster, shape: str, tmp_path: Path
) -> None:
    expected = write_mixed_log(tmp_path / "expected")
    directory = shutil.copytree(expected.parent, tmp_path / "data") / expected.name
    cleaned(LocalRunner(cores=1), expected)
    is_over = threading.Event()
    kills: list[bool] = []

    def kill() -> None:
        while not is_over.is_set() and not any(kills):
            time.sleep(1)
            kills.append(cluster.kill_an_executor())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        report = cleaned(Reshaped(runner, SHAPES[shape]), directory)
    finally:
        is_over.set()
        killer.join()
    assert report.error is None, report.error
    assert tree(expected) == tree(directory)
    assert [] == [name for name in tree(directory) if name.endswith(".deleted")]
    assert any(kills)
