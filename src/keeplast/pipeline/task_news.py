"""One job of Spark at a time as the driver waits for it: its progress, its name, its failure.

A job that nobody waits for any more is cancelled by its tag, so that one call never ends another's.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from keeplast.errors import UnavailableError
from keeplast.rewrite.runner import Progressed

POLL_SECONDS = 0.2
CANCEL_SECONDS_MAX = 30
STAGES_POOL, WAVES_POOL = "keeplast-stages", "keeplast-waves"
POOL_PROPERTY = "spark.scheduler.pool"
"""Pools of a fair scheduler; one that is not fair takes jobs in the order of their coming."""

NAMES_MAX = 3
"""So many partitions are named in the description of a job."""

DRIVER_GONE = (Py4JNetworkError, ConnectionError)
"""What a JVM that has died answers."""

R = TypeVar("R")


class TaskNews:
    """Progress of the jobs of a call, told while the driver waits for them.

    Several calls may be under way in one session: each tags its jobs, and ends only those.
    """

    def __init__(self, context: SparkContext, progressed: Progressed) -> None:
        self._context = context
        self._progressed = progressed
        self._read = context.accumulator(0)
        self._tag = f"keeplast-{secrets.token_hex(8)}"
        self._told = 0

    @property
    def add(self) -> Callable[[int], None]:
        """Return what tasks call with bytes that they have read."""
        return self._read.add

    def during(self, act: Callable[[], list[R]], told: str) -> list[R]:
        """Act in a thread, so that progress can be told meanwhile; ``told`` is what Spark shows.

        UnavailableError when the job fails as a whole.
        """
        job = self.begin(act, STAGES_POOL, told)
        try:
            return self.wait(job)
        finally:
            self.end(job)

    def begin(self, act: Callable[[], list[R]], pool: str, told: str) -> SparkJob[R]:
        """Act in a thread, in a pool of Spark's scheduler; :meth:`end` must follow."""

        def tagged() -> list[R]:
            self._context.addJobTag(self._tag)
            self._context.setLocalProperty(POOL_PROPERTY, pool)
            self._context.setJobDescription(f"keeplast: {told}")
            return act()

        return SparkJob(tagged)

    def wait(self, job: SparkJob[R], is_hopeless: Callable[[], bool] = lambda: False) -> list[R]:
        """Return what a job gave, and tell progress until then; errors as for :meth:`during`.

        Also UnavailableError when ``is_hopeless``, which is asked from time to time, says so.
        """
        while True:
            job.join(POLL_SECONDS)
            now = int(self._read.value)
            # Nothing new is told, too: whoever listens may want the job to end.
            self._progressed(now - self._told)
            self._told = now
            if not job.is_alive:
                return job.results()
            if is_hopeless():
                raise UnavailableError("the cluster has not the slots that a Spark job waits for")

    def end(self, job: SparkJob[R]) -> None:
        """Cancel every job of the call when this one still runs, and wait for its end."""
        if job.is_alive:
            self._context.cancelJobsWithTag(self._tag)
            job.join(CANCEL_SECONDS_MAX)


def job_failed(error: Exception) -> UnavailableError:
    """Return what a job that failed as a whole is told as."""
    if isinstance(error, DRIVER_GONE):
        return UnavailableError(
            "Spark's driver process has ended, most likely for lack of memory; give it more, as by "
            f"SPARK_DRIVER_MEMORY=4g, or cut the work with --shape bucket. error={error}"
        )
    return UnavailableError(f"the Spark job failed. error={error}")


class SparkJob(Generic[R]):
    """A Spark job that a thread of the driver waits for."""

    def __init__(self, act: Callable[[], list[R]]) -> None:
        self._act = act
        self._results: list[R] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="keeplast-spark", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Say whether it has not ended."""
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        self._thread.join(seconds)

    def results(self) -> list[R]:
        """Return what it gave; it has ended. UnavailableError when it failed as a whole."""
        if self._failure is not None:
            raise job_failed(self._failure) from self._failure
        return self._results

    def _run(self) -> None:
        try:
            self._results = self._act()
        except Exception as error:  # noqa: BLE001 - handed to the thread that asks for results
            self._failure = error


def describe_job(act: str, names: Sequence[object]) -> str:
    """Return what Spark's own pages say of a job: what it does, and of what."""
    shown = ", ".join(str(name) for name in names[:NAMES_MAX])
    more = len(names) - NAMES_MAX
    return f"{act} {shown} and {more} more" if more > 0 else f"{act} {shown}"
