"""An export is the same by each runner, and Spark reads it as it reads the state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from keeplast.errors import UnavailableError
from keeplast.pipeline import export_tasks
from keeplast.pipeline.driven_round import TaskNews
from keeplast.pipeline.jobs import show_states
from keeplast.read.log_state import StatePart, Winners
from keeplast.rewrite.task import Progressed
from keeplast.survey import request
from tests.support import called
from tests.support.flipped import flip
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import SMALL_SEGMENTS
from tests.support.state_in_parts import parts_of_log

pytestmark = pytest.mark.spark

R = TypeVar("R")


class LosingNews(TaskNews):
    """Loses all shuffle files, and damages a segment, when the first job has ended."""

    segment: Path
    jobs = 0

    def during(self, act: Callable[[], list[R]], description: str) -> list[R]:
        done = super().during(act, description)
        self.jobs += 1
        if self.jobs == 1:
            flip(self.segment)
            lose_shuffle_files(self._context)
        return done


def lose_shuffle_files(context: SparkContext) -> None:
    started = context._jsc.sc()
    cleaner = started.cleaner().get()
    for shuffle in range(started.newShuffleId()):
        cleaner.doCleanupShuffle(shuffle, True)


def count(part: StatePart, winners: Winners, progressed: Progressed) -> int:
    return len(winners)


def test_a_state_whose_keys_cannot_be_read_again_is_not_shown(
    tmp_path: Path, spark: SparkSession
) -> None:
    directory = write_mixed_log(tmp_path)
    parts = parts_of_log(directory, SMALL_SEGMENTS, split_bytes=300, buckets=3)
    context = spark.sparkContext
    assert 0 < sum(show_states(context, parts, count, TaskNews(context, lambda read: None)))
    news = LosingNews(context, lambda read: None)
    news.segment = directory / f"{10:020d}.log"
    with pytest.raises(UnavailableError, match="crc mismatch"):
        list(show_states(context, parts, count, news))


def test_both_runners_write_the_same_files(
    tmp_path: Path, spark: SparkSession, job_descriptions: list[str]
) -> None:
    data = tmp_path / "data"
    write_mixed_log(data)
    local, on_spark = tmp_path / "local", tmp_path / "spark"
    for runner, target in (("local", local), ("spark", on_spark)):
        arguments = ["export", str(data), "--to", str(target), "--runner", runner, "--cores", "2"]
        called.run(*arguments, code=0)
    contents = [
        {str(path.relative_to(each)): path.read_bytes() for path in each.rglob("*.*")}
        for each in (local, on_spark)
    ]
    assert 3 == len(contents[0])
    assert contents[0] == contents[1]
    assert ["read t-0"] == job_descriptions


def run(data: Path, target: Path, *more: str, code: int | None = None) -> Any:
    arguments = ["export", str(data), "--to", str(target), "--cores", "2", "--json", *more]
    return called.run(*arguments, code=code)


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("strategy", "more"), [("offset", []), ("timestamp", []), ("timestamp", ["--tombstones"])]
)
def test_keys_that_fit_no_task_go_to_buckets(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    more: list[str],
) -> None:
    data = tmp_path / "data"
    directory = write_mixed_log(data)
    config = ["--config", f"compaction.strategy={strategy}", *more]
    run(data, tmp_path / "whole", "--runner", "local", *config, code=0)
    monkeypatch.setattr(export_tasks, "PART_BYTES_MIN", 1)
    monkeypatch.setattr(request, "TASK_MEMORY_BYTES_MIN", 1)
    cut = run(data, tmp_path / "cut", "--runner", "spark", "--task-memory", "1k", *config, code=0)
    (how,) = json.loads(cut.stdout)["partitions"]
    assert "bucket" == how["shape"]
    assert how["buckets"] > 2
    assert how["tasks"] > 2
    assert f"and {how['buckets']} buckets of keys: keys of up to" in cut.stderr
    one, several = tmp_path / "whole/t/partition=0", tmp_path / "cut/t/partition=0"
    rows = [row for path in sorted(several.iterdir()) for row in pq.read_table(path).to_pylist()]
    assert pq.read_table(one / "part-00000.parquet").to_pylist() == rows
    assert how["records"] == len(rows) > 0
    assert bool(more) == any(row["value"] is None for row in rows)

    log = directory / f"{10:020d}.log"
    flip(log)
    failed = run(
        data, tmp_path / "bad", "--runner", "spark", "--task-memory", "1k", *config, code=3
    )
    assert str(log) == json.loads(failed.stdout)["error"]["path"]
    assert not (tmp_path / "bad").exists()
