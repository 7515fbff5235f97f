"""The decision log of attached partitions: who may decide, what was decided, which ids are ours.

What a reader must not break:

1. Whatever is changed for a partition locks its row first and compares epoch and holder with it, in
   the same transaction. For an older epoch, or another holder, it is a FencedError and nothing is
   changed. An epoch is never used twice.
2. A segment id stands here before anything is written or announced under it, so that what a crash
   leaves is known as ours. A decision stands here before anything of it is published.
3. A decision goes on one way: decided, published, collecting, collected. When the answer of the
   transaction that decides is lost, the decision is looked up by its id under the lock.
4. Nothing is removed but ids that were discarded, and decisions that were collected, long ago.

Source: tiering.md section 8.2.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, RowMapping, insert, select, update
from sqlalchemy import delete as delete_rows

from keeplast.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    InvalidError,
    InvariantError,
    StoppedError,
    UnavailableError,
    invariant,
)
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.decision_rows import (
    DecisionCounts,
    attached_of,
    decision_of,
    find_row,
    holds_of,
    insert_row,
    leftovers,
    lock_row,
    of_segment,
    open_decisions,
    own_of,
    prune_rows,
    require_row_unheld,
    restore_rows,
    seen_columns,
    segment_text,
    segment_texts,
    take_rows,
)
from keeplast.tier.metadata.facts import Anchor, FoldRows, OpenedTables
from keeplast.tier.metadata.rows import raise_fact
from keeplast.tier.objects.filters import KEY_BYTES, KEY_FACT, FilterKey
from keeplast.tier.state.attached import (
    Attached,
    AttachedName,
    Decision,
    DecisionState,
    MetadataPoint,
    OwnSegment,
)
from keeplast.tier.state.holder import Holder

STORE_ID = "attach-id"
"""The fact that owner objects use as the name of this decision log."""
KEPT_MS = 7 * 24 * 60 * 60 * 1000
"""How long a discarded id is remembered.

A process that may still write under it was fenced long before.
"""
PRUNED_MAX = 100
_A, _D, _S = schema.ATTACHED.c, schema.DECISIONS.c, schema.OWN_SEGMENTS.c


class DecisionLog(OpenedTables):
    """The decision log of one store. Safe for several threads and, by the database, hosts."""

    @property
    def folds(self) -> FoldRows:
        """Return what is kept of metadata topics next to the decisions: a cache."""
        return FoldRows(self._transactions)

    @property
    def counts(self) -> DecisionCounts:
        """Return what is known of all partitions at once."""
        return DecisionCounts(self._transactions.reading)

    def store_id(self) -> str:
        """Return the id of this decision log; it is made at the first question."""
        return self.facts.made(STORE_ID, lambda: os.urandom(KEY_BYTES).hex())

    def filter_key(self) -> FilterKey:
        """Return the key that filters of segments hash with; it is made at the first question."""
        made = self.facts.made(KEY_FACT, lambda: secrets.token_hex(KEY_BYTES))
        return FilterKey.of_fact(made)

    def find_filter_key(self) -> FilterKey | None:
        """Return the same key, None when it was never asked for; for callers that write nothing."""
        found = self.facts.find(KEY_FACT)
        return None if found is None else FilterKey.of_fact(found)

    # Partitions.

    def partitions(self, cluster_id: str) -> tuple[Attached, ...]:
        """Return what is or was attached of a cluster, by topic, id and number."""
        query = select(schema.ATTACHED).where(_A.cluster_id == cluster_id)
        with self._transactions.reading() as connection:
            found = connection.execute(query.order_by(_A.topic, _A.topic_id, _A.partition))
            rows = found.mappings().all()
            holds = holds_of(connection, *rows)
            return tuple(attached_of(row, holds) for row in rows)

    def find(self, name: AttachedName) -> Attached | None:
        """Return a partition as it stands, None when it never was attached."""
        with self._transactions.reading() as connection:
            row = find_row(connection, name)
            return None if row is None else attached_of(row, holds_of(connection, row))

    def attach(self, name: AttachedName, seen: MetadataPoint, *, cleaned_to: int) -> Attached:
        """Write the partition down, at epoch 0, unless it is there; return it."""
        try:
            with self._transactions.writing() as connection:
                if find_row(connection, name) is None:
                    now_ms = self._transactions.time.now_ms(connection)
                    insert_row(connection, name, seen, cleaned_to=cleaned_to, now_ms=now_ms)
        except ConflictError:
            pass  # Somebody else was first.
        found = self.find(name)
        if found is None:
            raise InvariantError(
                f"a partition that was attached is not there. partition={name}", code="K901"
            )
        return found

    def claim(self, known: Attached, *, epoch: int) -> Attached:
        """Hold the partition at ``epoch``, which must be greater than the row's.

        ConflictError when it was claimed since ``known`` was read. A detached one becomes attached.
        """
        with self._transactions.writing() as connection:
            row = _lock(connection, known)
            holder = None if known.holder is None else known.holder.id
            if (int(row["epoch"]), row["holder"]) != (known.epoch, holder):
                raise ConflictError(
                    f"another process took the partition over first. partition={known.name}",
                    code="K331",
                )
            invariant(
                epoch > int(row["epoch"]),
                f"an epoch is used again. partition={known.name} epoch={epoch}",
            )
            now_ms = self._transactions.time.now_ms(connection)
            self._set(
                connection, known, epoch=epoch, holder=self.holder.id, held_since_ms=now_ms,
                holder_process=self.holder.to_json(), detached_ms=None,
            )  # fmt: skip
        return self._reread(known)

    def give_back(self, held: Attached) -> None:
        """Hold the partition no more, in good order; nothing happens when it was taken over."""
        with self._transactions.writing() as connection:
            row = _lock(connection, held)
            if _is_held(row, held, self.holder):
                self._set(connection, held, held_since_ms=None)

    def set_paused(self, known: Attached, *, is_paused: bool) -> None:
        """Stop or let go on every process that works on the partition, the holder too."""
        with self._transactions.writing() as connection:
            row = _lock(connection, known)
            since = row["paused_ms"] or self._transactions.time.now_ms(connection)
            self._set(connection, known, paused_ms=since if is_paused else None)

    def detach(self, held: Attached) -> None:
        """Give the partition up; ConflictError while a decision or an id of it is not settled."""
        with self._owned(held) as (connection, _):
            for what, query in (
                ("decisions", open_decisions(held)),
                ("ids", leftovers(held)),
            ):
                if connection.execute(query.limit(1)).first() is not None:
                    raise ConflictError(
                        f"the partition has {what} that are not settled: repair and collect it "
                        f"first. partition={held.name}",
                        code="K434",
                    )
            now_ms = self._transactions.time.now_ms(connection)
            self._set(connection, held, detached_ms=now_ms, held_since_ms=None)

    def forget(self, known: Attached) -> None:
        """End a partition that has nothing left to do: its topic is gone, or it never was ours.

        What is written down of it stays; a process that still holds it may do nothing more.
        """
        with self._transactions.writing() as connection:
            _lock(connection, known)
            now_ms = self._transactions.time.now_ms(connection)
            self._set(connection, known, detached_ms=now_ms, held_since_ms=None)

    def note_seen(self, held: Attached, seen: MetadataPoint) -> None:
        """Remember how far the metadata topic was seen; never back."""
        with self._owned(held) as (connection, row):
            if seen.offset > int(row["metadata_offset"]):
                self._set(connection, held, **seen_columns(seen))

    def accept_seen(self, held: Attached, seen: MetadataPoint) -> None:
        """Take another metadata topic for the right one, because somebody has said so."""
        with self._owned(held) as (connection, _):
            self._set(connection, held, **seen_columns(seen))

    def advance(self, held: Attached, cleaned_to: int, anchor: Anchor | None = None) -> None:
        """Write down how far the partition is clean, where all of it was so already; never back.

        ``anchor`` is raised in the same transaction. ConflictError when a hold that is in force by
        now lies below that.
        """
        with self._owned(held) as (connection, row):
            if cleaned_to > int(row["cleaned_to"]):
                require_row_unheld(connection, row, cleaned_to, self.clock)
                cleaned_for = max(cleaned_to, int(row["cleaned_for"]))
                self._set(connection, held, cleaned_to=cleaned_to, cleaned_for=cleaned_for)
            _raise(connection, anchor)

    def note_cleaned_for(self, held: Attached, end: int) -> None:
        """Write down how far rounds may have gone, whether or not they did; never back."""
        with self._owned(held) as (connection, row):
            self._set(connection, held, cleaned_for=max(end, int(row["cleaned_for"])))

    def check(self, held: Attached) -> None:
        """Raise FencedError unless this process holds the partition at this epoch."""
        with self._owned(held):
            pass

    # Ids.

    def register(self, held: Attached, ids: Sequence[tuple[bytes, int]]) -> None:
        """Write down fresh segment ids, each with its start offset, before anything is written.

        ConflictError when one was given out before.
        """
        with self._owned(held) as (connection, _):
            now_ms = self._transactions.time.now_ms(connection)
            for segment_id, start_offset in ids:
                connection.execute(
                    insert(schema.OWN_SEGMENTS).values(
                        attached_id=held.row_id, segment_id=encode_id(segment_id),
                        start_offset=start_offset, epoch=held.epoch, at_ms=now_ms, is_discarded=0,
                    )
                )  # fmt: skip

    def note_announced(self, held: Attached, segment: RemoteLogSegment) -> None:
        """Write down what will be announced; InvariantError for an id that may not be, or again."""
        with self._owned(held) as (connection, _):
            mine = of_segment(held, segment.id.segment_id)
            changed = connection.execute(
                update(schema.OWN_SEGMENTS)
                .where(*mine, _S.announced.is_(None), _S.is_discarded == 0)
                .values(announced=segment_text(segment))
            )
            invariant(
                changed.rowcount == 1,
                "a segment id is announced that was not given out, or was announced before. "
                f"segment={encode_id(segment.id.segment_id)}",
            )

    def own_segments(self, known: Attached, *, only_left: bool = False) -> tuple[OwnSegment, ...]:
        """Return the ids that were given out, or those alone that no decision has."""
        query = leftovers(known)
        if not only_left:
            query = select(schema.OWN_SEGMENTS).where(_S.attached_id == known.row_id)
        with self._transactions.reading() as connection:
            rows = connection.execute(query.order_by(_S.at_ms, _S.segment_id)).mappings()
            return tuple(own_of(row) for row in rows)

    def mark_discarded(self, held: Attached, segment_ids: Sequence[bytes]) -> None:
        """Write down that nothing of these is left; ConflictError for one that was decided."""
        with self._owned(held) as (connection, _):
            for segment_id in segment_ids:
                changed = connection.execute(
                    update(schema.OWN_SEGMENTS)
                    .where(*of_segment(held, segment_id), _S.decision_id.is_(None))
                    .values(is_discarded=1)
                )
                if changed.rowcount != 1:
                    raise ConflictError(
                        f"a segment is part of a decision. segment={encode_id(segment_id)}",
                        code="K447",
                    )
            before_ms = self._transactions.time.now_ms(connection) - KEPT_MS
            old = select(_S.segment_id).where(
                _S.attached_id == held.row_id, _S.is_discarded == 1, _S.at_ms < before_ms
            )
            gone = [each for (each,) in connection.execute(old.limit(PRUNED_MAX))]
            if gone:
                connection.execute(
                    delete_rows(schema.OWN_SEGMENTS).where(
                        _S.attached_id == held.row_id, _S.segment_id.in_(gone)
                    )
                )

    # Decisions.

    def decide(
        self, held: Attached, decision: Decision, cleaned_for: int | None = None,
        anchor: Anchor | None = None,
    ) -> None:  # fmt: skip
        """Write a decision down. From here on it will be published, by this process or a later one.

        ``cleaned_for`` is where its round ends, exclusive, whose records have decided what is left;
        None is the end of its sources. ``anchor`` is raised in the same transaction: there is no
        decision without it. FencedError and StoppedError (paused) leave nothing.

        ConflictError in each of these cases: a source is one of another decision already; an output
        is not ours to decide; an earlier decision is not published. Also when a hold that is in
        force by now lies below where the round ends, or the answer was lost and nothing was
        written.
        """
        end = cleaned_for
        if end is None:
            end = max(each.end_offset for each in decision.sources) + 1
        try:
            with self._owned(held) as (connection, row):
                _check_running(row, held)
                take_rows(connection, held, decision)
                _raise(connection, anchor)
                require_row_unheld(connection, row, end, self.clock)
                self._set(connection, held, cleaned_for=max(end, int(row["cleaned_for"])))
                connection.execute(
                    insert(schema.DECISIONS).values(
                        id=decision.id, attached_id=held.row_id, epoch=held.epoch,
                        state=DecisionState.DECIDED.value, sources=segment_texts(decision.sources),
                        outputs=segment_texts(decision.outputs), cleaned_to=decision.cleaned_to,
                        metadata_partition=decision.metadata_partition,
                        floor_offset=decision.floor_offset,
                        decided_ms=self._transactions.time.now_ms(connection),
                        keep_ms=decision.keep_ms, first_dirty=decision.first_dirty,
                        expires_below=decision.expires_below,
                    )
                )  # fmt: skip
        except CommitUnknownError as unknown:
            try:
                with self._transactions.waiting() as connection:
                    # What is still under way in the server holds the row until it is over.
                    _lock(connection, held)
                    there = connection.execute(select(_D.id).where(_D.id == decision.id)).first()
            except UnavailableError:
                raise unknown from None
            if there is None:
                raise ConflictError(
                    f"nothing was decided; what it belongs to is done again. id={decision.id}",
                    code="K426",
                ) from unknown

    def decisions(self, known: Attached, *states: DecisionState) -> tuple[Decision, ...]:
        """Return decisions in the order in which they were made, of these states or all."""
        query = select(schema.DECISIONS).where(_D.attached_id == known.row_id)
        if states:
            query = query.where(_D.state.in_([each.value for each in states]))
        with self._transactions.reading() as connection:
            # One is published before the next is made: floors ascend.
            rows = connection.execute(query.order_by(_D.floor_offset, _D.epoch)).mappings()
            return tuple(decision_of(row, known.name) for row in rows)

    def mark_published(
        self, held: Attached, decision: Decision, *, first_offset: int, last_offset: int,
        cleaned_to: int,
    ) -> None:  # fmt: skip
        """Write down where the batch lies, and how far the partition is clean by it."""
        states = tuple(DecisionState)
        with self._moving(held, decision, DecisionState.PUBLISHED, *states) as (connection, values):
            values |= {"first_offset": first_offset, "last_offset": last_offset}
            if decision.state is DecisionState.DECIDED:
                values["published_ms"] = self._transactions.time.now_ms(connection)
                self._set(connection, held, cleaned_to=cleaned_to)
            else:
                # Published once more: what was begun with its sources goes on.
                values["state"] = decision.state.value

    def mark_collecting(self, held: Attached, decision: Decision) -> None:
        """Write down that its sources are about to go; StoppedError while paused."""
        states = (DecisionState.PUBLISHED, DecisionState.COLLECTING)
        with self._moving(held, decision, DecisionState.COLLECTING, *states) as (connection, _):
            _check_running(_lock(connection, held), held)

    def mark_collected(
        self, held: Attached, decision: Decision, anchor: Anchor | None = None
    ) -> None:
        """Write down that its sources are gone, objects and all; ``anchor`` as of a decision."""
        states = (DecisionState.COLLECTING, DecisionState.COLLECTED)
        with self._moving(held, decision, DecisionState.COLLECTED, *states) as (connection, values):
            values["collected_ms"] = self._transactions.time.now_ms(connection)
            _raise(connection, anchor)

    def reopen(self, held: Attached, decision: Decision) -> Decision:
        """Let a decision be collected once more: the cluster has lost that it was."""
        states = (DecisionState.COLLECTED, DecisionState.COLLECTING)
        with self._moving(held, decision, DecisionState.COLLECTING, *states):
            pass
        return replace(decision, state=DecisionState.COLLECTING)

    def prune(self, held: Attached, decision_ids: Sequence[str]) -> None:
        """Remove decisions that are collected, and the ids of their outputs."""
        for at in range(0, len(decision_ids), PRUNED_MAX):
            with self._owned(held) as (connection, _):
                prune_rows(connection, held, decision_ids[at : at + PRUNED_MAX])

    def restore(
        self, held: Attached, decisions: Sequence[Decision], own: Sequence[OwnSegment]
    ) -> None:
        """Write down again what a lost log had; graces of what waits begin now."""
        with self._owned(held) as (connection, _):
            now_ms = self._transactions.time.now_ms(connection)
            restore_rows(connection, held, decisions, own, now_ms)

    @contextmanager
    def _owned(self, held: Attached) -> Iterator[tuple[Connection, RowMapping]]:
        """One transaction of the holder of the partition; FencedError for any other process."""
        with self._transactions.writing() as connection:
            row = _lock(connection, held)
            if not _is_held(row, held, self.holder):
                raise FencedError(
                    "another process has taken the partition over; stop. "
                    f"partition={held.name} epoch={held.epoch} current={row['epoch']}",
                    code="K332",
                )
            yield connection, row

    @contextmanager
    def _moving(
        self, held: Attached, decision: Decision, state: DecisionState, *before: DecisionState
    ) -> Iterator[tuple[Connection, dict[str, Any]]]:
        with self._owned(held) as (connection, _):
            values: dict[str, Any] = {"state": state.value}
            yield connection, values
            changed = connection.execute(
                update(schema.DECISIONS)
                .where(
                    _D.id == decision.id, _D.attached_id == held.row_id,
                    _D.state.in_([each.value for each in before]),
                )
                .values(**values)
            )  # fmt: skip
            if changed.rowcount != 1:
                raise ConflictError(
                    f"a decision is further, or not as far, as it was. id={decision.id}",
                    code="K447",
                )

    def _set(self, connection: Connection, known: Attached, **values: Any) -> None:
        connection.execute(update(schema.ATTACHED).where(_A.id == known.row_id).values(**values))

    def _reread(self, known: Attached) -> Attached:
        found = self.find(known.name)
        if found is None:
            raise InvariantError(
                f"an attached partition is gone. partition={known.name}", code="K901"
            )
        return found


def _lock(connection: Connection, known: Attached) -> RowMapping:
    row = lock_row(connection, known.row_id)
    if row is None:
        raise InvalidError(
            f"the partition is not in the decision log. partition={known.name}", code="K445"
        )
    return row


def _raise(connection: Connection, anchor: Anchor | None) -> None:
    if anchor is not None:
        raise_fact(connection, *anchor)


def _is_held(row: RowMapping, held: Attached, holder: Holder) -> bool:
    return (int(row["epoch"]), row["holder"]) == (held.epoch, holder.id)


def _check_running(row: RowMapping, held: Attached) -> None:
    if row["paused_ms"] is not None:
        raise StoppedError(
            f"the partition is paused; go on with keeplast pause --resume. partition={held.name}",
            code="K421",
        )
