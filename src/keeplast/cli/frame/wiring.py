"""Chooses the components of a run: the one place where a runner is named.

Everything heavy (numba, pyspark) is imported when a run begins, so that ``--help`` and ``inspect``
stay light. Tests put a coordinator of their own in the place of :func:`open_coordinator`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING

from keeplast.cli.show.output import say
from keeplast.errors import InvalidError, installing

if TYPE_CHECKING:
    from keeplast.log.files import FilesRecipe
    from keeplast.model.hold import GroupReader
    from keeplast.pipeline.runner import SparkRunner
    from keeplast.run.coordinator import Coordinator
    from keeplast.run.events import Events
    from keeplast.run.local_runner import LocalRunner

_MASTER = re.compile(
    r"yarn|spark://.+|k8s://.+|local|local\[([0-9]+|\*)(\s*,\s*[0-9]+)?\]|local-cluster\[.+\]"
)
"""What Spark takes for a master (``SparkContext.createTaskScheduler`` and ``SparkSubmit``)."""


class RunnerName(StrEnum):
    """Where the work is done."""

    SPARK = "spark"
    LOCAL = "local"


def choose_runner(named: RunnerName | None, master: str | None) -> RunnerName:
    """Return the named runner; where none is named Spark if a cluster is meant, else threads.

    ``master`` means one, and so does a start through spark-submit.
    """
    from keeplast.pipeline.submission import is_submitted

    if named is not None:
        return named
    return RunnerName.LOCAL if master is None and not is_submitted() else RunnerName.SPARK


@contextlib.contextmanager
def open_coordinator(
    runner: RunnerName,
    *,
    master: str | None,
    cores: int | None,
    events: Events,
    recipe: FilesRecipe | None = None,
    brokers: GroupReader | None = None,
) -> Iterator[Coordinator]:
    """Yield a coordinator on the chosen runner, which is stopped afterwards.

    ``recipe`` None is this host's disks. ``brokers`` read what consumer groups have committed, None
    where files do.
    """
    check_runner(runner, master=master)
    from keeplast.clock import SystemClock
    from keeplast.log.files import LocalRecipe
    from keeplast.run.coordinator import Coordinator

    chosen = LocalRecipe() if recipe is None else recipe
    with open_runner(runner, master=master, cores=cores) as started:
        yield Coordinator(started, SystemClock(), chosen.open(), events, chosen, brokers)


def open_runner(
    runner: RunnerName, *, master: str | None, cores: int | None
) -> AbstractContextManager[LocalRunner | SparkRunner]:
    """Return the chosen runner, which runs inside a ``with`` block."""
    check_runner(runner, master=master)
    if runner is RunnerName.LOCAL:
        from keeplast.run.local_runner import LocalRunner

        return LocalRunner(cores)
    return _spark_runner(master, cores)


def _spark_runner(master: str | None, cores: int | None) -> SparkRunner:
    """Return the runner; InvalidError in one line when pyspark is there and cannot be used."""
    try:
        from keeplast.pipeline.runner import SparkRunner
    except (ImportError, AttributeError, TypeError, SyntaxError, OSError) as error:
        if isinstance(error, ImportError) and (error.name or "").startswith("keeplast"):
            raise
        raise InvalidError(
            f"pyspark is there and cannot be imported; {installing('spark')}, or leave out what "
            "asks for Spark: --runner spark or --master. --runner=spark "
            f"error={type(error).__name__}: {error}",
            code="K511",
        ) from error
    return SparkRunner(master, cores)


def check_runner(runner: RunnerName, *, master: str | None) -> None:
    """Raise InvalidError when the runner cannot be had with these arguments."""
    if runner is RunnerName.LOCAL and master is not None:
        raise InvalidError(
            f"a Spark master means nothing to the local runner; leave one of the two out. "
            f"--master={master}",
            code="K103",
        )
    if master is not None and not _MASTER.fullmatch(master):
        raise InvalidError(
            "Spark knows no such master; give spark://HOST:PORT, yarn, k8s://URL or local[N]. "
            f"--master={master}",
            code="K510",
        )
    if runner is RunnerName.SPARK and importlib.util.find_spec("pyspark") is None:
        raise InvalidError(
            f"pyspark is not installed; {installing('spark')}, or leave out what asks for Spark: "
            "--runner spark or --master. --runner=spark",
            code="K511",
        )


def say_start(runner: RunnerName) -> None:
    """Say that Spark is being started, which takes seconds in which nothing else is shown."""
    if runner is RunnerName.SPARK:
        say("starting Spark…")
