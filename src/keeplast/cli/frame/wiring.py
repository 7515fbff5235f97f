"""Chooses the components of a run: the one place where a runner is named.

Everything heavy (numba, pyspark) is imported when a run begins, so that ``--help`` and ``inspect``
stay light. Tests put a coordinator of their own in the place of :func:`open_coordinator`.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from keeplast.cli.show.output import say
from keeplast.cli.show.sizes import format_bytes
from keeplast.errors import InvalidError, installing

if TYPE_CHECKING:
    from keeplast.log.files import FilesRecipe
    from keeplast.pipeline.runner import SparkRunner
    from keeplast.run.coordinator import Coordinator
    from keeplast.run.events import Events
    from keeplast.run.local_runner import LocalRunner
    from keeplast.survey.report import CleanReport
    from keeplast.survey.request import CleanRequest


SMALL_BYTES = 256 << 20
"""Up to here Spark's start takes longer than this process needs for all of the work."""


class RunnerName(StrEnum):
    """Where the work is done."""

    SPARK = "spark"
    LOCAL = "local"


class CoordinatorPort(Protocol):
    """What the commands need of a coordinator."""

    def plan(self, request: CleanRequest, *, exact: bool = False) -> CleanReport:
        """Say what a clean would do."""
        ...

    def clean(self, request: CleanRequest) -> CleanReport:
        """Do it."""
        ...

    def stop(self) -> None:
        """Ask for the end of a clean at its next safe point."""
        ...


@contextlib.contextmanager
def open_coordinator(
    runner: RunnerName,
    *,
    master: str | None,
    cores: int | None,
    events: Events,
    recipe: FilesRecipe | None = None,
) -> Iterator[Coordinator]:
    """Yield a coordinator on the chosen runner, which is stopped afterwards.

    ``recipe`` None is this host's disks.
    """
    check_runner(runner, master=master)
    from keeplast.clock import SystemClock
    from keeplast.log.files import LocalRecipe
    from keeplast.run.coordinator import Coordinator

    chosen = LocalRecipe() if recipe is None else recipe
    with open_runner(runner, master=master, cores=cores) as started:
        yield Coordinator(started, SystemClock(), chosen.open(), events, chosen)


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
            f"pyspark is there and cannot be imported; {installing('spark')}, or use "
            "--runner local. "
            f"--runner=spark error={type(error).__name__}: {error}"
        ) from error
    return SparkRunner(master, cores)


def check_runner(runner: RunnerName, *, master: str | None) -> None:
    """Raise InvalidError when the runner cannot be had with these arguments."""
    if runner is RunnerName.LOCAL and master is not None:
        raise InvalidError(
            f"a Spark master means nothing to the local runner; leave one of the two out. "
            f"--master={master}"
        )
    if runner is RunnerName.SPARK and importlib.util.find_spec("pyspark") is None:
        raise InvalidError(
            f"pyspark is not installed; {installing('spark')}, or use --runner local. "
            "--runner=spark"
        )


def say_start(runner: RunnerName, data_bytes: int | None) -> None:
    """Say that Spark is being started, which takes seconds in which nothing else is shown.

    ``data_bytes`` is how much there is to read, None when it is not known.
    """
    if runner is not RunnerName.SPARK:
        return
    hint = ""
    if data_bytes is not None and data_bytes <= SMALL_BYTES:
        hint = f"; --runner local needs no Spark and is quicker for {format_bytes(data_bytes)}"
    say(f"starting Spark…{hint}")
