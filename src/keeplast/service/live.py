"""How far the rounds under way are, for who watches; passes on all that it hears.

Calls come from the loop's thread and from workers, and must not block: a few numbers change under a
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from keeplast.cleaner.selection import Choice
from keeplast.clock import Clock
from keeplast.model.partition import TopicPartition
from keeplast.run.events import Events
from keeplast.service.control import Control
from keeplast.service.narrator import Narrator, TierNarrator
from keeplast.service.snapshot import Snapshot
from keeplast.survey.report import ExpiryReport, RoundReport


class Teller(Narrator, Events, Protocol):
    """Who shows a run to a person."""


class TierTeller(TierNarrator, Events, Protocol):
    """Who shows a run in a store to a person."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The rounds under way, begun at ``since_ms``: bytes read by them of those planned.

    ``taken`` are the partitions of this turn, those whose round has ended included.
    ``idle_until_ms`` is when the next look is, None while there is work. ``serial`` grows whenever
    something ends or begins.
    """

    running: tuple[Choice, ...] = ()
    taken: tuple[TopicPartition, ...] = ()
    since_ms: int = 0
    planned_bytes: int = 0
    read_bytes: int = 0
    idle_until_ms: int | None = None
    serial: int = 0


class LiveProgress:
    """A narrator and receiver of events that tells ``teller`` all it hears."""

    def __init__(self, teller: Teller, clock: Clock, control: Control) -> None:
        """Take who is told, and whose heart beats with what is heard."""
        self._told = teller
        self._clock = clock
        self._control = control
        self._lock = threading.Lock()
        self.progress = Progress()

    def _begin(self, running: tuple[Choice, ...], idle_until_ms: int | None) -> None:
        with self._lock:
            self.progress = Progress(
                running, tuple(each.partition for each in running), self._clock.now_ms(),
                idle_until_ms=idle_until_ms, serial=self.progress.serial + 1,
            )  # fmt: skip

    # What a run tells.

    def planned(self, total_bytes: int) -> None:
        """Hear of more to read."""
        with self._lock:
            total = self.progress.planned_bytes + total_bytes
            self.progress = replace(self.progress, planned_bytes=total)
        self._told.planned(total_bytes)

    def progressed(self, read_bytes: int) -> None:
        """Hear of what was read."""
        self._control.beat()
        with self._lock:
            total = self.progress.read_bytes + read_bytes
            self.progress = replace(self.progress, read_bytes=total)
        self._told.progressed(read_bytes)

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        """Hear of the end of a round."""
        with self._lock:
            left = tuple(each for each in self.progress.running if each.partition != partition)
            self.progress = replace(self.progress, running=left, serial=self.progress.serial + 1)
        self._told.finished(partition, report)

    def warned(self, message: str) -> None:
        """Pass it on."""
        self._told.warned(message)

    # What the loop tells.

    def chosen(self, choices: Sequence[Choice]) -> None:
        """Hear of the next turn."""
        self._begin(tuple(choices), None)
        self._told.chosen(choices)

    def idle(self, snapshot: Snapshot, seconds: float) -> None:
        """Hear that nothing is worth a round."""
        self._begin((), self._clock.now_ms() + round(seconds * 1000))
        self._told.idle(snapshot, seconds)

    def expired(self, partition: TopicPartition, report: ExpiryReport) -> None:
        """Pass it on."""
        self._told.expired(partition, report)

    def set_aside(self, partition: TopicPartition, reason: str) -> None:
        """Pass it on."""
        self._told.set_aside(partition, reason)

    def retrying(self, partition: TopicPartition, reason: str, seconds: float) -> None:
        """Pass it on."""
        self._told.retrying(partition, reason, seconds)


class LiveTierProgress(LiveProgress):
    """The same of a run in a store."""

    def __init__(self, teller: TierTeller, clock: Clock, control: Control) -> None:
        """Take who is told."""
        super().__init__(teller, clock, control)
        self._told_tier = teller

    def copied(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Pass it on."""
        self._told_tier.copied(partition, segments, size_bytes)

    def replaced(self, partition: TopicPartition, reason: str) -> None:
        """Pass it on."""
        self._told_tier.replaced(partition, reason)

    def collected(self, partition: TopicPartition, objects: int, size_bytes: int) -> None:
        """Pass it on."""
        self._told_tier.collected(partition, objects, size_bytes)

    def left_alone(self, partition: TopicPartition, reason: str) -> None:
        """Pass it on."""
        self._told_tier.left_alone(partition, reason)
