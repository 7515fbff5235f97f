"""What is known of each partition between turns, and what a round or a failure changes in it.

Shared by whatever the loop works on. A failure either sets its partition aside, which only the
place itself can do and remember, or lets it wait (:mod:`keeplast.service.schedule`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from keeplast.clock import Clock
from keeplast.errors import UnavailableError, error_text
from keeplast.model.partition import TopicPartition
from keeplast.service.look import failed_facts
from keeplast.service.narrator import Narrator
from keeplast.service.schedule import Schedule, TurnHistory
from keeplast.service.set_aside import SetAside
from keeplast.service.snapshot import PartitionCondition, PartitionFacts
from keeplast.survey.report import RoundReport
from keeplast.survey.request import PartitionRequest

SetsAside = Callable[[PartitionRequest, Exception], SetAside | None]


@dataclass(slots=True)
class TurnLedger:
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
    told: set[str] = field(default_factory=set)
    told_once: set[str] = field(default_factory=set)

    def warn(self, messages: list[str]) -> None:
        """Tell what was not told the time before."""
        for message in messages:
            if message not in self.told:
                self.narrator.warned(message)
        self.told = set(messages)

    def warn_once(self, message: str) -> None:
        """Tell ``message`` unless this run has told it already."""
        if message not in self.told_once:
            self.told_once.add(message)
            self.narrator.warned(message)

    def take(self, request: PartitionRequest, round_: RoundReport) -> None:
        """Note how a round ended."""
        partition = request.partition
        self.schedule.finished(partition, round_, self.clock.now_ms())
        failure = round_.failure or _without_progress(round_)
        if failure is not None:
            self.failed(request, failure)
            self.show_failure(request, failure)
            return
        history = self.schedule.history(partition)
        self.facts[partition] = replace(
            self.facts[partition],
            state=PartitionCondition.NOT_DUE,
            reason="cleaned just now" if not round_.skipped else str(round_.reason),
            rounds=history.rounds,
            last_round=history.last_round,
            last_round_ms=history.last_round_ms,
            failures=0,
            retry_at_ms=None,
        )

    def failed(self, request: PartitionRequest, error: Exception) -> None:
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

    def show_failure(self, request: PartitionRequest, error: Exception) -> None:
        """Publish a failure that was noted as the state of its partition."""
        partition = request.partition
        history, mark = self.schedule.history(partition), self.schedule.marks.get(partition)
        reason = error_text(error) if mark is None else mark.reason
        self.facts[partition] = self.failing(request, history, reason, mark)

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
    return UnavailableError(f"the round ended where it began. offset={round_.end_offset}")
