"""Spark as a Runner, and the session that it starts. :mod:`keeplast.pipeline.jobs` has its jobs.

The session is quiet and runs the Python we run on. The JVM's own output goes to a file of ours and
is shown only when the start fails, so that stdout stays the caller's. ``local[*]`` without a
master; nothing is configured that a cluster's own defaults should decide.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.format.filename import parse_segment_file
from keeplast.pipeline import stages
from keeplast.pipeline.driven_round import (
    DRIVER_GONE,
    SparkJob,
    TaskNews,
    describe_job,
    job_failed,
)
from keeplast.pipeline.jobs import Jobs, show_states
from keeplast.pipeline.stages import ATTEMPT_MARK, read_token
from keeplast.pipeline.submission import is_submitted
from keeplast.read.log_state import StatePart, Winners
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.run.foresight import PROBE

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
OUTPUT_MAX = 1 << 20
"""So many characters of the JVM's output are searched for the reason why it did not start."""
_JAVA_PROBLEM = re.compile(r"(?:Exception|Error): (\S.*)")
_STANDALONE = "spark://"
MASTER_SECONDS = 5.0
"""A master that takes no connection for so long is down: Spark itself would try for a minute."""
_GIVEN_UP = "stopped SparkContext"
"""What Spark says where its masters answered nothing in the end, or took no application."""


LOG_OPTION = f"-Dlog4j2.configurationFile={LOG_CONFIGURATION}"
LOCAL_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java process of ours that moves a few packed arrays: half of what it takes is compiling.

Not where its user has chosen options: two collectors are one too many.
"""
OPTIONS_OF_USERS = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")


def start_session(master: str | None, cores: int | None) -> SparkContext:
    """Return the context of a session, without SQL, which takes as long to load as all else.

    RefusedError without Java, UnavailableError when Spark does not start. ``cores`` applies to
    ``local`` masters only. Without either, spark-submit's own options count.
    """
    _require_java()
    if master is not None and master.startswith(_STANDALONE):
        _require_master(master)
    keeps_submitted = master is None and cores is None and is_submitted()
    chosen = master or f"local[{cores if cores is not None else '*'}]"
    is_local = chosen.startswith("local") and not keeps_submitted
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_plain = is_local and not any(os.environ.get(name) for name in OPTIONS_OF_USERS)
    settings = {
        "spark.app.name": "keeplast",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.maxResultSize": "0",
        "spark.scheduler.mode": "FAIR",
        "spark.driver.extraJavaOptions": f"{LOG_OPTION} {LOCAL_OPTIONS if is_plain else ''}",
    }
    if not keeps_submitted:
        settings["spark.master"] = chosen
    if is_local:
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.python.daemon.module"] = stages.__name__
    with tempfile.TemporaryFile("w+") as output:
        try:
            with _output_to(output):
                return SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
        except (PySparkException, Py4JError, OSError, RuntimeError) as error:
            output.seek(0)
            raise UnavailableError(
                f"spark did not start; without --runner spark and --master it is not needed. "
                f"master={chosen} error={_find_problem(str(error), output.read(OUTPUT_MAX))}",
                code="K502",
            ) from error


def _find_problem(error: str, output: str) -> str:
    """Return the line in which Java says what is wrong, else the first of ``error``.

    ``output`` is what the JVM wrote; its stack traces are left out.
    """
    if _GIVEN_UP in error:
        return f"the master takes no application; see that it is of Spark {pyspark.__version__}"
    found = _JAVA_PROBLEM.search(f"{error}\n{output}")
    return found[1] if found is not None else error.strip().partition("\n")[0]


def _require_master(master: str) -> None:
    """Raise UnavailableError where none of the hosts of a standalone master takes a connection."""
    problem = "no host"
    for each in master.removeprefix(_STANDALONE).split(","):
        host, _, port = each.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_SECONDS).close()
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
        else:
            return
    raise UnavailableError(
        "no Spark master answers there; start it, or give the URL that its page shows, or leave "
        f"--master out. master={master} error={problem.lower()}",
        code="K502",
    )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise RefusedError(
            "java was not found, and Spark needs version 17 or newer: install it (Debian: "
            "openjdk-17-jre-headless), set JAVA_HOME, or leave --runner spark and --master out",
            code="K501",
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


PROBES_PER_SLOT = 4
STOP_SECONDS = 3.0

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class SparkRunner:
    """Runs waves as tasks of one Spark session, which lives as long as the runner."""

    def __init__(self, master: str | None = None, cores: int | None = None) -> None:
        """Choose the cluster; InvalidError for fewer than one core."""
        if cores is not None and cores < 1:
            raise InvalidError(f"at least one core is needed. cores={cores}", code="K104")
        self._master = master
        self._cores = cores
        self._spark: SparkContext | None = None
        self._probed: set[Path] = set()
        self._written: dict[str, PartitionTask] = {}

    @property
    def slots(self) -> int:
        """Return how many tasks one host may run at once, as far as the driver knows."""
        return max(1, int(self._context.defaultParallelism)) if self._cores is None else self._cores

    @property
    def shares_memory(self) -> bool:
        """Return False: every task is a process."""
        return False

    @property
    def _context(self) -> SparkContext:
        if self._spark is None:
            self._spark = start_session(self._master, self._cores)
            # Workers start, import and read kernels while the driver looks at logs. What comes of
            # it is not asked for: a worker that cannot start fails the first job, and says why.
            ready = self._spark.parallelize(range(self.slots), self.slots).map(stages.get_ready)
            SparkJob(ready.collect)
        return self._spark

    def __enter__(self) -> SparkRunner:
        _ = self._context
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the session, then remove what attempts staged that were still at work.

        The coordinator removes what it finds when a job has ended. An attempt that was cancelled,
        or that a speculative one had overtaken, may go on a little longer.
        """
        if self._spark is None:
            return
        is_local = str(self._spark.master).startswith("local")
        # A driver process that has died cannot be stopped, and says so in many ways.
        with contextlib.suppress(*DRIVER_GONE):
            self._spark.stop()
        self._spark = None
        if self._written and not is_local:
            # Executors are only asked to end, and their Python workers a moment later.
            threading.Event().wait(STOP_SECONDS)
        for task in self._written.values():
            _remove_staged(task)
        self._written.clear()

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        """Run the jobs that the shapes of the tasks need; results come when their job has ended.

        UnavailableError when the job fails as a whole; RefusedError when an executor does not
        see the data directory.
        """
        if not tasks:
            return
        places = [(t.files, path) for t in tasks for path in (t.path, t.target)]
        for root in {path.parent for files, path in places if files.is_on_disk(path)}:
            self._probe(root)
        for task in tasks:
            if task.writes:
                self._written[task.attempt] = task
        context = self._context
        try:
            yield from Jobs(context, tasks, self.slots, progressed).all(tasks)
        except DRIVER_GONE as error:
            raise job_failed(error) from error

    def each(
        self,
        work: Callable[[_Item, Progressed], _Result],
        items: Sequence[_Item],
        progressed: Progressed,
        roots: Iterable[Path] = (),
        names: Sequence[object] = (),
    ) -> Iterator[_Result]:
        """Yield ``work`` of every item when all have ended; for what is not a round.

        Executors must see ``roots``; ``names`` are what is read, for Spark's own pages. Errors as
        for :meth:`run`.
        """
        if not items:
            return
        context = self._context
        news = self._listen(roots, progressed)
        add = news.add
        job = context.parallelize(list(items), len(items)).map(lambda item: work(item, add))
        yield from news.during(job.collect, describe_job("read", names or [f"{len(items)} parts"]))

    def latest(
        self,
        parts: Sequence[StatePart],
        show: Callable[[StatePart, Winners, Progressed], _Result],
        progressed: Progressed,
        roots: Iterable[Path] = (),
    ) -> Iterator[_Result]:
        """Yield ``show`` of every part of some states with its winners, when all have ended.

        Executors must see ``roots``; errors as for :meth:`run`, and that of the first part whose
        keys cannot be read.
        """
        if not parts:
            return
        news = self._listen(roots, progressed)
        yield from show_states(self._context, parts, show, news)

    def _listen(self, roots: Iterable[Path], progressed: Progressed) -> TaskNews:
        """Return what reports the jobs of a call, whose executors see ``roots``."""
        for root in roots:
            self._probe(root)
        return TaskNews(self._context, progressed)

    def _probe(self, root: Path) -> None:
        """Make sure that executors see ``root`` as the driver does."""
        if root in self._probed or str(self._context.master).startswith("local"):
            self._probed.add(root)
            return
        token = secrets.token_hex(16)
        file = root / f"{PROBE}-{token[:8]}"
        file.write_text(token)
        try:
            context = self._context
            count = max(1, context.defaultParallelism) * PROBES_PER_SLOT
            name = str(file)
            probes = context.parallelize(range(count), count).map(lambda _: read_token(name))
            news = TaskNews(context, lambda _: None)
            seen = news.during(probes.collect, describe_job("ask whether executors see", [root]))
        finally:
            file.unlink()
        if any(found != token for found in seen):
            raise RefusedError(
                "an executor does not see the data directory; mount it at the same path on every "
                f"host. path={root}",
                code="K506",
            )
        self._probed.add(root)


def _remove_staged(task: PartitionTask) -> None:
    """Remove staged files of a round; what was committed bears no attempt any more."""
    # A disk that refuses hides nothing: a broker and the next clean remove them too.
    with contextlib.suppress(OSError, UnavailableError):
        files = task.files.open()
        for name in files.listdir(task.target) if files.exists(task.target) else ():
            parsed = parse_segment_file(name)
            attempt = (parsed.attempt or "") if parsed is not None else ""
            if attempt.partition(ATTEMPT_MARK)[0] == task.attempt:
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(task.target / name)
