"""What takes a log, or the end of one, out of the store because its user says so.

What a reader must not break: each is one transaction of the process that holds the partition,
decided by the very version that its user was shown, and the beginning of a new leader epoch. What
the same owner does elsewhere at the old one is fenced, and how far the log was clean is claimed
anew: what is copied to the same offsets later is dirty. Objects go with a collection, after their
grace.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, update

from keeplast.errors import ConflictError
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.leases import remove_lease
from keeplast.tier.metadata.row_values import json_text
from keeplast.tier.metadata.rows import (
    change_routes,
    check_unchanged,
    find_partition,
    insert_segment,
    load_state,
    lower_vectors,
    renew_publications,
    retire_segments,
    write_lineage,
    write_publication,
)
from keeplast.tier.metadata.transactions import Transactions
from keeplast.tier.metadata.undo_rows import drop_kept
from keeplast.tier.state import vector
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.routing import Route
from keeplast.tier.state.segment import RemoteSegment
from keeplast.tier.state.vector import Publication


class Removals:
    """The changes of a store that no leader makes by himself."""

    def __init__(self, transactions: Transactions) -> None:
        """Change a store by its transactions; see :attr:`.metadata.MetadataStore.removals`."""
        self._transactions = transactions
        self._time = transactions.time

    def truncate(
        self, known: PartitionState, commit_id: str, *, cut: int, replaced: str | None,
        made: RemoteSegment | None, grace_ms: int,
    ) -> PartitionState:  # fmt: skip
        """End the log of ``known``, which this process holds, at ``cut``, exclusive.

        What lies wholly at or above ``cut`` is read no more, and ``replaced``, which lies on both
        sides of it, gives way to ``made``, None when nothing of it is left. It is a new leader
        epoch with a claim of its own: how far the log was clean counts up to ``cut`` and no
        further, whatever is copied there later (I-18). ConflictError when anything has changed
        since ``known`` was read.
        """
        with self._transactions.committing(
            known.partition, commit_id, known.leader_epoch, "truncate"
        ) as (connection, row):
            state = check_unchanged(load_state(connection, row), known)
            if not state.log_start <= cut <= state.remote_end:
                raise ConflictError(
                    "a log is cut between its start and its end. "
                    f"partition={known.partition} cut={cut} log_start={state.log_start} "
                    f"remote_end={state.remote_end}"
                )
            gone = {route.segment_id for route in state.routes if route.base_offset >= cut}
            gone |= set() if replaced is None else {replaced}
            routes = tuple(route for route in state.routes if route.segment_id not in gone)
            if made is not None:
                start = next(r.base_offset for r in state.routes if r.segment_id == replaced)
                insert_segment(connection, state.row_id, made, now_ms=self._time.now_ms(connection))
                routes = (*routes, Route(start, made.last_offset, made.segment_id))
            if routes and routes[-1].last_offset + 1 != cut:
                raise ConflictError(
                    f"what is left does not end at the cut. partition={known.partition} cut={cut} "
                    f"end={routes[-1].last_offset + 1}"
                )
            lineage = tuple(entry for entry in state.lineage if entry.start_offset < cut)
            change_routes(connection, row, state, routes, () if made is None else (made,))
            write_lineage(connection, state, lineage)
            retire_segments(
                connection, gone, commit_id, now_ms=self._time.now_ms(connection), grace_ms=grace_ms
            )
            drop_kept(connection, state.row_id)
            claim = vector.take_over(
                state.publications, lineage, cut, epoch=state.leader_epoch + 1,
                log_start=state.log_start,
            )  # fmt: skip
            write_publication(connection, state.row_id, claim)
            lower_vectors(connection, state.row_id, claim)
            self._begin_epoch(connection, state.row_id, state.leader_epoch + 1)
        return self._load(known)

    def forget(self, known: PartitionState, commit_id: str, *, grace_ms: int) -> None:
        """Give a partition up that this process holds: nothing of it is read any more.

        Its row stays until its objects have gone, or until it begins anew. ConflictError when
        anything has changed since ``known`` was read.
        """
        with self._transactions.committing(
            known.partition, commit_id, known.leader_epoch, "forget"
        ) as (connection, row):
            state = check_unchanged(load_state(connection, row), known)
            change_routes(connection, row, state, ())
            write_lineage(connection, state, ())
            now_ms = self._time.now_ms(connection)
            retire_segments(connection, state.segments, commit_id, now_ms=now_ms, grace_ms=grace_ms)
            drop_kept(connection, state.row_id)
            self._begin_anew(connection, state, log_start=state.log_start)
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == state.row_id)
                .values(forgotten_ms=now_ms, uncleanable_reason=None)
            )

    def begin_anew(
        self, known: PartitionState, commit_id: str, topic_id: str, *, log_start: int,
        settings: Mapping[str, str],
    ) -> PartitionState:  # fmt: skip
        """Let a partition that was given up, and that this process holds, begin again, empty."""
        with self._transactions.committing(
            known.partition, commit_id, known.leader_epoch, "begin"
        ) as (connection, row):
            state = check_unchanged(load_state(connection, row), known)
            if state.forgotten_ms is None:
                raise ConflictError(f"the partition was not given up. partition={known.partition}")
            self._begin_anew(connection, state, log_start=log_start)
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == state.row_id)
                .values(
                    topic_id=topic_id, log_start=log_start, settings=json_text(settings),
                    forgotten_ms=None,
                )
            )  # fmt: skip
        return self._load(known)

    def remove(self, known: PartitionState) -> None:
        """Remove the rows of a partition that was given up, and whose objects are gone."""
        with self._transactions.ending(known.partition, known.leader_epoch) as (connection, row):
            if row["forgotten_ms"] is None:
                raise ConflictError(f"the partition was not given up. partition={known.partition}")
            # Whatever refers to the partition, and what refers to others before them.
            for table in reversed(schema.METADATA.sorted_tables):
                if "partition_id" in table.c:
                    connection.execute(delete(table).where(table.c.partition_id == row["id"]))
            remove_lease(connection, int(row["id"]))
            connection.execute(delete(schema.PARTITIONS).where(schema.PARTITIONS.c.id == row["id"]))

    def _begin_anew(self, connection: Connection, state: PartitionState, *, log_start: int) -> None:
        """Forget how far the log was clean, at a new epoch: nobody's old claim counts any more."""
        number, epoch = state.row_id, state.leader_epoch + 1
        renew_publications(connection, number, Publication(epoch, 0, {epoch: log_start}))
        for table in (schema.VISITS, schema.HOLDS):
            connection.execute(delete(table).where(table.c.partition_id == number))
        connection.execute(
            update(schema.PARTITIONS).where(schema.PARTITIONS.c.id == number).values(cleaned_for=0)
        )
        self._begin_epoch(connection, number, epoch)

    def _begin_epoch(self, connection: Connection, number: int, epoch: int) -> None:
        """Let the holder go on at a new epoch: what it does elsewhere at the old one is fenced."""
        connection.execute(
            update(schema.PARTITIONS)
            .where(schema.PARTITIONS.c.id == number)
            .values(leader_epoch=epoch)
        )

    def _load(self, known: PartitionState) -> PartitionState:
        with self._transactions.reading() as connection:
            return load_state(connection, find_partition(connection, known.partition))
