"""The metadata store: what of a partition is live in object storage, and what each change writes.

What a reader must not break: a method is one transaction of :mod:`.transactions`, which says who
may make it and what is known when its end is lost. It decides by the rows that the transaction has
locked, never by what its caller read before. Whatever changes the routes is a commit, with an id
that its caller chose. Objects are written before a row names them, and go after one has said that
they may. Source: tiering.md sections 9.1 to 9.3.

An inspection looks at every row of a partition by itself: what cannot be read, and what rows say of
others. One row that cannot be read hides no other one. Nothing is changed, and all of it is one
moment's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from sqlalchemy import Connection, RowMapping, insert, select, update

from keeplast.errors import ConflictError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.commits import Commits, Removals
from keeplast.tier.metadata.facts import Leases, read_round_days, write_lease
from keeplast.tier.metadata.rows import (
    NO_PART,
    find_commit,
    find_partition,
    load_state,
    load_visits,
    mend_size,
    prune_segments,
    raise_mark,
    write_lineage,
    write_publication,
    write_visits,
)
from keeplast.tier.metadata.schema import (
    BrokenRowError,
    chunks_of,
    json_text,
    partition_of,
    read_row,
    segment_of,
    visits_of,
)
from keeplast.tier.metadata.undo_rows import UndoRows, read_kept, shorten_kept
from keeplast.tier.state import partition_state
from keeplast.tier.state.continuity import Visits
from keeplast.tier.state.holder import Holder, Lease
from keeplast.tier.state.kept_rounds import RoundDay
from keeplast.tier.state.partition_state import Orphan, PartitionState
from keeplast.tier.state.segment import SegmentState


class RowProblem(Struct, frozen=True):
    """What is wrong with a row: its table, and what distinguishes it from others there."""

    table: str
    key: str
    problem: str


class Inspected(Struct, frozen=True):
    """What is known of a partition, without the rows that are named as problems.

    ``state`` is None when the partition's own row cannot be read. ``unread`` are the ids of the
    segments, live ones or not, whose rows cannot.
    """

    state: PartitionState | None
    problems: tuple[RowProblem, ...]
    unread: frozenset[str]


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
    """Yield entries that go back: offsets of one leader are above those of a newer one."""
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


class MetadataStore(Commits):
    """The tables of one store. Safe for several threads and, by the database, several hosts."""

    @property
    def removals(self) -> Removals:
        """Return what takes a log, or the end of one, out of the store when its user says so."""
        return Removals(self._transactions)

    @property
    def leases(self) -> Leases:
        """Return what finds and renews the leases of partitions' leaders."""
        return Leases(self._transactions)

    @property
    def undo_rows(self) -> UndoRows:
        """Return what lists, puts back and lets go what rounds have kept of what they replaced."""
        return UndoRows(self._transactions)

    # What is there.

    def inspect(self, partition: TopicPartition) -> Inspected:
        """Return what is known of ``partition``, every row looked at by itself.

        InvalidError when it is not in the store.
        """
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
        reasons = {(each.table, each.key): each.why for each in broken}
        problems = [RowProblem(table, key, why) for (table, key), why in reasons.items()]
        unread = {key for table, key in reasons if table == schema.SEGMENTS.name}
        return Inspected(state, (*problems, *more), frozenset(unread))

    def partitions(self, *, is_forgotten: bool = False) -> tuple[TopicPartition, ...]:
        """Return every partition, ascending: of those that were given up, or of the others."""
        at = schema.PARTITIONS.c.forgotten_ms
        with self._transactions.reading() as connection:
            rows = connection.execute(
                select(schema.PARTITIONS.c.topic, schema.PARTITIONS.c.partition).where(
                    at.is_not(None) if is_forgotten else at.is_(None)
                )
            ).all()
        return tuple(sorted(partition_of(topic, number) for topic, number in rows))

    def orphans(self, partition: TopicPartition) -> tuple[Orphan, ...]:
        """Return the segments that wait to be deleted, by id, also those that are kept for undo."""
        states = [SegmentState.REPLACED, SegmentState.DELETING]
        table, rounds = schema.SEGMENTS, schema.UNDO_ROUNDS
        is_kept = (rounds.c.partition_id == table.c.partition_id) & (
            rounds.c.number == table.c.undo_number
        )
        with self._transactions.reading() as connection:
            row = find_partition(connection, partition)
            rows = connection.execute(
                select(table, rounds.c.until_ms, rounds.c.chunks)
                .join(rounds, is_kept, isouter=True)
                .where(table.c.partition_id == row["id"], table.c.state.in_(states))
                .order_by(table.c.id)
            ).mappings()
            return tuple(
                Orphan(
                    read_row(schema.SEGMENTS.name, partition, r["id"], segment_of, r),
                    SegmentState(r["state"]),
                    max(int(r["not_before_ms"] or 0), int(r["until_ms"] or 0)),
                    None if r["chunks"] is None else chunks_of(r["chunks"])[0],
                )
                for r in rows
            )

    def known_ids(self, partition: TopicPartition) -> dict[str, SegmentState]:
        """Return every segment id that was ever announced and is not yet forgotten."""
        with self._transactions.reading() as connection:
            row = find_partition(connection, partition)
            rows = connection.execute(
                select(schema.SEGMENTS.c.id, schema.SEGMENTS.c.state).where(
                    schema.SEGMENTS.c.partition_id == row["id"]
                )
            ).all()
        return {segment_id: SegmentState(state) for segment_id, state in rows}

    def find_commit(self, commit_id: str) -> int | None:
        """Return the version that a commit made, None when it never happened."""
        with self._transactions.reading() as connection:
            return find_commit(connection, commit_id)

    def find_fact(self, key: str) -> str | None:
        """Return a fact of the whole store, None when it has not been made."""
        return self.facts.find(key)

    def fact(self, key: str, make: Callable[[], str]) -> str:
        """Return a fact of the whole store; ``make`` gives it the first time it is asked for."""
        return self.facts.made(key, make)

    def round_days(self) -> tuple[RoundDay, ...]:
        """Return what the rounds of the last month did, by partition, day and host."""
        with self._transactions.reading() as connection:
            return read_round_days(connection)

    def raise_mark(self, token: str, above: int = 0) -> tuple[int, str]:
        """Make the next mark of this metadata, greater than ``above`` too, and return it."""
        with self._transactions.writing() as connection:
            return raise_mark(connection, token, above)

    def hear_commits(self, listener: Callable[[], None]) -> None:
        """Let ``listener`` hear of every commit before it is made; what it raises ends it."""
        self._transactions.listener = listener

    def holds(self, state: PartitionState) -> bool:
        """Say whether a partition is held through this object, and not given back."""
        is_mine = state.holder is not None and state.holder.id == self.holder.id
        return is_mine and state.held_since_ms is not None

    # What changes.

    def create(
        self,
        partition: TopicPartition,
        topic_id: str,
        *,
        log_start: int,
        settings: Mapping[str, str],
    ) -> None:
        """Add a partition that has no owner yet; ConflictError when it is there.

        InvalidError for a name that no broker takes.
        """
        partition.checked()
        with self._transactions.writing() as connection:
            connection.execute(
                insert(schema.PARTITIONS).values(
                    topic=partition.topic, partition=partition.partition, topic_id=topic_id,
                    leader_epoch=-1, owner="", version=0, log_start=log_start, remote_bytes=0,
                    settings=json_text(settings),
                )
            )  # fmt: skip

    def take_over(
        self, partition: TopicPartition, *, epoch: int, owner: str,
        lineage: Sequence[LeaderEpoch], log_end: int, instead_of: PartitionState | None = None,
        is_unchanged: bool = False, lease_ms: int | None = None, acknowledged: int = 0,
    ) -> PartitionState:  # fmt: skip
        """Become the owner at ``epoch``: fence every older one and publish the claim, at once.

        ``lineage`` is the new leader's. FencedError unless the epoch is newer than the owner's. The
        same owner may come again with its own epoch, as after a restart, and fences the process
        that held the partition. ConflictError when that is not the one of ``instead_of`` any more,
        or, with ``is_unchanged``, when anything has changed since that was read. With ``lease_ms``
        the owner leads by a lease, which says up to where it has ``acknowledged``, from here on.
        """
        with self._transactions.claiming(
            partition, epoch=epoch, owner=owner, instead_of=instead_of
        ) as (connection, row):
            if is_unchanged and instead_of is not None and instead_of.version != row["version"]:
                raise ConflictError(
                    f"the partition changed meanwhile. partition={partition}", code="K329"
                )
            if epoch > int(row["leader_epoch"]):
                state = load_state(connection, row)
                claim = partition_state.take_over(
                    state.publications, tuple(lineage), max(log_end, state.remote_end),
                    epoch=epoch, log_start=state.log_start,
                )  # fmt: skip
                write_publication(connection, state.row_id, claim)
            else:
                state = load_state(connection, row, NO_PART)
            write_lineage(connection, state, lineage)
            if lease_ms is not None:
                lease = Lease(epoch, self.holder.id, lease_ms, acknowledged)
                write_lease(connection, state.row_id, lease)
            found = load_state(connection, find_partition(connection, partition))
            # Commits add to the size what they change; where it drifted, it is counted again.
            return mend_size(connection, found)

    def give_back(self) -> None:
        """Say of every partition that is held through this object that its holder has ended.

        Another process may change them only after it has taken them over.
        """
        with self._transactions.writing() as connection:
            connection.execute(
                update(schema.PARTITIONS)
                .where(
                    schema.PARTITIONS.c.holder == self.holder.id,
                    schema.PARTITIONS.c.held_since_ms.is_not(None),
                )
                .values(held_since_ms=None, version=schema.PARTITIONS.c.version + 1)
            )

    def visits(self, partition: TopicPartition, directory: str) -> Visits:
        """Return what is known of how a directory was cleaned, by its digest."""
        with self._transactions.reading() as connection:
            row = find_partition(connection, partition)
            return load_visits(connection, partition, int(row["id"]), directory)

    def remember(
        self, partition: TopicPartition, *, epoch: int, directory: str, visits: Visits
    ) -> None:
        """Keep what is known of how a directory was cleaned, as the owner."""
        with self._transactions.owned(partition, epoch) as (connection, row):
            write_visits(connection, int(row["id"]), directory, visits)

    def check_owner(self, partition: TopicPartition, *, epoch: int) -> None:
        """FencedError unless ``epoch`` is still the newest; raises the version like any change."""
        with self._transactions.owned(partition, epoch):
            pass

    def start_delete(self, partition: TopicPartition, *, epoch: int, segment_id: str) -> bool:
        """Say that the objects of an orphan go now; False when it is no orphan (any more).

        Refused by the caller's epoch, by the grace, while it is read and while it is kept for undo.
        """
        with self._transactions.owned(partition, epoch) as (connection, row):
            now_ms = self.clock.now_in(connection)
            routed = connection.execute(
                select(schema.ROUTING.c.segment_id).where(schema.ROUTING.c.segment_id == segment_id)
            ).first()
            if routed is not None:
                return False
            changed = connection.execute(
                update(schema.SEGMENTS)
                .where(
                    schema.SEGMENTS.c.id == segment_id,
                    schema.SEGMENTS.c.partition_id == row["id"],
                    schema.SEGMENTS.c.state.in_([SegmentState.REPLACED, SegmentState.DELETING]),
                    schema.SEGMENTS.c.not_before_ms <= now_ms,
                    schema.SEGMENTS.c.undo_number.is_(None),
                )
                .values(state=SegmentState.DELETING, state_since_ms=now_ms)
            )
            return changed.rowcount == 1

    def finish_delete(self, partition: TopicPartition, *, epoch: int, segment_id: str) -> None:
        """Say that the objects are gone; the row stays for a while, so that the id is refused."""
        with self._transactions.owned(partition, epoch) as (connection, row):
            now_ms = self._transactions.time.now_ms(connection)
            prune_segments(connection, int(row["id"]), now_ms=now_ms)
            connection.execute(
                update(schema.SEGMENTS)
                .where(
                    schema.SEGMENTS.c.id == segment_id,
                    schema.SEGMENTS.c.state == SegmentState.DELETING,
                )
                .values(state=SegmentState.DELETED, state_since_ms=now_ms)
            )

    def configure(
        self, partition: TopicPartition, *, epoch: int, settings: Mapping[str, str],
        holder: Holder | None = None, undo_retention_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Replace the settings of a partition, as its owner; ``holder`` as for an expiry.

        ``undo_retention_ms`` is theirs: a shorter time counts for what is kept already. None leaves
        that.
        """
        with self._transactions.owned(partition, epoch, holder) as (connection, row):
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(settings=json_text(settings))
            )
            if undo_retention_ms is not None:
                shorten_kept(connection, int(row["id"]), undo_retention_ms)

    def set_uncleanable(self, partition: TopicPartition, *, epoch: int, reason: str | None) -> None:
        """Set a partition aside with its reason, or take it up again (None)."""
        with self._transactions.owned(partition, epoch) as (connection, row):
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(uncleanable_reason=reason)
            )
