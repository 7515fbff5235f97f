"""The commits of a partition: each changes what is live, or how far that is clean.

What a reader must not break: a commit has an id that its caller chose. It is one transaction of the
partition's owner, decided by the rows that it has locked. Segments are retired in the commit that
routes around them, and wait out the grace from then on. Source: tiering.md sections 9.1 to 9.3.

Some commits take a log, or the end of one, out of the store because its user says so. Each is one
transaction of the process that holds the partition, decided by the very version that its user was
shown. It is the beginning of a new leader epoch: what the same owner does elsewhere at the old one
is fenced. How far the log was clean is claimed newly: what is copied to the same offsets later is
dirty. Objects go with a collection, after their grace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace
from sqlalchemy import Connection, RowMapping, delete, update

from keeplast.cleaner.cleanable_range import require_unheld
from keeplast.errors import ConflictError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.facts import Anchor, OpenedTables, note_round, remove_lease
from keeplast.tier.metadata.fencing import Transactions
from keeplast.tier.metadata.rows import (
    NO_PART,
    change_routes,
    check_unchanged,
    find_partition,
    insert_segment,
    load_state,
    lower_vectors,
    raise_cleaned_for,
    raise_fact,
    renew_publications,
    retire_segments,
    routed_part,
    write_lineage,
    write_publication,
    write_vectors,
)
from keeplast.tier.metadata.schema import json_text
from keeplast.tier.metadata.undo_rows import (
    drop_below,
    drop_kept,
    keep_publication,
    keep_swap,
    raise_kept,
)
from keeplast.tier.state import partition_state
from keeplast.tier.state.holder import Holder
from keeplast.tier.state.kept_rounds import Keeping, RoundSums
from keeplast.tier.state.partition_state import PartitionState, Publication
from keeplast.tier.state.segment import (
    RemoteSegment,
    Route,
    append_route,
    check_routes,
    is_within_lineage,
    replace_routes,
)


class Commits(OpenedTables):
    """What a store's partitions are committed by; see :mod:`.metadata_store` for the rest."""

    def load(self, partition: TopicPartition) -> PartitionState:
        """Return what is known of ``partition``; InvalidError when it is not in the store."""
        with self._transactions.reading() as connection:
            return load_state(connection, find_partition(connection, partition))

    def commit_copy(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, segment: RemoteSegment,
        lineage: Sequence[LeaderEpoch], known: PartitionState | None = None,
        cleaned_for: int = 0,
    ) -> PartitionState:  # fmt: skip
        """Make an uploaded copy of a local segment live, clipped to the offsets that no segment
        serves yet.

        The first one begins the log: what lay below it was removed before it was copied.

        ``known`` is what the caller has read: what is returned follows from it when it was the
        newest, and is read from the database otherwise. Of the segment records may have gone for
        others below ``cleaned_for``, exclusive, before it was copied: no undo takes that back.
        """
        with self._transactions.committing(partition, commit_id, epoch, "copy") as (
            connection,
            row,
        ):
            state = load_state(connection, row, NO_PART)
            now_ms = self._transactions.time.now_ms(connection)
            routes = append_route(
                state.routes, segment.segment_id, segment.base_offset, segment.last_offset,
                floor=state.first_dirty(),
            )  # fmt: skip
            insert_segment(connection, state.row_id, segment, now_ms=now_ms)
            write_lineage(connection, state, lineage)
            change_routes(connection, row, state, routes, (segment,))
            if cleaned_for:
                raise_cleaned_for(connection, state.row_id, cleaned_for)
                raise_kept(connection, state.row_id, cleaned_for)
            if not state.routes and routes[0].base_offset > state.log_start:
                known = None
                connection.execute(
                    update(schema.PARTITIONS)
                    .where(schema.PARTITIONS.c.id == state.row_id)
                    .values(log_start=routes[0].base_offset)
                )
        # Under the lock no other commit was between the two: equal versions are equal states.
        if known is not None and (known.version, known.fence) == (state.version, state.fence):
            return known.with_copy(segment, routes[-1], tuple(lineage), cleaned_for)
        return self.load(partition)

    def commit_swap(
        self, partition: TopicPartition, commit_id: str, *, epoch: int,
        sources: Sequence[str], outputs: Sequence[RemoteSegment], grace_ms: int,
        settings: Mapping[str, str] | None = None, anchor: Anchor | None = None,
        cleaned_for: int | None = None, keeping: Keeping | None = None,
    ) -> None:  # fmt: skip
        """Replace segments by what the cleaner made of them; the sources wait out the grace.

        ``settings`` are those of the partition that the outputs were made by: ConflictError when
        it has others by now. ``cleaned_for`` is where the round ends, exclusive, whose records
        have decided what is left; None is the end of all that is here. ``keeping`` is the round for
        whose undo the sources are kept; without, nothing of any round is kept any more.

        ConflictError when a source is not read any more, or is outside of the lineage (I-23). It is
        one too when a hold that is in force by now lies below that end.
        """
        with self._transactions.committing(partition, commit_id, epoch, "swap") as (
            connection,
            row,
        ):
            _check_settings(row, settings)
            if anchor is not None:
                raise_fact(connection, *anchor)
            now_ms = self.clock.now_in(connection)
            part = routed_part(connection, sources)
            state = load_state(connection, row, part or NO_PART)
            for source in sources:
                found = state.segments.get(source)
                if found is None or not is_within_lineage(found, state.lineage, state.remote_end):
                    raise ConflictError(
                        "a segment to be replaced is not live in this lineage. "
                        f"partition={partition} segment={source}",
                        code="K329",
                    )
            old = [route for route in state.routes if route.segment_id in set(sources)]
            made = [Route(s.base_offset, s.last_offset, s.segment_id) for s in outputs]
            if old and made:  # A source may have been clipped; its output serves what it served.
                start = max(made[0].base_offset, old[0].base_offset)
                made[0] = replace(made[0], base_offset=start)
            routes = replace_routes(state.routes, sources, made)
            for segment in outputs:
                insert_segment(connection, state.row_id, segment, now_ms=now_ms)
            change_routes(connection, row, state, routes, outputs)
            end = state.remote_end if cleaned_for is None else cleaned_for
            require_unheld(partition, state.holds, now_ms, end=end, first_dirty=state.first_dirty())
            raise_cleaned_for(connection, state.row_id, end)
            retire_segments(connection, sources, commit_id, now_ms=now_ms, grace_ms=grace_ms)
            keep_swap(connection, state, keeping, old, made, end=end, now_ms=now_ms)

    def publish(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, cleaned_to: int,
        settings: Mapping[str, str] | None = None, began: PartitionState | None = None,
        anchor: Anchor | None = None, done: RoundSums | None = None,
        keeping: Keeping | None = None, outputs: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Move the first dirty offset of the owner's epoch; ``settings`` as of a swap.

        ``outputs`` are the segments that the cleaning made: they carry the vector from here on. Not
        sooner, as the log was not clean before all of them were live.

        ``began`` is what the cleaning began with: ConflictError when the first dirty offset was
        moved since, as when the whole log was replaced, or past a hold. ``done`` is what the round
        did, for the figures of its day; ``keeping`` as of its swaps.
        """
        with self._transactions.committing(partition, commit_id, epoch, "publish") as (
            connection,
            row,
        ):
            _check_settings(row, settings)
            if anchor is not None:
                raise_fact(connection, *anchor)
            state = load_state(connection, row, NO_PART)
            now_ms = self._transactions.time.now_ms(connection)
            newest = partition_state.newest_of(state.publications, epoch)
            if began is not None and partition_state.newest_of(began.publications, epoch) != newest:
                raise ConflictError(
                    "the log is not the one that was cleaned; it is looked at again. "
                    f"partition={partition} epoch={epoch} cleaned_to={cleaned_to}",
                    code="K329",
                )
            if began is not None:
                # What was cleaned before it was copied here no hold of this store has kept.
                require_unheld(
                    partition, state.holds, now_ms, end=cleaned_to, first_dirty=state.first_dirty()
                )
                keep_publication(connection, state, keeping, cleaned_to=cleaned_to, now_ms=now_ms)
            made = partition_state.advance(state.publications, epoch=epoch, cleaned_to=cleaned_to)
            write_publication(connection, state.row_id, made)
            # Without any, the last one that is read has the checkpoint of the moment all the same.
            carrying = outputs or [route.segment_id for route in state.routes[-1:]]
            write_vectors(connection, state.row_id, made, carrying)
            raise_cleaned_for(connection, state.row_id, cleaned_to)
            if done is not None:
                note_round(connection, state.row_id, self.holder.host, done, now_ms=now_ms)

    def commit_replacement(
        self, partition: TopicPartition, commit_id: str, *, epoch: int,
        instead_of: Sequence[Route], routes: Sequence[Route], made: Sequence[RemoteSegment],
        lineage: Sequence[LeaderEpoch], cleaned_to: int | None, grace_ms: int,
        cleaned_for: int = 0,
    ) -> PartitionState:  # fmt: skip
        """Let ``routes`` be all that is read, at once; what they leave out waits out the grace.

        ``made`` are the new segments among them. The log is then clean to ``cleaned_to`` and no
        further, whatever was said before; None leaves what was said. Below ``cleaned_for``,
        exclusive, records may have gone for others. ConflictError when what is read is not
        ``instead_of`` any more, or the new routes end below the old ones.
        """
        with self._transactions.committing(partition, commit_id, epoch, "replace") as (
            connection,
            row,
        ):
            now_ms = self._transactions.time.now_ms(connection)
            state = load_state(connection, row)
            end = routes[-1].last_offset + 1 if routes else state.log_start
            if state.routes != tuple(instead_of) or end < state.remote_end:
                raise ConflictError(
                    "the part in object storage changed while all of it was copied again. "
                    f"partition={partition} version={state.version}",
                    code="K329",
                )
            check_routes(routes)
            for segment in made:
                insert_segment(connection, state.row_id, segment, now_ms=now_ms)
            write_lineage(connection, state, lineage)
            change_routes(connection, row, state, routes, made)
            kept = {route.segment_id for route in routes}
            retire_segments(
                connection, set(state.segments) - kept, commit_id, now_ms=now_ms,
                grace_ms=grace_ms,
            )  # fmt: skip
            drop_kept(connection, state.row_id)
            raise_cleaned_for(connection, state.row_id, cleaned_for)
            if cleaned_to is not None:
                # What an older leader found clean was another log: a tombstone that is dropped as
                # clean would leave what it deletes.
                fresh = partition_state.renewed(
                    state.publications, epoch=epoch, cleaned_to=cleaned_to
                )
                renew_publications(connection, state.row_id, fresh)
                # How far the cleaner of the log that it was copied from went is written down
                # nowhere.
                raise_cleaned_for(connection, state.row_id, end)
        return self.load(partition)

    def commit_expiry(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, log_start: int,
        segments: Sequence[str], grace_ms: int, holder: Holder | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Move the log start; ``segments``, a prefix of the routes below it, are read no more.

        It may pass the end of the routes when all of them go: the log is then local alone.
        ``holder`` is the process that must hold the partition, instead of this process;
        ``settings`` as of a swap.
        """
        with self._transactions.committing(partition, commit_id, epoch, "expire", holder) as (
            connection,
            row,
        ):
            _check_settings(row, settings)
            state = load_state(connection, row, (0, log_start))
            gone = set(segments)
            leaves_routes = any(route.segment_id not in gone for route in state.routes)
            if log_start < state.log_start or (leaves_routes and log_start > state.remote_end):
                raise ConflictError(
                    "the log start only grows, up to the remote end while anything is left there. "
                    f"partition={partition} from={state.log_start} to={log_start} "
                    f"remote_end={state.remote_end}",
                    code="K329",
                )
            prefix = [r.segment_id for r in state.routes if r.last_offset < log_start]
            if not gone <= set(prefix):
                raise ConflictError(
                    f"a segment to expire is not below the log start. {gone}", code="K329"
                )
            routes = tuple(route for route in state.routes if route.segment_id not in gone)
            change_routes(connection, row, state, routes)
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == row["id"])
                .values(log_start=log_start)
            )
            retire_segments(
                connection, gone, commit_id, now_ms=self.clock.now_in(connection),
                grace_ms=grace_ms,
            )  # fmt: skip
            drop_below(connection, partition, state.row_id, log_start)


def _check_settings(row: RowMapping, settings: Mapping[str, str] | None) -> None:
    """ConflictError when a decision was made by settings that the partition no longer has."""
    if settings is not None and json_text(settings) != row["settings"]:
        raise ConflictError(
            "the settings of the partition were changed meanwhile; what was decided by the old "
            f"ones does not count. partition={row['topic']}-{row['partition']}",
            code="K329",
        )


class Removals:
    """The changes of a store that no leader makes by himself."""

    def __init__(self, transactions: Transactions) -> None:
        """Change a store by its transactions; see ``MetadataStore.removals``."""
        self._transactions = transactions

    def truncate(
        self, known: PartitionState, commit_id: str, *, cut: int, replaced: str | None,
        made: RemoteSegment | None, grace_ms: int,
    ) -> PartitionState:  # fmt: skip
        """End the log of ``known``, which this process holds, at ``cut``, exclusive.

        What lies wholly at or above ``cut`` is read no more. ``replaced``, which lies on both sides
        of it, gives way to ``made``, None when nothing of it is left. A new leader epoch begins
        with a claim of its own. How far the log was clean counts up to ``cut`` and no further,
        whatever is copied there later (I-18). ConflictError when anything has changed since
        ``known`` was read.
        """
        with self._transactions.committing(
            known.partition, commit_id, known.leader_epoch, "truncate"
        ) as (connection, row):
            state = check_unchanged(load_state(connection, row), known)
            now_ms = self._transactions.time.now_ms(connection)
            if not state.log_start <= cut <= state.remote_end:
                raise ConflictError(
                    "a log is cut between its start and its end. "
                    f"partition={known.partition} cut={cut} log_start={state.log_start} "
                    f"remote_end={state.remote_end}",
                    code="K329",
                )
            gone = {route.segment_id for route in state.routes if route.base_offset >= cut}
            gone |= set() if replaced is None else {replaced}
            routes = tuple(route for route in state.routes if route.segment_id not in gone)
            if made is not None:
                start = next(r.base_offset for r in state.routes if r.segment_id == replaced)
                insert_segment(connection, state.row_id, made, now_ms=now_ms)
                routes = (*routes, Route(start, made.last_offset, made.segment_id))
            if routes and routes[-1].last_offset + 1 != cut:
                raise ConflictError(
                    f"what is left does not end at the cut. partition={known.partition} cut={cut} "
                    f"end={routes[-1].last_offset + 1}",
                    code="K329",
                )
            lineage = tuple(entry for entry in state.lineage if entry.start_offset < cut)
            change_routes(connection, row, state, routes, () if made is None else (made,))
            write_lineage(connection, state, lineage)
            retire_segments(connection, gone, commit_id, now_ms=now_ms, grace_ms=grace_ms)
            drop_kept(connection, state.row_id)
            claim = partition_state.take_over(
                state.publications, lineage, cut, epoch=state.leader_epoch + 1,
                log_start=state.log_start,
            )  # fmt: skip
            write_publication(connection, state.row_id, claim)
            lower_vectors(connection, state.row_id, claim)
            self._begin_epoch(connection, state.row_id, state.leader_epoch + 1)
        return self._load(known)

    def forget(self, known: PartitionState, commit_id: str, *, grace_ms: int) -> None:
        """Give a partition up that this process holds: nothing of it is read any more.

        Its row stays until its objects have gone, or until it begins again. ConflictError when
        anything has changed since ``known`` was read.
        """
        with self._transactions.committing(
            known.partition, commit_id, known.leader_epoch, "forget"
        ) as (connection, row):
            state = check_unchanged(load_state(connection, row), known)
            change_routes(connection, row, state, ())
            write_lineage(connection, state, ())
            now_ms = self._transactions.time.now_ms(connection)
            retire_segments(connection, state.segments, commit_id, now_ms=now_ms, grace_ms=grace_ms)
            drop_kept(connection, state.row_id)
            self._restart(connection, state, log_start=state.log_start)
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == state.row_id)
                .values(forgotten_ms=now_ms, uncleanable_reason=None)
            )

    def restart(
        self, known: PartitionState, commit_id: str, topic_id: str, *, log_start: int,
        settings: Mapping[str, str],
    ) -> PartitionState:  # fmt: skip
        """Let a partition that was given up, and that this process holds, begin again, empty."""
        with self._transactions.committing(
            known.partition, commit_id, known.leader_epoch, "begin"
        ) as (connection, row):
            state = check_unchanged(load_state(connection, row), known)
            if state.forgotten_ms is None:
                raise ConflictError(
                    f"the partition was not given up. partition={known.partition}", code="K333"
                )
            self._restart(connection, state, log_start=log_start)
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
                raise ConflictError(
                    f"the partition was not given up. partition={known.partition}", code="K333"
                )
            # Whatever refers to the partition, and what refers to others before them.
            for table in reversed(schema.METADATA.sorted_tables):
                if "partition_id" in table.c:
                    connection.execute(delete(table).where(table.c.partition_id == row["id"]))
            remove_lease(connection, int(row["id"]))
            connection.execute(delete(schema.PARTITIONS).where(schema.PARTITIONS.c.id == row["id"]))

    def _restart(self, connection: Connection, state: PartitionState, *, log_start: int) -> None:
        """Forget how far the log was clean, at a new epoch: no old claim counts any more."""
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
