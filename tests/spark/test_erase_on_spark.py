"""What tasks of Spark find of keys that must go is what this process finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support import called
from tests.support.key_pair import write_operator_files
from tests.support.small_log import write_log

pytestmark = pytest.mark.spark

KEYS = (b"anna-4711", b"ben-4712", b"cora-4713")


def test_tasks_find_what_this_process_finds_and_no_key_is_on_sparks_pages(
    tmp_path: Path, spark: SparkSession, told: list[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "keeplast.toml").write_text('[topic."t"]\ncleanup.policy = "compact"\n')
    anna, ben, _ = KEYS
    write_log(data, "t-0", {0: [(anna, b"1"), (ben, b"2")], 2: [(anna, None)]})
    write_log(data, "t-1", {0: [(ben, b"1")], 1: [(ben, b"2")]})
    operator = write_operator_files(tmp_path / "apart", KEYS)

    def run(*more: str) -> Any:
        found = called.run(
            "erase",
            "keys",
            str(data),
            "--keys",
            str(operator.keys),
            "--hash-key",
            str(operator.hash_key),
            "--topic",
            "t",
            "--json",
            "--now-ms",
            "1800000000000",
            *more,
            code=1,
        )
        return json.loads(found.stdout)

    local, on_spark = run("--runner", "local"), run("--runner", "spark", "--cores", "2")
    assert local == on_spark
    assert [True, True, False] == [each["is_there"] for each in on_spark["keys"]]
    assert ["read t-0, t-1"] == told
    assert not any(key.decode() in text for key in KEYS for text in told)
