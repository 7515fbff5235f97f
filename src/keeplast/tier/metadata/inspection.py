"""Looks at every row of a partition by itself: what cannot be read, and what rows say of others.

What a reader must not break: one row that cannot be read hides no other one. Nothing is changed,
and all of it is one moment's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import Connection, RowMapping, select

from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.row_values import BrokenRowError, read_row, segment_of, visits_of
from keeplast.tier.metadata.rows import find_partition, load_state
from keeplast.tier.metadata.transactions import Transactions
from keeplast.tier.metadata.undo_rows import read_kept
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import SegmentState


@dataclass(frozen=True, slots=True)
class RowProblem:
    """What is wrong with a row: of which table, by what it is told from others there."""

    table: str
    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """What is known of a partition, without the rows that are named as problems.

    ``state`` is None when the partition's own row cannot be read. ``unread`` are the ids of the
    segments, live ones or not, whose rows cannot.
    """

    state: PartitionState | None
    problems: tuple[RowProblem, ...]
    unread: frozenset[str]


class Inspection:
    """The inspections of one store; see :attr:`.metadata_store.MetadataStore.inspection`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def inspect(self, partition: TopicPartition) -> Inspected:
        """Return what is known of ``partition``; InvalidError when it is not in the store."""
        broken: list[BrokenRowError] = []
        state = None
        with self._transactions.reading() as connection:
            row = find_partition(connection, partition)
            try:
                state = load_state(connection, row, broken=broken)
            except BrokenRowError as error:
                broken.append(error)
            more = list(_check_segments(connection, partition, row, broken))
            more += _check_visits(connection, partition, row, broken)
            more += _check_kept(connection, partition, row, broken)
        if state is not None:
            more += _check_lineage(state)
            more += _check_publications(state)
        # A row of a live segment is read twice.
        told = {(each.table, each.key): each.why for each in broken}
        problems = [RowProblem(table, key, why) for (table, key), why in told.items()]
        unread = {key for table, key in told if table == schema.SEGMENTS.name}
        return Inspected(state, (*problems, *more), frozenset(unread))


def _check_segments(
    connection: Connection, partition: TopicPartition, row: RowMapping,
    broken: list[BrokenRowError],
) -> Iterator[RowProblem]:  # fmt: skip
    """Yield what is wrong with the segments, also those that are read no more."""
    table, number = schema.SEGMENTS, row["id"]
    routed = set(
        connection.execute(
            select(schema.ROUTING.c.segment_id).where(schema.ROUTING.c.partition_id == number)
        ).scalars()
    )
    states = {state.value for state in SegmentState}
    rows = connection.execute(select(table).where(table.c.partition_id == number)).mappings()
    for found in rows:
        key, state = str(found["id"]), found["state"]
        try:
            read_row(table.name, partition, key, segment_of, found)
        except BrokenRowError as error:
            broken.append(error)
        if state not in states:
            yield RowProblem(table.name, key, f"no segment is in this state: {state!r:.40}")
        elif found["id"] in routed and state != SegmentState.LIVE:
            yield RowProblem(table.name, key, f"it is read and its state is {state}")
        elif found["id"] not in routed and state == SegmentState.LIVE:
            yield RowProblem(table.name, key, "it is live and nothing leads to it")


def _check_visits(
    connection: Connection, partition: TopicPartition, row: RowMapping,
    broken: list[BrokenRowError],
) -> Iterator[RowProblem]:  # fmt: skip
    """Yield what is wrong with what is known of directories and their cleaning."""
    table = schema.VISITS
    rows = connection.execute(
        select(table.c.directory, table.c.seen, table.c.latest_ms).where(
            table.c.partition_id == row["id"]
        )
    ).all()
    for directory, seen, latest_ms in rows:
        try:
            visits = read_row(table.name, partition, directory, visits_of, seen, latest_ms)
        except BrokenRowError as error:
            broken.append(error)
            continue
        times = [visit.at_ms for visit in visits.entries]
        if any(later < earlier for earlier, later in pairwise(times)):
            yield RowProblem(table.name, str(directory), f"visits do not ascend by time: {times}")
        elif times and times[-1] > visits.latest_ms:
            yield RowProblem(
                table.name, str(directory),
                f"a visit at {times[-1]} is later than the newest time, {visits.latest_ms}",
            )  # fmt: skip
        for visit in visits.entries:
            if visit.uncleaned_from < 0:
                yield RowProblem(table.name, str(directory), f"no offset is {visit.uncleaned_from}")


def _check_kept(
    connection: Connection, partition: TopicPartition, row: RowMapping,
    broken: list[BrokenRowError],
) -> Iterator[RowProblem]:  # fmt: skip
    """Yield what is wrong with what rounds have kept for undo, and note which rows are broken."""
    try:
        kept = read_kept(connection, partition, int(row["id"]), 0)
    except BrokenRowError as error:
        broken.append(error)
        return
    for each in kept:
        for segment_id in each.source_ids:
            if segment_id not in each.segments:
                yield RowProblem(
                    schema.UNDO_ROUNDS.name, f"number {each.number}",
                    f"segment {segment_id}, which it has kept, is not there as replaced",
                )  # fmt: skip


def _check_lineage(state: PartitionState) -> Iterator[RowProblem]:
    """Yield entries that go back: offsets of one leader lie behind those of an older one."""
    for entry in state.lineage:
        if entry.epoch < 0 or entry.start_offset < 0:
            yield RowProblem(
                schema.LINEAGE.name, f"epoch {entry.epoch}",
                f"epoch and offset are at least 0: {entry.start_offset}",
            )  # fmt: skip
    for older, newer in pairwise(state.lineage):
        if newer.start_offset < older.start_offset:
            yield RowProblem(
                schema.LINEAGE.name, f"epoch {newer.epoch}",
                f"it begins at {newer.start_offset}, below epoch {older.epoch} at "
                f"{older.start_offset}",
            )  # fmt: skip


def _check_publications(state: PartitionState) -> Iterator[RowProblem]:
    """Yield what no leader can have published of how far the log is clean."""
    for each in state.publications:
        key = f"epoch {each.epoch} number {each.number}"
        if each.epoch > state.leader_epoch:
            yield RowProblem(
                schema.PUBLICATIONS.name, key,
                f"its leader is newer than the partition's, {state.leader_epoch}",
            )  # fmt: skip
        if each.number < 0 or min(each.epoch, *each.offsets, *each.offsets.values()) < 0:
            yield RowProblem(
                schema.PUBLICATIONS.name, key,
                f"epochs, numbers and offsets are at least 0: {dict(each.offsets)}",
            )  # fmt: skip
