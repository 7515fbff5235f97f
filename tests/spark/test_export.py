"""An export is the same whoever runs it, and Spark reads it as it reads the state."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from keeplast.cli.main import app
from tests.support.mixed_log import write_mixed_log

pytestmark = pytest.mark.spark


def test_both_runners_write_the_same_files(tmp_path: Path, spark: SparkSession) -> None:
    data = tmp_path / "data"
    write_mixed_log(data)
    local, on_spark = tmp_path / "local", tmp_path / "spark"
    for runner, target in (("local", local), ("spark", on_spark)):
        arguments = ["export", str(data), "--to", str(target), "--runner", runner, "--cores", "2"]
        done = CliRunner().invoke(app, arguments)
        assert 0 == done.exit_code, done.output
    contents = [
        {str(path.relative_to(each)): path.read_bytes() for path in each.rglob("*.*")}
        for each in (local, on_spark)
    ]
    assert 2 == len(contents[0])
    assert contents[0] == contents[1]
