"""The partitions of a store as what the loop works on: copy, choose, clean, expire, collect.

What a reader must not break:

1. A partition is worked on by its owner only, and of an owner's processes by the one that holds it.
   A partition without an owner is claimed. What another owner has is taken over once, at the first
   look, and only when that was asked for; so is what an earlier process of this owner left without
   a word. A process that is fenced later says so and leaves the partition alone until it is given
   back: two that fought would fence each other without end.
2. Nothing is remembered that the store does not say: after ``kill -9`` the next start goes on from
   the metadata alone. What is set aside is written there, by the owner of the newest epoch.
3. Errors of the object store, the database and the disk pass: they end a round and are tried again.
   Only damage and what contradicts an invariant sets a partition aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.log_order import Choice
from keeplast.cleaner.settings import hazards_of
from keeplast.clock import Clock
from keeplast.errors import (
    CompactionError,
    FencedError,
    RefusedError,
    StoppedError,
)
from keeplast.log.data_directory import DataDirectory, PartitionEntry, open_data_directory
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.run.events import Events
from keeplast.service.live import TierNarrator
from keeplast.service.schedule import (
    LOOK_MS_MIN,
    SetAside,
    is_stop,
    mark_of,
    planned_round,
    read_stored_mark,
    stored_mark,
)
from keeplast.service.snapshot import PartitionFacts, TierTotals
from keeplast.service.store_choice import StoreSettings, share_of
from keeplast.service.store_facts import elsewhere_facts, with_look
from keeplast.service.tiered_work import TieredWork, lasts
from keeplast.store.look import RemoteLook
from keeplast.store.removal import is_collection_due
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import ExpiryReport, RoundReport, describe_error
from keeplast.survey.request import (
    PartitionRequest,
)
from keeplast.tier.objects.round_files import ROOT
from keeplast.tier.state.continuity import ReplacedRange
from keeplast.tier.state.partition_state import PartitionState as Stored


class _StoreFinding(Struct, frozen=True):
    """A partition that is ours, as found at ``looked_ms``."""

    request: PartitionRequest
    looked_ms: int
    look: RemoteLook


class StoreWork(TieredWork[_StoreFinding]):
    """The partitions of one store that this process owns or may own."""

    stays = "committed"

    def __init__(
        self,
        store: TieredStore,
        runner: Runner,
        clock: Clock,
        files: FileSystem,
        settings: StoreSettings,
        *,
        narrator: TierNarrator,
        events: Events,
    ) -> None:
        """Take the components, and read settings for the first time; bad ones raise here only."""
        self._cleaner = settings.cleaner()
        super().__init__(
            clock, files, receipt=settings.receipt,
            heads=lambda: store.parts().metadata.facts, backoff_ms=self._cleaner.backoff_ms,
            narrator=narrator, events=events,
        )  # fmt: skip
        self._store = store
        self._runner = runner
        self._settings = settings
        self._directory: DataDirectory | None = None
        self._retention_of: Callable[[str], int] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._partitions: tuple[TopicPartition, ...] = ()
        self._forgotten: tuple[TopicPartition, ...] = ()
        self._seen: set[TopicPartition] = set()
        self._elsewhere: dict[TopicPartition, str] = {}
        self._fresh: set[TopicPartition] = set()
        self._collected_ms: dict[TopicPartition, int] = {}

    @property
    def place(self) -> str:
        """Return the store's URL, without a password."""
        return self._settings.name

    @property
    def slots(self) -> int:
        """Return how many rounds are done at once."""
        return self._settings.slots

    @property
    def tier_totals(self) -> TierTotals:
        """Return what was copied and removed since the start."""
        return self._totals

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep the threads that rounds are done in."""
        if self.slots == 1:
            yield
            return
        with ThreadPoolExecutor(self.slots, "keeplast-round") as pool:
            self._pool = pool
            yield

    def refresh(self) -> None:
        """Read settings and list partitions again; bad settings are reported once."""
        self._store.begin_turn()
        try:
            self._cleaner = self._settings.cleaner()
            self.ledger.backoff_ms = self._cleaner.backoff_ms
            if self._settings.data_dir is not None:
                self._directory = open_data_directory(self._settings.data_dir, self._files)
            if self._settings.retention is not None:
                self._retention_of = self._settings.retention()
            self.ledger.warn([*self._clock_notes(), *self._settings.unanswered()])
        except (CompactionError, OSError) as error:
            self.ledger.warn([f"what was read last stays: {error}"])
        known = self._store.partitions()
        self._partitions = tuple(each for each in known if self._settings.is_about(each))
        given_up = self._store.forgotten()
        self._forgotten = tuple(each for each in given_up if self._settings.is_about(each))
        here = {*self._partitions, *self._forgotten}
        self._schedule.keep(set(self._partitions))
        self._keep(here, self._findings, self._elsewhere, self._collected_ms)

    def _try_again(self, partition: TopicPartition) -> None:
        if partition in self._schedule.marks:
            self._store.set_aside(partition, None)
            del self._schedule.marks[partition]

    def forget(self) -> None:
        """Have the next look see every partition again."""
        self._findings = {}

    def refused(self) -> Mapping[TopicPartition, Exception]:
        """Return nothing: what another host owns is no failure."""
        return {}

    # The look.

    def look(self) -> None:
        """Claim, copy and look, a partition after another; what was found lately still holds."""
        self.ledger.looked_ms = self._clock.now_ms()
        fresh_ms = max(self.ledger.backoff_ms, LOOK_MS_MIN)
        facts: dict[TopicPartition, PartitionFacts] = {}
        self._fresh = set()
        for partition in self._partitions:
            if self._is_stopping:
                return
            found = self._findings.get(partition)
            if found is None or not 0 <= self.ledger.looked_ms - found.looked_ms < fresh_ms:
                self._findings.pop(partition, None)
                self._fresh.add(partition)
                facts[partition] = self._look_at(partition)
            else:
                facts[partition] = self._facts(found)
        self.ledger.facts = facts

    def _look_at(self, partition: TopicPartition) -> PartitionFacts:
        state = self._store.state(partition)
        request = PartitionRequest(partition, ROOT / str(partition), TopicConfig())
        history = self._schedule.history(partition)
        try:
            is_first = partition not in self._seen
            claimed = self._claim(state, is_first=is_first)
            self._seen.add(partition)
            if isinstance(claimed, str):
                return self._leave_alone(request, state, claimed)
            self._elsewhere.pop(partition, None)
            state = claimed
            if is_first and self._settings.retries:
                self._store.set_aside(partition, None)
                state = self._store.state(partition)
            mark = self._mark(partition, state)
            if self._schedule.is_waiting(partition, self.ledger.looked_ms):
                return self.ledger.failing(request, history, str(history.failure))
            self._copy(partition)
            look = self._look(partition)
        except FencedError as error:
            return self._leave_alone(request, self._store.state(partition), str(error))
        except StoppedError:
            return self.ledger.failing(request, history, "stopped")
        except Exception as error:  # noqa: BLE001 - whatever one partition does, the others go on
            return self.ledger.failed(request, error)
        for hazard in hazards_of([(partition.topic, look.topic)]):
            self.ledger.warn_once(hazard)
        found = _StoreFinding(request, self.ledger.looked_ms, look)
        if mark is not None:
            failing = self.ledger.failing(request, history, mark.reason, mark)
            return with_look(failing, look, found.looked_ms)
        self._findings[partition] = found
        if not look.is_eligible or self._decline_of(partition, look) is not None:
            self._schedule.recovered(partition)
        return self._facts(found)

    def _look(self, partition: TopicPartition) -> RemoteLook:
        return self._store.look(partition, expired=self._cleaner.has_expired_rounds)

    def _claim(self, state: Stored, *, is_first: bool) -> Stored | str:
        """Hold the partition, or return why it is left alone. FencedError when it was taken.

        Only the first look takes anything over; see rule 1 above.
        """
        partition, takes_over = state.partition, is_first and self._settings.takes_over
        if state.owner not in ("", self._settings.owner) and not takes_over:
            return f"owned by {state.owner} at epoch {state.leader_epoch}"
        if not state.owner and not state.routes and self._entry(partition) is None:
            # The process that made it is about to fill it, and would find it taken.
            return "nothing was copied yet"
        try:
            return self._store.own(partition, takes_over=takes_over, succeeds=is_first, known=state)
        except RefusedError as error:
            return str(error)

    def _leave_alone(self, request: PartitionRequest, state: Stored, reason: str) -> PartitionFacts:
        partition = request.partition
        if self._elsewhere.get(partition) != reason:
            self._elsewhere[partition] = reason
            self._narrator.left_alone(partition, reason)
        self._schedule.recovered(partition)
        self._schedule.marks.pop(partition, None)
        return elsewhere_facts(request, self._schedule.history(partition), state, reason)

    def _mark(self, partition: TopicPartition, state: Stored) -> SetAside | None:
        """Return why a partition is set aside, as the store says it now."""
        if state.uncleanable_reason is None:
            self._schedule.marks.pop(partition, None)
            return None
        mark = read_stored_mark(partition, state.uncleanable_reason, self.ledger.looked_ms)
        return self._schedule.marks.setdefault(partition, mark)

    def _entry(self, partition: TopicPartition) -> PartitionEntry | None:
        return None if self._directory is None else self._directory.find(partition)

    def _copy(self, partition: TopicPartition) -> None:
        """Take over what the partition has gained in the data directory, if it lies there."""
        entry = self._entry(partition)
        if entry is None:
            return
        before, retention = self._store.state(partition), self._retention_of
        try:
            after = self._store.copy_directory(
                partition, entry.path, progressed=self._progressed,
                retention_ms=None if retention is None else retention(partition.topic),
                receipt=self._receipt, grace_ms=self._settings.grace_ms,
                replaced=partial(self._replaced, partition),
            )  # fmt: skip
        except RefusedError:
            self._count(refused_copies=1)
            raise
        segments = len(after.routes) - len(before.routes)
        size = after.remote_bytes - before.remote_bytes
        if segments > 0:
            self._narrator.copied(partition, segments, size)
            self._count(copied_segments=segments, copied_bytes=size)

    def _replaced(self, partition: TopicPartition, done: ReplacedRange) -> None:
        self._count(replaced_ranges=1)
        self._narrator.replaced(partition, done.sentence())

    def _facts(self, found: _StoreFinding) -> PartitionFacts:
        return with_look(self._worked_facts(found.request, found.look), found.look, found.looked_ms)

    # The rounds.

    def clean(self, choices: Sequence[Choice]) -> tuple[TopicPartition, ...]:
        """Do one round of each chosen partition; returns those whose round ended."""
        chosen = [self._findings[choice.partition] for choice in choices]
        for found in chosen:
            request, ranges = found.request, found.look.figures.cleanable
            work = planned_round(request.partition, ranges, request.topic.strategy)
            self._events.planned(*work)
        if self._pool is None or len(chosen) == 1:
            reports = [self._round(found) for found in chosen]
        else:
            reports = list(self._pool.map(self._round, chosen))
        ended = []
        for found, report in zip(chosen, reports, strict=True):
            partition = found.request.partition
            del self._findings[partition]
            if is_stop(report.failure):
                continue
            ended.append(partition)
            if isinstance(report.failure, FencedError):
                self._fenced(partition, report.failure)
            else:
                self._take(found.request, found.look, report)
        return tuple(ended)

    def _round(self, found: _StoreFinding) -> RoundReport:
        """Do a round in whatever thread; nothing raises."""
        cleaner = share_of(self._cleaner, self._runner, self.slots)
        try:
            return self._clean_one(found.request.partition, cleaner)
        except Exception as error:  # noqa: BLE001 - the loop that owns every round
            return RoundReport(error=describe_error(error), failure=error)

    def _clean_one(self, partition: TopicPartition, cleaner: CleanerConfig) -> RoundReport:
        settings = self._settings
        return self._store.clean(
            partition, lambda files: nullcontext(self._runner),
            cleaner=cleaner, memory_bytes=settings.memory_bytes,
            progressed=partial(self._progressed, partition=partition),
            grace_ms=settings.grace_ms, shape=settings.shape,
            task_memory_bytes=settings.task_memory_bytes,
            expired=cleaner.has_expired_rounds, receipt=self._receipt,
        )  # fmt: skip

    # What follows.

    def settle(self) -> bool:
        """Expire and collect what this turn looked at; what had a round comes with the next."""
        before = self._totals
        for partition in sorted(self._fresh & self._findings.keys()):
            if self._is_stopping:
                break
            found = self._findings[partition]
            with self._apart(found.request):
                if self._expire(found) | self._collect(found):
                    found = replace(found, look=self._look(partition))
                    self._findings[partition] = found
                    self.ledger.facts[partition] = self._facts(found)
        self._collect_forgotten()
        return self._totals != before

    def _collect_forgotten(self) -> None:
        """Remove what is left of partitions that were given up, now and then."""
        now_ms = self._clock.now_ms()
        for partition in self._forgotten:
            last_ms = self._collected_ms.get(partition)
            if self._is_stopping or not is_collection_due((), last_ms, now_ms=now_ms):
                continue
            self._collected_ms[partition] = now_ms
            try:
                self._remove_garbage(partition)
            except (CompactionError, OSError) as error:
                self._narrator.warned(f"{partition}, which was given up: {error}")

    def _expire(self, found: _StoreFinding) -> bool:
        if not found.look.expires:
            return False
        partition = found.request.partition
        done = self._expire_one(partition)
        if done.segments:
            self._count(expired_segments=len(done.segments), expired_bytes=done.bytes)
            self._narrator.expired(partition, done)
        return bool(done.segments)

    def _expire_one(self, partition: TopicPartition) -> ExpiryReport:
        return self._store.expire(
            partition, grace_ms=self._settings.grace_ms, receipt=self._receipt
        )

    def _collect(self, found: _StoreFinding) -> bool:
        """Remove what may go: at once when a grace has passed, and garbage now and then."""
        partition, now_ms = found.request.partition, self._clock.now_ms()
        last_ms = self._collected_ms.get(partition)
        if not is_collection_due(found.look.orphans, last_ms, now_ms=now_ms):
            return False
        self._collected_ms[partition] = now_ms
        return self._remove_garbage(partition)

    def _remove_garbage(self, partition: TopicPartition) -> bool:
        done = self._store.collect(partition, garbage_age_ms=self._settings.garbage_age_ms)
        if done.objects:
            self._count(collected_objects=done.objects, collected_bytes=done.bytes)
            self._narrator.collected(partition, done.objects, done.bytes)
        return bool(done.objects)

    def _set_aside(self, request: PartitionRequest, error: Exception) -> SetAside | None:
        """Write down in the store that a failure lasts; None when it may pass."""
        partition = request.partition
        if partition in self._schedule.marks or not lasts(request, error):
            return None
        mark = mark_of(partition, error, self._clock.now_ms())
        try:
            self._store.set_aside(partition, stored_mark(mark))
        except (CompactionError, OSError) as problem:
            # It is found damaged once more; the owner of the partition decides.
            self._narrator.warned(f"{partition} could not be set aside in the store: {problem}")
            return None
        self._schedule.marks[partition] = mark
        return mark
