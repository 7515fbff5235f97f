"""A loop at work: what may be asked of it, what it reports to a person, and how far its rounds are.

Asking never waits: wishes lie in a bounded queue until the loop comes by, between two turns. Other
threads read the rest at leisure.

Calls of narrators and events come from the loop's thread and from workers, and must not block: a
few numbers change under a lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.log_order import Choice
from keeplast.clock import Clock
from keeplast.errors import UnavailableError
from keeplast.model.partition import TopicPartition
from keeplast.run.events import Events, RoundWork
from keeplast.service.snapshot import Snapshot
from keeplast.survey.report import ExpiryReport, RoundReport

WISHES_MAX = 100
QUIET_SECONDS_MAX = 300
"""A loop that has shown no life for so long is taken for stuck: rounds report as they read."""


class Deed(StrEnum):
    """What can be asked for."""

    CLEAN = "clean now"
    """A round of one partition, whatever its dirty ratio; every other limit stands."""
    RETRY = "retry"
    """Try again what is set aside, or waits after a failure."""
    PAUSE = "pause"
    RESUME = "resume"


class Wish(Struct, frozen=True):
    """One deed, asked for at ``at_ms`` by ``by``; ``partition`` is there for the first two."""

    deed: Deed
    partition: TopicPartition | None
    by: str
    at_ms: int


class Control:
    """Between the loop and its watchers."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock that life is measured with."""
        self._clock = clock
        self._lock = threading.Lock()
        self._wishes: deque[Wish] = deque()
        self._beat = clock.seconds()
        self.is_paused = False
        self.trouble: str | None = None

    def ask(self, deed: Deed, partition: TopicPartition | None, by: str) -> Wish:
        """Leave a wish; UnavailableError when too many wait already."""
        wish = Wish(deed, partition, by, self._clock.now_ms())
        with self._lock:
            if len(self._wishes) >= WISHES_MAX:
                raise UnavailableError(
                    f"too many wishes wait for the loop; try again later. waiting={WISHES_MAX}",
                    code="K707",
                )
            self._wishes.append(wish)
        return wish

    @property
    def has_wishes(self) -> bool:
        """Say whether the loop should come by."""
        return bool(self._wishes)

    def take(self) -> list[Wish]:
        """Return what was asked for, in order; pausing and resuming are done by this."""
        with self._lock:
            taken = list(self._wishes)
            self._wishes.clear()
        for wish in taken:
            if wish.deed in (Deed.PAUSE, Deed.RESUME):
                self.is_paused = wish.deed is Deed.PAUSE
        return taken

    def beat(self) -> None:
        """Say that the loop is alive."""
        self._beat = self._clock.seconds()

    def fault(self) -> str | None:
        """Return why the loop cannot be said to turn, None when it turns."""
        if self.trouble is not None:
            return self.trouble
        quiet = self._clock.seconds() - self._beat
        if quiet > QUIET_SECONDS_MAX:
            return f"the loop has shown no life for {quiet:.0f} s"
        return None


class TurnNarrator(Protocol):
    """Receiver of what the loop itself reports: its turns, and what a user should know."""

    def chosen(self, choices: Sequence[Choice]) -> None:
        """Say which partitions are next, and why."""

    def idle(self, snapshot: Snapshot, seconds: float) -> None:
        """Say that nothing is worth a round, and when the next look is."""

    def warned(self, message: str) -> None:
        """Say something else the user should know."""


class Narrator(Protocol):
    """Receiver of what becomes of partitions; rounds themselves go to ``Events``."""

    def expired(self, partition: TopicPartition, report: ExpiryReport) -> None:
        """Say which segments retention or the log start let go."""

    def set_aside(self, partition: TopicPartition, reason: str) -> None:
        """Say that a partition will not be cleaned any more."""

    def retrying(self, partition: TopicPartition, reason: str, seconds: float) -> None:
        """Say that something failed and will be tried again."""

    def warned(self, message: str) -> None:
        """Say something else the user should know."""


class TierNarrator(Narrator, Protocol):
    """Receiver of what becomes of partitions of a store, next to the above."""

    def copied(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Say what a partition has gained."""

    def replaced(self, partition: TopicPartition, reason: str) -> None:
        """Say that all of a partition was copied again, and why."""

    def collected(self, partition: TopicPartition, objects: int, size_bytes: int) -> None:
        """Say what was removed from the object store."""

    def left_disk(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Say what local retention has removed from this host's disk."""

    def stands(self, partition: TopicPartition, words: str) -> None:
        """Say whether this host leads a partition, or whom it follows."""

    def left_alone(self, partition: TopicPartition, reason: str) -> None:
        """Say that another host owns a partition, and that it is left to that one."""


class RunNarrator(TurnNarrator, Events, Protocol):
    """Shows the turns and the rounds of a run to a person."""


class Pass(StrEnum):
    """What a round does now, of what it goes through in this order."""

    INDEX = "pass 1 of 2: finding the last record of each key"
    REWRITE = "pass 2 of 2: rewriting"


PERCENT_MAX = 99
"""A round whose passes have read everything is not over: its files are put in place then."""


class RoundProgress(Struct, frozen=True):
    """How far one round is: bytes read by both passes of those planned for both.

    ``index_bytes`` of them are the first pass's, None where the passes alternate.
    """

    planned_bytes: int = 0
    index_bytes: int | None = None
    read_bytes: int = 0

    @property
    def percent(self) -> int:
        """Return the share of the round's reading that is done, rounded down, 99 at most."""
        return percent_of(self.read_bytes, self.planned_bytes)

    @property
    def at(self) -> Pass | None:
        """Return which pass it is in, None where that is not known."""
        if self.index_bytes is None:
            return None
        return Pass.INDEX if self.read_bytes < self.index_bytes else Pass.REWRITE


def percent_of(read_bytes: int, planned_bytes: int) -> int:
    """Return the share in per cent, rounded down, 99 at most; 0 of nothing."""
    return min(100 * read_bytes // planned_bytes, PERCENT_MAX) if planned_bytes > 0 else 0


class Progress(Struct, frozen=True):
    """The rounds under way, begun at ``since_ms``: bytes read by all of the turn of those planned.

    ``rounds`` are those of this turn whose bytes are counted apart, by partition; where they are
    not, as on Spark, ``is_mixed`` and only the sum counts.
    ``taken`` are the partitions of this turn, those whose round has ended included. ``ended`` is
    when the rounds ended that no look has seen since.
    ``idle_until_ms`` is when the next look is, None while there is work. ``serial`` grows whenever
    something ends or begins.
    """

    running: tuple[Choice, ...] = ()
    taken: tuple[TopicPartition, ...] = ()
    ended: Mapping[TopicPartition, int] = field(default_factory=dict)
    since_ms: int = 0
    planned_bytes: int = 0
    read_bytes: int = 0
    idle_until_ms: int | None = None
    serial: int = 0
    rounds: Mapping[TopicPartition, RoundProgress] = field(default_factory=dict)
    is_mixed: bool = False

    @property
    def percent(self) -> int:
        """Return the share of the whole turn's reading that is done, 99 at most."""
        return percent_of(self.read_bytes, self.planned_bytes)

    def of(self, partition: TopicPartition) -> RoundProgress | None:
        """Return how far the round of a partition is; None where only a sum is known."""
        found = self.rounds.get(partition)
        if found is None or not self.is_mixed:
            return found
        if len(self.rounds) > 1:
            return None
        return replace(found, read_bytes=self.read_bytes)

    def has_ended(self, partition: TopicPartition) -> bool:
        """Say whether a round of a partition is over that no look has seen."""
        return partition in self.ended and all(each.partition != partition for each in self.running)


class LiveProgress:
    """A receiver of turns and events that passes all of it on to ``narrator``."""

    def __init__(self, narrator: RunNarrator, clock: Clock, control: Control) -> None:
        """Take the receiver of all, and the control that beats with what is heard."""
        self._narrator = narrator
        self._clock = clock
        self._control = control
        self._lock = threading.Lock()
        self.progress = Progress()

    def _begin(self, running: tuple[Choice, ...], idle_until_ms: int | None) -> None:
        with self._lock:
            self.progress = Progress(
                running, tuple(each.partition for each in running), self.progress.ended,
                self._clock.now_ms(), idle_until_ms=idle_until_ms, serial=self.progress.serial + 1,
            )  # fmt: skip

    # What a run reports.

    def planned(self, total_bytes: int, work: RoundWork | None = None) -> None:
        """Hear of more to read."""
        with self._lock:
            total = self.progress.planned_bytes + total_bytes
            rounds = self.progress.rounds
            if work is not None:
                its = RoundProgress(total_bytes, work.index_bytes)
                rounds = {**rounds, work.partition: its}
            self.progress = replace(self.progress, planned_bytes=total, rounds=rounds)
        self._narrator.planned(total_bytes, work)

    def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
        """Hear of what was read."""
        self._control.beat()
        if read_bytes:
            with self._lock:
                self.progress = _with_read(self.progress, read_bytes, partition)
        self._narrator.progressed(read_bytes, partition)

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        """Hear of the end of a round."""
        with self._lock:
            left = tuple(each for each in self.progress.running if each.partition != partition)
            ended = {**self.progress.ended, partition: self._clock.now_ms()}
            self.progress = replace(
                self.progress, running=left, ended=ended, serial=self.progress.serial + 1
            )
        self._narrator.finished(partition, report)

    def looked(self, at_ms: int) -> None:
        """Hear that what is shown is of a look at ``at_ms``: rounds that ended before are in it."""
        with self._lock:
            self.progress = replace(
                self.progress,
                ended={each: ms for each, ms in self.progress.ended.items() if ms > at_ms},
            )

    def warned(self, message: str) -> None:
        """Pass it on."""
        self._narrator.warned(message)

    # What the loop reports.

    def chosen(self, choices: Sequence[Choice]) -> None:
        """Hear of the next turn."""
        self._begin(tuple(choices), None)
        self._narrator.chosen(choices)

    def idle(self, snapshot: Snapshot, seconds: float) -> None:
        """Hear that nothing is worth a round."""
        self._begin((), self._clock.now_ms() + round(seconds * 1000))
        self._narrator.idle(snapshot, seconds)


def _with_read(found: Progress, read_bytes: int, partition: TopicPartition | None) -> Progress:
    """Return the progress with more bytes read."""
    total = found.read_bytes + read_bytes
    its = None if partition is None else found.rounds.get(partition)
    if partition is None or its is None:
        return replace(found, read_bytes=total, is_mixed=True)
    its = replace(its, read_bytes=its.read_bytes + read_bytes)
    return replace(found, read_bytes=total, rounds={**found.rounds, partition: its})
