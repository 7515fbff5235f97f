"""Rounds from top to bottom: every log is cleaned here, and nowhere else.

    survey    what the log is, and what a round may touch       Rounds.begin: place.survey
    plan      whether there is one, and what must be said first               place.announce
    cut       one task or many, by what there is to run on      foresight.cut, room.next_chunk
    index     winners of the dirty section           \\
    resolve   where the round ends, its groups        |         the runner: rewrite.wave.run_wave,
    rewrite   group by group, into staged files       |         or rewrite.staged_round in stages
    check     what was staged is read again          /
    commit    wave by wave, the oldest offsets first            Rounds._commit: place.publish
              and when all of it is in place, small logs together  Rounds._settle: place.checkpoint

:class:`~keeplast.run.round.LogPlace` knows where logs lie. A failure ends the round of one
partition: what its wave has staged is removed, the checkpoint stays. Kafka: ``Cleaner.doClean``.

It is the port of directories (:mod:`keeplast.run.directory_place`) and of a store. A place has what
a call asks for, finds out what a log is, and alone changes it. Nothing it does may leave a log that
readers see half changed, and it does nothing that it cannot report. A place knows by
``run.rounds``, those that have ended, which round of a call it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.errors import CommitUnknownError, CompactionError, UnavailableError
from keeplast.log.files import FileSystem
from keeplast.rewrite.task import Runner, TaskResult
from keeplast.run.events import Events, RoundsProgress, RoundWork
from keeplast.run.foresight import cut, next_together
from keeplast.run.pace import Ended, Publishing, is_small
from keeplast.run.round_state import (
    PartitionRun,
    Round,
    Site,
    failed_report,
    in_order,
    round_report,
)
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest
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

    def survey(self, run: PartitionRun) -> Survey:
        """Find out what a log is, and what a round may touch of it; changes nothing."""

    def announce(self, run: PartitionRun, survey: Survey) -> Survey:
        """Say, prove and reserve what must be before the first byte; returns what then stands.

        RefusedError when there may be no round.
        """

    def skip(self, run: PartitionRun, survey: Survey) -> RoundReport | None:
        """Do what a partition without a round needs; None when there is nothing to report of it."""

    def site(self, run: PartitionRun) -> Site:
        """Return where a round that was announced is worked on."""

    def publish(self, round_: Round, result: TaskResult) -> None:
        """Make a wave live, the last of ``round_.results``; several partitions' side by side.

        CommitUnknownError when it may be live, and that cannot be found out. Any other error says
        that groups outside ``round_.committed`` are not live, or that the next opening of the log
        makes them so.
        """

    def abandon(self, round_: Round) -> None:
        """Remove what attempts at the present wave staged and no commit has named or will name."""

    def checkpoint(self, rounds: Sequence[Round]) -> list[Exception | None]:
        """Write rounds down that are in place, many at once; returns why each could not be."""


SETTLED_BYTES_MAX = 64 << 20
"""A checkpoint is written when so many bytes would be read again without it. It is one file for all
of a directory: written for each of thousands of small logs, it took a tenth of their cleaning."""
SETTLED_BYTES_MIN = 1 << 20
"""What the smallest log counts for, so that no more than 64 rounds wait."""


class Rounds(Struct, frozen=True):
    """The rounds of one call; ``check_stop`` raises StoppedError when it is to end."""

    request: CleanRequest
    place: LogPlace
    runner_for: RunnerFor
    clock: Clock
    events: Events
    check_stop: Callable[[], None]

    def clean(self, runs: Sequence[PartitionRun]) -> None:
        """Do the rounds of each partition that are asked for, or as many as reach its bound."""
        for _ in range(self.request.rounds_max):
            if not (waiting := self.begin(runs)):
                return
            self.do(in_order(waiting, self.request.order))

    def do(self, waiting: list[Round]) -> None:
        """Do rounds that have begun, wave by wave until all have ended."""
        with self.runner_for(self.place.files) as runner:
            cut(waiting, self.request, runner, self.place.files, self.clock)
            while waiting:
                chosen, later = next_together(waiting, self.place.files)
                waiting = self._do_waves(chosen, runner) + later

    def begin(self, runs: Sequence[PartitionRun]) -> list[Round]:
        """Survey and plan what is not done; returns the rounds that there are to do."""
        begun = [self._begin(run) for run in runs if not run.is_done]
        return [round_ for round_ in begun if round_ is not None]

    def _begin(self, run: PartitionRun) -> Round | None:
        started, survey = self.clock.seconds(), None
        try:
            self.check_stop()
            survey = self.place.survey(run)
            survey = self.place.announce(run, survey)
            if survey.plan is None:
                self.end(run, self.place.skip(run, survey))
                return None
            round_ = Round(run, survey, survey.plan, self.place.site(run))
            round_.driver_seconds = self.clock.seconds() - started
            self.events.planned(
                round_.bytes_to_read(),
                RoundWork(run.request.partition, round_.bytes_to_index()),
            )
        except (CompactionError, OSError) as error:
            self.end(run, failed_report(survey, 0, error))
            return None
        return round_

    def _do_waves(self, rounds: list[Round], runner: Runner) -> list[Round]:
        """Do and commit a wave of each round; returns the rounds that another one follows."""
        left, done, again = dict(enumerate(rounds)), list[Round](), list[Round]()
        unsettled_bytes = 0
        lost: CompactionError = UnavailableError(
            "the runner lost the task of this partition", code="K508"
        )
        try:
            with Publishing(
                lambda result: self._commit(left[result.number], result), self.clock
            ) as publishing:
                try:
                    self.check_stop()
                    tasks = [round_.task(number) for number, round_ in left.items()]
                    names = {number: each.run.request.partition for number, each in left.items()}
                    progress = RoundsProgress(self.events, names, self.check_stop)
                    small = frozenset(task.number for task in tasks if is_small(task))
                    for result in runner.run(tasks, progress):
                        ended = publishing.take(
                            result, among=len(tasks), is_small=result.number in small
                        )
                        known = len(done)
                        again += self._sort(ended, left, done)
                        unsettled_bytes += sum(
                            max(each.bytes_to_read(), SETTLED_BYTES_MIN) for each in done[known:]
                        )
                        if unsettled_bytes >= SETTLED_BYTES_MAX:
                            self._settle(done)
                            unsettled_bytes = 0
                except CompactionError as error:
                    lost = error  # the runner itself failed: what it has not given back is lost
                for ended in publishing.rest():
                    again += self._sort(ended, left, done)
        finally:
            # Also of those that an exception from outside, as of a signal, cuts off.
            for round_ in left.values():
                self.place.abandon(round_)
            self._settle(done)
        for round_ in left.values():
            self._fail(round_, lost)
        return again

    def _commit(self, round_: Round, result: TaskResult) -> None:
        if result.error is not None:
            raise result.error
        self.check_stop()
        round_.results.append(result)
        started = self.clock.seconds() - round_.removal_seconds
        self.place.publish(round_, result)
        round_.driver_seconds += self.clock.seconds() - round_.removal_seconds - started

    def _sort(self, ended: list[Ended], left: dict[int, Round], done: list[Round]) -> list[Round]:
        """Take waves that have ended out of ``left``; returns the rounds that another follows.

        Rounds with all of it in place are put to ``done``.
        """
        again = list[Round]()
        for result, error in ended:
            round_ = left.pop(result.number)
            if not isinstance(error, CommitUnknownError):
                self.place.abandon(round_)
            if error is not None:
                self._fail(round_, error)
            elif result.carry is not None:
                round_.carry = result.carry
                again.append(round_)
            else:
                done.append(round_)
        return again

    def _settle(self, done: list[Round]) -> None:
        """Write the checkpoints of rounds whose logs are in place, together; empties ``done``."""
        ready = done[:]
        done.clear()
        if not ready:
            return
        for round_, problem in zip(ready, self.place.checkpoint(ready), strict=True):
            if problem is not None:
                self._fail(round_, problem)
            else:
                self.end(round_.run, round_report(round_), is_done=round_.has_reached_bound)

    def _fail(self, round_: Round, error: Exception) -> None:
        self.end(round_.run, failed_report(round_.survey, len(round_.committed), error))

    def end(self, run: PartitionRun, report: RoundReport | None, *, is_done: bool = True) -> None:
        """Take the report of a partition's round, its last one of the call or not."""
        run.is_done = is_done
        if report is not None:
            run.rounds.append(report)
            self.events.finished(run.request.partition, report)
