"""The metadata store: what of a partition is live in object storage, and who may change it.

Every change is one transaction that locks the partition's row, compares the caller's leader epoch
and the process that holds the partition with it, and raises its version; an older epoch, or another
holder, is a :class:`FencedError` and changes nothing (I-19). A commit has an id that its author
chose: when the connection is lost at the end of one, its outcome is looked up by that id and never
guessed. Source: tiering.md sections 9.1 to 9.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Connection, Engine, RowMapping, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from keeplast.clock import Clock
from keeplast.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    UnavailableError,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import TopicPartition
from keeplast.tier import schema, vector
from keeplast.tier.database import READING
from keeplast.tier.holder import Holder, new_holder
from keeplast.tier.partition_state import Orphan, PartitionState
from keeplast.tier.routing import Route, append_route, check_routes, replace_routes
from keeplast.tier.rows import (
    find_commit,
    find_partition,
    holder_of,
    json_text,
    load_state,
    raise_version,
    segment_columns,
    segment_of,
    write_lineage,
    write_publication,
    write_routes,
)
from keeplast.tier.segment import (
    RemoteSegment,
    SegmentState,
    is_within_lineage,
)


class MetadataStore:
    """The tables of one store. Safe for several threads and, by the database, several hosts."""

    def __init__(self, engine: Engine, clock: Clock, holder: Holder | None = None) -> None:
        """Take an engine whose tables are there; see :mod:`keeplast.tier.database`.

        ``holder`` is who changes what is changed through this object: this process, unless a test
        says otherwise.
        """
        self._engine = engine
        self._clock = clock
        self.holder = new_holder() if holder is None else holder

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    # What is there.

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return every partition of the store, ascending."""
        with self._reading() as connection:
            rows = connection.execute(
                select(schema.PARTITIONS.c.topic, schema.PARTITIONS.c.partition)
            ).all()
        return tuple(sorted(TopicPartition(topic, number) for topic, number in rows))

    def load(self, partition: TopicPartition) -> PartitionState:
        """Return what is known of ``partition``; InvalidError when it is not in the store."""
        with self._reading() as connection:
            return load_state(connection, find_partition(connection, partition))

    def orphans(self, partition: TopicPartition) -> tuple[Orphan, ...]:
        """Return the segments that wait to be deleted, by id."""
        states = [SegmentState.REPLACED, SegmentState.DELETING]
        with self._reading() as connection:
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
        with self._reading() as connection:
            row = find_partition(connection, partition)
            rows = connection.execute(
                select(schema.SEGMENTS.c.id, schema.SEGMENTS.c.state).where(
                    schema.SEGMENTS.c.partition_id == row["id"]
                )
            ).all()
        return {segment_id: SegmentState(state) for segment_id, state in rows}

    def find_commit(self, commit_id: str) -> int | None:
        """Return the version that a commit made, None when it never happened."""
        with self._reading() as connection:
            return find_commit(connection, commit_id)

    def find_fact(self, key: str) -> str | None:
        """Return a fact of the whole store, None when it has not been made."""
        with self._reading() as connection:
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
            with self._writing() as connection:
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
        with self._writing() as connection:
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
        with self._writing() as connection:
            row = find_partition(connection, partition, locks=True)
            current = int(row["leader_epoch"])
            if epoch < current or (epoch == current and owner != row["owner"]):
                raise _fenced(partition, epoch, current)
            if instead_of is not None and instead_of.fence != (current, row["holder"]):
                raise ConflictError(
                    f"somebody else took the partition over first. partition={partition}"
                )
            if epoch > current:
                state = load_state(connection, row)
                claim = vector.take_over(
                    state.publications, tuple(lineage), max(log_end, state.remote_end),
                    epoch=epoch, log_start=state.log_start,
                )  # fmt: skip
                write_publication(connection, state.row_id, claim)
            write_lineage(connection, int(row["id"]), lineage)
            raise_version(
                connection, row, leader_epoch=epoch, owner=owner, holder=self.holder.id,
                holder_process=self.holder.to_json(), held_since_ms=self._clock.now_ms(),
            )  # fmt: skip
            return load_state(connection, find_partition(connection, partition))

    def give_back(self) -> None:
        """Say of every partition that is held through this object that its holder has ended.

        Nobody else may change them before he has taken them over.
        """
        with self._writing() as connection:
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
        with self._committing(partition, commit_id, epoch, "copy") as (connection, row):
            state = load_state(connection, row)
            routes = append_route(
                state.routes, segment.segment_id, segment.base_offset, segment.last_offset,
                floor=state.first_dirty(),
            )  # fmt: skip
            self._add(connection, row, segment)
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
        with self._committing(partition, commit_id, epoch, "swap") as (connection, row):
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
                self._add(connection, row, segment)
            write_routes(connection, int(row["id"]), routes)
            self._retire(connection, sources, commit_id, grace_ms)
        return self.load(partition)

    def publish(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, cleaned_to: int
    ) -> PartitionState:
        """Move the first dirty offset of the owner's epoch."""
        with self._committing(partition, commit_id, epoch, "publish") as (connection, row):
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
        with self._committing(partition, commit_id, epoch, "expire", holder) as (connection, row):
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
            self._retire(connection, gone, commit_id, grace_ms)
        return self.load(partition)

    def check_owner(self, partition: TopicPartition, *, epoch: int) -> None:
        """FencedError unless ``epoch`` is still the newest; raises the version like any change."""
        with self._owned(partition, epoch):
            pass

    def start_delete(self, partition: TopicPartition, *, epoch: int, segment_id: str) -> bool:
        """Say that the objects of an orphan go now; False when it is no orphan (any more).

        Refused by the caller's epoch, by the grace, and while it is read.
        """
        now_ms = self._clock.now_ms()
        with self._owned(partition, epoch) as (connection, row):
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
        with self._owned(partition, epoch) as (connection, _):
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
        with self._owned(partition, epoch, holder) as (connection, row):
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(settings=json_text(settings))
            )

    def set_uncleanable(self, partition: TopicPartition, *, epoch: int, reason: str | None) -> None:
        """Set a partition aside with its reason, or take it up again (None)."""
        with self._owned(partition, epoch) as (connection, row):
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(uncleanable_reason=reason)
            )

    # Transactions.

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """One transaction that changes nothing, waits for nobody and sees one moment."""
        try:
            with self._engine.connect() as connection:
                yield connection.execution_options(**READING[self._engine.dialect.name])
        except DBAPIError as error:
            raise _unavailable(error) from error

    @contextmanager
    def _waiting(self) -> Iterator[Connection]:
        """One transaction that changes nothing and may wait for a lock."""
        try:
            with self._engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise _unavailable(error) from error

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """One transaction. What fails in COMMIT itself has an unknown outcome."""
        try:
            with self._engine.connect() as connection:
                yield connection
                try:
                    connection.commit()
                except DBAPIError as error:
                    raise CommitUnknownError(
                        f"the metadata store did not say whether it committed. error={error.orig}"
                    ) from error
        except IntegrityError as error:
            raise ConflictError(f"it is there already. error={error.orig}") from error
        except SQLAlchemyError as error:
            raise _unavailable(error) from error

    @contextmanager
    def _owned(
        self, partition: TopicPartition, epoch: int, holder: Holder | None = None
    ) -> Iterator[tuple[Connection, RowMapping]]:
        """One transaction of the owner, which raises the version; FencedError for anybody else."""
        with self._writing() as connection:
            row = find_partition(connection, partition, locks=True)
            self._check_fence(partition, row, epoch, self.holder if holder is None else holder)
            yield connection, row
            raise_version(connection, row)

    def _check_fence(
        self, partition: TopicPartition, row: RowMapping, epoch: int, holder: Holder
    ) -> None:
        if int(row["leader_epoch"]) != epoch:
            raise _fenced(partition, epoch, int(row["leader_epoch"]))
        if row["holder"] != holder.id:
            raise FencedError(
                "another process of the same owner has taken the partition over; stop. "
                f"partition={partition} owner={row['owner']} epoch={epoch} {holder_of(row)}"
            )

    @contextmanager
    def _committing(
        self, partition: TopicPartition, commit_id: str, epoch: int, kind: str,
        holder: Holder | None = None,
    ) -> Iterator[tuple[Connection, RowMapping]]:  # fmt: skip
        """One transaction of the owner whose outcome can be looked up, and is if it must be.

        ConflictError when the answer was lost and the commit did not happen; CommitUnknownError
        only when it could not be looked up either.
        """
        try:
            with self._inserting_commit(partition, commit_id, epoch, kind, holder) as found:
                yield found
        except CommitUnknownError as unknown:
            try:
                with self._waiting() as connection:
                    # A transaction whose connection was lost in the middle of its COMMIT may still
                    # be under way in the server; it holds the partition's row until it is over.
                    find_partition(connection, partition, locks=True)
                    happened = find_commit(connection, commit_id) is not None
            except UnavailableError:
                raise unknown from None
            if not happened:
                raise ConflictError(
                    f"the commit did not happen; what it belongs to is done again. id={commit_id}"
                ) from unknown

    @contextmanager
    def _inserting_commit(
        self, partition: TopicPartition, commit_id: str, epoch: int, kind: str,
        holder: Holder | None,
    ) -> Iterator[tuple[Connection, RowMapping]]:  # fmt: skip
        with self._owned(partition, epoch, holder) as (connection, row):
            connection.execute(
                insert(schema.COMMITS).values(
                    id=commit_id, partition_id=row["id"], epoch=epoch, kind=kind,
                    version=int(row["version"]) + 1, at_ms=self._clock.now_ms(),
                )
            )  # fmt: skip
            yield connection, row
            state = load_state(connection, find_partition(connection, partition))
            check_routes(state.routes)
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(remote_bytes=state.effective_bytes())
            )

    def _add(self, connection: Connection, row: RowMapping, segment: RemoteSegment) -> None:
        """Make a segment live; ConflictError for an id that was ever used (I-9)."""
        connection.execute(
            insert(schema.SEGMENTS).values(
                **segment_columns(segment), partition_id=row["id"], state=SegmentState.LIVE,
                state_since_ms=self._clock.now_ms(),
            )
        )  # fmt: skip

    def _retire(
        self, connection: Connection, segment_ids: Iterable[str], commit_id: str, grace_ms: int
    ) -> None:
        """Say of segments that are read no more when they may be deleted at the earliest."""
        now_ms = self._clock.now_ms()
        connection.execute(
            update(schema.SEGMENTS)
            .where(schema.SEGMENTS.c.id.in_(list(segment_ids)))
            .values(
                state=SegmentState.REPLACED, state_since_ms=now_ms,
                not_before_ms=now_ms + grace_ms, replaced_by=commit_id,
            )
        )  # fmt: skip


def _fenced(partition: TopicPartition, epoch: int, current: int) -> FencedError:
    return FencedError(
        "a newer leader owns the partition; stop. "
        f"partition={partition} epoch={epoch} current={current}"
    )


def _unavailable(error: Exception) -> UnavailableError:
    # The driver's own words, in one line: the library adds an address that helps nobody here.
    words = " ".join(str(getattr(error, "orig", None) or error).split())
    return UnavailableError(f"the metadata store cannot be reached or is busy. error={words}")
