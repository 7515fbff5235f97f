"""Holds of a store's partitions: where they have to be is told by the log, who keeps them by rows.

The log is read as a directory's is, without a lock; what was found counts only when nothing has
been cleaned or cut since, by the rows that the hold is added behind. Whoever decides a round then
meets the hold: :mod:`keeplast.tier.metadata.hold_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence

from keeplast.clock import Clock
from keeplast.errors import ConflictError, InvalidError
from keeplast.log.data_directory import PartitionEntry
from keeplast.model.hold import HeldTopic, Hold, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.read.held_point import keep_point
from keeplast.run.holds import check_hold, choose_partitions, look_at_entry
from keeplast.tier.metadata.hold_rows import StoredPoint
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.stored_logs import shown_log
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import ROOT, round_path

LOOKS_MAX = 5
"""How often logs are looked at anew because rounds went on meanwhile."""


class StoreHolds:
    """The holds of one opened store; see :attr:`.tiered_store.TieredStore.holds`."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock

    def now_ms(self) -> int:
        """Return the time by which holds end: the store's."""
        return self._store.hold_rows.now_ms()

    def all(self) -> tuple[HeldTopic, ...]:
        """Return every hold, those that are over too, until the next is added."""
        return self._store.hold_rows.stored()

    def choose(
        self, topics: Sequence[str], partitions: Sequence[int]
    ) -> tuple[TopicPartition, ...]:
        """Return the partitions of ``topics`` with one of these numbers; no numbers are all.

        InvalidError for a topic or number that is not there.
        """
        return choose_partitions(self._store.partitions(), topics, partitions, "the store")

    def add(
        self, partitions: Sequence[TopicPartition], name: str, point: HoldPoint, max_age_ms: int
    ) -> tuple[Hold, ...]:
        """Keep rounds of every host from passing ``point``, for ``max_age_ms`` from now; all or
        none.

        InvalidError for a name, age or offset that cannot be, and where nothing was copied;
        RefusedError where the state as of the point cannot be told any more, and where the name is
        taken; ConflictError when rounds go on for every look.
        """
        check_hold(name, point, max_age_ms, len(partitions))
        for left in reversed(range(LOOKS_MAX)):
            points = [self._find(each, point) for each in partitions]
            try:
                return self._store.hold_rows.add_stored(points, name, max_age_ms)
            except ConflictError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def release(self, name: str) -> tuple[Hold, ...]:
        """Remove all holds of a name, those that are over too; InvalidError when there is none."""
        return self._store.hold_rows.release_stored(name)

    def _find(self, partition: TopicPartition, point: HoldPoint) -> StoredPoint:
        state = self._store.load(partition)
        if not state.routes:
            raise InvalidError(
                f"nothing was copied yet, so that there is nothing to hold. partition={partition}"
            )
        files = LogDirectoryRecipe(ROOT, (shown_log(state, self._objects),)).open()
        entry = PartitionEntry(partition, round_path(partition), None)
        view = look_at_entry(entry, files, self._clock)
        return StoredPoint(state, keep_point(view, point, files, self._clock, is_noted=True))
