"""A standalone Spark cluster of own processes on loopback: one master, two workers.

Everything is started through the ``spark-class`` that comes with the pyspark package, and ended by
its own process id.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS_MAX = 60
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
MASTER_LINE = re.compile(r"Starting Spark master at (spark://[\d.]+:\d+)")
REGISTERED = "Successfully registered with master"


class Cluster:
    """A running cluster."""

    def __init__(self, master: str, workers: list[int]) -> None:
        """Remember where the master listens, and the workers' process ids."""
        self.master = master
        self._workers = workers

    def executors(self) -> list[int]:
        """Return the process ids of the executors that run now."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                command = (path / "cmdline").read_bytes().decode().split("\0")
            except (OSError, ValueError):
                continue
            if parent in self._workers and EXECUTOR_CLASS in command:
                found.append(int(path.name))
        return found

    def kill_an_executor(self) -> bool:
        """Kill one executor, as a host that fails would; False when none runs."""
        for pid in self.executors()[:1]:
            os.kill(pid, signal.SIGKILL)
            return True
        return False


@contextmanager
def standalone_cluster(scratch: Path) -> Iterator[Cluster]:
    """Start a cluster of two workers with one core each, and end it."""
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = scratch / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                env=environment, stdout=output, stderr=subprocess.STDOUT,
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
                f"worker{n}", WORKER_CLASS, "--host", "127.0.0.1", "--webui-port", "0",
                "--cores", "1", "--memory", "1g", "--work-dir", str(scratch / f"work{n}"), master,
            )
            for n in range(2)
        ]  # fmt: skip
        for _, log in workers:
            awaited(log, f"({REGISTERED})")
        yield Cluster(master, [process.pid for process, _ in workers])
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
