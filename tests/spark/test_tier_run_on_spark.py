"""``run`` with Spark as its runner, and the limit on bytes a second of a round that is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keeplast.model.topic_config import Shape
from keeplast.pipeline import jobs
from keeplast.pipeline.runner import SparkRunner
from keeplast.pipeline.stages import Worker
from tests.support import called
from tests.support.keyed_history import CLEAN_SEGMENTS, KeyedHistory
from tests.support.reader import read_partition
from tests.support.store_world import StoreWorld

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("shared_spark")]

CORES = 2


@pytest.mark.parametrize("shape", list(Shape))
def test_tasks_of_one_round_share_the_limit_on_bytes(
    tmp_path: Path, spark_runner: SparkRunner, monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> None:
    shares: list[int] = []

    def noting(*arguments: object) -> Worker:
        worker = Worker(*arguments)  # type: ignore[arg-type]
        shares.append(worker.share)
        return worker

    monkeypatch.setattr(jobs, "Worker", noting)
    history = KeyedHistory(tmp_path, url=f"file://{tmp_path / 'objects'}")
    history.write(CLEAN_SEGMENTS)
    history.round(shape, spark_runner)
    assert [1 if shape is Shape.PARTITION else CORES] == shares


def test_the_loop_cleans_a_store_on_spark(tmp_path: Path) -> None:
    world = StoreWorld(tmp_path)
    for number in range(2):
        world.log(number, 3)
    values = [read_partition(world.logs[number].directory).final_values() for number in range(2)]
    base = ["run", world.url, "--owner", "a", "--once", "--json"]
    spark = ["--runner", "spark", "--cores", str(CORES)]
    done = called.run(*base, *spark, code=0)
    report = json.loads(done.stdout)
    assert (2, []) == (report["rounds"], report["left"])
    with world.open() as store:
        for partition in store.partitions():
            assert () == store.verify(partition, lambda count: None)
            out = tmp_path / "out" / str(partition)
            store.export(partition, out, lambda count: None)
            assert values[partition.partition] == read_partition(out).final_values()
