"""A standalone Spark cluster of own processes on loopback: one master, two workers.

Everything is started through the ``spark-class`` that comes with the pyspark package, and ended by
its own process id.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from pyspark import SparkContext

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS_MAX = 240
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
MASTER_LINE = re.compile(r"Starting Spark master at (spark://[\d.]+:\d+)")
SLOTS = 2
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark starts no speculative attempt on the host of the first one."""

SETTINGS = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    # A lost executor takes its shuffle files along; nobody waits for them to come back.
    "spark.shuffle.io.retryWait": "100ms",
    "spark.shuffle.io.maxRetries": "1",
}
"""Lets two applications have an executor with one core on each host."""

REGISTERED = "Successfully registered with master"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: where its master listens."""

    master: str


def source_environment() -> dict[str, str]:
    """Return an environment whose Python processes see the sources and these tests."""
    path = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def session_settings(settings: Mapping[str, str]) -> Iterator[None]:
    """Let sessions that are started meanwhile have ``settings``, as if from spark-defaults.conf.

    That file is read when the JVM starts, and this process keeps its JVM from session to session.
    """
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None
    system = jvm.java.lang.System
    with ExitStack() as stack:
        for name, value in settings.items():
            system.setProperty(name, value)
            stack.callback(system.clearProperty, name)
        yield


@contextmanager
def standalone_cluster(
    scratch: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Start a cluster of two workers with room for two applications, and end it.

    ``environment`` is what executors inherit; by default it lets them see the sources.
    """
    environment = {
        **(source_environment() if environment is None else environment),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_NO_DAEMONIZE": "1",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(
        name: str, *arguments: str, host: str = "127.0.0.1"
    ) -> tuple[subprocess.Popen[bytes], Path]:
        log = scratch / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                env={**environment, "SPARK_LOCAL_IP": host}, stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        started.append(process)
        return process, log

    try:
        _, log = start(
            "master", MASTER_CLASS, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        master = awaited(log, MASTER_LINE.pattern)
        workers = [
            start(
                f"worker{n}", WORKER_CLASS, "--host", host, "--webui-port", "0",
                "--cores", str(SLOTS), "--memory", "4g", "--work-dir", str(scratch / f"work{n}"),
                master, host=host,
            )
            for n, host in enumerate(HOSTS)
        ]  # fmt: skip
        for _, log in workers:
            awaited(log, f"({REGISTERED})")
        yield Cluster(master)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(START_SECONDS_MAX)


def awaited(log: Path, pattern: str) -> str:
    """Return what ``pattern`` finds in a growing file."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(f"{pattern} never came. {log.read_text(errors='replace')[-2000:]}")
