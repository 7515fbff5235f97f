"""Adds, lists and releases named holds of stored partitions, and of attached ones.

What a reader must not break: a hold is added under the lock of its partition's row. What a round
has written is decided under the same lock: the decision asks for holds there and writes down how
far the round went. So one of the two sees the other: a round that would pass a hold changes
nothing, and a point that a round has passed is not held. A hold fences no process, and the process
that adds one owns nothing. A hold that is over goes when another is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, delete, insert, select

from keeplast.errors import ConflictError
from keeplast.format.identifier import encode_id
from keeplast.model.hold import (
    HeldTopic,
    Hold,
    KeptPoint,
    holds_named,
    require_new_name,
    require_room,
)
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.decision_rows import find_row, insert_row
from keeplast.tier.metadata.fencing import Transactions
from keeplast.tier.metadata.rows import (
    NO_PART,
    find_partition,
    load_state,
    raise_version,
)
from keeplast.tier.metadata.schema import find_fact, hold_of, partition_of, read_row
from keeplast.tier.state.attached import Attached, AttachedName, MetadataPoint
from keeplast.tier.state.partition_state import PartitionState

FACT = "holds"
"""The fact whose row is locked to add holds: one at a time, so that a name is of one hold."""
STORED = "place=store"
_H, _A = schema.HOLDS.c, schema.ATTACHED.c


class StoredPoint(Struct, frozen=True):
    """Where a partition of a store is to be held, by the state that this was found in."""

    known: PartitionState
    kept: KeptPoint


class AttachedPoint(Struct, frozen=True):
    """Where an attached partition, or one that may be attached later, is to be held.

    ``known`` is its row as this was found, None without one. It is written down then as not
    attached, with the log start and how far the metadata topic was ``seen``.
    """

    name: AttachedName
    known: Attached | None
    log_start: int
    seen: MetadataPoint
    kept: KeptPoint


_P = TypeVar("_P")
Locked = tuple[TopicPartition, KeptPoint, dict[str, int]]
"""A partition whose row is locked, where it is to be held, and the column that names the row."""


class HoldRows:
    """The holds of one database: those of its store, and those of each cluster."""

    def __init__(self, transactions: Transactions) -> None:
        """Take the ways to change the store."""
        self._transactions = transactions

    def now_ms(self) -> int:
        """Return the time that decides when holds end."""
        return self._transactions.clock.now_ms()

    # Of a store's partitions.

    def stored(self) -> tuple[HeldTopic, ...]:
        """Return the holds of all partitions of the store, those that are over too."""
        with self._transactions.reading() as connection:
            return self._stored(connection)

    def add_stored(
        self, points: Sequence[StoredPoint], name: str, max_age_ms: int
    ) -> tuple[Hold, ...]:
        """Hold partitions at their points from now on; all or none.

        ConflictError when one is not as it was found: look again. RefusedError for a name that is
        taken, and for metadata that is older than its objects.
        """
        if self._transactions.listener is not None:
            # The mark shows that a backup lacks the hold.
            self._transactions.listener()

        ordered = sorted(points, key=lambda each: each.known.partition)
        return self._add(self._stored, _lock_stored, ordered, name, max_age_ms, STORED)

    def release_stored(self, name: str) -> tuple[Hold, ...]:
        """Remove the store's holds of a name, those that are over too; InvalidError without any."""
        with self._transactions.writing() as connection:
            _lock_all(connection)
            known = [each.hold for each in self._stored(connection)]
            released = holds_named(name, known, STORED)
            for partition in sorted({each.partition for each in released}):
                row = find_partition(connection, partition, locks=True)
                _remove(connection, name, _H.partition_id == row["id"])
                raise_version(connection, row)
        return released

    def _stored(self, connection: Connection) -> tuple[HeldTopic, ...]:
        found = schema.PARTITIONS.c
        query = select(schema.HOLDS, found.topic, found.partition).join(
            schema.PARTITIONS, _H.partition_id == found.id
        )
        held = []
        for row in connection.execute(query).mappings():
            partition = partition_of(row["topic"], row["partition"])
            hold = read_row(schema.HOLDS.name, partition, row["name"], hold_of, partition, row)
            held.append(HeldTopic(hold))
        return tuple(sorted(held, key=lambda each: each.hold))

    # Of a cluster's partitions.

    def attached(self, cluster_id: str) -> tuple[HeldTopic, ...]:
        """Return the holds of a cluster's partitions, those that are over too."""
        with self._transactions.reading() as connection:
            return self._attached(connection, cluster_id)

    def add_attached(
        self, points: Sequence[AttachedPoint], name: str, max_age_ms: int
    ) -> tuple[Hold, ...]:
        """Hold partitions of one cluster at their points from now on; errors as for a store's."""
        (cluster_id,) = {each.name.cluster_id for each in points}

        return self._add(
            partial(self._attached, cluster_id=cluster_id), self._lock_attached,
            sorted(points, key=lambda each: str(each.name)), name, max_age_ms,
            f"cluster_id={cluster_id}",
        )  # fmt: skip

    def release_attached(self, cluster_id: str, name: str) -> tuple[Hold, ...]:
        """Remove a cluster's holds of a name, also of topics that are gone; as in a store."""
        with self._transactions.writing() as connection:
            _lock_all(connection)
            known = [each.hold for each in self._attached(connection, cluster_id)]
            released = holds_named(name, known, f"cluster_id={cluster_id}")
            its = select(_A.id).where(_A.cluster_id == cluster_id)
            _remove(connection, name, _H.attached_id.in_(its))
        return released

    def _attached(self, connection: Connection, cluster_id: str) -> tuple[HeldTopic, ...]:
        query = (
            select(schema.HOLDS, _A.topic, _A.topic_id, _A.partition)
            .join(schema.ATTACHED, _H.attached_id == _A.id)
            .where(_A.cluster_id == cluster_id)
        )
        held = []
        for row in connection.execute(query).mappings():
            partition = TopicPartition(row["topic"], row["partition"])
            hold = read_row(schema.HOLDS.name, partition, row["name"], hold_of, partition, row)
            held.append(HeldTopic(hold, row["topic_id"]))
        return tuple(sorted(held, key=lambda each: (each.hold, each.topic_id or "")))

    def _lock_attached(self, connection: Connection, point: AttachedPoint) -> Locked:
        row = find_row(connection, point.name, locks=True)
        known = point.known
        seen = None if known is None else (known.cleaned_to, known.cleaned_for)
        if row is None:
            # A process that attaches it meets this row, and its lock. It is not attached by being
            # held.
            now_ms = self._transactions.time.now_ms(connection)
            insert_row(
                connection, point.name, point.seen, cleaned_to=point.log_start, now_ms=now_ms,
                detached_ms=now_ms,
            )  # fmt: skip
            row = find_row(connection, point.name, locks=True)
        elif (int(row["cleaned_to"]), int(row["cleaned_for"])) != seen:
            raise _changed(f"{point.name.partition.topic}-{point.name.partition.partition}")
        if row is None:
            raise _changed(encode_id(point.name.partition.topic_id))
        at = TopicPartition(row["topic"], row["partition"])
        return at, point.kept, {"attached_id": int(row["id"])}

    # Of either.

    def _add(
        self,
        find_known: Callable[[Connection], tuple[HeldTopic, ...]],
        lock: Callable[[Connection, _P], Locked],
        points: Sequence[_P],
        name: str,
        max_age_ms: int,
        place: str,
    ) -> tuple[Hold, ...]:
        with self._transactions.writing() as connection:
            _lock_all(connection)
            now_ms = self._transactions.clock.now_in(connection)
            known = [each.hold for each in find_known(connection)]
            require_new_name(name, known, now_ms, place)
            connection.execute(delete(schema.HOLDS).where(_H.until_ms <= now_ms))
            made = []
            # All are locked before the first one is held.
            for partition, kept, column in [lock(connection, each) for each in points]:
                hold = Hold(
                    name, partition, kept.offset, now_ms, now_ms + max_age_ms, kept.limit
                )  # fmt: skip
                connection.execute(
                    insert(schema.HOLDS).values(
                        name=hold.name, at_offset=hold.limit, point=hold.offset,
                        since_ms=hold.since_ms, until_ms=hold.until_ms, **column,
                    )
                )  # fmt: skip
                made.append(hold)
            require_room(sum(each.is_in_force(now_ms) for each in known) + len(made), place)
        return tuple(made)


def _lock_all(connection: Connection) -> None:
    """Let no other process add or release holds; ConflictError when two are the first."""
    if find_fact(connection, FACT, locks=True) is None:
        connection.execute(insert(schema.STORE).values(key=FACT, value=""))


def _lock_stored(connection: Connection, point: StoredPoint) -> Locked:
    """Lock a partition; ConflictError when its log, or how far it was cleaned, has changed."""
    known = point.known
    row = find_partition(connection, known.partition, locks=True)
    found = load_state(connection, row, NO_PART)
    was, now = (
        (each.row_id, each.leader_epoch, each.log_start, each.earliest_as_of, each.forgotten_ms)
        for each in (known, found)
    )
    if was != now or point.kept.offset > found.remote_end:
        raise _changed(str(known.partition))
    # Equal versions are equal states, holds included.
    raise_version(connection, row)
    return known.partition, point.kept, {"partition_id": found.row_id}


def _remove(connection: Connection, name: str, place: ColumnElement[bool]) -> None:
    connection.execute(delete(schema.HOLDS).where(_H.name == name, place))


def _changed(partition: str) -> ConflictError:
    return ConflictError(
        "the log was cleaned, cut or taken over meanwhile; add the hold again. "
        f"partition={partition}",
        code="K329",
    )
