"""The examples of the source's pages run as they are printed, on a log that a broker wrote."""

from __future__ import annotations

import re
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.pipeline.source_options import NAMES

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference/spark-source.md"
PAGES = (
    REFERENCE,
    ROOT / "docs/how-to/read-on-spark.md",
    ROOT / "docs/how-to/export-to-parquet.md",
)
SAMPLE = ROOT / "src/keeplast/samples/broker-4.3.0"


@pytest.mark.repeats("tests/spark/test_data_source.py::test_rows_are_what_brokers_wrote")
def test_examples_of_the_pages_run(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "kafka")
    arguments = ["--to", str(tmp_path / "state"), "--runner", "local"]
    assert 0 == CliRunner().invoke(app, ["export", str(tmp_path / "kafka"), *arguments]).exit_code
    names: dict[str, Any] = {"spark": spark}
    found = [
        re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL) for page in PAGES
    ]
    assert [2, 6, 1] == [len(each) for each in found]
    for example in chain.from_iterable(found):
        exec(example.replace('"/data/', f'"{tmp_path}/'), names)

    assert {"orders": 310, "keys": 310, "state": 58, "since": 0} == {
        name: names[name].count() for name in ("orders", "keys", "state", "since")
    }
    assert 310 == spark.read.parquet(str(tmp_path / "rows")).count()


def test_the_page_names_every_option() -> None:
    text = REFERENCE.read_text("utf-8")
    assert [] == [name for name in NAMES if name != "path" and f"`{name}`" not in text]
