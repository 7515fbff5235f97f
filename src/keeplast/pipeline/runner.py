"""Spark as a Runner. :mod:`keeplast.pipeline.jobs` has the jobs that it runs.

The driver bounds and commits; executors read the data directory themselves, so every host must see
it at the same path. A task that Spark runs twice stages files of two names; only what a result
that arrived names is committed, and the rest is collected.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.format.filename import parse_segment_file
from keeplast.pipeline.jobs import Jobs
from keeplast.pipeline.session import start_session
from keeplast.pipeline.stages import ATTEMPT_MARK, read_token
from keeplast.pipeline.state_job import show_states
from keeplast.pipeline.task_news import DRIVER_GONE, TaskNews, describe_job, job_failed
from keeplast.read.log_state import Winners
from keeplast.read.state_parts import StatePart
from keeplast.rewrite.runner import Progressed
from keeplast.rewrite.task import PartitionTask, TaskResult
from keeplast.run.readiness import PROBE

PROBES_PER_SLOT = 4
STOP_SECONDS = 3.0

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class SparkRunner:
    """Runs waves as tasks of one Spark session, which lives as long as the runner."""

    def __init__(self, master: str | None = None, cores: int | None = None) -> None:
        """Choose the cluster; InvalidError for fewer than one core."""
        if cores is not None and cores < 1:
            raise InvalidError(f"at least one core is needed. cores={cores}")
        self._master = master
        self._cores = cores
        self._spark: SparkSession | None = None
        self._has_run = False
        self._probed: set[Path] = set()
        self._written: dict[str, PartitionTask] = {}

    @property
    def slots(self) -> int:
        """Return how many tasks one host may run at once, as far as the driver knows."""
        if self._cores is not None:
            return self._cores
        return max(1, int(self._session.sparkContext.defaultParallelism))

    @property
    def shares_memory(self) -> bool:
        """Return False: every task is a process."""
        return False

    @property
    def is_cold(self) -> bool:
        """Say whether this runner has run no job in its session."""
        return not self._has_run

    @property
    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = start_session(self._master, self._cores)
        return self._spark

    def __enter__(self) -> SparkRunner:
        _ = self._session
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the session, then remove what attempts staged that were still at work.

        The coordinator removes what it finds when a job has ended; an attempt that was cancelled,
        or that a speculative one had overtaken, may go on a little longer.
        """
        if self._spark is None:
            return
        is_local = str(self._spark.sparkContext.master).startswith("local")
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
        context = self._session.sparkContext
        try:
            yield from Jobs(context, tasks, self.slots, progressed).all(tasks)
            self._has_run = True
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
        context = self._session.sparkContext
        told = self._listen(roots, progressed)
        add = told.add

        def execute_one(item: _Item) -> _Result:
            return work(item, add)

        job = context.parallelize(list(items), len(items)).map(execute_one)
        yield from told.during(job.collect, describe_job("read", names or [f"{len(items)} parts"]))

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
        told = self._listen(roots, progressed)
        yield from show_states(self._session.sparkContext, parts, show, told)

    def _listen(self, roots: Iterable[Path], progressed: Progressed) -> TaskNews:
        """Return what tells of the jobs of a call, whose executors see ``roots``."""
        for root in roots:
            self._probe(root)
        return TaskNews(self._session.sparkContext, progressed)

    def _probe(self, root: Path) -> None:
        """Make sure that executors see ``root`` as the driver does."""
        is_here = str(self._session.sparkContext.master).startswith("local")
        if root in self._probed or is_here:
            self._probed.add(root)
            return
        token = secrets.token_hex(16)
        file = root / f"{PROBE}-{token[:8]}"
        file.write_text(token)
        try:
            context = self._session.sparkContext
            count = max(1, context.defaultParallelism) * PROBES_PER_SLOT
            name = str(file)
            probes = context.parallelize(range(count), count).map(lambda _: read_token(name))
            told = TaskNews(context, lambda _: None)
            seen = told.during(probes.collect, describe_job("ask whether executors see", [root]))
        finally:
            file.unlink()
        if any(found != token for found in seen):
            raise RefusedError(
                "an executor does not see the data directory; mount it at the same path on every "
                f"host. path={root}"
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
