"""A Spark that does not start is one line with the reason, whatever Java printed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError

from keeplast.errors import UnavailableError
from keeplast.pipeline import runner

MODULES_MAX = 125
"""Of keeplast; each worker of Spark imports them, if not as a copy of one that has.
"""

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
        (
            Py4JError("Cannot call methods on a stopped SparkContext."),
            "",
            f"the master takes no application; see that it is of Spark {pyspark.__version__}",
        ),
    ],
)
def test_a_failed_start_is_one_line_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: Exception, printed: str, expected: str
) -> None:
    def fail(conf: SparkConf) -> SparkContext:
        os.write(1, printed.encode())
        raise error

    monkeypatch.setattr(SparkContext, "getOrCreate", fail)
    monkeypatch.setattr(runner, "_require_java", lambda: None)
    with pytest.raises(UnavailableError) as raised:
        runner.start_session("local[1]", None)
    assert str(raised.value).endswith(f" master=local[1] error={expected}")


def test_a_master_that_is_down_is_named_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "_require_java", lambda: None)
    monkeypatch.setattr(SparkContext, "getOrCreate", lambda conf: pytest.fail("started"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="no Spark master answers there") as raised:
            runner.start_session(master, None)
    assert str(raised.value).endswith(f"master={master} error=connection refused")


def test_of_several_masters_one_that_answers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    started = object()
    monkeypatch.setattr(runner, "_require_java", lambda: None)
    monkeypatch.setattr(SparkContext, "getOrCreate", lambda conf: started)
    with socket.create_server(("127.0.0.1", 0)) as up, socket.socket() as down:
        down.bind(("127.0.0.1", 0))
        ports = down.getsockname()[1], up.getsockname()[1]
        master = "spark://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        assert started is runner.start_session(master, None)


def test_a_task_imports_what_rounds_need_and_nothing_of_tables_pages_or_databases() -> None:
    code = "import keeplast.pipeline.stages, sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = found.stdout.split()
    assert len([name for name in names if name.startswith("keeplast")]) <= MODULES_MAX
    others = {"pandas", "pyarrow", "typer", "rich", "sqlalchemy", "httpx", "obstore"}
    assert not others & set(names)
