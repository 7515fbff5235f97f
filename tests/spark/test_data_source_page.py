"""The examples of the data source's page run as they are printed, on a log that a broker wrote."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.pipeline.source_options import NAMES

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/data-source.md"
SAMPLE = ROOT / "src/keeplast/samples/broker-4.3.0"


@pytest.mark.repeats("tests/spark/test_data_source.py::test_rows_are_what_brokers_wrote")
def test_examples_of_the_page_run(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "kafka")
    arguments = ["--to", str(tmp_path / "state"), "--runner", "local"]
    assert 0 == CliRunner().invoke(app, ["export", str(tmp_path / "kafka"), *arguments]).exit_code
    names: dict[str, object] = {"spark": spark}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(example.replace('"/data/', f'"{tmp_path}/'), names)

    def count(name: str) -> int:
        frame = names[name]
        assert isinstance(frame, DataFrame)
        return frame.count()

    assert {"orders": 310, "keys": 310, "state": 58, "since": 0} == {
        name: count(name) for name in ("orders", "keys", "state", "since")
    }
    assert 310 == spark.read.parquet(str(tmp_path / "rows")).count()


def test_the_page_names_every_option() -> None:
    text = PAGE.read_text("utf-8")
    assert [] == [name for name in NAMES if name != "path" and f"`{name}`" not in text]
