"""A Spark that does not start is one line with the reason, whatever Java printed."""

from __future__ import annotations

import os

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from keeplast.errors import UnavailableError
from keeplast.pipeline import runner

CALL = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[2'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3282)
"""
PRINTED = """WARNING: Using incubator modules
Exception in thread "main" java.lang.OutOfMemoryError: no room
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
"""


@pytest.mark.parametrize(
    ("error", "printed", "expected"),
    [
        (Py4JError(CALL), "", "Could not parse Master URL: 'local[2'"),
        (RuntimeError("the JVM is gone\nmore"), PRINTED, "no room"),
        (RuntimeError("the JVM is gone\nmore"), "WARNING: nothing of use", "the JVM is gone"),
        (PySparkRuntimeError("closed"), "", "closed"),
    ],
)
def test_a_failed_start_is_one_line_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: Exception, printed: str, expected: str
) -> None:
    def fail(builder: SparkSession.Builder) -> SparkSession:
        os.write(1, printed.encode())
        raise error

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fail)
    monkeypatch.setattr(runner, "_require_java", lambda: None)
    with pytest.raises(UnavailableError) as raised:
        runner.start_session("local[1]", None)
    assert str(raised.value).endswith(f" master=local[1] error={expected}")
