"""Keeps what rounds replaced, for as long as their settings say, and puts it back.

What a reader must not break:

1. What a round keeps is written in the commit that replaces it. A segment that a row names is not
   collected; it goes by its grace as soon as none does.
2. Rounds are kept without a gap. A round that keeps nothing takes all rows with it. So does
   whatever ends a log's history (a cut, a copy in place of it, a host that leads). Where one row
   goes because of its time or the log start, those before it go too. So what the newest row has
   left is what is read, but for what was copied after it.
3. It is put back in one transaction, by the very version that was looked at, and under the lock of
   the erasure requests. Of a request and an undo one sees the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from keeplast.errors import ConflictError, RefusedError, invariant
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.facts import ERASURES
from keeplast.tier.metadata.fencing import Transactions
from keeplast.tier.metadata.rows import (
    change_routes,
    check_unchanged,
    find_partition,
    load_state,
    raise_fact,
    renew_publications,
    retire_segments,
)
from keeplast.tier.metadata.schema import (
    chunks_of,
    find_fact,
    kept_swap_of,
    read_row,
    routes_text,
    segment_of,
)
from keeplast.tier.state import partition_state
from keeplast.tier.state.kept_rounds import (
    Keeping,
    KeptRound,
    KeptSwap,
    find_bar,
    joined_swap,
    routes_back,
)
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import Route, SegmentState

ROUNDS_MAX = 256
"""Of so many rounds a partition keeps something at most."""
_R, _S, _G = schema.UNDO_ROUNDS.c, schema.UNDO_SWAPS.c, schema.SEGMENTS.c
INT32_MAX = 2**31 - 1
_NEWEST = select(func.max(_R.number))


def keep_swap(
    connection: Connection, state: PartitionState, keeping: Keeping | None,
    sources: Sequence[Route], outputs: Sequence[Route], *, end: int, now_ms: int,
) -> None:  # fmt: skip
    """Keep what a round with the end ``end`` replaces, decided in ``state``; None keeps nothing.

    ConflictError where another round has begun since.
    """
    if keeping is None:
        drop_kept(connection, state.row_id)
        return
    number = _begin(connection, state, keeping, now_ms)
    first, last = sources[0].base_offset, sources[-1].last_offset
    near = connection.execute(
        select(_S.base_offset, _S.sources, _S.outputs).where(
            _S.partition_id == state.row_id, _S.number == number, _S.base_offset <= last,
            _S.last_offset >= first,
        )
    ).all()  # fmt: skip
    known = [_swap_of(state.partition, *each) for each in near]
    swap, parts = joined_swap(known, sources, outputs)
    for each in parts:
        _delete_swap(connection, state.row_id, number, each)
    connection.execute(
        insert(schema.UNDO_SWAPS).values(
            partition_id=state.row_id, number=number, base_offset=swap.base_offset,
            last_offset=swap.last_offset, sources=routes_text(swap.sources),
            outputs=routes_text(swap.outputs),
        )
    )  # fmt: skip
    connection.execute(
        update(schema.SEGMENTS)
        .where(_G.id.in_([each.segment_id for each in swap.sources]))
        .values(undo_number=number)
    )
    connection.execute(
        update(schema.UNDO_ROUNDS)
        .where(
            _R.partition_id == state.row_id, _R.number == number, _R.cleaned_for_after < end
        )
        .values(cleaned_for_after=end)
    )  # fmt: skip


def keep_publication(
    connection: Connection, state: PartitionState, keeping: Keeping | None, *, cleaned_to: int,
    now_ms: int,
) -> None:  # fmt: skip
    """Keep that a round moves the first dirty offset of ``state``; None keeps nothing."""
    if keeping is None:
        drop_kept(connection, state.row_id)
        return
    number = _begin(connection, state, keeping, now_ms)
    connection.execute(
        update(schema.UNDO_ROUNDS)
        .where(_R.partition_id == state.row_id, _R.number == number)
        .values(
            first_dirty_after=max(cleaned_to, state.log_start),
            cleaned_for_after=max(cleaned_to, state.cleaned_for),
        )
    )


def raise_kept(connection: Connection, row_id: int, end: int) -> None:
    """Let no undo say less than that records may have gone for others below ``end``."""
    for column in (_R.cleaned_for_before, _R.cleaned_for_after):
        connection.execute(
            update(schema.UNDO_ROUNDS)
            .where(_R.partition_id == row_id, column < end)
            .values({column: end})
        )


def _begin(connection: Connection, state: PartitionState, keeping: Keeping, now_ms: int) -> int:
    """Return the number of the round, whose time begins again; its first commit makes its row."""
    of_partition = _R.partition_id == state.row_id
    rows = connection.execute(
        select(_R.number, _R.chunks).where(of_partition).order_by(_R.number.desc())
    ).all()
    names = [_chunks_of(state.partition, *each) for each in rows]
    times = {"kept_at_ms": now_ms, "until_ms": now_ms + keeping.retention_ms}
    if names and names[0][0] == keeping.round:
        number = int(rows[0].number)
        chunks = tuple(dict.fromkeys((*names[0], keeping.chunk)))
        connection.execute(
            update(schema.UNDO_ROUNDS)
            .where(of_partition, _R.number == number)
            .values(chunks=json.dumps(chunks), **times)
        )  # fmt: skip
        return number
    if any(each[0] == keeping.round for each in names):
        raise ConflictError(
            f"another round of the partition has begun meanwhile. partition={state.partition}",
            code="K329",
        )
    if len(rows) >= ROUNDS_MAX:
        drop_kept(connection, state.row_id, up_to=int(rows[ROUNDS_MAX - 1].number))
    number = int(rows[0].number) + 1 if rows else 0
    first_dirty = state.first_dirty()
    connection.execute(
        insert(schema.UNDO_ROUNDS).values(
            partition_id=state.row_id, number=number, chunks=json.dumps([keeping.chunk]), **times,
            first_dirty_before=first_dirty, first_dirty_after=first_dirty,
            cleaned_for_before=state.cleaned_for, cleaned_for_after=state.cleaned_for,
        )
    )  # fmt: skip
    return number


def drop_kept(connection: Connection, row_id: int, *, up_to: int | None = None) -> int:
    """Let what rounds have kept go by its grace, all or up to a number; returns how many rounds."""
    upper = INT32_MAX if up_to is None else up_to
    dropped = connection.execute(
        delete(schema.UNDO_ROUNDS).where(_R.partition_id == row_id, _R.number <= upper)
    ).rowcount
    if dropped:
        connection.execute(
            delete(schema.UNDO_SWAPS).where(_S.partition_id == row_id, _S.number <= upper)
        )
        connection.execute(
            update(schema.SEGMENTS)
            .where(
                _G.partition_id == row_id, _G.state == SegmentState.REPLACED,
                _G.undo_number <= upper,
            )
            .values(undo_number=None)
        )  # fmt: skip
    return dropped


def drop_below(connection: Connection, partition: TopicPartition, row_id: int, start: int) -> None:
    """Let go what lies below a new log start, and each round as a whole that has a part there."""
    rows = connection.execute(
        select(_S.number, _S.base_offset, _S.sources, _S.outputs).where(
            _S.partition_id == row_id, _S.base_offset < start
        )
    ).all()
    gone: list[int] = []
    for number, *row in rows:
        swap = _swap_of(partition, *row)
        if swap.is_below(start):
            _delete_swap(connection, row_id, number, swap)
            connection.execute(
                update(schema.SEGMENTS)
                .where(_G.id.in_([each.segment_id for each in swap.sources]))
                .values(undo_number=None)
            )
        elif not swap.may_return(start):
            gone.append(int(number))
    left = set(
        connection.execute(select(_S.number).where(_S.partition_id == row_id).distinct()).scalars()
    )
    gone += {int(each[0]) for each in rows} - left
    if gone:
        drop_kept(connection, row_id, up_to=max(gone))


def shorten_kept(connection: Connection, row_id: int, retention_ms: int) -> None:
    """Let a shorter time count for what is kept already; a longer one does not."""
    connection.execute(
        update(schema.UNDO_ROUNDS)
        .where(_R.partition_id == row_id, _R.until_ms > _R.kept_at_ms + retention_ms)
        .values(until_ms=_R.kept_at_ms + retention_ms)
    )


def read_kept(
    connection: Connection, partition: TopicPartition, row_id: int, now_ms: int
) -> tuple[KeptRound, ...]:
    """Return the rounds that can be undone by their time, the newest first."""
    rounds = connection.execute(
        select(schema.UNDO_ROUNDS).where(_R.partition_id == row_id).order_by(_R.number.desc())
    ).mappings()
    found: list[KeptRound] = []
    for row in rounds:
        if row["until_ms"] <= now_ms:
            break
        number = int(row["number"])
        swaps = connection.execute(
            select(_S.base_offset, _S.sources, _S.outputs)
            .where(_S.partition_id == row_id, _S.number == number)
            .order_by(_S.base_offset)
        ).all()
        segments = connection.execute(
            select(schema.SEGMENTS).where(
                _G.partition_id == row_id, _G.state == SegmentState.REPLACED,
                _G.undo_number == number,
            )
        ).mappings()  # fmt: skip
        found.append(
            KeptRound(
                number, _chunks_of(partition, number, row["chunks"]), row["kept_at_ms"],
                row["until_ms"],
                (row["first_dirty_before"], row["first_dirty_after"]),
                (row["cleaned_for_before"], row["cleaned_for_after"]),
                tuple(_swap_of(partition, *each) for each in swaps),
                {
                    str(each["id"]): read_row(
                        schema.SEGMENTS.name, partition, each["id"], segment_of, each
                    )
                    for each in segments
                },
            )
        )  # fmt: skip
    return tuple(found)


def _chunks_of(partition: TopicPartition, number: int, text: str) -> tuple[str, ...]:
    return read_row(schema.UNDO_ROUNDS.name, partition, f"number {number}", chunks_of, text)


def _swap_of(partition: TopicPartition, base_offset: int, sources: str, outputs: str) -> KeptSwap:
    name = schema.UNDO_SWAPS.name
    return read_row(name, partition, f"base_offset {base_offset}", kept_swap_of, sources, outputs)


def _delete_swap(connection: Connection, row_id: int, number: int, swap: KeptSwap) -> None:
    connection.execute(
        delete(schema.UNDO_SWAPS).where(
            _S.partition_id == row_id, _S.number == number, _S.base_offset == swap.base_offset
        )
    )


class UndoRows:
    """What a store's partitions keep; see :attr:`.metadata_store.MetadataStore.undo_rows`."""

    def __init__(self, transactions: Transactions) -> None:
        """Change a store by its transactions."""
        self._transactions = transactions

    def kept(self, partition: TopicPartition) -> tuple[PartitionState, tuple[KeptRound, ...]]:
        """Return a partition and the rounds that it has kept, the newest first, of one moment."""
        now_ms = self._transactions.clock.now_ms()
        with self._transactions.reading() as connection:
            state = load_state(connection, find_partition(connection, partition))
            return state, read_kept(connection, partition, state.row_id, now_ms)

    def sweep(self, partition: TopicPartition, *, epoch: int) -> None:
        """Let go, as the owner, what its time is over for."""
        now_ms = self._transactions.clock.now_ms()
        with self._transactions.reading() as connection:
            row = find_partition(connection, partition)
            over = connection.execute(
                _NEWEST.where(_R.partition_id == row["id"], _R.until_ms <= now_ms)
            ).scalar()
        if over is not None:
            with self._transactions.owned(partition, epoch) as (connection, row):
                drop_kept(connection, int(row["id"]), up_to=int(over))

    def drop(self, partition: TopicPartition, *, epoch: int) -> int:
        """Let all of a partition go before its time, as the owner; returns how many rounds."""
        with self._transactions.reading() as connection:
            row = find_partition(connection, partition)
            if connection.execute(_NEWEST.where(_R.partition_id == row["id"])).scalar() is None:
                return 0
        with self._transactions.owned(partition, epoch) as (connection, row):
            return drop_kept(connection, int(row["id"]))

    def put_back(
        self, known: PartitionState, commit_id: str, number: int, *, grace_ms: int,
        allowed: Callable[[str | None], None], anchor: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Undo the newest round of ``known``, which this process holds; ``number`` is the round's.

        What it left waits out the grace; ``anchor`` is as of a swap. ``allowed`` is given the text
        of the store's erasure requests, None for no row, and raises what forbids it. ConflictError
        when anything has changed since ``known`` was read, RefusedError when its time is over.
        """
        with self._transactions.committing(
            known.partition, commit_id, known.leader_epoch, "undo"
        ) as (connection, row):
            now_ms = self._transactions.clock.now_in(connection)
            allowed(find_fact(connection, ERASURES, locks=True))
            state = check_unchanged(load_state(connection, row), known)
            kept = read_kept(connection, known.partition, state.row_id, now_ms)
            if not kept or kept[0].number != number or find_bar(state, kept[0]) is not None:
                raise RefusedError(
                    "the round cannot be undone any more: its time is over. "
                    f"partition={known.partition}",
                    code="K605",
                )
            if anchor is not None:
                raise_fact(connection, *anchor)
            self._put_back(connection, row, state, kept[0], commit_id, now_ms, grace_ms)

    def _put_back(
        self, connection: Connection, row: RowMapping, state: PartitionState, kept: KeptRound,
        commit_id: str, now_ms: int, grace_ms: int,
    ) -> None:  # fmt: skip
        """Write what is read again, what is not, and how far it is clean."""
        back = list(kept.segments.values())
        changed = connection.execute(
            update(schema.SEGMENTS)
            .where(_G.id.in_(list(kept.segments)), _G.state == SegmentState.REPLACED)
            .values(
                state=SegmentState.LIVE, state_since_ms=now_ms, not_before_ms=None,
                replaced_by=None, undo_number=None,
            )
        )  # fmt: skip
        invariant(changed.rowcount == len(back), f"sources were collected. round={kept.round}")
        change_routes(connection, row, state, routes_back(state, kept), back)
        gone = [each for each in kept.output_ids if each in state.segments]
        retire_segments(connection, gone, commit_id, now_ms=now_ms, grace_ms=grace_ms)
        # As of a log that was replaced: the number shows who cleans what was there.
        first_dirty = max(kept.first_dirty[0], state.log_start)
        claim = partition_state.renewed(
            state.publications, epoch=state.leader_epoch, cleaned_to=first_dirty
        )
        renew_publications(connection, state.row_id, claim)
        before, after = kept.cleaned_for
        if state.cleaned_for == after:
            connection.execute(
                update(schema.PARTITIONS)
                .where(schema.PARTITIONS.c.id == state.row_id)
                .values(cleaned_for=before)
            )
        ours = _R.partition_id == state.row_id, _R.number == kept.number
        connection.execute(delete(schema.UNDO_ROUNDS).where(*ours))
        of_round = _S.partition_id == state.row_id, _S.number == kept.number
        connection.execute(delete(schema.UNDO_SWAPS).where(*of_round))
