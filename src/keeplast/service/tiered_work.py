"""What the loop does alike with partitions of a store and with attached topics.

What a reader must not break:

1. What one partition does keeps no other from its turn. Errors of storage, database and disk pass,
   and are tried again; damage, and what contradicts an invariant, sets its partition aside.
2. A round that found nothing to do is not asked for again before there is something else to decide
   on, or :data:`RETRY_MS_MAX` has passed.
3. A stop is heard wherever a round or a collection says how far it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from keeplast.cleaner.log_order import Candidate
from keeplast.clock import Clock
from keeplast.errors import (
    CommitUnknownError,
    CorruptError,
    FencedError,
    StoppedError,
    UnavailableError,
)
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.run.events import Events
from keeplast.run.receipt import action_line
from keeplast.service.daemon import TurnLedger
from keeplast.service.live import TierNarrator, Wish
from keeplast.service.receipts import BYTES_MAX, receipt_to
from keeplast.service.schedule import RETRY_MS_MAX, SetAside, is_lasting
from keeplast.service.snapshot import PartitionFacts, TierTotals
from keeplast.service.status import State
from keeplast.survey.kept_heads import HeadFacts, keep_line
from keeplast.survey.receipt_book import clock_notes
from keeplast.survey.report import RoundReport
from keeplast.survey.request import PartitionRequest
from keeplast.survey.wording import decision_words, sentences

if TYPE_CHECKING:
    # Who has a store needs nothing of a cluster.
    from keeplast.attach.answers.look import AttachedOutlook
    from keeplast.store.look import RemoteLook

    Look: TypeAlias = RemoteLook | AttachedOutlook


class TieredFinding(Protocol):
    """A partition that is worked on, as it was found."""

    @property
    def look(self) -> Look:
        """Return whether a round is worth it, and its figures."""


FindingT = TypeVar("FindingT", bound=TieredFinding)


class TieredWork(ABC, Generic[FindingT]):
    """Partitions that are looked at, cleaned and collected, one failure apart from another."""

    directory_look = None
    stays: ClassVar[str]
    """What of a round that is ended stays, in a word."""

    def __init__(
        self,
        clock: Clock,
        files: FileSystem,
        *,
        receipt: Path | None,
        heads: Callable[[], HeadFacts],
        backoff_ms: int,
        narrator: TierNarrator,
        events: Events,
    ) -> None:
        """Take the components; RefusedError where no receipt can be appended.

        ``heads`` keeps the heads of what is appended to ``receipt``.
        """
        self._clock = clock
        self._files = files
        self._narrator = narrator
        self._events = events
        self.ledger = TurnLedger(clock, narrator, self._set_aside, backoff_ms)
        self._schedule = self.ledger.schedule
        self._is_stopping = False
        self._findings: dict[TopicPartition, FindingT] = {}
        self._declined: dict[TopicPartition, tuple[object, int, str]] = {}
        self._totals = TierTotals()
        self._receipt_path = receipt
        self._heads = heads
        self._receipt = receipt_to(files, receipt, bytes_max=BYTES_MAX)

    @abstractmethod
    def _try_again(self, partition: TopicPartition) -> None:
        """Forget why a partition is left alone; it is looked at again."""

    @abstractmethod
    def _set_aside(self, request: PartitionRequest, error: Exception) -> SetAside | None:
        """Set a partition aside where its failure lasts; None when it may pass."""

    def stop(self) -> None:
        """End rounds at their next safe point: what they read asks whether to stop."""
        self._is_stopping = True

    def begin(self) -> None:
        """Do nothing: what an earlier run left is in the database, and is ended by who claims."""

    def grant(self, wish: Wish) -> None:
        """Write a wish down where rounds are, and try again what it is about.

        A round whatever the ratio is no wish of a store's or a cluster's: keeplast clean
        --despite dirty-ratio does one.
        """
        if self._receipt is not None:
            line = self._receipt(
                action_line(wish.partition, name=wish.deed, by=wish.by, now_ms=wish.at_ms)
            )
            # Where it cannot be kept now, the next commit keeps it.
            with suppress(UnavailableError, CommitUnknownError):
                keep_line(self._heads(), line)
        if wish.partition is None:
            return
        self._try_again(wish.partition)
        self._schedule.recovered(wish.partition)
        self._declined.pop(wish.partition, None)
        self._findings.pop(wish.partition, None)

    def candidates(self) -> Sequence[Candidate]:
        """Return the partitions that are worth a round, and may have one."""
        return [
            Candidate(
                partition, look.figures.cleanable.ratio, look.figures.compaction_delay_ms,
                passed_over=self._schedule.history(partition).passed_over,
            )
            for partition, look in ((at, self._findings[at].look) for at in sorted(self._findings))
            if look.is_eligible
            and look.figures is not None
            and self._decline_of(partition, look) is None
        ]  # fmt: skip

    def _decline_of(self, partition: TopicPartition, look: Look) -> str | None:
        """Return why a partition that is worth a round has none now, None when it may."""
        fingerprint, until_ms, reason = self._declined.get(partition, (None, 0, ""))
        left_ms = until_ms - self.ledger.looked_ms
        is_declined = fingerprint == look.fingerprint and 0 < left_ms <= RETRY_MS_MAX
        return reason if look.is_eligible and is_declined else None

    def _worked_facts(self, request: PartitionRequest, look: Look) -> PartitionFacts:
        """Return what is published of a partition that is worked on here, but for what is there.

        A round that looked worth it and was declined says why.
        """
        history = self._schedule.history(request.partition)
        declined = self._decline_of(request.partition, look)
        return PartitionFacts(
            request.partition, request.path,
            State.ELIGIBLE if look.is_eligible and declined is None else State.NOT_DUE,
            decision_words(look.decision, names_options=False) if declined is None else declined,
            rounds=history.rounds, last_round=history.last_round,
            last_round_ms=history.last_round_ms,
            failures=history.failures, retry_at_ms=history.retry_at_ms,
        )  # fmt: skip

    def _decline(self, partition: TopicPartition, look: Look, reason: str) -> None:
        until_ms = self._clock.now_ms() + RETRY_MS_MAX
        self._declined[partition] = look.fingerprint, until_ms, reason

    def _take(self, request: PartitionRequest, look: Look, report: RoundReport) -> None:
        """Note how a round ended."""
        self._events.finished(request.partition, report)
        self.ledger.take(request, report)
        if report.skipped:
            self._decline(request.partition, look, str(report.reason))

    @contextmanager
    def _apart(self, request: PartitionRequest) -> Iterator[list[Exception]]:
        """Let what follows a round fail for its own partition alone; gives what it failed of."""
        failed: list[Exception] = []
        try:
            yield failed
        except FencedError as error:
            self._fenced(request.partition, error)
        except StoppedError as error:
            self._narrator.warned(f"{request.partition}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever one partition does, the others go on
            self.ledger.failed(request, error)
            self._findings.pop(request.partition, None)
            failed.append(error)

    def _fenced(self, partition: TopicPartition, error: FencedError) -> None:
        """Leave a partition to who has taken it, until the next look."""
        self._narrator.warned(f"{partition}: {error}")
        self._findings.pop(partition, None)

    def _progressed(self, count: int, partition: TopicPartition | None = None) -> None:
        if self._is_stopping:
            raise StoppedError(
                f"stopped on request; what is {self.stays} stays, run again to go on", code="K237"
            )
        self._events.progressed(count, partition)

    def _clock_notes(self) -> tuple[str, ...]:
        return sentences(clock_notes(self._files, self._receipt_path, self._clock.now_ms()))

    def _keep(self, here: set[TopicPartition], *kept: dict[TopicPartition, Any]) -> None:
        """Forget what is known of all partitions but these."""
        for each in (*kept, self._declined):
            for gone in each.keys() - here:
                del each[gone]

    def _count(self, **added: int) -> None:
        now = {name: getattr(self._totals, name) + count for name, count in added.items()}
        self._totals = replace(self._totals, **now)


def lasts(request: PartitionRequest, error: Exception) -> bool:
    """Say whether a failure is damage, or one that trying again does not end."""
    return isinstance(error, CorruptError) or is_lasting(error, request.path)
