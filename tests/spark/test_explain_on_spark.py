"""What tasks of Spark find of one key is what this process finds, and Spark is not told the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support import called
from tests.support.small_log import batch, write_log
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

KEY = b"anna-4711"
VALUE = b"value-of-anna"


def test_tasks_find_what_this_process_finds_and_no_key_is_on_sparks_pages(
    tmp_path: Path, spark: SparkSession, told: list[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "keeplast.toml").write_text('[topic."t"]\ncleanup.policy = "compact"\n')
    write_log(data, "t-0", {0: [(KEY, VALUE), (b"other", b"2")], 2: [(KEY, None)]})
    write_log(data, "t-1", {0: [(b"other", b"1")], 1: [(b"other", b"2")]})
    write_log(data, f"t-1.{'a' * 32}-delete", {0: [(KEY, VALUE)]})
    (data / "t-1" / f"{0:020d}.log.deleted").write_bytes(batch(0, KEY, VALUE))

    def run(*more: str) -> Any:
        found = called.run(
            "explain",
            str(data),
            KEY.decode(),
            "--topic",
            "t",
            "--values",
            "--json",
            "--now-ms",
            "1800000000000",
            *more,
            code=0,
        )
        return json.loads(found.stdout)

    local, on_spark = run("--runner", "local"), run("--runner", "spark", "--cores", "2")
    assert local == on_spark
    assert [2, 0] == [len(each["records"]) for each in on_spark["partitions"]]
    assert [0, 2] == [len(each["replaced_copies"]) for each in on_spark["partitions"]]
    assert ["read t-0, t-1"] == told
    # Its pages, and its event log, are made of events that come a little later.
    wait_until(lambda: any("t-0, t-1" in text for text in _shown(spark)))
    assert not any(
        secret.decode() in text for secret in (KEY, VALUE) for text in (*told, *_shown(spark))
    )


def _shown(spark: SparkSession) -> list[str]:
    """Return how Spark's pages name and describe its jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return [f"{(job := jobs.apply(at)).name()} {job.description()}" for at in range(jobs.size())]
