"""The port of wherever logs lie: directories (:mod:`keeplast.run.directory_place`), or a store.

A place holds what a call asks for, finds out what a log is, and alone changes it. Nothing it does
may leave a log that readers see half changed, and what it cannot say it does not do. Which round
of a call it is, a place knows by ``run.rounds``: those that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from keeplast.log.files import FileSystem
from keeplast.rewrite.runner import Runner
from keeplast.rewrite.task import TaskResult
from keeplast.run.round_state import PartitionRun, Round, Site
from keeplast.survey.report import RoundReport
from keeplast.survey.survey import Survey

RunnerFor = Callable[[FileSystem], AbstractContextManager[Runner]]
"""Gives the runner of rounds on some files; one that serves several is not closed by leaving it."""


class LogPlace(Protocol):
    """Where the logs of one call lie.

    Its errors are those of a partition when they are CompactionError or OSError; others end a call.
    """

    @property
    def files(self) -> FileSystem:
        """Return what shows the logs as they were surveyed last."""
        ...

    def survey(self, run: PartitionRun) -> Survey:
        """Find out what a log is, and what a round may touch of it; changes nothing."""
        ...

    def announce(self, run: PartitionRun, survey: Survey) -> Survey:
        """Say, prove and reserve what must be before the first byte; returns what then stands.

        RefusedError when there may be no round.
        """
        ...

    def skip(self, run: PartitionRun, survey: Survey) -> RoundReport | None:
        """Do what a partition without a round needs; None when there is nothing to tell of it."""
        ...

    def site(self, run: PartitionRun) -> Site:
        """Return where a round that was announced is worked on."""
        ...

    def publish(self, round_: Round, result: TaskResult) -> None:
        """Make a wave live, the last of ``round_.results``; several partitions' side by side.

        CommitUnknownError when it may be live, and nobody can say; any other error says that what
        is not in ``round_.committed`` is not, or will be made so by whoever opens the log next.
        """
        ...

    def abandon(self, round_: Round) -> None:
        """Remove what attempts at the present wave staged and no commit has named or will name."""
        ...

    def checkpoint(self, rounds: Sequence[Round]) -> list[Exception | None]:
        """Write rounds down that are in place, many at once; returns why each could not be."""
        ...
