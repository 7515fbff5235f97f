"""A Spark session that knows the data source, with settings and views of each module's own."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.shared_spark import SharedSpark


@pytest.fixture(scope="module")
def spark(shared_spark: SharedSpark) -> SparkSession:
    return shared_spark.session()
