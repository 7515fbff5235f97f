"""The partitions of a store that this host leads or follows, as what the loop works on.

A look asks who leads. A partition that this host leads has its turn as any partition of a store
has. Two things differ: this host's own log is copied, and a round gives its disk the same bytes. A
partition that it follows is caught up with, and cleaned on this disk alone. Then local retention
has its turn.

What a reader must not break: see :mod:`keeplast.host.leased_host` and
:mod:`keeplast.service.store_work`. A host whose leader is another one copies, cleans and removes
nothing in the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.errors import CompactionError
from keeplast.host.leased_host import LeasedHost, host_directory, renewing
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes
from keeplast.model.topic_config import CleanerConfig, HostRole, TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.run.events import Events
from keeplast.service.live import TierNarrator
from keeplast.service.snapshot import PartitionFacts
from keeplast.service.store_choice import StoreSettings
from keeplast.service.store_work import StoreWork
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import ExpiryReport, RoundReport
from keeplast.survey.request import PartitionRequest
from keeplast.tier.objects.round_files import ROOT
from keeplast.tier.state.partition_state import PartitionState as Stored


class HostSettings(Struct, frozen=True):
    """The directory that this process keeps its logs below, what it may become, and its lease."""

    root: Path
    role: HostRole
    lease_ms: int


class HostWork(StoreWork):
    """The partitions of one store that this process leads, follows or leaves alone."""

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
        host: HostSettings,
    ) -> None:
        """Take the components as :class:`StoreWork` does, and what this host is to be."""
        super().__init__(store, runner, clock, files, settings, narrator=narrator, events=events)
        self._host = host
        self._hosts: dict[TopicPartition, LeasedHost] = {}
        self._reported: dict[TopicPartition, str] = {}

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the directory and renew leases; at the end leaders copy what they have."""
        with (
            host_directory(self._host.root, self._files),
            renewing(lambda: list(self._hosts.values()), self._host.lease_ms),
            super().holding(),
        ):
            try:
                yield
            finally:
                for hosted in list(self._hosts.values()):
                    hosted.close()
                # Others take over at once, and need not wait for the end of a lease.
                with suppress(CompactionError):
                    self._store.parts().metadata.give_back()

    def refresh(self) -> None:
        """Read settings and list partitions again; the logs of those that are gone stay."""
        super().refresh()
        for gone in self._hosts.keys() - set(self._partitions):
            self._hosts.pop(gone).close()
            self._reported.pop(gone, None)

    # The look.

    def _claim(self, state: Stored, *, is_first: bool) -> Stored | str:
        """Lead or follow; returns whom this host follows, or what keeps it from either."""
        partition = state.partition
        hosted = self._hosts.get(partition)
        if hosted is None:
            hosted = self._hosts[partition] = LeasedHost(
                self._store, partition, self._host.root,
                role=self._host.role, lease_ms=self._host.lease_ms,
            )  # fmt: skip
        standing = hosted.step(takes_over=is_first and self._settings.takes_over)
        self._report(partition, standing.words)
        return standing.state if standing.leads else standing.words

    def _report(self, partition: TopicPartition, words: str) -> None:
        if self._reported.get(partition) != words:
            self._reported[partition] = words
            self._narrator.stands(partition, words)

    def _leave_alone(self, request: PartitionRequest, state: Stored, reason: str) -> PartitionFacts:
        self._report(request.partition, reason)
        self._elsewhere[request.partition] = reason  # Reported above, in other words.
        return super()._leave_alone(request, state, reason)

    def _copy(self, partition: TopicPartition) -> None:
        """Copy what this host's own log has gained."""
        before = self._store.state(partition)
        copied = self._hosts[partition].copy()
        if copied:
            size = self._store.state(partition).remote_bytes - before.remote_bytes
            self._count(copied_segments=copied, copied_bytes=size)
            self._narrator.copied(partition, copied, size)

    # The rounds.

    def _clean_one(self, partition: TopicPartition, cleaner: CleanerConfig) -> RoundReport:
        return self._hosts[partition].host.clean(
            lambda files: nullcontext(self._runner),
            cleaner=cleaner, memory_bytes=self._settings.memory_bytes,
            progressed=partial(self._progressed, partition=partition),
            grace_ms=self._settings.grace_ms, expired=cleaner.has_expired_rounds,
            receipt=self._receipt,
        )  # fmt: skip

    def _expire_one(self, partition: TopicPartition) -> ExpiryReport:
        return self._hosts[partition].host.expire(
            grace_ms=self._settings.grace_ms, receipt=self._receipt
        )

    # What follows.

    def settle(self) -> bool:
        """Expire and collect as the leader; clean this disk as a follower; retain locally."""
        has_settled = super().settle()
        for partition in sorted(self._fresh & self._hosts.keys()):
            if self._is_stopping:
                break
            if self._schedule.is_waiting(partition, self.ledger.looked_ms):
                continue
            request = PartitionRequest(partition, ROOT / str(partition), TopicConfig())
            with self._apart(request):
                has_settled |= self._settle_disk(partition, self._hosts[partition])
        return has_settled

    def _settle_disk(self, partition: TopicPartition, hosted: LeasedHost) -> bool:
        """Clean what a follower has, and let go what local retention lets go."""
        if not hosted.leads and self._host.role is HostRole.LEADER:
            return False
        has_settled = False
        if not hosted.leads and hosted.host.topic.is_compacted:
            report = self._clean_one(partition, self._cleaner)
            if report.stats is not None and not report.skipped:
                has_settled = True
                sizes = (report.stats.bytes_read, report.stats.bytes_written)
                before, after = map(format_bytes, sizes)
                self._narrator.stands(partition, f"cleaned on this disk: {before} -> {after}")
        plan = hosted.host.retain_local()
        if plan.segments:
            self._narrator.left_disk(partition, plan.segments, plan.bytes)
        return has_settled or plan.segments > 0
