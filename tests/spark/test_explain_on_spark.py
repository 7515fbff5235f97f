"""What tasks of Spark find of keys is what this process finds; Spark's pages have no key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support import called
from tests.support.key_pair import write_operator_files
from tests.support.small_log import batch, write_log
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

KEYS = (b"anna-4711", b"ben-4712", b"cora-4713")
KEY = KEYS[0]
VALUE = b"value-of-anna"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a compacted topic and nothing in it yet."""
    made = tmp_path / "data"
    made.mkdir()
    (made / "keeplast.toml").write_text('[topic."t"]\ncleanup.policy = "compact"\n')
    return made


def printed_by_both(*call: object, code: int) -> Any:
    """Return the document of a call, which is the same on Spark and without it."""
    local, on_spark = (
        json.loads(
            called.run(
                *map(str, call), "--topic", "t", "--json", "--now-ms", "1800000000000",
                "--runner", *runner, code=code,
            ).stdout
        )
        for runner in (["local"], ["spark", "--cores", "2"])
    )  # fmt: skip
    assert local == on_spark
    return on_spark


def test_tasks_find_keys_to_erase_and_no_key_is_on_sparks_pages(
    tmp_path: Path, data: Path, spark: SparkSession, job_descriptions: list[str]
) -> None:
    anna, ben, _ = KEYS
    write_log(data, "t-0", {0: [(anna, b"1"), (ben, b"2")], 2: [(anna, None)]})
    write_log(data, "t-1", {0: [(ben, b"1")], 1: [(ben, b"2")]})
    operator = write_operator_files(tmp_path / "apart", KEYS)
    found = printed_by_both(
        "erase", "keys", data, "--keys", operator.keys, "--hash-key", operator.hash_key, code=1
    )
    assert [True, True, False] == [each["is_there"] for each in found["keys"]]
    assert ["read t-0, t-1"] == job_descriptions
    assert not any(key.decode() in text for key in KEYS for text in job_descriptions)


def test_tasks_explain_a_key_and_it_is_not_on_sparks_pages(
    data: Path, spark: SparkSession, job_descriptions: list[str]
) -> None:
    write_log(data, "t-0", {0: [(KEY, VALUE), (b"other", b"2")], 2: [(KEY, None)]})
    write_log(data, "t-1", {0: [(b"other", b"1")], 1: [(b"other", b"2")]})
    write_log(data, f"t-1.{'a' * 32}-delete", {0: [(KEY, VALUE)]})
    (data / "t-1" / f"{0:020d}.log.deleted").write_bytes(batch(0, KEY, VALUE))

    found = printed_by_both("explain", data, KEY.decode(), "--values", code=0)
    assert [2, 0] == [len(each["records"]) for each in found["partitions"]]
    assert [0, 2] == [len(each["replaced_copies"]) for each in found["partitions"]]
    assert ["read t-0, t-1"] == job_descriptions
    # Its pages, and its event log, are made of events that come a little later.
    wait_until(lambda: any("t-0, t-1" in text for text in _shown(spark)))
    assert not any(
        secret.decode() in text
        for secret in (KEY, VALUE)
        for text in (*job_descriptions, *_shown(spark))
    )


def _shown(spark: SparkSession) -> list[str]:
    """Return how Spark's pages name and describe its jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return [f"{(job := jobs.apply(at)).name()} {job.description()}" for at in range(jobs.size())]
