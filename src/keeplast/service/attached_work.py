"""The attached partitions of a live cluster as what the loop works on: choose, compact, collect.

What a reader must not break:

1. A partition is worked on by who claimed it, one after another here; other hosts are kept off by
   the claim alone. Who loses a race says so, and comes back after a pause that grows.
2. Nothing is remembered that decision log and cluster do not say: after ``kill -9`` the next claim
   repairs, and goes on. Only why a partition is left alone is known here alone.
3. What refuses is left alone for its reason, and asked again; every claim and every decision asks
   the same once more. Errors of cluster, store and database pass, and are tried again.
4. What was detached is not attached again, and what is paused waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.answers.look import AttachedLooks, AttachedOutlook
from keeplast.attach.held.metadata_view import AttachTerms, KeptFolds
from keeplast.attach.held.stored_segment import check_stored
from keeplast.attach.rounds.attached_place import Allowance, DaySum
from keeplast.attach.rounds.round import RoundWish, clean_attached, clean_to, margin_of
from keeplast.attach.upkeep.replaced_segments import CollectedSources, collect
from keeplast.cleaner.log_order import Choice
from keeplast.clock import Clock
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.paced import PacedLayout
from keeplast.errors import (
    CompactionError,
    FencedError,
    InvariantError,
    RefusedError,
    UnavailableError,
)
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import Runner
from keeplast.run.events import Events
from keeplast.service.attached_claims import (
    AttachedClaims,
    left_facts,
    request_of,
    with_brokers,
)
from keeplast.service.attached_sight import (
    AttachedSettings,
    AttachedSight,
    SeenPartition,
    WatchedCluster,
    settled_refusals,
)
from keeplast.service.live import TierNarrator
from keeplast.service.schedule import (
    LOOK_MS_MIN,
    SetAside,
    is_stop,
    mark_of,
    planned_round,
)
from keeplast.service.snapshot import (
    AttachedTotals,
    PartitionFacts,
)
from keeplast.service.status import State
from keeplast.service.tiered_work import TieredWork, lasts
from keeplast.survey.report import RoundReport, describe_error
from keeplast.survey.request import PartitionRequest
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached

if TYPE_CHECKING:
    from keeplast.service.tiered_work import Look


class _AttachedFinding(Struct, frozen=True):
    """A partition as it was found, and as brokers know it."""

    seen: SeenPartition
    look: AttachedOutlook


class AttachedWork(TieredWork[_AttachedFinding]):
    """The partitions of one cluster that this process may compact."""

    slots = 1
    stays = "published"

    def __init__(
        self,
        cluster: WatchedCluster,
        log: DecisionLog,
        layout: PacedLayout,
        runner: Runner,
        clock: Clock,
        files: FileSystem,
        settings: AttachedSettings,
        *,
        narrator: TierNarrator,
        events: Events,
    ) -> None:
        """Take the components; RefusedError where no receipt can be appended."""
        super().__init__(
            clock, files, receipt=settings.receipt, heads=lambda: log.facts,
            backoff_ms=settings.interval_ms,
            narrator=narrator, events=events,
        )  # fmt: skip
        self._cluster = cluster
        self._log = log
        self._layout = layout
        self._runner = runner
        self._settings = settings
        folds = KeptFolds(log.folds)
        self._sight = AttachedSight(cluster, log, settings, folds)
        self._looks = AttachedLooks(layout)
        self._groups = BrokerGroups(cluster)
        self._seen_ms: int | None = None
        self._is_sight_old = True
        self._stale: set[TopicPartition] = set()
        self._claims = AttachedClaims(cluster, log, layout, clock, settings, narrator, folds)
        self._marks: dict[TopicPartition, tuple[int, int]] = {}
        """Where log and dirty section began of what is set aside: else it is tried again."""
        self._cleaned: dict[TopicPartition, tuple[object, int]] = {}
        self._uncollected: set[TopicPartition] = set()
        self._allowance = Allowance(log, "", settings.caps)
        self._spent = DaySum(0, 0)

    @property
    def place(self) -> str:
        """Return the cluster's address."""
        return self._settings.address

    @property
    def tier_totals(self) -> AttachedTotals:
        """Return what was removed since the start, and what of the caps was used."""
        pace, caps = self._layout.pace, self._settings.caps
        return AttachedTotals(
            collected_objects=self._totals.collected_objects,
            collected_bytes=self._totals.collected_bytes,
            swaps=self._spent.swaps, swaps_max=caps.swaps,
            metadata_records=self._spent.records, metadata_records_max=caps.records,
            requests=pace.requests, moved_bytes=pace.bytes, slow_downs=pace.refusals,
            waited_seconds=pace.waited_seconds,
        )  # fmt: skip

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold nothing: each partition is claimed for its own round."""
        yield

    def refresh(self) -> None:
        """Look at the cluster again when the sight is too old; bad settings are reported once."""
        self.ledger.looked_ms = now_ms = self._clock.now_ms()
        fresh_ms = max(self._settings.interval_ms, LOOK_MS_MIN)
        age_ms = 0 if self._seen_ms is None else now_ms - self._seen_ms
        if not self._is_sight_old and 0 <= age_ms < fresh_ms:
            self._see_again(now_ms)
            return
        before = self._sight.refusals
        try:
            self._sight.look(now_ms)
            self._claims.require_storage(self._sight.cluster_id)
        except (UnavailableError, OSError):
            raise
        except CompactionError as error:
            if self._seen_ms is None:
                raise
            # It was good when the loop began: an edit is under way, and will be over.
            raise UnavailableError(str(error), code=error.code) from error
        self._seen_ms, self._is_sight_old = now_ms, False
        self._findings.clear()
        self._stale.clear()
        for line in settled_refusals(before, self._sight.refusals):
            self._narrator.warned(line)
        unanswered = self._groups.problems()
        self.ledger.warn([*self._sight.warnings, *self._clock_notes(), *unanswered])
        here = set(self._sight.partitions)
        self._schedule.keep(here)
        self._claims.keep(here)
        self._uncollected &= here
        self._keep(here, self._marks, self._cleaned, self._schedule.marks)

    def _see_again(self, now_ms: int) -> None:
        """Look again at what was worked on since the last sight."""
        if not self._stale:
            return
        stale = set(self._stale)
        self._sight.look_again(stale, now_ms)
        for partition in stale:
            self._findings.pop(partition, None)
        self._stale -= stale

    def _try_again(self, partition: TopicPartition) -> None:
        self._schedule.marks.pop(partition, None)
        self._marks.pop(partition, None)
        self._claims.try_again(partition)
        self._sight.ask_again(partition.topic)
        self._stale.add(partition)

    def forget(self) -> None:
        """Have the next look see everything again."""
        self._is_sight_old = True

    def refused(self) -> Mapping[TopicPartition, Exception]:
        """Return the partitions of topics that refuse."""
        return {
            partition: RefusedError(self._sight.refusals[partition.topic].reason, code="K416")
            for partition, seen in self._sight.partitions.items()
            if seen.topic is not None and partition.topic in self._sight.refusals
        }

    # The look.

    def look(self) -> None:
        """Look at each partition; what was found lately still holds."""
        now_ms = self.ledger.looked_ms
        self._allowance = Allowance(self._log, self._sight.cluster_id, self._settings.caps)
        self._spent = self._allowance.spent()
        rows = {each.name: each for each in self._log.partitions(self._sight.cluster_id)}
        facts: dict[TopicPartition, PartitionFacts] = {}
        for partition, seen in sorted(self._sight.partitions.items()):
            if self._is_stopping:
                return
            attached = rows.get(seen.name)
            facts[partition] = self._look_at(seen, attached, now_ms)
        self.ledger.facts = facts

    def _look_at(
        self, seen: SeenPartition, attached: Attached | None, now_ms: int
    ) -> PartitionFacts:
        partition = seen.partition
        history = self._schedule.history(partition)
        left = self._why_left(seen, attached, now_ms)
        if left is not None:
            self._findings.pop(partition, None)
            state, reason, retry_at_ms = left
            return left_facts(seen, history, state, reason, attached, retry_at_ms=retry_at_ms)
        request = request_of(seen)
        if self._schedule.is_waiting(partition, now_ms):
            failing = self.ledger.failing(request, history, str(history.failure))
            return with_brokers(failing, seen, attached)
        try:
            look = self._found(seen, attached, now_ms)
        except (CompactionError, OSError) as error:
            return self.ledger.failed(request, error)
        mark = self._schedule.marks.get(partition)
        if mark is not None and self._marks.get(partition) == _mark_key(seen, look):
            return with_brokers(
                self.ledger.failing(request, history, mark.reason, mark), seen, attached
            )
        self._schedule.marks.pop(partition, None)
        self._marks.pop(partition, None)
        self._findings[partition] = _AttachedFinding(seen, look)
        if not look.is_eligible and partition not in self._uncollected:
            self._schedule.recovered(partition)
        facts = with_brokers(self._worked_facts(request, look), seen, attached)
        return replace(facts, figures=look.figures, surveyed_ms=now_ms)

    def _why_left(
        self, seen: SeenPartition, attached: Attached | None, now_ms: int
    ) -> tuple[State, str, int | None] | None:
        """Return why a partition is left alone, and until when; None when it is worked on."""
        partition = seen.partition
        if seen.topic is None:
            return (
                State.REFUSED,
                "the topic is gone, or another one has its name; keeplast detach ends it in the "
                "decision log", None,
            )  # fmt: skip
        refusal = self._sight.refusals.get(partition.topic)
        if refusal is not None:
            return State.REFUSED, refusal.reason, refusal.until_ms
        if attached is not None and attached.epoch and attached.detached_ms is not None:
            return (
                State.ELSEWHERE,
                "given up by keeplast detach; keeplast clean takes it again", None,
            )  # fmt: skip
        if attached is not None and attached.paused_ms is not None:
            words = "paused on every host; keeplast pause --resume goes on"
            return State.NOT_DUE, words, None
        elsewhere = self._claims.elsewhere(seen, attached, now_ms)
        return None if elsewhere is None else (State.ELSEWHERE, *elsewhere)

    def _found(
        self, seen: SeenPartition, attached: Attached | None, now_ms: int
    ) -> AttachedOutlook:
        known = self._findings.get(seen.partition)
        if known is not None and known.seen is seen:
            return known.look
        if seen.log is None:
            raise UnavailableError("it was not read yet; it is looked at again", code="K448")
        return self._looks.look(
            seen.cache, self._wish(seen), now_ms, log_start=seen.log.start,
            cleaned_to=seen.log.start
            if attached is None
            else self._clean_to(seen, attached, seen.log.start),
            holds=() if attached is None else attached.holds,
        )  # fmt: skip

    def _clean_to(self, seen: SeenPartition, attached: Attached, log_start: int) -> int:
        """Return the first offset that is not clean; asked again when anything has changed."""
        served = frozenset(each.segment.id.segment_id for each in seen.cache.served())
        key = attached.epoch, attached.cleaned_to, served, log_start
        known = self._cleaned.get(seen.partition)
        if known is None or known[0] != key:
            found = clean_to(self._log, attached, seen.cache, log_start)
            known = self._cleaned[seen.partition] = key, found
        return known[1]

    def _terms(self, seen: SeenPartition) -> AttachTerms:
        return self._sight.terms(seen.partition.topic)

    def _wish(self, seen: SeenPartition) -> RoundWish:
        settings, wanted = self._settings, self._sight.wanted
        config = wanted.topic_config(seen.partition.topic)
        if seen.topic is None:
            raise InvariantError(
                f"a topic that is gone is worked on. partition={seen.name}", code="K901"
            )
        return RoundWish(
            topic=config, margin_bytes=margin_of(config, seen.topic),
            cleaner=wanted.cleaner_config(), keyless=settings.keyless,
            memory_bytes=settings.memory_bytes, task_memory_bytes=settings.task_memory_bytes,
            shape=settings.shape, brokers=self._groups,
        )  # fmt: skip

    def _decline_of(self, partition: TopicPartition, look: Look) -> str | None:
        """Return why a partition that is worth a round has none now, a spent day included."""
        found = super()._decline_of(partition, look)
        if found is not None or not look.is_eligible:
            return found
        return self._allowance.refusal(self._spent)

    def _set_aside(self, request: PartitionRequest, error: Exception) -> SetAside | None:
        """Set a partition aside until its log begins elsewhere, or another process compacts it.

        None when the failure may pass.
        """
        partition = request.partition
        known = self._findings.get(partition)
        if known is None or not lasts(request, error):
            return None
        self._marks[partition] = _mark_key(known.seen, known.look)
        return mark_of(partition, error, self._clock.now_ms())

    # The rounds.

    def clean(self, choices: Sequence[Choice]) -> tuple[TopicPartition, ...]:
        """Do one round of each chosen partition; returns those whose round ended."""
        ended = []
        for choice in choices:
            found = self._findings[choice.partition]
            seen, look = found.seen, found.look
            if look.figures is not None:
                strategy = self._sight.wanted.topic_config(choice.partition.topic).strategy
                ranges = look.figures.cleanable
                self._events.planned(*planned_round(choice.partition, ranges, strategy))
            report = self._round(seen)
            self._stale.add(choice.partition)
            if report is None:
                del self._findings[choice.partition]
            elif is_stop(report.failure):
                known = self._log.find(seen.name)
                if known is None or known.paused_ms is None:
                    self._decline(choice.partition, look, str(report.failure))
                del self._findings[choice.partition]
            else:
                ended.append(choice.partition)
                self._take(request_of(seen), look, report)
                self._findings.pop(choice.partition, None)
        return tuple(ended)

    def _round(self, seen: SeenPartition) -> RoundReport | None:
        """Do a round; None when another process was faster, which was reported. Nothing raises."""
        try:
            with self._claims.held(seen, self._terms(seen)) as publisher:
                if publisher is None:
                    return None
                return clean_attached(
                    publisher, self._wish(seen), lambda _: nullcontext(self._runner), self._clock,
                    progressed=partial(self._progressed, partition=seen.partition),
                    receipt=self._receipt, allowance=self._allowance,
                )  # fmt: skip
        except FencedError as error:
            self._fenced(seen.partition, error)
            return None
        except Exception as error:  # noqa: BLE001 - the loop that owns every round
            return RoundReport(error=describe_error(error), failure=error)

    # What follows.

    def settle(self) -> bool:
        """End what was left undone, collect what was replaced wherever a grace has passed, and let
        brokers serve again what a batch that came late has hidden.
        """
        before = self._totals
        waiting = self._log.counts.waiting(self._sight.cluster_id)
        now_ms = self._log.clock.now_ms()
        # What had its first round in this turn is attached since.
        rows = {each.name: each for each in self._log.partitions(self._sight.cluster_id)}
        for _, seen in sorted(self._sight.partitions.items()):
            attached = rows.get(seen.name)
            if attached is None:
                continue
            left = waiting.get(attached.row_id)
            is_due = left is not None and left.is_collectable(self._settings.grace_ms, now_ms)
            is_due &= not self._claims.is_held_back(seen.partition)
            is_due |= left is not None and left.is_undone
            is_mendable = self._is_mendable(seen.partition)
            if (is_due or is_mendable) and self._may_settle(seen, attached):
                self._collect(seen, mends=is_mendable)
            if self._is_stopping:
                break
        return self._totals != before

    def _is_mendable(self, partition: TopicPartition) -> bool:
        """Say whether brokers serve nothing somewhere, and would after one more announcement."""
        found = self._findings.get(partition)
        return found is not None and found.look.is_mendable

    def _may_settle(self, seen: SeenPartition, attached: Attached) -> bool:
        partition, now_ms = seen.partition, self._clock.now_ms()
        return (
            self._why_left(seen, attached, now_ms) is None
            and not self._schedule.is_waiting(partition, now_ms)
            and partition not in self._schedule.marks
        )

    def _collect(self, seen: SeenPartition, *, mends: bool) -> None:
        partition, done = seen.partition, None
        with self._apart(request_of(seen)) as failed:
            done = self._collected(seen, mends=mends)
        if failed:
            self._uncollected.add(partition)
        if done is None:
            return
        self._uncollected.discard(partition)
        self._claims.hold_back(partition, done.held_back)
        if done.segments:
            self._count(collected_objects=done.segments, collected_bytes=done.bytes)
            self._narrator.collected(partition, done.segments, done.bytes)

    def _collected(self, seen: SeenPartition, *, mends: bool) -> CollectedSources | None:
        """Collect as the holder; None when another process was faster, which was reported."""
        with self._claims.held(seen, self._terms(seen)) as publisher:
            if publisher is None:
                return None
            self._stale.add(seen.partition)
            if mends:
                publisher.mend(publisher.look())
            return collect(
                publisher, self._settings.grace_ms, check=self._check_served,
                receipt=self._receipt, why_wait=self._settings.why_wait,
            )  # fmt: skip

    def _fenced(self, partition: TopicPartition, error: FencedError) -> None:
        self._claims.lose(partition, str(error))

    def _check_served(self, segment: RemoteLogSegment) -> None:
        self._progressed(0)
        check_stored(self._layout, segment)


def _mark_key(seen: SeenPartition, look: AttachedOutlook) -> tuple[int, int]:
    return 0 if seen.log is None else seen.log.start, look.cleaned_to
