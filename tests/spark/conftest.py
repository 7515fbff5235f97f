"""A Spark session that knows the data source, one a module: other modules stop theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import keeplast
from keeplast.pipeline.session import start_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("local[2]", 2)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    keeplast.register(session)
    yield session
    session.stop()
