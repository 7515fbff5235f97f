"""Starts a Spark session that is quiet and runs the Python we run on.

The JVM's own output goes to a file of ours and is shown only when the start fails, so that stdout
stays the caller's. ``local[*]`` without a master; nothing is configured that a cluster's own
defaults should decide.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keeplast.errors import RefusedError, UnavailableError
from keeplast.pipeline.submission import is_submitted

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
OUTPUT_MAX = 1 << 20
"""So many characters of the JVM's output are searched for the reason why it did not start."""
_JAVA_PROBLEM = re.compile(r"(?:Exception|Error): (\S.*)")


def start_session(master: str | None, cores: int | None) -> SparkSession:
    """Return a session; RefusedError without Java, UnavailableError when Spark does not start.

    ``cores`` applies to ``local`` masters only. Without either, what spark-submit was told counts.
    """
    _require_java()
    keeps_submitted = master is None and cores is None and is_submitted()
    chosen = master or f"local[{cores if cores is not None else '*'}]"
    is_local = chosen.startswith("local") and not keeps_submitted
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.Builder()
        .appName("keeplast")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.maxResultSize", "0")
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={LOG_CONFIGURATION}")
    )
    if not keeps_submitted:
        builder = builder.master(chosen)
    if is_local:
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config(
            "spark.driver.host", "127.0.0.1"
        )
    with tempfile.TemporaryFile("w+") as output:
        try:
            with _output_to(output):
                return builder.getOrCreate()
        except (PySparkException, Py4JError, OSError, RuntimeError) as error:
            output.seek(0)
            raise UnavailableError(
                f"spark did not start; without --runner spark and --master it is not needed. "
                f"master={chosen} error={_find_problem(str(error), output.read(OUTPUT_MAX))}"
            ) from error


def _find_problem(error: str, output: str) -> str:
    """Return the line in which Java says what is wrong, else the first of ``error``.

    ``output`` is what the JVM wrote; its stack traces are left out.
    """
    found = _JAVA_PROBLEM.search(f"{error}\n{output}")
    return found[1] if found is not None else error.strip().partition("\n")[0]


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise RefusedError(
            "java was not found, and Spark needs version 17 or newer: install it (Debian: "
            "openjdk-17-jre-headless), set JAVA_HOME, or leave --runner spark and --master out"
        )


@contextlib.contextmanager
def _output_to(output: TextIO) -> Iterator[None]:
    """Let processes that are started meanwhile write to ``output`` instead of our streams."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        yield
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for fd in saved:
            os.close(fd)
