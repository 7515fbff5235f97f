"""A Spark session that knows the data source, with settings and views of each module's own."""

from __future__ import annotations

from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from keeplast.pipeline.driven_round import TaskNews
from tests.support.heard_calls import hear
from tests.support.shared_spark import SharedSpark

R = TypeVar("R")


@pytest.fixture(scope="module")
def spark(shared_spark: SharedSpark) -> SparkSession:
    return shared_spark.session()


@pytest.fixture
def job_descriptions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Spark's pages show of what tasks do."""
    found: list[str] = []
    hear(monkeypatch, TaskNews, "during", lambda news, act, what: found.append(what))
    return found
