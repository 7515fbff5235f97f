"""The metadata store: what of a partition is live in object storage, and what each change writes.

What a reader must not break: a method is one transaction of :mod:`.transactions`, which says who
may make it and what is known when its end is lost. It decides by the rows that the transaction has
locked, never by what its caller read before. Whatever changes the routes is a commit, with an id of
its caller's. Objects are written before a row names them, and go after one has said that they may.
Source: tiering.md sections 9.1 to 9.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Engine, insert, select, update

from keeplast.clock import Clock
from keeplast.errors import ConflictError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import TopicPartition
from keeplast.tier import schema, vector
from keeplast.tier.holder import Holder
from keeplast.tier.partition_state import Orphan, PartitionState
from keeplast.tier.routing import Route, append_route, replace_routes
from keeplast.tier.rows import (
    find_commit,
    find_partition,
    insert_segment,
    json_text,
    load_state,
    retire_segments,
    segment_of,
    write_lineage,
    write_publication,
    write_routes,
)
from keeplast.tier.segment import RemoteSegment, SegmentState, is_within_lineage
from keeplast.tier.transactions import Transactions


class MetadataStore:
    """The tables of one store. Safe for several threads and, by the database, several hosts."""

    def __init__(self, engine: Engine, clock: Clock, holder: Holder | None = None) -> None:
        """Take an engine whose tables are there; see :mod:`keeplast.tier.database`.

        ``holder`` is who changes what is changed through this object: this process, unless a test
        says otherwise.
        """
        self._clock = clock
        self._transactions = Transactions(engine, clock, holder)

    @property
    def holder(self) -> Holder:
        """Return who changes what is changed through this object."""
        return self._transactions.holder

    def close(self) -> None:
        """Close every connection."""
        self._transactions.close()

    # What is there.

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return every partition of the store, ascending."""
        with self._transactions.reading() as connection:
            rows = connection.execute(
                select(schema.PARTITIONS.c.topic, schema.PARTITIONS.c.partition)
            ).all()
        return tuple(sorted(TopicPartition(topic, number) for topic, number in rows))

    def load(self, partition: TopicPartition) -> PartitionState:
        """Return what is known of ``partition``; InvalidError when it is not in the store."""
        with self._transactions.reading() as connection:
            return load_state(connection, find_partition(connection, partition))

    def orphans(self, partition: TopicPartition) -> tuple[Orphan, ...]:
        """Return the segments that wait to be deleted, by id."""
        states = [SegmentState.REPLACED, SegmentState.DELETING]
        with self._transactions.reading() as connection:
            row = find_partition(connection, partition)
            rows = connection.execute(
                select(schema.SEGMENTS)
                .where(
                    schema.SEGMENTS.c.partition_id == row["id"],
                    schema.SEGMENTS.c.state.in_(states),
                )
                .order_by(schema.SEGMENTS.c.id)
            ).mappings()
            return tuple(
                Orphan(segment_of(r), SegmentState(r["state"]), int(r["not_before_ms"] or 0))
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
        with self._transactions.reading() as connection:
            query = select(schema.STORE.c.value).where(schema.STORE.c.key == key)
            found = connection.execute(query).scalar()
        return None if found is None else str(found)

    def fact(self, key: str, make: Callable[[], str]) -> str:
        """Return a fact of the whole store; ``make`` gives it the first time it is asked for."""
        found = self.find_fact(key)
        if found is not None:
            return found
        made = make()
        try:
            with self._transactions.writing() as connection:
                connection.execute(insert(schema.STORE).values(key=key, value=made))
        except ConflictError:
            return self.find_fact(key) or made  # Somebody else was first.
        return made

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
        """Add a partition that nobody owns yet; ConflictError when it is there."""
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
    ) -> PartitionState:  # fmt: skip
        """Become the owner at ``epoch``: fence every older one and publish the claim, at once.

        ``lineage`` is the new leader's. FencedError unless the epoch is newer than the owner's;
        the same owner may come again with its own epoch, as after a restart, and fences the process
        that held the partition. ConflictError when that is not the one of ``instead_of`` any more.
        """
        with self._transactions.claiming(
            partition, epoch=epoch, owner=owner, instead_of=instead_of
        ) as (connection, row):
            if epoch > int(row["leader_epoch"]):
                state = load_state(connection, row)
                claim = vector.take_over(
                    state.publications, tuple(lineage), max(log_end, state.remote_end),
                    epoch=epoch, log_start=state.log_start,
                )  # fmt: skip
                write_publication(connection, state.row_id, claim)
            write_lineage(connection, int(row["id"]), lineage)
            return load_state(connection, find_partition(connection, partition))

    def give_back(self) -> None:
        """Say of every partition that is held through this object that its holder has ended.

        Nobody else may change them before he has taken them over.
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

    def commit_copy(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, segment: RemoteSegment,
        lineage: Sequence[LeaderEpoch],
    ) -> PartitionState:  # fmt: skip
        """Make an uploaded copy of a local segment live, clipped to what nobody serves yet."""
        with self._transactions.committing(partition, commit_id, epoch, "copy") as (
            connection,
            row,
        ):
            state = load_state(connection, row)
            routes = append_route(
                state.routes, segment.segment_id, segment.base_offset, segment.last_offset,
                floor=state.first_dirty(),
            )  # fmt: skip
            insert_segment(connection, int(row["id"]), segment, now_ms=self._clock.now_ms())
            write_lineage(connection, int(row["id"]), lineage)
            write_routes(connection, int(row["id"]), routes)
        return self.load(partition)

    def commit_swap(
        self, partition: TopicPartition, commit_id: str, *, epoch: int,
        sources: Sequence[str], outputs: Sequence[RemoteSegment], grace_ms: int,
    ) -> PartitionState:  # fmt: skip
        """Replace segments by what the cleaner made of them; the sources wait out the grace.

        ConflictError when a source is not read any more, or is outside of the lineage (I-23).
        """
        with self._transactions.committing(partition, commit_id, epoch, "swap") as (
            connection,
            row,
        ):
            state = load_state(connection, row)
            for source in sources:
                found = state.segments.get(source)
                if found is None or not is_within_lineage(found, state.lineage, state.remote_end):
                    raise ConflictError(
                        "a segment to be replaced is not live in this lineage. "
                        f"partition={partition} segment={source}"
                    )
            old = [route for route in state.routes if route.segment_id in set(sources)]
            made = [Route(s.base_offset, s.last_offset, s.segment_id) for s in outputs]
            if old and made:  # A source may have been clipped; its output serves what it served.
                start = max(made[0].base_offset, old[0].base_offset)
                made[0] = replace(made[0], base_offset=start)
            routes = replace_routes(state.routes, sources, made)
            for segment in outputs:
                insert_segment(connection, int(row["id"]), segment, now_ms=self._clock.now_ms())
            write_routes(connection, int(row["id"]), routes)
            retire_segments(
                connection, sources, commit_id, now_ms=self._clock.now_ms(), grace_ms=grace_ms
            )
        return self.load(partition)

    def publish(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, cleaned_to: int
    ) -> PartitionState:
        """Move the first dirty offset of the owner's epoch."""
        with self._transactions.committing(partition, commit_id, epoch, "publish") as (
            connection,
            row,
        ):
            state = load_state(connection, row)
            made = vector.advance(state.publications, epoch=epoch, cleaned_to=cleaned_to)
            write_publication(connection, state.row_id, made)
        return self.load(partition)

    def commit_expiry(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, log_start: int,
        segments: Sequence[str], grace_ms: int, holder: Holder | None = None,
    ) -> PartitionState:  # fmt: skip
        """Move the log start; ``segments``, a prefix of the routes below it, are read no more.

        It may pass the end of the routes when all of them go: the log is then local alone.
        ``holder`` is who must hold the partition, instead of this process.
        """
        with self._transactions.committing(partition, commit_id, epoch, "expire", holder) as (
            connection,
            row,
        ):
            state = load_state(connection, row)
            gone = set(segments)
            leaves_routes = any(route.segment_id not in gone for route in state.routes)
            if log_start < state.log_start or (leaves_routes and log_start > state.remote_end):
                raise ConflictError(
                    "the log start only grows, up to the remote end while anything is left there. "
                    f"partition={partition} from={state.log_start} to={log_start} "
                    f"remote_end={state.remote_end}"
                )
            prefix = [r.segment_id for r in state.routes if r.last_offset < log_start]
            if not gone <= set(prefix):
                raise ConflictError(f"a segment to expire is not below the log start. {gone}")
            routes = tuple(route for route in state.routes if route.segment_id not in gone)
            write_routes(connection, int(row["id"]), routes)
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(log_start=log_start)
            )
            retire_segments(
                connection, gone, commit_id, now_ms=self._clock.now_ms(), grace_ms=grace_ms
            )
        return self.load(partition)

    def check_owner(self, partition: TopicPartition, *, epoch: int) -> None:
        """FencedError unless ``epoch`` is still the newest; raises the version like any change."""
        with self._transactions.owned(partition, epoch):
            pass

    def start_delete(self, partition: TopicPartition, *, epoch: int, segment_id: str) -> bool:
        """Say that the objects of an orphan go now; False when it is no orphan (any more).

        Refused by the caller's epoch, by the grace, and while it is read.
        """
        now_ms = self._clock.now_ms()
        with self._transactions.owned(partition, epoch) as (connection, row):
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
                )
                .values(state=SegmentState.DELETING, state_since_ms=now_ms)
            )
            return changed.rowcount == 1

    def finish_delete(self, partition: TopicPartition, *, epoch: int, segment_id: str) -> None:
        """Say that the objects are gone; the row stays, so that the id is never used again."""
        with self._transactions.owned(partition, epoch) as (connection, _):
            connection.execute(
                update(schema.SEGMENTS)
                .where(
                    schema.SEGMENTS.c.id == segment_id,
                    schema.SEGMENTS.c.state == SegmentState.DELETING,
                )
                .values(state=SegmentState.DELETED, state_since_ms=self._clock.now_ms())
            )

    def configure(
        self, partition: TopicPartition, *, epoch: int, settings: Mapping[str, str],
        holder: Holder | None = None,
    ) -> None:  # fmt: skip
        """Replace the settings of a partition, as its owner; ``holder`` as for an expiry."""
        with self._transactions.owned(partition, epoch, holder) as (connection, row):
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(settings=json_text(settings))
            )

    def set_uncleanable(self, partition: TopicPartition, *, epoch: int, reason: str | None) -> None:
        """Set a partition aside with its reason, or take it up again (None)."""
        with self._transactions.owned(partition, epoch) as (connection, row):
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(uncleanable_reason=reason)
            )
