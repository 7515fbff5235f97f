"""A partition on one host: leader or follower, its local log and the same log in object storage.

A library object without a network: its embedder carries batches from leader to follower and says
which host leads at which epoch. The metadata store decides what it must never do: an old leader
that acts late is fenced there. A leader appends, copies closed segments, and is the only one that
cleans, expires or collects in object storage. A follower replicates and cleans what is local.
KIP-405, KIP-1272; tiering.md section 9.7.

The rule for local segments of a tiered log that may leave this disk is pure. The KIP has two
readings:

* R-A, the default: a segment goes when it is older or the local part is larger than
  ``local.retention.*``, cleaned or not.
* R-B, with ``local.delete.requires.clean``: only segments below the first dirty offset go, until
  ``local.delete.max.extra.*`` beyond the limits, then R-A. A cleaner that fails must not fill the
  disk.

A topic with ``compact,delete`` has R-A alone: its local log is that of an append-only topic. Both
need that object storage has the segment and that every replica does. The active segment never goes,
and neither does anything above the first segment that stays. KIP-1272, "Change on Local Segment
Retention" and "Deletion of local log segment"; tiering.md section 9.8.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import IdleRoll, find_hold
from keeplast.cleaner.reasons import NothingCopied
from keeplast.cleaner.segment_expiry import ExpiryRule, plan_expiry
from keeplast.clock import Clock
from keeplast.errors import ConflictError, FencedError, InvalidError, RefusedError
from keeplast.format.filename import CLEANER_CHECKPOINT, SNAPSHOT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.host.partition_reader import PartitionReader
from keeplast.host.replica import Divergence, Role, find_divergent_batch
from keeplast.inspect.status import ErasedBy
from keeplast.log.checkpoints import cleaned_for, drop_note, note_round, said_end, update_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import Tail, list_partition
from keeplast.log.readers import fetch
from keeplast.log.transactions import aborted_by_segment
from keeplast.log.windows import WindowBuffers
from keeplast.model.hold import in_force
from keeplast.model.partition import INT64_MAX, NO_LEADER_EPOCH, SegmentSummary, TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.receipt import Receipt
from keeplast.run.round import RunnerFor
from keeplast.store.erasure import TierPace, find_tier_erasure
from keeplast.store.look import RemoteHorizons
from keeplast.store.removal import expire_remote
from keeplast.store.store_place import StorePlace, clean_remote
from keeplast.store.tiered_store import GRACE_MS_DEFAULT
from keeplast.survey.report import ExpiryReport, RoundReport
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.survey.rolling import idle_reason
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ID_CHARS, ObjectStore, object_key
from keeplast.tier.objects.round_files import round_path
from keeplast.tier.objects.transfer import copy_segment
from keeplast.tier.state.partition_state import PartitionState, check_not_forgotten

RULES = frozenset({ExpiryRule.SIZE, ExpiryRule.TIME})


class LocalRetention(Struct, frozen=True):
    """What leaves the disk: every closed segment below ``to``; ``kept`` says what keeps the next
    one that is past its time, None when nothing is."""

    to: int
    segments: int
    bytes: int
    kept: str | None = None


def plan_local_retention(
    topic: TopicConfig,
    segments: Sequence[SegmentSummary],
    *,
    log_end: int,
    high_watermark: int,
    remote_end: int,
    first_dirty: int,
    now_ms: int,
) -> LocalRetention:
    """Return what may go of ``segments``, all of the local log's, the last one active."""
    active = segments[-1].base_offset
    total = replace(
        topic, cleanup_policy=frozenset({"delete"}), retention_ms=topic.local_age_max_ms,
        retention_bytes=topic.local_bytes_max,
    )  # fmt: skip

    def count(config: TopicConfig, limit: int) -> int:
        plan = plan_expiry(
            config, segments, log_start=0, log_end=log_end, high_watermark=limit, now_ms=now_ms,
            rules=RULES,
        )  # fmt: skip
        return len(plan.expired)

    due = count(total, active)
    goes = count(total, min(active, high_watermark, remote_end))
    kept = "not in object storage yet" if remote_end < high_watermark else "not everywhere yet"
    if topic.local_delete_requires_clean and topic.is_compacted and not topic.expires:
        clean = count(total, min(active, high_watermark, remote_end, first_dirty))
        forced = count(_with_extra(total, topic), min(active, high_watermark, remote_end))
        if max(clean, forced) < goes:
            goes, kept = max(clean, forced), "not cleaned yet"
    return LocalRetention(
        to=segments[goes].base_offset,
        segments=goes,
        bytes=sum(segment.size_bytes for segment in segments[:goes]),
        kept=None if goes == due else f"segment {segments[goes].base_offset} stays: {kept}",
    )


def _with_extra(total: TopicConfig, topic: TopicConfig) -> TopicConfig:
    """Return the limits beyond which nothing waits to be cleaned; no limit has none beyond it."""
    age, size = total.retention_ms, total.retention_bytes
    return replace(
        total,
        retention_ms=age if age < 0 else age + topic.local_delete_max_extra_ms,
        retention_bytes=size if size < 0 else size + topic.local_delete_max_extra_bytes,
    )


CLAIMS_MAX = 5
"""How often it is compared again with what another leader has changed meanwhile."""


def _silent(count: int) -> None:
    """Hear of progress and say nothing."""


class PartitionHost(PartitionReader):
    """One partition on this host, in both tiers. Not safe for concurrent calls."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        partition: TopicPartition,
        root: Path,
        *,
        topic: TopicConfig,
        owner: str,
        files: FileSystem,
        clock: Clock,
        recovers: bool = False,
        is_locked: bool = False,
    ) -> None:
        """Open the local log below ``root``; see :class:`~keeplast.host.replica.Replica`.

        ``is_locked`` says that the caller holds the lock of ``root`` for as long as this is used.
        RefusedError for a time for undo: what a host has replaced on its disk would not come back.
        """
        _check_settings(partition, topic)
        super().__init__(
            store, objects, partition, root, topic=topic, files=files, clock=clock,
            recovers=recovers,
        )  # fmt: skip
        self._owner = owner
        self._locked = (root,) if is_locked else ()
        self._horizons = RemoteHorizons(objects)

    def change_settings(self, topic: TopicConfig) -> None:
        """Go on with other settings of the topic; RefusedError as when a host is opened.

        Where a segment is full counts from the next opening on.
        """
        _check_settings(self.partition, topic)
        self.topic = topic

    def _own_state(self) -> PartitionState:
        """Return the state as its leader; FencedError when a newer one has taken over."""
        self.check_leader()
        state = self.state()
        if state.leader_epoch != self.epoch or not self._store.holds(state):
            raise FencedError(
                "a newer leader owns the partition; step down. "
                f"partition={self.partition} epoch={self.epoch} current={state.leader_epoch}",
                code="K332",
            )
        return state

    # Leadership.

    def become_leader(self, epoch: int, *, lease_ms: int | None = None) -> PartitionState:
        """Take the partition over: fence older leaders, then make the local log agree.

        FencedError when a newer leader has. ConflictError, and no host is fenced, when object
        storage has more of the log than this host (see :meth:`catch_up`), or another log than this
        host. The log that it would lead with is then not the copied one, and is to be cut first.
        Local segments that lie wholly below the first dirty offset go, because object storage has
        them cleaned; they stay when it does not have all of them. The local checkpoint becomes the
        store's, also downwards. With ``lease_ms`` it leads by a lease of the store from then on.
        """
        for left in reversed(range(CLAIMS_MAX)):
            known = self.state()
            check_not_forgotten(known)
            if epoch >= known.leader_epoch:  # Else it is fenced, whatever its log is.
                self._check_same_log(known)
            written = known.joined_lineage(self.lineage)
            is_named = bool(written) and written[-1].epoch == epoch
            own = () if is_named else (LeaderEpoch(epoch, self.log_end_offset),)
            try:
                state = self._store.take_over(
                    self.partition, epoch=epoch, owner=self._owner, lineage=(*written, *own),
                    log_end=self.log_end_offset, instead_of=known, is_unchanged=True,
                    lease_ms=lease_ms, acknowledged=self.high_watermark,
                )  # fmt: skip
                break
            except ConflictError:
                # What was compared is not what is there any more.
                if not left:
                    raise
        # From here on the local log follows the store, and cannot go back with it.
        self._store.undo_rows.drop(self.partition, epoch=epoch)
        # Not earlier: who was fenced goes on as a follower, with the epochs of what it replicates.
        self._log.restore_epochs(written)
        self._log.set_leader_epoch(epoch)
        self.role, self.epoch = Role.LEADER, epoch
        self._high_watermark = max(self._high_watermark, state.remote_end)
        self._overlap.forget()
        self.follow_log_start(state.log_start)
        first_dirty = state.first_dirty(self.log_end_offset)
        self.drop_below(min(first_dirty, state.covered_to()))
        self._save_checkpoint(first_dirty)
        return state

    def become_follower(self, epoch: int) -> None:
        """Step down: appends are refused from here on."""
        super().become_follower(epoch)
        self._overlap.forget()

    def catch_up(self, start: int | None = None) -> int:
        """Replicate from object storage what this host lacks of it; returns the log end offset.

        For a replica that starts empty, or was left without later records when it has to lead.
        ``start`` is where a segment of object storage ends, as the leader's local start. With it
        the local log begins there unless it reaches as far: the records below stay in object
        storage alone (KIP-405). ConflictError, and nothing is taken, when what is here is another
        leader's than there.
        """
        self._check_follower()
        state = self.state()
        self._check_same_epochs(state)
        self.follow_log_start(state.log_start)
        if start is not None and self.log_end_offset < start:
            self.begin_at(start, state.lineage, self._producers_at(state, start))
        files = self._remote_files(state)
        listing = list_partition(files.path, files)
        while self.log_end_offset < state.remote_end:
            before = self.log_end_offset
            found = fetch(files, listing, before, end=state.remote_end)
            # Also of leaders that this host has not heard of: whose log it is was compared.
            self._append_stored(found.data, newest=NO_LEADER_EPOCH)
            self._high_watermark = self.log_end_offset
            if self.log_end_offset == before:
                raise ConflictError(
                    "object storage changed meanwhile; catch up again. "
                    f"partition={self.partition} at={before} remote_end={state.remote_end}",
                    code="K352",
                )
        return self.log_end_offset

    def _producers_at(self, state: PartitionState, offset: int) -> bytes:
        """Return the producers at the end of a segment; InvalidError where none ends."""
        for route in state.routes:
            segment = state.segments[route.segment_id]
            if route.last_offset + 1 == segment.next_offset == offset and SNAPSHOT in segment.files:
                key = object_key(
                    state.partition, state.topic_id, segment.segment_id, segment.base_offset,
                    SNAPSHOT,
                )  # fmt: skip
                return bytes(self._objects.read_range(key, 0, segment.files[SNAPSHOT].size_bytes))
        raise InvalidError(
            "no segment with its producers ends there; begin where one does. "
            f"partition={self.partition} start={offset} remote_end={state.remote_end}",
            code="K352",
        )

    def _check_same_log(self, state: PartitionState) -> None:
        """ConflictError unless the local log holds, or goes on from, what object storage has."""
        if self.log_end_offset < state.remote_end:
            raise ConflictError(
                "the local log ends below what object storage has; catch up first. "
                f"partition={self.partition} log_end={self.log_end_offset} "
                f"remote_end={state.remote_end}",
                code="K352",
            )
        if self.local_start > state.remote_end:
            raise ConflictError(
                "the local log begins after what object storage has, and what lies between is "
                "nowhere; elect a replica that has it. "
                f"partition={self.partition} local_start={self.local_start} "
                f"remote_end={state.remote_end}",
                code="K352",
            )
        self._check_same_epochs(state)

    def _check_same_epochs(self, state: PartitionState) -> None:
        """ConflictError where a local batch is of another leader than object storage has there."""
        found = self._find_other_batch(state)
        if found is not None:
            raise ConflictError(
                "the local log has other records than object storage, of another leader; truncate "
                "it there and catch up, or elect a replica that has the same log. "
                f"partition={self.partition} offset={found.offset} epoch={found.epoch} "
                f"stored_epoch={found.expected}",
                code="K352",
            )

    def _find_other_batch(self, state: PartitionState) -> Divergence | None:
        """Return the first local batch that is of another leader than object storage has there."""
        return find_divergent_batch(
            self._files, self.listing(), self.lineage, state.lineage, state.remote_end
        )

    # Into object storage.

    def roll_idle(self) -> IdleRoll | None:
        """Leave the active segment when its age asks for it; returns why, None when it does not.

        A broker does that only when it appends. Followers may too: where segments begin is each
        replica's own.
        """
        listing = self.listing()
        tail = Tail(self.log_end_offset, listing.active.size_bytes)
        reason = idle_reason(listing, tail, self.topic, self._files, self._clock.now_ms())
        if reason is not None:
            self.roll()
        return reason

    def copy(self, *, replicates: bool = False) -> int:
        """Copy every closed segment that object storage lacks; returns how many.

        Only what is decided: segments that end at or below the last stable offset. With
        ``replicates`` object storage is itself what replicates: what is decided on this disk alone
        is copied, too, and the high watermark follows what was.
        """
        self.check_leader()
        self.flush()
        state = self._own_state()
        copied = 0
        listing = self.listing()
        cleaned_to = said_end(self.partition, listing, self._files) or 0
        tail = Tail(self.log_end_offset, listing.active.size_bytes)
        aborted = aborted_by_segment(
            listing, tail, self._files, WindowBuffers(),
            start=max(state.remote_end, state.first_dirty(), state.log_start),
        )  # fmt: skip
        stable = self.decided_end if replicates else self.last_stable_offset
        for segment, end in self.closed_segments():
            if end > stable:
                break
            if end <= max(state.remote_end, state.first_dirty(), state.log_start):
                continue
            made = copy_segment(
                self._objects, self._files, segment,
                partition=self.partition, topic_id=state.topic_id,
                segment_id=secrets.token_hex(ID_CHARS // 2), next_offset=end,
                lineage=self.lineage, leader_epoch_of_owner=self.epoch, number=0,
                cleaner_offsets=dict(state.publications[-1].offsets),
                index_interval_bytes=self.topic.index_interval_bytes,
                aborted=next(its for s, its in aborted if s.base_offset == segment.base_offset),
                from_offset=max(segment.base_offset, state.remote_end) if state.routes else None,
            )  # fmt: skip
            state = self._store.commit_copy(
                self.partition, secrets.token_hex(ID_CHARS // 2), epoch=self.epoch,
                segment=made, lineage=self.lineage, known=state,
                cleaned_for=cleaned_to if segment.base_offset < cleaned_to else 0,
            )  # fmt: skip
            copied += 1
            if replicates:
                self.acknowledge(max(self.high_watermark, state.remote_end))
        return copied

    # Rounds.

    def clean(
        self,
        runner_for: RunnerFor,
        *,
        cleaner: CleanerConfig | None = None,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        progressed: Callable[[int], None] = _silent,
        force: bool = False,
        grace_ms: int = GRACE_MS_DEFAULT,
        expired: bool = False,
        receipt: Receipt | None = None,
    ) -> RoundReport:
        """Do one round: a leader's in both tiers, a follower's on what is local.

        ``expired`` asks a leader for one also where only what has expired is left to go: a
        follower never removes that. ``receipt`` takes a line of each wave of a leader's round,
        before it is live.

        The report says what it did, or why it did nothing. RefusedError for a topic that is not
        compacted; FencedError when a newer leader owns the partition. OSError after the commit
        means that the local copy is not replaced yet: it is read no more, and the next call
        replaces it. A follower's pass holds the lock of the data directory: one at a time below a
        root.
        """
        if not self.topic.is_compacted:
            policy = ",".join(sorted(self.topic.cleanup_policy))
            raise RefusedError(
                "the topic is not compacted: its segments are never rewritten. "
                f"partition={self.partition} cleanup.policy={policy}",
                code="K128",
            )
        self.flush()
        cleaner = CleanerConfig() if cleaner is None else cleaner
        if self.role is Role.FOLLOWER:
            return self._clean_local(runner_for, cleaner, memory_bytes, force=force)
        state = self._own_state()
        if not state.routes:
            return RoundReport(skipped=True, cause=NothingCopied(is_host=True))
        self._agree(state)
        request = CleanRequest(
            (PartitionRequest(self.partition, round_path(self.partition), self.topic, cleaner),),
            high_watermark=min(state.remote_end, self.last_stable_offset),
            memory_bytes=memory_bytes, force=force, expired=expired,
        )  # fmt: skip
        place = StorePlace(
            self._store, self._objects, state, request, self._store.clock, grace_ms=grace_ms,
            horizons=self._horizons, receipt=receipt, local=self.directory,
        )  # fmt: skip
        report = clean_remote(place, runner_for, progressed)
        if not report.skipped:
            self._agree(self.state())
        return report

    def _agree(self, state: PartitionState) -> None:
        """Give the local copy of what is clean the bytes of object storage."""
        self._overlap.replace(state)
        self._save_checkpoint(state.first_dirty(self.log_end_offset))

    def _clean_local(
        self, runner_for: RunnerFor, cleaner: CleanerConfig, memory_bytes: int, *, force: bool
    ) -> RoundReport:
        """Clean this disk as a follower; no tombstone or marker goes.

        The records that one deletes may lie in object storage, where only the leader cleans. Were
        it gone here and this host the next leader, the deleted key would come back (ST-23). The
        same holds of an aborted transaction: its data here is what the next leader knows it by.
        """
        state, now_ms = self.state(), self._store.clock.now_ms()
        first_dirty, hold = state.first_dirty(), find_hold(in_force(state.holds, now_ms))
        stable = self.last_stable_offset
        partition = PartitionRequest(self.partition, self.directory, self.topic, cleaner)
        request = CleanRequest(
            (partition,), memory_bytes=memory_bytes, force=force, clean_elsewhere_to=first_dirty,
            # The next leader copies what is left here: a hold of the store keeps it too.
            high_watermark=stable if hold is None else min(stable, hold.offset),
            # The host itself knows what is replicated, and a checkpoint of it is older.
            is_unsafe=True,
        )  # fmt: skip
        with runner_for(self._files) as runner:
            found = Coordinator(
                runner, self._store.clock, self._files, NoEvents(), held=self._locked
            ).clean(request)
        (report,) = found.partitions[0].rounds
        if report.failure is not None:
            raise report.failure
        return report

    def _save_checkpoint(self, first_dirty: int) -> None:
        checkpoint, listing = max(first_dirty, 0), self.listing()
        # What a follower's pass has taken is gone, also where the line goes back to the store's.
        end = said_end(self.partition, listing, self._files) or 0
        if end > max(checkpoint, cleaned_for(listing, self._files) or 0):
            note_round(listing, self._files, end, witness=None, checkpoint=checkpoint)
        update_checkpoint(
            self._files, self.directory.parent, CLEANER_CHECKPOINT, {self.partition: checkpoint}
        )
        drop_note(self.directory, self._files, checkpoint)

    # Retention.

    def retain_local(self) -> LocalRetention:
        """Let local segments go that object storage has, by ``local.retention.*``.

        For leaders and followers; what was not copied, and the active segment, always stay. A
        leader that was overtaken removes nothing: FencedError. Of a follower stays what is of
        another leader than object storage has there.
        """
        # Whose log object storage has is asked first: what is not in it has no second copy.
        state = self._own_state() if self.role is Role.LEADER else self.state()
        other = self._find_other_batch(state)
        same_to = state.remote_end if other is None else other.offset
        plan = plan_local_retention(
            self.topic,
            self.summaries(),
            log_end=self.log_end_offset,
            high_watermark=self.high_watermark,
            remote_end=min(state.remote_end, state.covered_to(), same_to),
            first_dirty=state.first_dirty(self.log_end_offset),
            now_ms=self._store.clock.now_ms(),
        )
        if plan.segments:
            self.drop_below(plan.to)
        return plan

    def expire(
        self, *, grace_ms: int = GRACE_MS_DEFAULT, receipt: Receipt | None = None
    ) -> ExpiryReport:
        """Let go in both tiers what retention and the log start let go, as the leader.

        The metadata first: from there on no reader reads below the log start. A segment that is
        only local counts towards ``retention.bytes`` and goes when it was copied. ``receipt`` takes
        a line of what went in object storage.
        """
        return self._expire(0, grace_ms, receipt)

    def delete_records(
        self, before: int, *, grace_ms: int = GRACE_MS_DEFAULT, receipt: Receipt | None = None
    ) -> int:
        """Let the log start at ``before``, at most the high watermark; returns the log start.

        For a topic whose policy has ``delete``, as ``DeleteRecords``. Followers hear of it through
        :meth:`replicate`. ``receipt`` as of :meth:`expire`.
        """
        self.check_leader()
        if not self.topic.expires:
            raise RefusedError(
                "cleanup.policy without delete: records go by key alone, write a tombstone. "
                f"partition={self.partition}",
                code="K235",
            )
        if not 0 <= before <= self.high_watermark:
            raise RefusedError(
                "only what every replica has can be deleted. "
                f"before={before} high_watermark={self.high_watermark}",
                code="K236",
            )
        return self._expire(before, grace_ms, receipt).log_start or 0

    def _expire(self, before: int, grace_ms: int, receipt: Receipt | None) -> ExpiryReport:
        state = self._own_state()
        only_local = sum(
            segment.size_bytes
            for segment in self.listing().segments
            if segment.base_offset >= state.remote_end
        )
        report = expire_remote(
            self._store, state, self.topic, self._store.clock.now_ms(), grace_ms=grace_ms,
            log_start=max(state.log_start, before), local_only_bytes=only_local, receipt=receipt,
        )  # fmt: skip
        # Also where an earlier call ended between the two tiers.
        self.follow_log_start(report.log_start or 0)
        return report

    def erased_by(self, pace: TierPace, *, timestamp_ahead_max_ms: int = INT64_MAX) -> ErasedBy:
        """Say by when what is overwritten or deleted now is gone from both tiers."""
        return find_tier_erasure(
            self._own_state(), self._objects, self._files, self.directory, self.topic, pace,
            self._clock.now_ms(), timestamp_ahead_max_ms=timestamp_ahead_max_ms,
            high_watermark=self.high_watermark,
        )  # fmt: skip


def _check_settings(partition: TopicPartition, topic: TopicConfig) -> None:
    """RefusedError for settings that no host can have."""
    if topic.undo_retention_ms:
        raise RefusedError(
            "no round of a host can be undone: its local log would stay what the round left; "
            f"leave undo.retention.ms out. partition={partition} "
            f"undo.retention.ms={topic.undo_retention_ms}",
            code="K351",
        )
