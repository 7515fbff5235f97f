"""What programs ask of a place with a Spark runner is what this process answers."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import keeplast
from keeplast.pipeline.runner import SparkRunner
from tests.support.placed_logs import ANNA, BEN, FILLER, HASH_KEY, take_in, write_directory

pytestmark = pytest.mark.spark


@pytest.mark.rotates(2)
@pytest.mark.parametrize("kind", ["directory", "store"])
def test_a_runner_that_is_given_answers_the_same_and_stays_open(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    data = write_directory(tmp_path / "data")
    place = (
        keeplast.DirectoryLogs(data)
        if kind == "directory"
        else keeplast.StoredLogs(take_in(data, tmp_path))
    )
    with SparkRunner() as runner:
        answer = keeplast.explain_place(place, key=ANNA, runner=runner)
        found = keeplast.erase(place, [ANNA, BEN], HASH_KEY, topics=["t"], runner=runner)
        done = keeplast.export(place, tmp_path / "out", topics=["t"], runner=runner)
    here = keeplast.explain_place(place, key=ANNA, now_ms=answer.parts[0].found.now_ms)
    answers = [each.document(values=True)["partitions"] for each in (here, answer)]
    # Dates of a store go by its clock, which has gone on.
    here_records, records = ([part["records"] for part in parts] for parts in answers)
    assert here_records == records
    assert {1: True, 2: False} == {each.line: each.is_decided for each in found.answer.there}
    rows = pq.read_table(done.target / "t" / "partition=0", partitioning=None).to_pylist()
    assert {BEN: b"2", FILLER: b"3"} == {row["key"]: row["value"] for row in rows}
