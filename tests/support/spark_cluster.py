"""A standalone Spark cluster of own processes on loopback: one master, two workers.

Everything is started through the ``spark-class`` that comes with the pyspark package, and ended by
its own process id.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from msgspec import Struct
from pyspark import SparkContext

from keeplast.pipeline.runner import LOCAL_OPTIONS
from tests.support.cleaning_process import descendants
from tests.support.waiting import SECONDS_MAX, wait_until

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
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
    "spark.executor.extraJavaOptions": LOCAL_OPTIONS,
    # A lost executor takes its shuffle files along; there is no wait for them.
    "spark.shuffle.io.retryWait": "100ms",
    "spark.shuffle.io.maxRetries": "1",
}
"""Lets two applications have an executor with one core on each host."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    # A stage of one task has no others to compare it with.
    "spark.speculation.task.duration.threshold": "1s",
}

APPLICATION = re.compile(r"--app-id\0(app-[\w-]+)")
REGISTERED = "Successfully registered with master"


class Cluster(Struct, frozen=True):
    """A running cluster: where its master listens, and the processes of its workers."""

    master: str
    workers: tuple[int, ...]

    def application_of(self, process_id: int) -> list[int]:
        """Return all executors of an application, and what they have started.

        ``process_id`` is one of them. KeyError when none of the cluster is.
        """
        names: dict[int, str] = {}
        for worker in self.workers:
            for executor, line in descendants(worker):
                found = APPLICATION.search(line)
                if found is not None:
                    below = [each for each, _ in descendants(executor)]
                    names |= dict.fromkeys([executor, *below], found[1])
        return [each for each, name in names.items() if name == names[process_id]]


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
        # Most of what such a process takes is compiling.
        "SPARK_DAEMON_JAVA_OPTS": LOCAL_OPTIONS,
        "SPARK_LAUNCHER_OPTS": LOCAL_OPTIONS,
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
        yield Cluster(master, tuple(process.pid for process, _ in workers))
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(SECONDS_MAX)


def awaited(log: Path, pattern: str) -> str:
    """Return what ``pattern`` finds in a growing file."""

    def text() -> str:
        return log.read_text(errors="replace")

    wait_until(lambda: re.search(pattern, text()) is not None, words=lambda: text()[-2000:])
    found = re.search(pattern, text())
    assert found is not None
    return found[1]
