"""Who may work on a partition: an owner's name, and of its processes the one that holds it.

What a reader must not break: no process takes a partition back by itself. It takes it from one
whose end is not known at most once, and only where it was asked to. Two that took it from each
other would never finish anything. Decision 0015.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from keeplast.errors import CompactionError, ConflictError, FencedError, RefusedError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.state.partition_state import PartitionState

CLAIMS_MAX = 5
"""How often the state is read again when another process was faster."""


class Ownership:
    """The partitions that one opened store holds in the name of one owner. Thread-safe."""

    def __init__(
        self, store: MetadataStore, owner: str, beginning: Callable[[], None] | None = None
    ) -> None:
        """Hold nothing yet; ``beginning`` hears of work before a partition is held for it."""
        self._beginning = beginning
        self._store = store
        self._owner = owner
        self._held: set[TopicPartition] = set()

    def own(
        self,
        partition: TopicPartition,
        *,
        takes_over: bool,
        succeeds: bool = False,
        lineage: Sequence[LeaderEpoch] = (),
        known: PartitionState | None = None,
    ) -> PartitionState:
        """Hold the partition and return its state; ``known`` spares reading it.

        RefusedError, unless ``takes_over``, when another owner has it, or another process of this
        owner that may still run. ``succeeds`` is for the latter: a process that is started again
        does not know how its predecessor ended. FencedError when it was taken from us, and is held.
        ``lineage`` are the leader epochs of a log that was compared with what is stored, by default
        what is stored. Where the newest of them is above the owner's epoch, it is claimed: what an
        owner has cleaned counts only up to where a newer epoch begins.
        """
        self.begin()
        for left in reversed(range(CLAIMS_MAX)):
            state, known = known or self._store.load(partition), None
            joined = state.joined_lineage(tuple(lineage)) if lineage else state.lineage
            is_newer = bool(joined) and joined[-1].epoch > state.leader_epoch
            is_ours = state.owner == self._owner and self._store.holds(state)
            if is_ours and not is_newer:
                return state
            self._check(state, takes_over=takes_over, succeeds=succeeds)
            try:
                return self._claim(state, joined)
            except ConflictError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def join(self, partition: TopicPartition, *, takes_over: bool) -> PartitionState:
        """Return the state for one transaction, which may be done in the name of the holder.

        It fences no process when a process of this owner holds the partition.
        """
        self.begin()
        state = self._store.load(partition)
        if state.owner == self._owner and state.holder is not None:
            return state
        return self.own(partition, takes_over=takes_over)

    def begin(self) -> None:
        """Hear of work before its first row; RefusedError for metadata that may commit nothing."""
        if self._beginning is not None:
            self._beginning()

    def give_back(self) -> None:
        """Hold nothing any more, in good order; what cannot be written down stays held."""
        if not self._held:
            return
        try:
            self._store.give_back()
        except CompactionError:
            # The next process finds that this one is over, or its error says what to ask for.
            return
        self._held.clear()

    def _claim(self, state: PartitionState, lineage: Sequence[LeaderEpoch]) -> PartitionState:
        # A holder writes no records into the log: a process that follows another one of its owner
        # goes on at that one's epoch.
        epoch = state.leader_epoch + (state.owner != self._owner)
        newest = lineage[-1].epoch if lineage else epoch
        found = self._store.take_over(
            state.partition, epoch=max(epoch, newest), owner=self._owner, lineage=lineage,
            log_end=state.remote_end, instead_of=state,
        )  # fmt: skip
        self._held.add(state.partition)
        return found

    def _check(self, state: PartitionState, *, takes_over: bool, succeeds: bool) -> None:
        """Return when the partition may be claimed."""
        if takes_over or not state.owner:
            return
        who = f"partition={state.partition} owner={state.owner} epoch={state.leader_epoch}"
        if state.owner != self._owner:
            raise RefusedError(
                f"another host owns the partition; stop it, then take over (--take-over). {who}",
                code="K331",
            )
        holder, me = state.holder, self._store.holder
        if holder is None or state.held_since_ms is None or me.knows_over(holder):
            return
        since = datetime.fromtimestamp(state.held_since_ms / 1000, UTC)
        who += f" {holder} since={since.isoformat(timespec='seconds')}"
        if state.partition in self._held and holder.id != me.id:
            raise FencedError(
                "another process of the same owner has taken the partition; it is taken up again "
                f"when that one has ended. Give processes that shall both run an owner each. {who}",
                code="K331",
            )
        if (succeeds and not me.is_comparable(holder)) or me.is_process_of(holder):
            return
        what = (
            "works on the partition; stop it, or take over (--take-over)"
            if me.is_comparable(holder)
            else "has the partition and has not given it back; if it is over, or shall be, "
            "take over (--take-over)"
        )
        raise RefusedError(f"another process of the same owner {what}. {who}", code="K331")
