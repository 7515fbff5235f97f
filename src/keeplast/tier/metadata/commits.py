"""The commits of a partition: each changes what is live, or how far that is clean.

What a reader must not break: a commit has an id of its caller's and is one transaction of the
partition's owner, decided by the rows that it has locked. Segments are retired in the commit that
routes around them, and wait out the grace from then on. Source: tiering.md sections 9.1 to 9.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Engine, RowMapping, update

from keeplast.cleaner.eligibility import require_unheld
from keeplast.clock import Clock
from keeplast.errors import ConflictError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.facts import Anchor
from keeplast.tier.metadata.round_sums import note_round
from keeplast.tier.metadata.row_values import json_text
from keeplast.tier.metadata.rows import (
    NO_PART,
    change_routes,
    find_partition,
    insert_segment,
    load_state,
    raise_cleaned_for,
    raise_fact,
    renew_publications,
    retire_segments,
    routed_part,
    write_lineage,
    write_publication,
    write_vectors,
)
from keeplast.tier.metadata.store_time import StoreClock, StoreTime
from keeplast.tier.metadata.transactions import Transactions
from keeplast.tier.metadata.undo_rows import (
    drop_below,
    drop_kept,
    keep_publication,
    keep_swap,
    raise_kept,
)
from keeplast.tier.state import vector
from keeplast.tier.state.holder import Holder
from keeplast.tier.state.kept_rounds import Keeping
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.round_days import RoundSums
from keeplast.tier.state.routing import Route, append_route, check_routes, replace_routes
from keeplast.tier.state.segment import RemoteSegment, is_within_lineage


class Commits:
    """What a store's partitions are committed by; see :mod:`.metadata_store` for the rest."""

    def __init__(
        self, engine: Engine, clock: Clock, holder: Holder | None = None,
        time: StoreTime | None = None,
    ) -> None:  # fmt: skip
        """Take an engine whose tables are there; see :mod:`keeplast.tier.metadata.database`.

        ``holder`` is who changes what is changed through this object: this process, unless a test
        says otherwise. ``clock`` is the host's, ``time`` the store's.
        """
        self._host_clock = clock
        self._transactions = Transactions(engine, clock, holder, time)
        self._time = self._transactions.time

    @property
    def holder(self) -> Holder:
        """Return who changes what is changed through this object."""
        return self._transactions.holder

    @property
    def clock(self) -> StoreClock:
        """Return the clock by which whatever is removed by time is removed."""
        return StoreClock(self._time, self._host_clock, self._transactions.reading)

    def load(self, partition: TopicPartition) -> PartitionState:
        """Return what is known of ``partition``; InvalidError when it is not in the store."""
        with self._transactions.reading() as connection:
            return load_state(connection, find_partition(connection, partition))

    def commit_copy(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, segment: RemoteSegment,
        lineage: Sequence[LeaderEpoch], known: PartitionState | None = None,
        cleaned_for: int = 0,
    ) -> PartitionState:  # fmt: skip
        """Make an uploaded copy of a local segment live, clipped to what nobody serves yet.

        The first one begins the log: what lay below it was removed before it was copied.

        ``known`` is what the caller has read: what is returned follows from it when it was the
        newest, and is read from the database otherwise. Of the segment records may have gone for
        others below ``cleaned_for``, exclusive, before it was copied: no undo takes that back.
        """
        with self._transactions.committing(partition, commit_id, epoch, "copy") as (
            connection,
            row,
        ):
            state, now_ms = load_state(connection, row, NO_PART), self._time.now_ms(connection)
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
        # Under the lock nobody was between the two: equal versions are equal states.
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

        ConflictError when a source is not read any more, or is outside of the lineage (I-23), and
        when a hold that is in force by now lies in front of that end.
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
                        f"partition={partition} segment={source}"
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
            newest = vector.newest_of(state.publications, epoch)
            if began is not None and vector.newest_of(began.publications, epoch) != newest:
                raise ConflictError(
                    "the log is not the one that was cleaned; it is looked at again. "
                    f"partition={partition} epoch={epoch} cleaned_to={cleaned_to}"
                )
            if began is not None:
                # What was cleaned before it was copied here no hold of this store has kept.
                require_unheld(
                    partition, state.holds, self._time.now_ms(connection), end=cleaned_to,
                    first_dirty=state.first_dirty(),
                )  # fmt: skip
                keep_publication(
                    connection, state, keeping, cleaned_to=cleaned_to,
                    now_ms=self._time.now_ms(connection),
                )  # fmt: skip
            made = vector.advance(state.publications, epoch=epoch, cleaned_to=cleaned_to)
            write_publication(connection, state.row_id, made)
            # Without any, the last one that is read has the checkpoint of the moment all the same.
            carrying = outputs or [route.segment_id for route in state.routes[-1:]]
            write_vectors(connection, state.row_id, made, carrying)
            raise_cleaned_for(connection, state.row_id, cleaned_to)
            if done is not None:
                now_ms = self._time.now_ms(connection)
                note_round(connection, state.row_id, self.holder.host, done, now_ms=now_ms)

    def commit_replacement(
        self, partition: TopicPartition, commit_id: str, *, epoch: int,
        instead_of: Sequence[Route], routes: Sequence[Route], made: Sequence[RemoteSegment],
        lineage: Sequence[LeaderEpoch], cleaned_to: int | None, grace_ms: int,
        cleaned_for: int = 0,
    ) -> PartitionState:  # fmt: skip
        """Let ``routes`` be all that is read, at once; what they leave out waits out the grace.

        ``made`` are the new segments among them. The log is then clean to ``cleaned_to`` and no
        further, whoever said so before; None leaves what was said. Below ``cleaned_for``,
        exclusive, records may have gone for others. ConflictError when what is read is not
        ``instead_of`` any more, or the new routes end below the old ones.
        """
        with self._transactions.committing(partition, commit_id, epoch, "replace") as (
            connection,
            row,
        ):
            now_ms = self._time.now_ms(connection)
            state = load_state(connection, row)
            end = routes[-1].last_offset + 1 if routes else state.log_start
            if state.routes != tuple(instead_of) or end < state.remote_end:
                raise ConflictError(
                    "what is in object storage changed while all of it was copied anew. "
                    f"partition={partition} version={state.version}"
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
                fresh = vector.renewed(state.publications, epoch=epoch, cleaned_to=cleaned_to)
                renew_publications(connection, state.row_id, fresh)
                # How far the cleaner of the log that it was copied from went, nobody wrote down.
                raise_cleaned_for(connection, state.row_id, end)
        return self.load(partition)

    def commit_expiry(
        self, partition: TopicPartition, commit_id: str, *, epoch: int, log_start: int,
        segments: Sequence[str], grace_ms: int, holder: Holder | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Move the log start; ``segments``, a prefix of the routes below it, are read no more.

        It may pass the end of the routes when all of them go: the log is then local alone.
        ``holder`` is who must hold the partition, instead of this process; ``settings`` as of a
        swap.
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
                    f"remote_end={state.remote_end}"
                )
            prefix = [r.segment_id for r in state.routes if r.last_offset < log_start]
            if not gone <= set(prefix):
                raise ConflictError(f"a segment to expire is not below the log start. {gone}")
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
            f"ones does not count. partition={row['topic']}-{row['partition']}"
        )
