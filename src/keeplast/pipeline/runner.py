"""Spark as a Runner: one task does a whole partition's wave (shape ``partition``).

The driver bounds and commits; executors read the data directory themselves, so every host must see
it at the same path. A task that Spark runs twice stages files of two names; only what a result
that arrived names is committed, and the rest is collected.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pyspark import RDD
from pyspark.sql import SparkSession

from keeplast.engine.runner import Progressed
from keeplast.engine.task import PartitionTask, TaskResult
from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.pipeline.session import start_session
from keeplast.pipeline.stages import execute, own_versions, read_token

POLL_SECONDS = 0.2
CANCEL_SECONDS_MAX = 30
PROBES_PER_SLOT = 4

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
        self._probed: set[Path] = set()

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
    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = start_session(self._master, self._cores)
        return self._spark

    def __enter__(self) -> SparkRunner:
        """Start the session."""
        _ = self._session
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the session."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        """Run one job over all tasks and yield the results when it has ended.

        UnavailableError when the job fails as a whole; RefusedError when an executor does not
        see the data directory.
        """
        if not tasks:
            return
        for root in {task.path.parent for task in tasks} | {task.target.parent for task in tasks}:
            self._probe(root)
        context = self._session.sparkContext
        read = context.accumulator(0)
        versions = own_versions()
        at_once = min(self.slots, len(tasks))

        def work(task: PartitionTask) -> TaskResult:
            return execute(task, versions, read.add, share=at_once)

        job: RDD[TaskResult] = context.parallelize(list(tasks), len(tasks)).map(work)
        yield from _collect(job, read, progressed)

    def each(
        self,
        work: Callable[[_Item, Progressed], _Result],
        items: Sequence[_Item],
        progressed: Progressed,
        roots: Iterable[Path] = (),
    ) -> Iterator[_Result]:
        """Yield ``work`` of every item when all have ended; for what is not a round.

        Executors must see ``roots``; errors as for :meth:`run`.
        """
        if not items:
            return
        for root in roots:
            self._probe(root)
        context = self._session.sparkContext
        read = context.accumulator(0)

        def execute_one(item: _Item) -> _Result:
            return work(item, read.add)

        job: RDD[_Result] = context.parallelize(list(items), len(items)).map(execute_one)
        yield from _collect(job, read, progressed)

    def _probe(self, root: Path) -> None:
        """Make sure that executors see ``root`` as the driver does."""
        if root in self._probed or (self._master or "local").startswith("local"):
            self._probed.add(root)
            return
        token = secrets.token_hex(16)
        file = root / f".keeplast-probe-{token[:8]}"
        file.write_text(token)
        try:
            context = self._session.sparkContext
            count = max(1, context.defaultParallelism) * PROBES_PER_SLOT
            name = str(file)
            probes = context.parallelize(range(count), count)
            seen = probes.map(lambda _: read_token(name)).collect()
        finally:
            file.unlink()
        if any(found != token for found in seen):
            raise RefusedError(
                "an executor does not see the data directory; mount it at the same path on every "
                f"host. path={root}"
            )
        self._probed.add(root)


def _collect(job: RDD[_Result], read: Any, progressed: Progressed) -> Iterator[_Result]:
    """Collect in a thread, so that progress can be told meanwhile."""
    results: list[_Result] = []
    failure: list[Exception] = []

    def collect() -> None:
        try:
            results.extend(job.collect())
        except Exception as error:  # noqa: BLE001 - handed to the caller's thread below
            failure.append(error)

    thread = threading.Thread(target=collect, name="keeplast-spark", daemon=True)
    thread.start()
    told = 0
    try:
        while True:
            thread.join(POLL_SECONDS)
            now = int(read.value)
            # Nothing new is told, too: whoever listens may want the job to end.
            progressed(now - told)
            told = now
            if not thread.is_alive():
                break
    finally:
        if thread.is_alive():
            job.context.cancelAllJobs()
            thread.join(CANCEL_SECONDS_MAX)
    if failure:
        raise UnavailableError(f"the Spark job failed. error={failure[0]}") from failure[0]
    yield from results
