"""A tiered store as an object: what ``keeplast tier`` and programs work with.

    orders = keeplast.TopicPartition("orders", 0)
    with keeplast.open_store(
        "sqlite:///meta.db", "s3://bucket/logs", owner="me", topic_of=keeplast.topic_config
    ) as store:
        store.import_directory(orders, Path("data/orders-0"), {"cleanup.policy": "compact"})
        print(store.clean(orders, force=True).stats)

Rounds are done by threads of this process unless a ``runner_for`` gives another runner.

A process that changes a partition owns it. Of an owner's processes one holds it until its store is
closed. No process that may still run is fenced unless the caller asks for it (``takes_over``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.settings import check_internal, hazards_of, pinned
from keeplast.clock import Clock
from keeplast.errors import CompactionError, InvalidError, RefusedError
from keeplast.inspect.status import ErasedBy
from keeplast.log.files import FileSystem
from keeplast.model.hold import GroupReader
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.run.local_runner import LocalRunner
from keeplast.run.receipt import Receipt
from keeplast.run.round import RunnerFor
from keeplast.run.target import begin_target, complete_target
from keeplast.store.erasure import (
    TierEligibility,
    TierPace,
    find_tier_eligibility,
)
from keeplast.store.intake import (
    Intake,
    begin_partition,
    directory_bounds,
    find_replicated_ms,
    follow_log_start,
    unheard,
)
from keeplast.store.look import (
    FirstTimestamps,
    RemoteHorizons,
    RemoteLook,
    StoredReaders,
    look_at_remote,
)
from keeplast.store.migration import Migration, SettingsOf, count_records, plan_migration
from keeplast.store.removal import StoreRemovals, expire_remote
from keeplast.store.restored import Restoration
from keeplast.store.status import TierStatus, local_log, tier_status
from keeplast.store.store_place import StorePlace, clean_remote, plan_remote
from keeplast.store.undo import StoreHolds, StoreUndo
from keeplast.store.verification import TierFinding, judge_partition
from keeplast.survey.report import ExpiryReport, RoundReport, describe_error
from keeplast.survey.request import (
    MEMORY_BYTES_DEFAULT,
    CleanRequest,
    PartitionRequest,
    RoundWishes,
)
from keeplast.tier.copy.importing import Replaced, continued_lineage, export_partition
from keeplast.tier.copy.moving_directory import while_it_moves
from keeplast.tier.metadata.collection import Collected, Marks, collect
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.ownership import Ownership
from keeplast.tier.metadata.stored_logs import explained
from keeplast.tier.objects.object_store import ID_CHARS, ObjectStore
from keeplast.tier.objects.round_files import round_path
from keeplast.tier.state.kept_rounds import RoundDay
from keeplast.tier.state.partition_state import PartitionState, check_not_forgotten

CLEANER_DEFAULT = CleanerConfig()
GRACE_MS_DEFAULT = 60 * 60 * 1000
"""Readers that began before a swap have an hour to end."""
GARBAGE_AGE_MS_DEFAULT = 24 * 60 * 60 * 1000

Progressed = Callable[[int], None]


def own_threads(files: FileSystem) -> AbstractContextManager[Runner]:
    """Give a runner of this process's threads for a round."""
    return LocalRunner()


class StoreParts(Struct, frozen=True):
    """What a store is made of, for work on a partition other than its rounds."""

    metadata: MetadataStore
    objects: ObjectStore
    owner: str
    files: FileSystem
    clock: Clock


class TieredStore:
    """Partitions in object storage and the metadata that says what of them is live."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        *,
        owner: str,
        topic_of: SettingsOf,
        clock: Clock,
        files: FileSystem,
        marks: Marks | None = None,
        brokers: GroupReader | None = None,
    ) -> None:
        self._store = store
        self._objects = objects
        self._owner = owner
        self._topic_of = topic_of
        self._clock = clock
        self._files = files
        self.brokers = brokers
        self._timestamps = FirstTimestamps(objects)
        self._horizons = RemoteHorizons(objects)
        self._ownership = Ownership(store, owner, None if marks is None else marks.beginning)
        self.removals = StoreRemovals(store, objects, files, clock, topic_of, self._ownership)
        self.restoration = Restoration(store, objects, marks)
        self.holds = StoreHolds(store, objects, clock)
        self.undo = StoreUndo(store, objects, clock, self._ownership)

    def __repr__(self) -> str:
        """Return where the objects are, and the process that works on them."""
        return f"TieredStore({self._objects!r}, owner={self._owner!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give back what is held, and close the metadata store."""
        self._ownership.give_back()
        self._store.close()

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return every partition, ascending."""
        return self._store.partitions()

    def round_days(self) -> tuple[RoundDay, ...]:
        """Return what the rounds of the last month did, of every host."""
        return self._store.round_days()

    def begin_turn(self) -> None:
        """Mark again how far the metadata has been: for a process that works for long, now and
        then.
        """
        self.restoration.begin_turn()

    def forgotten(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that were given up and still have objects to collect."""
        return self._store.partitions(is_forgotten=True)

    def state(self, partition: TopicPartition) -> PartitionState:
        """Return what is known of a partition."""
        return self._store.load(partition)

    def erased_by(
        self, partition: TopicPartition, pace: TierPace, local: Path | None = None
    ) -> ErasedBy:
        """Say by when what is overwritten or deleted now is gone from object storage.

        With ``local``, the partition's directory on the leader, also from there, and what has not
        been copied yet counts. Reads what segments say of their tombstones.
        """
        state = self._store.load(partition)
        return self.eligibility(state, local).bounded(
            self.topic_for(state), pace, self._clock.now_ms()
        )

    def eligibility(self, state: PartitionState, local: Path | None = None) -> TierEligibility:
        """Return what such a bound rests on, of a partition with this ``state``."""
        found = None if local is None or not self._files.exists(local) else local
        return find_tier_eligibility(
            state, self._objects, self._files, found, self.topic_for(state),
            self._clock.now_ms(), timestamp_ahead_max_ms=INT64_MAX,
        )  # fmt: skip

    def status(self, partition: TopicPartition, local: Path | None = None) -> TierStatus:
        """Return regions, ratio and what waits.

        ``local`` is the partition's directory on a host: what is there is shown next to what is in
        object storage. It is only read.
        """
        state = self._store.load(partition)
        orphans = self._store.orphans(partition)
        topic = self.topic_for(state)
        now_ms = self._clock.now_ms()
        found = None if local is None else local_log(
            partition, local, topic, self._files, now_ms, remote_end=state.remote_end
        )  # fmt: skip
        readers = StoredReaders(state.topic_id, self.brokers).wait(partition, topic, now_ms)
        lease = self._store.leases.find(state.row_id)
        return tier_status(state, orphans, topic, now_ms, found, readers, lease)

    def look(self, partition: TopicPartition, *, expired: bool = False) -> RemoteLook:
        """Say whether a round is worth it, and what waits to be removed.

        With ``expired`` a round is worth it also where only what has expired is left to go.
        """
        state = self._store.load(partition)
        return look_at_remote(
            state, self._store.orphans(partition), self.topic_for(state),
            self._timestamps, self._clock.now_ms(), self._horizons if expired else None,
            self.brokers,
        )  # fmt: skip

    def set_aside(self, partition: TopicPartition, reason: str | None) -> None:
        """Keep a partition from being cleaned for a reason, or take it up again (None)."""
        state = self.own(partition, takes_over=False)
        if state.uncleanable_reason != reason:
            self._store.set_uncleanable(partition, epoch=state.leader_epoch, reason=reason)

    def own(
        self,
        partition: TopicPartition,
        *,
        takes_over: bool,
        succeeds: bool = False,
        known: PartitionState | None = None,
    ) -> PartitionState:
        """Hold the partition as its owner, until this store is closed, and return its state.

        RefusedError when another process has it and ``takes_over`` is False; ``succeeds`` takes it
        from a process of this owner whose end is not known. ``known`` is a state that was just
        read. See :meth:`~keeplast.tier.metadata.ownership.Ownership.own`.
        """
        return self._ownership.own(partition, takes_over=takes_over, succeeds=succeeds, known=known)

    def create(
        self,
        partition: TopicPartition,
        settings: Mapping[str, str],
        *,
        topic_id: str = "0" * ID_CHARS,
    ) -> None:
        """Add an empty partition without an owner, for a host; ConflictError when it is there."""
        check_internal(partition.topic, self._topic_of(settings))
        self._ownership.begin()
        self._store.create(partition, topic_id, log_start=0, settings=settings)

    def import_directory(
        self,
        partition: TopicPartition,
        directory: Path,
        settings: Mapping[str, str],
        *,
        progressed: Progressed = lambda _: None,
        takes_over: bool = False,
        receipt: Receipt | None = None,
        grace_ms: int = GRACE_MS_DEFAULT,
        replaced: Replaced = unheard,
    ) -> PartitionState:
        """Take a partition directory in, or what it has gained since the last time.

        What lies below the directory's high watermark, from its log start on; without checkpoints
        all of it. What a broker's cleaner has cleaned counts as clean. The directory is only read.
        A partition that was given up begins again. Where the directory could have lost a delete
        that was not copied, what is in the store is replaced, and ``replaced`` hears of it: see
        :mod:`keeplast.tier.state.continuity`. RefusedError for other ``settings`` than it has.
        """
        topic = self._topic_of(settings)
        check_internal(partition.topic, topic)
        self._ownership.begin()
        replicated_ms = find_replicated_ms(self._files, directory, self._clock)
        bounds = directory_bounds(self._files, partition, directory, self._clock)
        begin_partition(
            self._store, self._files, partition, directory, settings, self._topic_of,
            log_start=bounds.log_start, own=lambda: self.own(partition, takes_over=takes_over),
        )  # fmt: skip
        self._own_directory(partition, directory, takes_over=takes_over, receipt=receipt)
        return Intake(
            self._store, self._objects, self._files, self._clock, partition, directory, topic,
            grace_ms, progressed, replaced,
        ).whole(bounds.high_watermark, replicated_ms)  # fmt: skip

    def copy_directory(
        self,
        partition: TopicPartition,
        directory: Path,
        *,
        progressed: Progressed = lambda _: None,
        takes_over: bool = False,
        receipt: Receipt | None = None,
        retention_ms: int | None = None,
        grace_ms: int = GRACE_MS_DEFAULT,
        replaced: Replaced = unheard,
    ) -> PartitionState:
        """Copy what a directory whose partition is known has gained: closed, replicated, decided
        segments.

        That is below its high watermark and its last stable offset. What was deleted there goes
        here too; ``receipt`` takes a line of it. The directory is only read, and a broker may be
        working on it. See :mod:`keeplast.tier.state.continuity` for what is refused, and when
        ``replaced`` hears that what is in the store was replaced. ``retention_ms`` is the broker's
        ``delete.retention.ms``, the store's by default; the least of both counts.
        """
        state = self._own_directory(partition, directory, takes_over=takes_over, receipt=receipt)
        return Intake(
            self._store, self._objects, self._files, self._clock, partition, directory,
            self.topic_for(state), grace_ms, progressed, replaced,
        ).closed(retention_ms)  # fmt: skip

    def _own_directory(
        self, partition: TopicPartition, directory: Path, *, takes_over: bool,
        receipt: Receipt | None = None,
    ) -> PartitionState:  # fmt: skip
        """Hold a partition at the newest leader epoch of its directory, whose log it is.

        What was deleted there (``DeleteRecords``) goes here too; ``receipt`` takes a line of it.
        """

        def act() -> PartitionState:
            known = self._store.load(partition)
            check_not_forgotten(known)
            lineage = continued_lineage(self._files, directory, known)
            state = self._ownership.own(partition, takes_over=takes_over, lineage=lineage)
            return follow_log_start(
                self._store, state, self._topic_of(state.settings), self._files, directory,
                lineage, clock=self._clock, grace_ms=GRACE_MS_DEFAULT, receipt=receipt,
            )  # fmt: skip

        return while_it_moves(directory, self._files, act)

    def export(
        self, partition: TopicPartition, directory: Path, progressed: Progressed = lambda _: None
    ) -> None:
        """Write a directory that a broker serves; it is marked as incomplete until it is one.

        RefusedError when something is there, unless an export left it unfinished.
        """
        run = secrets.token_hex(ID_CHARS // 2)
        begin_target(self._files, directory, run=run)
        with explained(self._store, partition):
            export_partition(
                self._objects, self._files, self._store.load(partition), directory, progressed
            )
        complete_target(self._files, directory, run=run)

    def clean(
        self,
        partition: TopicPartition,
        runner_for: RunnerFor = own_threads,
        *,
        cleaner: CleanerConfig = CLEANER_DEFAULT,
        progressed: Progressed = lambda _: None,
        takes_over: bool = False,
        grace_ms: int = GRACE_MS_DEFAULT,
        receipt: Receipt | None = None,
        keeps: bool = True,
        **wishes: Unpack[RoundWishes],
    ) -> RoundReport:
        """Do one round; the report says what it did, or why it did nothing.

        What it replaces is kept for undo as the settings say. With ``keeps`` False it is not, and
        what earlier rounds have kept is no longer, if it replaces anything.

        ``wishes`` are fields of :class:`~keeplast.survey.request.CleanRequest`. ``receipt`` takes a
        line of each chunk, before it counts as clean.
        """
        state = self.own(partition, takes_over=takes_over)
        place = self._place(state, cleaner, wishes, grace_ms, receipt, keeps=keeps)
        report = clean_remote(place, runner_for, progressed)
        if not report.skipped:
            self.set_aside(partition, None)  # Whatever kept it from being cleaned is over.
        return report

    def plan(
        self,
        partition: TopicPartition,
        *,
        cleaner: CleanerConfig = CLEANER_DEFAULT,
        **wishes: Unpack[RoundWishes],
    ) -> RoundReport:
        """Return what :meth:`clean` would do, or what fails: exact bounds; owns nothing."""
        try:
            return plan_remote(self._place(self._store.load(partition), cleaner, wishes))
        except (CompactionError, OSError) as error:
            return RoundReport(error=describe_error(error), failure=error)

    def _place(
        self, state: PartitionState, cleaner: CleanerConfig, wishes: RoundWishes,
        grace_ms: int = GRACE_MS_DEFAULT, receipt: Receipt | None = None, *, keeps: bool = True,
    ) -> StorePlace:  # fmt: skip
        """Return where a round happens; InvalidError or RefusedError where none may."""
        partition, topic = state.partition, self.topic_for(state)
        if not state.routes:
            raise InvalidError(f"nothing was copied yet. partition={partition}", code="K344")
        if not topic.is_compacted:
            policy = ",".join(sorted(topic.cleanup_policy))
            raise RefusedError(
                "the topic is not compacted: its objects are never rewritten. "
                f"partition={partition} cleanup.policy={policy}",
                code="K128",
            )
        if not keeps:
            topic = replace(topic, undo_retention_ms=0)
        request = CleanRequest(
            (PartitionRequest(partition, round_path(partition), topic, cleaner),), **wishes
        )
        return StorePlace(
            self._store, self._objects, state, request, self._store.clock,
            grace_ms=grace_ms, horizons=self._horizons, receipt=receipt, brokers=self.brokers,
        )  # fmt: skip

    def expire(
        self,
        partition: TopicPartition,
        *,
        takes_over: bool = False,
        grace_ms: int = GRACE_MS_DEFAULT,
        receipt: Receipt | None = None,
    ) -> ExpiryReport:
        """Let go what retention and the log start offset let go; ``receipt`` takes a line of it.

        It is one transaction: a process of this owner that holds the partition goes on with it.
        """
        state = self._ownership.join(partition, takes_over=takes_over)
        return expire_remote(
            self._store, state, self.topic_for(state), self._store.clock.now_ms(),
            grace_ms=grace_ms, receipt=receipt,
        )  # fmt: skip

    def collect(
        self,
        partition: TopicPartition,
        *,
        takes_over: bool = False,
        garbage_age_ms: int = GARBAGE_AGE_MS_DEFAULT,
    ) -> Collected:
        """Remove replaced segments whose grace has passed, and objects without a row."""
        state = self.own(partition, takes_over=takes_over)
        return collect(
            self._store, self._objects, partition, epoch=state.leader_epoch,
            garbage_age_ms=garbage_age_ms, clock=self._store.clock, marks=self.restoration.marks,
        )  # fmt: skip

    def plan_settings(
        self,
        partition: TopicPartition,
        changes: Mapping[str, str | None],
        runner_for: RunnerFor = own_threads,
        *,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        progressed: Progressed = lambda _: None,
    ) -> Migration:
        """Say what follows from other settings (None takes one out); changes nothing.

        A topic that becomes compacted is read once, for the records without a key that would go.
        InvalidError for settings that contradict.
        """
        state = self._store.load(partition)
        found = plan_migration(state, changes, self._topic_of)
        if not found.becomes_compacted:
            return found
        return count_records(
            self._objects, state, found, runner_for, self._clock, memory_bytes=memory_bytes,
            progressed=progressed,
        )  # fmt: skip

    def configure(
        self,
        partition: TopicPartition,
        changes: Mapping[str, str | None],
        runner_for: RunnerFor = own_threads,
        *,
        drops_keyless: bool = False,
        takes_over: bool = False,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        progressed: Progressed = lambda _: None,
    ) -> Migration:
        """Change settings of a partition as its owner; None takes one out.

        A process of this owner that holds the partition goes on with it.

        A topic that becomes compacted loses its records without a key in the next rounds: they are
        counted by ``runner_for``, and RefusedError names their number unless ``drops_keyless``.
        """
        found = plan_migration(self._store.load(partition), changes, self._topic_of)
        if found.becomes_compacted and not drops_keyless:
            found = self.plan_settings(
                partition, changes, runner_for, memory_bytes=memory_bytes, progressed=progressed
            )
        found.check(drops_keyless=drops_keyless)
        state = self._ownership.join(partition, takes_over=takes_over)
        self._store.configure(
            partition, epoch=state.leader_epoch, settings=found.settings, holder=state.holder,
            undo_retention_ms=found.after.undo_retention_ms,
        )  # fmt: skip
        return found

    def topic_for(self, state: PartitionState) -> TopicConfig:
        """Return the settings that count for a partition, a broker's own topic as brokers read it.

        An older version may have kept others with it.
        """
        return pinned(state.partition.topic, self._topic_of(state.settings))

    def hazards(self, partitions: Iterable[TopicPartition]) -> tuple[str, ...]:
        """Return what is to be known of the settings of partitions, each thing once."""
        states = (self._store.load(each) for each in partitions)
        return hazards_of((state.partition.topic, self.topic_for(state)) for state in states)

    def verify(
        self,
        partition: TopicPartition,
        progressed: Progressed = lambda _: None,
        planned: Progressed = lambda _: None,
    ) -> tuple[TierFinding, ...]:
        """Check all rows, and the invariants of what is live by reading all of it; no change."""
        return judge_partition(
            self._store, self._objects, partition, progressed, planned
        ).findings  # fmt: skip

    def parts(self) -> StoreParts:
        """Return what a host of a partition works with; it is closed with this store."""
        return StoreParts(self._store, self._objects, self._owner, self._files, self._clock)
