"""A host that leads by a lease of the store, or follows, with object storage between the two.

There is no network between hosts. Followers get what a leader has copied, and its high watermark
counts that as replicated. Rules that a reader must not break:

1. A lease fences no host; leader epoch and holder do, in every transaction. A host takes over a
   partition that is free or was given back. It also takes one whose lease number has stayed the
   same for its time. A partition that is held without a lease is left alone, as in ``run`` without
   ``--host-dir``.
2. No host leads with less of the log than the leader before has acknowledged: promised records
   would be gone. Only ``takes_over`` does.
3. A host cuts its log to its leader's, and never below its own high watermark: the records below
   were promised, and are for a person to look at.
4. A host writes its logs and removes what object storage has of them, so the directory is this
   process's alone. A broker's is refused, also one that is stopped: the broker would start on a
   log whose beginning has gone. The lock is a broker's own, and held for as long as hosts use the
   directory.
5. The thread that renews the leases of a process's hosts, however long a round takes, renews and
   nothing else. A process that is stopped renews nothing, and neither does one that cannot reach
   the store; both are overtaken, and fenced.

KIP-405, KIP-1272; decisions 0015 and 0036.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.errors import (
    CommitUnknownError,
    CompactionError,
    ConflictError,
    FencedError,
    InvalidError,
    RefusedError,
    UnavailableError,
)
from keeplast.format import partition_metadata
from keeplast.format.filename import (
    PARTITION_METADATA,
    REPLICATION_CHECKPOINT,
    SNAPSHOT,
    parse_partition_directory,
)
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.host.partition_host import LocalRetention, PartitionHost, plan_local_retention
from keeplast.host.replica import Role
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.data_directory import METADATA_TOPIC
from keeplast.log.files import FileSystem
from keeplast.log.lock import locked
from keeplast.log.paths import is_object_path
from keeplast.log.truncation import find_divergence
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, HostRole, TopicConfig
from keeplast.run.round import RunnerFor
from keeplast.store.removal import is_collection_due
from keeplast.store.tiered_store import GRACE_MS_DEFAULT, TieredStore, own_threads
from keeplast.survey.report import RoundReport
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from keeplast.tier.copy.importing import read_topic_id
from keeplast.tier.state.holder import LEASE_MS_MAX, LEASE_MS_MIN, Lease
from keeplast.tier.state.partition_state import PartitionState, check_not_forgotten

META_PROPERTIES = "meta.properties"
"""What a broker writes into each of its ``log.dirs``. Kafka: ``MetaPropertiesEnsemble``."""


@contextmanager
def host_directory(root: Path, files: FileSystem) -> Iterator[None]:
    """Hold ``root`` for the hosts of this process; it is made where it is missing.

    InvalidError for what is no directory of this machine; RefusedError for a broker's, and for one
    that a broker or another process is using.
    """
    if is_object_path(root) or parse_partition_directory(root.name) is not None:
        raise InvalidError(
            "hosts keep a directory for each partition below a directory of this machine; name "
            f"that. path={root}",
            code="K350",
        )
    if not files.exists(root):
        files.make_directory(root)
    if not files.is_directory(root):
        raise InvalidError(
            f"not a directory; name one for the logs of hosts. path={root}", code="K350"
        )
    for name in (META_PROPERTIES, f"{METADATA_TOPIC}-0"):
        if files.exists(root / name):
            raise RefusedError(
                "the directory is a broker's, which would start on logs whose beginning local "
                "retention has removed; copy its partitions and checkpoints into a directory of "
                f"their own. path={root / name}",
                code="K350",
            )
    with locked(root):
        yield


def check_own_log(root: Path, partition: TopicPartition) -> None:
    """RefusedError where the directory of a log is a link: what it leads to may be a broker's."""
    path = root / str(partition)
    if path.is_symlink():
        raise RefusedError(
            "the directory of a log is a link, which is not followed; put the log itself there. "
            f"path={path}",
            code="K203",
        )


def open_host(
    store: TieredStore,
    partition: TopicPartition,
    root: Path,
    topic: TopicConfig,
    *,
    recovers: bool = False,
    is_locked: bool = False,
) -> PartitionHost:
    """Return this process as a host of a partition with its local log below ``root``.

    ``recovers`` deals with what a crash left of the local log; see its ``recovered``. ``is_locked``
    says that the caller holds the lock of ``root``.
    """
    parts = store.parts()
    return PartitionHost(
        parts.metadata, parts.objects, partition, root, topic=topic, owner=parts.owner,
        files=parts.files, clock=parts.clock, recovers=recovers,
        is_locked=is_locked,
    )  # fmt: skip


LEASE_MS_DEFAULT = 30_000


def check_lease_ms(lease_ms: int) -> None:
    """InvalidError for a time that no lease may have."""
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise InvalidError(
            "a lease has a time between a second and an hour. "
            f"lease_ms={lease_ms} min={LEASE_MS_MIN} max={LEASE_MS_MAX}",
            code="K351",
        )


class HostStanding(Struct, frozen=True):
    """Whether a host leads, by ``state``, and in ``words`` whom it follows or what keeps it."""

    leads: bool
    state: PartitionState
    words: str


class HostTurn(Struct, frozen=True):
    """What a host did in one turn: how it stands, segments copied, its round and what left."""

    standing: HostStanding
    copied: int = 0
    round: RoundReport | None = None
    retention: LocalRetention | None = None


class LeaseWatch:
    """Sees for how long a lease was not renewed, by the clock of who looks."""

    def __init__(self, clock: Clock) -> None:
        """Have seen nothing yet."""
        self._clock = clock
        self._seen: tuple[tuple[int, str | None], int] | None = None
        self._since = 0.0

    def has_ended(self, lease: Lease) -> bool:
        """Look at the lease as it is now; say whether it has stayed the same for its time."""
        seen, now = (lease.fence, lease.number), self._clock.seconds()
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since >= lease.lease_ms / 1000


class LeasedHost:
    """One partition on this host. Not safe for concurrent calls, but for :meth:`renew`."""

    def __init__(
        self,
        store: TieredStore,
        partition: TopicPartition,
        root: Path,
        *,
        role: HostRole = HostRole.AUTO,
        lease_ms: int = LEASE_MS_DEFAULT,
    ) -> None:
        """Open the local log below ``root``, whose lock the caller holds, and mend it.

        A log without a high watermark next to it, as one that was copied by hand, counts as
        replicated as far as it goes. InvalidError for a partition that is not in the store,
        RefusedError for a log of another topic of the same name.
        """
        check_lease_ms(lease_ms)
        check_own_log(root, partition)
        parts = store.parts()
        state = parts.metadata.load(partition)
        check_not_forgotten(state)
        self._files = parts.files
        self._check_same_topic(root / str(partition), state)
        known = read_checkpoint(parts.files, root, REPLICATION_CHECKPOINT)
        self.partition = partition
        self.host = open_host(
            store, partition, root, store.topic_for(state), recovers=True, is_locked=True
        )
        if partition not in known:
            self.host.acknowledge(self.host.log_end_offset)
        self.host.save_watermark()
        self._note_topic(state)
        self._store = store
        self._metadata = parts.metadata
        self._owner = parts.owner
        self._role = role
        self._lease_ms = lease_ms
        self._watch = LeaseWatch(parts.clock)
        self._is_first = True
        self._collected_ms: int | None = None

    @property
    def leads(self) -> bool:
        """Say whether this host was the leader when it last looked."""
        return self.host.role is Role.LEADER

    # Who leads.

    def step(self, *, takes_over: bool = False) -> HostStanding:
        """Lead or follow, as the store says now; a follower catches up with object storage.

        ``takes_over`` fences the partition's holder, and leads also with less of the log than the
        leader before has acknowledged. RefusedError where the log of this host is another than its
        leader's below its own high watermark, ConflictError where the store changed meanwhile.
        """
        marks = self._store.restoration.marks
        if marks is not None:
            marks.beginning()
        state = self._metadata.load(self.partition)
        check_not_forgotten(state)
        self._check_same_topic(self.host.directory, state)
        topic = self._store.topic_for(state)
        if topic != self.host.topic:
            self.host.change_settings(topic)
        is_first, self._is_first = self._is_first, False
        if self.leads and self._is_ours(state):
            return HostStanding(True, state, f"leads at epoch {state.leader_epoch}")
        self.host.become_follower(max(state.leader_epoch, self.host.epoch))
        lease = self._metadata.leases.find(state.row_id)
        why = self._find_obstacle(state, lease, is_first=is_first, takes_over=takes_over)
        if why is not None and self._role is HostRole.LEADER:
            return HostStanding(False, state, why)
        self._catch_up(state)
        if why is None:
            why = self._find_gap(state, lease, takes_over=takes_over)
        if why is None:
            return self._lead(state)
        return HostStanding(False, state, why)

    def _check_same_topic(self, directory: Path, state: PartitionState) -> None:
        """RefusedError for a log of another topic of the same name: epochs do not show that."""
        own = read_topic_id(self._files, directory)
        if int(own, 16) and int(state.topic_id, 16) and own != state.topic_id:
            raise RefusedError(
                "the log of this host is an earlier topic's of the same name; move it away. The "
                f"host then begins again from object storage. path={directory} topic_id={own} "
                f"store_topic_id={state.topic_id}",
                code="K336",
            )

    def _note_topic(self, state: PartitionState) -> None:
        """Write down whose log this is, where that is missing."""
        path = self.host.directory / PARTITION_METADATA
        if int(state.topic_id, 16) and not self._files.exists(path):
            metadata = PartitionMetadata(bytes.fromhex(state.topic_id))
            self._files.write_durable(path, partition_metadata.encode(metadata))

    def _is_ours(self, state: PartitionState) -> bool:
        return state.leader_epoch == self.host.epoch and self._metadata.holds(state)

    def _find_obstacle(
        self, state: PartitionState, lease: Lease | None, *, is_first: bool, takes_over: bool
    ) -> str | None:
        """Return why this host does not lead, None when the partition may be taken."""
        leader = f"follows {state.owner} at epoch {state.leader_epoch}"
        if self._role is HostRole.FOLLOWER:
            return leader if state.owner else "follows: no host leads"
        holder, is_own = state.holder, state.owner == self._owner
        if takes_over or not state.owner:
            return None
        is_leased = lease is not None and lease.fence == state.fence
        if not is_leased and not is_own:
            return (
                f"owned by {state.owner} at epoch {state.leader_epoch}, without a lease; stop it, "
                "then take over (--take-over)"
            )
        if holder is None or state.held_since_ms is None:
            return None
        me = self._metadata.holder
        # Of an owner's own process it is known that it is over; or it cannot be known, and who is
        # started last goes on, as everywhere.
        if is_own and (me.knows_over(holder) or (is_first and not me.is_comparable(holder))):
            return None
        if lease is not None and is_leased:
            return None if self._watch.has_ended(lease) else leader
        return f"another process of the same owner works on the partition. {holder}"

    def _find_gap(
        self, state: PartitionState, lease: Lease | None, *, takes_over: bool
    ) -> str | None:
        """Return what the leader before has acknowledged and this host lacks, None for nothing."""
        if takes_over or lease is None or lease.epoch != state.leader_epoch:
            return None
        end = self.host.log_end_offset
        if end >= lease.acknowledged:
            return None
        return (
            f"does not lead: the leader before, {state.owner}, acknowledged offsets below "
            f"{lease.acknowledged}, and this host has those below {end}; start that host, or lead "
            "without them (--take-over)"
        )

    def _catch_up(self, state: PartitionState) -> None:
        """Make the local log the leader's as far as object storage has it."""
        host, end = self.host, self.host.log_end_offset
        if state.lineage:
            same_to = find_divergence(host.lineage, end, state.lineage, max(end, state.remote_end))
            if same_to < host.high_watermark:
                raise RefusedError(
                    "this host has records, replicated by what it knows, that are not in the log "
                    "of its leader; look at them, then move the log away. The host then begins "
                    f"again from object storage. path={host.directory} offset={same_to} "
                    f"high_watermark={host.high_watermark} leader={state.owner}",
                    code="K353",
                )
            if same_to < end:
                host.truncate(same_to)
        if host.log_end_offset < state.remote_end:
            host.catch_up(self._find_local_start(state))
            host.save_watermark()
        # Where segments begin is each replica's own, and the active one never leaves the disk.
        host.roll_idle()

    def _find_local_start(self, state: PartitionState) -> int | None:
        """Return where a new local log begins: above what local retention would remove.

        None where that is the log start, or no segment with its producers ends there.
        """
        end = state.remote_end
        plan = plan_local_retention(
            self.host.topic, state.summaries(), log_end=end, high_watermark=end,
            remote_end=state.covered_to(), first_dirty=state.first_dirty(),
            now_ms=self._metadata.clock.now_ms(),
        )  # fmt: skip
        ends = [
            route.last_offset + 1
            for route in state.routes
            if route.last_offset + 1 == state.segments[route.segment_id].next_offset
            and SNAPSHOT in state.segments[route.segment_id].files
        ]
        return max((each for each in ends if each <= plan.to), default=None)

    def _lead(self, state: PartitionState) -> HostStanding:
        lineage = self.host.lineage
        newest = lineage[-1].epoch if lineage else -1
        epoch = max(state.leader_epoch, newest) + 1
        try:
            state = self.host.become_leader(epoch, lease_ms=self._lease_ms)
        except FencedError:
            state = self._metadata.load(self.partition)
            return HostStanding(
                False, state, f"follows {state.owner} at epoch {state.leader_epoch}"
            )
        if self.host.high_watermark > max(self.host.listing().active.base_offset, state.remote_end):
            # What was promised before and is not in object storage is copied with the next closed
            # segments, and not only when the active one is full.
            self.host.roll()
        return HostStanding(True, state, f"leads at epoch {epoch}")

    def renew(self) -> None:
        """Renew the lease of a leader, from whatever thread; what fails is tried the next time.

        An overtaken leader finds out at the next call that changes something.
        """
        if self.leads:
            with suppress(FencedError, UnavailableError, CommitUnknownError, ConflictError):
                self._metadata.leases.renew(
                    self.partition, epoch=self.host.epoch, lease_ms=self._lease_ms,
                    acknowledged=self.host.high_watermark,
                )  # fmt: skip

    # What a turn does.

    def copy(self) -> int:
        """Copy as the leader what is closed and decided; returns how many segments."""
        self.host.roll_idle()
        copied = self.host.copy(replicates=True)
        if copied:
            self.host.save_watermark()
        return copied

    def turn(
        self,
        runner_for: RunnerFor = own_threads,
        *,
        takes_over: bool = False,
        cleaner: CleanerConfig | None = None,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        grace_ms: int = GRACE_MS_DEFAULT,
    ) -> HostTurn:
        """Lead or follow; copy, clean and expire as the leader; let go what local retention does.

        A program calls it again and again between its appends. Errors as of :meth:`step` and of the
        host's own calls; after a FencedError the next turn follows.
        """
        self._store.begin_turn()
        standing, copied, report = self.step(takes_over=takes_over), 0, None
        if not standing.leads and self._role is HostRole.LEADER:
            return HostTurn(standing)
        if standing.leads:
            copied = self.copy()
        if self.host.topic.is_compacted:
            report = self.host.clean(
                runner_for, cleaner=cleaner, memory_bytes=memory_bytes, grace_ms=grace_ms
            )
        if standing.leads:
            if self.host.topic.expires:
                self.host.expire(grace_ms=grace_ms)
            self._collect()
        return HostTurn(standing, copied, report, self.host.retain_local())

    def _collect(self) -> None:
        orphans = self._metadata.orphans(self.partition)
        now_ms = self._metadata.clock.now_ms()
        if is_collection_due(orphans, self._collected_ms, now_ms=now_ms):
            self._collected_ms = now_ms
            self._store.collect(self.partition)

    def close(self) -> None:
        """End in good order: a leader copies what it has, so that who follows lacks nothing.

        The partition is given back with the store, or by :meth:`give_back`.
        """
        try:
            if self.leads:
                with suppress(CompactionError, OSError):
                    if self.host.listing().active.size_bytes:
                        self.host.roll()
                    self.host.copy(replicates=True)
        finally:
            self.host.close()
            self.host.role = Role.FOLLOWER

    def give_back(self) -> None:
        """Let others take over at once what this process holds of the store."""
        with suppress(CompactionError):
            self._metadata.give_back()


RENEWALS = 3
"""A leader renews its lease so often within its time: two lost renewals end nothing."""


@contextmanager
def renewing(hosts: Callable[[], Iterable[LeasedHost]], lease_ms: int) -> Iterator[None]:
    """Renew leases of ``lease_ms`` meanwhile; ``hosts`` returns those of that moment."""
    ended = threading.Event()

    def renew_all() -> None:
        while not ended.wait(lease_ms / 1000 / RENEWALS):
            for host in hosts():
                host.renew()

    thread = threading.Thread(target=renew_all, name="keeplast-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
