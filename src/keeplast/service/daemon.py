"""The loop of ``keeplast run``: look, choose, clean, publish, wait.

One turn takes as many partitions as there are workers and does one round of each, as so many of a
broker's cleaner threads would. Then everything is looked at again. The loop works on a
:class:`Work`: a data directory (:mod:`keeplast.service.directory_work`), the partitions of a store
(:mod:`keeplast.service.store_work`), or attached topics (:mod:`keeplast.service.attached_work`).
What a reader must not break:

1. No partition's failure ends the loop or keeps another from its turn
   (:mod:`keeplast.service.schedule`).
2. What fails for all of them is tried again without end, unless the loop is to end by itself: the
   directory's disk, a receipt that cannot be written, the store's database. Damage and defects of
   ours do not pass, nor does what is refused before the first turn.
3. A stop is heard in every pause and at every safe point of a round.
4. A partition whose round changed nothing has no other one before the next pause, or before others'
   rounds have changed something for as long as a pause. So turns that change nothing end: any set
   of partitions comes to rest after at most one such round of each.

A failure either sets its partition aside, which only the place itself can do and remember, or lets
it wait. What is known of each partition between turns is shared by every kind of work.

Kafka: ``CleanerThread.doWork``; cleaning.md 1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.log_order import Candidate, Choice, Order, choose
from keeplast.clock import Clock
from keeplast.errors import (
    CompactionError,
    CorruptError,
    InvariantError,
    StoppedError,
    UnavailableError,
    code_in,
    error_text,
)
from keeplast.model.partition import TopicPartition
from keeplast.service.live import Control, Narrator, TurnNarrator, Wish
from keeplast.service.look import failed_facts
from keeplast.service.schedule import Schedule, SetAside, TurnHistory
from keeplast.service.snapshot import DirectoryLook, Observer, PartitionFacts, Snapshot, TierTotals
from keeplast.service.status import State
from keeplast.survey.report import RoundReport
from keeplast.survey.request import PartitionRequest

SetsAside = Callable[[PartitionRequest, Exception], SetAside | None]


class TurnLedger(Struct):
    """``sets_aside`` returns the mark of a partition whose failure lasts, None when it may pass.

    ``backoff_ms`` is how long nothing worth a round lets everything wait, and the first failure
    its partition. ``looked_ms`` is when the partitions were last looked at.
    """

    clock: Clock
    narrator: Narrator
    sets_aside: SetsAside
    backoff_ms: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    facts: dict[TopicPartition, PartitionFacts] = field(default_factory=dict)
    looked_ms: int = 0
    said: set[str] = field(default_factory=set)
    said_once: set[str] = field(default_factory=set)

    def warn(self, messages: list[str]) -> None:
        """Say what was not said the time before."""
        for message in messages:
            if message not in self.said:
                self.narrator.warned(message)
        self.said = set(messages)

    def warn_once(self, message: str) -> None:
        """Say ``message`` unless this run has said it already."""
        if message not in self.said_once:
            self.said_once.add(message)
            self.narrator.warned(message)

    def take(self, request: PartitionRequest, round_: RoundReport) -> None:
        """Note how a round ended."""
        partition = request.partition
        self.schedule.finished(partition, round_, self.clock.now_ms())
        failure = round_.failure or _without_progress(round_)
        if failure is not None:
            self.failed(request, failure)
            return
        history = self.schedule.history(partition)
        self.facts[partition] = replace(
            self.facts[partition],
            state=State.NOT_DUE,
            reason="cleaned just now" if not round_.skipped else str(round_.reason),
            rounds=history.rounds,
            last_round=history.last_round,
            last_round_ms=history.last_round_ms,
            failures=0,
            retry_at_ms=None,
        )

    def note_failure(self, request: PartitionRequest, error: Exception) -> None:
        """Set a partition aside, or let it wait; says so."""
        mark = self.sets_aside(request, error)
        if mark is not None:
            self.schedule.marks[request.partition] = mark
            self.narrator.set_aside(request.partition, mark.reason)
            return
        pause_ms = self.schedule.failed(
            request.partition, error, backoff_ms=self.backoff_ms, now_ms=self.clock.now_ms()
        )
        self.narrator.retrying(request.partition, error_text(error), pause_ms / 1000)

    def failed(self, request: PartitionRequest, error: Exception) -> PartitionFacts:
        """Note a failure, and publish it as the state of its partition."""
        self.note_failure(request, error)
        partition = request.partition
        history, mark = self.schedule.history(partition), self.schedule.marks.get(partition)
        reason = error_text(error) if mark is None else mark.reason
        self.facts[partition] = self.failing(request, history, reason, mark)
        return self.facts[partition]

    def failing(
        self,
        request: PartitionRequest,
        history: TurnHistory,
        reason: str,
        mark: SetAside | None = None,
    ) -> PartitionFacts:
        """Return what is published of a partition that fails, with what was last known of it."""
        last = self.facts.get(request.partition)
        now_ms = self.clock.now_ms()
        return failed_facts(request, history, reason, mark, now_ms=now_ms, last=last)


def _without_progress(round_: RoundReport) -> Exception | None:
    """Return an error for a round that would only be repeated, None when it led somewhere."""
    if round_.skipped or round_.is_expired_round or round_.end_offset is None:
        return None
    if round_.first_dirty is None or round_.end_offset > round_.first_dirty:
        return None
    return UnavailableError(
        f"the round ended where it began. offset={round_.end_offset}", code="K708"
    )


class RunReport(Struct, frozen=True):
    """How a run ended: the last snapshot, and what was done since the start.

    ``failures`` are those that no later round has made good; ``left`` are the partitions that
    were eligible and had no round any more.
    """

    snapshot: Snapshot
    seconds: float
    rounds: int
    bytes_read: int
    bytes_written: int
    failures: dict[TopicPartition, Exception]
    left: tuple[TopicPartition, ...]


def run_report(
    snapshot: Snapshot,
    schedule: Schedule,
    refused: Mapping[TopicPartition, Exception],
    seconds: float,
) -> RunReport:
    """Return the report of a run whose last snapshot is ``snapshot``.

    ``refused`` are the partitions that could not be worked on because of how they are set up.
    """
    histories = schedule.histories
    failures: dict[TopicPartition, Exception] = {
        partition: (
            CorruptError(mark.reason, code=code_in(mark.reason))
            if mark.error_class == CorruptError.__name__
            else InvariantError(mark.reason, code=code_in(mark.reason))
        )
        for partition, mark in schedule.marks.items()
    }
    failures |= refused
    failures |= {
        partition: history.failure
        for partition, history in histories.items()
        if history.failure is not None
    }
    left = [
        each.partition
        for each in snapshot.partitions
        if each.state is State.ELIGIBLE and each.partition not in snapshot.cleaned
    ]
    return RunReport(
        snapshot,
        seconds,
        sum(history.rounds for history in histories.values()),
        sum(history.bytes_read for history in histories.values()),
        sum(history.bytes_written for history in histories.values()),
        failures,
        tuple(left),
    )


NAP_SECONDS = 0.25
"""A pause is slept in parts, so that it ends soon when a stop is asked for."""


class Work(Protocol):
    """Partitions that are looked at, cleaned and expired. One partition's failure never raises:
    what is raised is about all of them, and the loop decides whether it may pass."""

    @property
    def place(self) -> Path | str:
        """Return the name of where the partitions are."""

    @property
    def slots(self) -> int:
        """Return how many rounds are done at once."""

    @property
    def ledger(self) -> TurnLedger:
        """Return what is known of each partition, as of the last look and of later rounds."""

    @property
    def tier_totals(self) -> TierTotals | None:
        """Return what was moved to and from a store since the start, None without one."""

    @property
    def directory_look(self) -> DirectoryLook | None:
        """Return the last look at a directory when a console watches, else None."""

    def holding(self) -> AbstractContextManager[object]:
        """Return what is held from the first look to the end of the last round."""

    def stop(self) -> None:
        """End rounds at their next safe point; a signal handler calls it."""

    def begin(self) -> None:
        """Read what an earlier run has left."""

    def refresh(self) -> None:
        """Read settings and list partitions again, before each turn."""

    def grant(self, wish: Wish) -> None:
        """Write down what was asked for, and see to it; between two turns."""

    def look(self) -> None:
        """Find out what can be done."""

    def candidates(self) -> Sequence[Candidate]:
        """Return the partitions that are due for a round, as of the last look."""

    def clean(self, choices: Sequence[Choice]) -> tuple[TopicPartition, ...]:
        """Do a round of each chosen partition; returns those whose round ended."""

    def settle(self) -> bool:
        """Do what follows the rounds: expire, and whatever else is to be removed.

        Returns whether facts are others by now.
        """

    def forget(self) -> None:
        """Look at everything again after a pause."""

    def refused(self) -> Mapping[TopicPartition, Exception]:
        """Return the partitions that cannot be worked on because of how they are set up."""


class Daemon:
    """Does rounds until it is stopped, or until nothing is eligible."""

    def __init__(
        self,
        work: Work,
        clock: Clock,
        *,
        narrator: TurnNarrator,
        observer: Observer,
        order: Order = Order.OVERDUE_FIRST,
        is_once: bool = False,
        control: Control | None = None,
    ) -> None:
        """Take the components; nothing is read before :meth:`run`.

        ``is_once`` ends the loop when nothing is eligible. ``control`` is where wishes come in, and
        where the loop shows that it turns.
        """
        self._work = work
        self._clock = clock
        self._narrator = narrator
        self._observer = observer
        self._order = order
        self._is_once = is_once
        self._control = Control(clock) if control is None else control
        self._is_stopping = False
        self._turn = 0
        self._unchanged: dict[TopicPartition, float] = {}
        self._trouble: str | None = None
        self._has_begun = False
        self._ungranted: list[Wish] = []

    def stop(self) -> None:
        """Ask for the end at the next safe point; a signal handler may call it."""
        self._is_stopping = True
        self._work.stop()

    def run(self) -> RunReport:
        """Run; returns what was done. What cannot be worked on at the start raises."""
        started, started_ms = self._clock.seconds(), self._clock.now_ms()
        snapshot = self._snapshot(started_ms, ())
        with self._work.holding():
            self._work.begin()
            while not self._is_stopping:
                try:
                    self._control.beat()
                    self._work.refresh()
                    self._has_begun = True
                    self._grant()
                    self._work.look()
                    snapshot = self._publish(started_ms, ())
                    if self._control.is_paused:
                        self._report_trouble(None)
                        self._idle(snapshot)
                        self._work.forget()
                        continue
                    choices = self._choose()
                    cleaned: tuple[TopicPartition, ...] = ()
                    if choices:
                        self._turn += 1
                        self._narrator.chosen(choices)
                        cleaned = self._work.clean(choices)
                        self._note_unchanged(choices, cleaned)
                    has_settled = not self._is_stopping and self._work.settle()
                    self._report_trouble(None)
                    if choices or has_settled:
                        snapshot = self._publish(started_ms, cleaned)
                    if choices:
                        continue
                except (OSError, CompactionError) as error:
                    # Of one partition it would be that one's failure: this is about all.
                    if self._is_once or not self._may_pass(error):
                        raise
                    self._report_trouble(error)
                if self._is_once:
                    break
                self._idle(snapshot)
                self._work.forget()
        seconds = self._clock.seconds() - started
        return run_report(snapshot, self._work.ledger.schedule, self._work.refused(), seconds)

    def _grant(self) -> None:
        """See to what was asked for; what cannot be written down now is seen to the next time."""
        if not self._ungranted:
            self._ungranted = self._control.take()
        while self._ungranted:
            self._work.grant(self._ungranted[0])
            self._unchanged.clear()
            del self._ungranted[0]

    def _may_pass(self, error: Exception) -> bool:
        if isinstance(error, OSError | UnavailableError):
            return True
        return self._has_begun and not isinstance(
            error, CorruptError | InvariantError | StoppedError
        )

    def _report_trouble(self, error: Exception | None) -> None:
        """Report that nothing can be worked on, once for each reason, and that it is over."""
        trouble = None if error is None else f"cannot be worked on now: {error_text(error)}"
        self._control.trouble = trouble
        # The values after the sentence differ from try to try, as the bytes that are free do.
        reason = None if trouble is None else trouble.partition(". ")[0]
        if reason == self._trouble:
            return
        self._trouble = reason
        self._narrator.warned(f"{self._work.place} {trouble or 'can be worked on again'}")

    def _choose(self) -> tuple[Choice, ...]:
        """Return the partitions of the next turn; counts who was passed over."""
        candidates = self._candidates()
        choices = choose(candidates, self._work.slots, self._order)
        chosen = {choice.partition for choice in choices}
        self._work.ledger.schedule.passed_over({each.partition for each in candidates}, chosen)
        return choices

    def _candidates(self) -> list[Candidate]:
        """Return the partitions that are due, but for those whose last round changed nothing."""
        return [each for each in self._work.candidates() if each.partition not in self._unchanged]

    def _note_unchanged(
        self, choices: Sequence[Choice], cleaned: tuple[TopicPartition, ...]
    ) -> None:
        """Note whose round changed nothing; where one changed something, forget who has waited."""
        now, schedule = self._clock.seconds(), self._work.ledger.schedule
        changed = {each for each in cleaned if schedule.history(each).has_changed_anything}
        if changed:
            since = now - self._pause_seconds()
            self._unchanged = {each: at for each, at in self._unchanged.items() if at > since}
        for choice in choices:
            if choice.partition not in changed:
                self._unchanged[choice.partition] = now

    def _pause_seconds(self) -> float:
        return max(self._work.ledger.backoff_ms / 1000, NAP_SECONDS)

    def _idle(self, snapshot: Snapshot) -> None:
        """Wait until the next look; a partition that waits to be tried again may end it sooner."""
        self._unchanged.clear()
        seconds = self._pause_seconds()
        self._narrator.idle(snapshot, seconds)
        until = self._clock.seconds() + seconds
        while not self._is_stopping:
            self._control.beat()
            left = until - self._clock.seconds()
            if left <= 0 or (self._control.has_wishes and not self._ungranted):
                return
            self._clock.sleep(min(left, NAP_SECONDS))

    def _snapshot(self, started_ms: int, cleaned: tuple[TopicPartition, ...]) -> Snapshot:
        work = self._work
        return Snapshot(
            work.place,
            started_ms,
            work.ledger.looked_ms,
            self._turn,
            work.slots,
            tuple(facts for _, facts in sorted(work.ledger.facts.items())),
            cleaned,
            work.tier_totals,
            self._queue(),
            work.directory_look,
        )

    def _queue(self) -> tuple[Choice, ...]:
        """Return all that is due for a round, in the order in which it would be taken."""
        candidates = self._candidates()
        return choose(candidates, len(candidates), self._order)

    def _publish(self, started_ms: int, cleaned: tuple[TopicPartition, ...]) -> Snapshot:
        snapshot = self._snapshot(started_ms, cleaned)
        self._observer.published(snapshot)
        return snapshot
