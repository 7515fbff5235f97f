"""Rows of the decision log as values, and counts over all partitions of a cluster.

The rule: **what cannot be read is a CorruptError that names the row**, and nothing is concluded
from it. Segments stand there as they were announced to the cluster, byte for byte.

The counts, what was spent and what waits, serve the choice of what to do next. An act on a
partition reads its rows again.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, RowMapping, bindparam, delete, func, insert, select, update

from keeplast.cleaner.cleanable_range import require_unheld
from keeplast.errors import CompactionError, ConflictError, CorruptError, InvalidError
from keeplast.format.identifier import decode_id, encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogEvent,
    RemoteLogSegment,
    TopicIdPartition,
    decode,
    encode,
)
from keeplast.model.hold import Hold
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.database import StoreClock
from keeplast.tier.metadata.schema import hold_of, holder_of
from keeplast.tier.state.attached import (
    Attached,
    AttachedName,
    Decision,
    DecisionState,
    MetadataPoint,
    OwnSegment,
)

OPEN = (DecisionState.DECIDED, DecisionState.PUBLISHED, DecisionState.COLLECTING)
"""Decisions that leave something to do."""
SEGMENTS_MAX = 1_000
"""Of one decision: its batch must fit a request of the metadata topic, and its row a page."""
SEGMENTS_KNOWN = 4_096
"""Texts that are decoded once: each look at a partition reads all of its rows. A few MiB."""
_S = schema.OWN_SEGMENTS.c

# Queries of every look are put together once: that takes longer than SQLite's answer.
_BY_NAME = select(schema.ATTACHED).where(
    schema.ATTACHED.c.cluster_id == bindparam("cluster_id"),
    schema.ATTACHED.c.topic_id == bindparam("topic_id"),
    schema.ATTACHED.c.partition == bindparam("number"),
)
_BY_NAME_LOCKED = _BY_NAME.with_for_update()
_BY_ROW_LOCKED = (
    select(schema.ATTACHED).where(schema.ATTACHED.c.id == bindparam("row_id")).with_for_update()
)
_HOLDS = select(schema.HOLDS).where(schema.HOLDS.c.attached_id.is_not(None))
_HOLDS_OF_ONE = select(schema.HOLDS).where(schema.HOLDS.c.attached_id == bindparam("row_id"))


def segment_text(segment: RemoteLogSegment) -> str:
    """Return a segment as a row keeps it."""
    return base64.b64encode(encode(segment)).decode("ascii")


def segment_texts(segments: Sequence[RemoteLogSegment]) -> str:
    """Return segments as a row keeps them."""
    return json.dumps([segment_text(each) for each in segments])


def segment_of(text: object, key: object) -> RemoteLogSegment:
    """Return the segment that a row keeps; CorruptError when it cannot be read."""
    try:
        found = _decoded(str(text))
    except (ValueError, CompactionError) as error:
        raise _broken(key, error) from error
    if not isinstance(found, RemoteLogSegment):
        raise _broken(key, "not a segment")
    return found


@functools.lru_cache(SEGMENTS_KNOWN)
def _decoded(text: str) -> RemoteLogEvent:
    return decode(base64.b64decode(text, validate=True))


def segments_of(text: object, key: object) -> tuple[RemoteLogSegment, ...]:
    """Return the segments that a row keeps."""
    try:
        found = json.loads(str(text))
    except ValueError as error:
        raise _broken(key, error) from error
    if not isinstance(found, list) or not 0 < len(found) <= SEGMENTS_MAX:
        raise _broken(key, f"not a list of 1 to {SEGMENTS_MAX} segments")
    return tuple(segment_of(each, key) for each in found)


def _broken(key: object, problem: object) -> CorruptError:
    return CorruptError(
        "a row of the decision log cannot be read; put it back from a backup. "
        f"key={key} problem={problem}",
        code="K328",
    )


def find_row(
    connection: Connection, name: AttachedName, *, locks: bool = False
) -> RowMapping | None:
    """Return the row of a partition, locked for a change; None when there is none."""
    asked = {
        "cluster_id": name.cluster_id, "topic_id": encode_id(name.partition.topic_id),
        "number": name.partition.partition,
    }  # fmt: skip
    return connection.execute(_BY_NAME_LOCKED if locks else _BY_NAME, asked).mappings().first()


def lock_row(connection: Connection, row_id: int) -> RowMapping | None:
    """Return the row of this id, locked for a change; None when there is none."""
    return connection.execute(_BY_ROW_LOCKED, {"row_id": row_id}).mappings().first()


def insert_row(
    connection: Connection, name: AttachedName, seen: MetadataPoint, *, cleaned_to: int,
    now_ms: int, detached_ms: int | None = None,
) -> None:  # fmt: skip
    """Write a partition down that no process has claimed yet, at epoch 0."""
    connection.execute(
        insert(schema.ATTACHED).values(
            cluster_id=name.cluster_id, topic=name.partition.topic,
            topic_id=encode_id(name.partition.topic_id), partition=name.partition.partition,
            epoch=0, cleaned_to=cleaned_to, attached_ms=now_ms, detached_ms=detached_ms,
            **seen_columns(seen),
        )
    )  # fmt: skip


def holds_of(connection: Connection, *rows: RowMapping) -> dict[int, tuple[Hold, ...]]:
    """Return the holds of the partitions of ``rows``, also those that are over, by row id."""
    partitions = {int(row["id"]): TopicPartition(row["topic"], row["partition"]) for row in rows}
    rows_found = (
        connection.execute(_HOLDS_OF_ONE, {"row_id": next(iter(partitions))})
        if len(partitions) == 1
        else connection.execute(_HOLDS)
    )
    found: dict[int, tuple[Hold, ...]] = {}
    for each in rows_found.mappings():
        number = each["attached_id"]
        if number in partitions:
            try:
                held = hold_of(partitions[number], each)
            except (ValueError, TypeError, CompactionError) as error:
                raise _broken(f"hold {each['id']}", error) from error
            found[number] = (*found.get(number, ()), held)
    return found


def seen_columns(seen: MetadataPoint) -> dict[str, object]:
    """Return how far the metadata topic was seen as a row keeps it."""
    return {
        "metadata_topic_id": encode_id(seen.topic_id),
        "metadata_partition_count": seen.partition_count,
        "metadata_offset": seen.offset,
        "metadata_leader_epoch": seen.leader_epoch,
        "metadata_digest": seen.digest,
    }


def attached_of(row: RowMapping, holds: Mapping[int, tuple[Hold, ...]]) -> Attached:
    """Return a partition as its row has it, with its own of ``holds``, which go by row id."""
    try:
        partition = TopicIdPartition(row["topic"], decode_id(row["topic_id"]), row["partition"])
        return Attached(
            row_id=row["id"], name=AttachedName(row["cluster_id"], partition), epoch=row["epoch"],
            holder=holder_of(row), held_since_ms=row["held_since_ms"], paused_ms=row["paused_ms"],
            detached_ms=row["detached_ms"], attached_ms=row["attached_ms"],
            cleaned_to=row["cleaned_to"],
            seen=MetadataPoint(
                topic_id=decode_id(row["metadata_topic_id"]),
                partition_count=row["metadata_partition_count"], offset=row["metadata_offset"],
                leader_epoch=row["metadata_leader_epoch"], digest=row["metadata_digest"],
            ),
            cleaned_for=int(row["cleaned_for"]), holds=holds.get(row["id"], ()),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, CompactionError) as error:
        raise _broken(row["id"], error) from error


def own_of(row: RowMapping) -> OwnSegment:
    """Return a segment id that was given out as its row has it."""
    key = row["segment_id"]
    try:
        segment_id = decode_id(key)
    except (TypeError, CompactionError) as error:
        raise _broken(key, error) from error
    text = row["announced"]
    return OwnSegment(
        segment_id=segment_id, start_offset=row["start_offset"], epoch=row["epoch"],
        at_ms=row["at_ms"], announced=None if text is None else segment_of(text, key),
        decision_id=row["decision_id"], is_discarded=bool(row["is_discarded"]),
    )  # fmt: skip


def decision_of(row: RowMapping, name: AttachedName) -> Decision:
    """Return a decision as its row has it."""
    key = row["id"]
    try:
        state = DecisionState(row["state"])
    except ValueError as error:
        raise _broken(key, error) from error
    return Decision(
        id=key, name=name, epoch=row["epoch"], state=state,
        sources=segments_of(row["sources"], key), outputs=segments_of(row["outputs"], key),
        cleaned_to=row["cleaned_to"], metadata_partition=row["metadata_partition"],
        floor_offset=row["floor_offset"], decided_ms=row["decided_ms"],
        published_ms=row["published_ms"], collected_ms=row["collected_ms"],
        first_offset=row["first_offset"], last_offset=row["last_offset"],
        keep_ms=row["keep_ms"] or 0, first_dirty=row["first_dirty"] or 0,
        expires_below=row["expires_below"] or 0,
    )  # fmt: skip


def prune_rows(connection: Connection, held: Attached, decision_ids: Sequence[str]) -> None:
    """Delete collected decisions of a partition, and what was written down of their outputs."""
    decisions, ids = schema.DECISIONS.c, schema.OWN_SEGMENTS.c
    collected = select(decisions.id).where(
        decisions.attached_id == held.row_id, decisions.id.in_(decision_ids),
        decisions.state == DecisionState.COLLECTED.value,
    )  # fmt: skip
    found = [each for (each,) in connection.execute(collected)]
    connection.execute(
        delete(schema.OWN_SEGMENTS).where(
            ids.attached_id == held.row_id, ids.decision_id.in_(found)
        )
    )
    connection.execute(delete(schema.DECISIONS).where(decisions.id.in_(found)))


def open_decisions(known: Attached) -> Any:
    """Return the query for the decisions that leave something to do."""
    found = schema.DECISIONS.c
    return select(schema.DECISIONS).where(
        found.attached_id == known.row_id, found.state.in_([each.value for each in OPEN])
    )


def leftovers(known: Attached) -> Any:
    """Return the query for the ids that were given out and that no decision has."""
    found = schema.OWN_SEGMENTS.c
    return select(schema.OWN_SEGMENTS).where(
        found.attached_id == known.row_id, found.decision_id.is_(None), found.is_discarded == 0
    )


def of_segment(held: Attached, segment_id: bytes) -> tuple[Any, Any]:
    """Return what the row of a segment id of ``held`` is found by."""
    found = schema.OWN_SEGMENTS.c
    return found.attached_id == held.row_id, found.segment_id == encode_id(segment_id)


def take_rows(connection: Connection, held: Attached, decision: Decision) -> None:
    """Let the outputs of a decision that is about to be made be its own.

    ConflictError while an earlier decision is not published, for a source that another one has
    replaced, and for an output that was not announced at this epoch. InvalidError for too many
    segments.
    """
    if max(len(decision.sources), len(decision.outputs)) > SEGMENTS_MAX:
        raise InvalidError(
            f"a decision has at most {SEGMENTS_MAX} segments; take fewer", code="K447"
        )
    replaced: set[bytes] = set()
    for found in connection.execute(open_decisions(held)).mappings():
        if found["state"] == DecisionState.DECIDED.value:
            raise ConflictError(
                f"an earlier decision is not published; repair first. id={found['id']}", code="K426"
            )
        replaced |= {each.id.segment_id for each in segments_of(found["sources"], found["id"])}
    taken = [each for each in decision.sources if each.id.segment_id in replaced]
    if taken:
        raise ConflictError(
            "a source is replaced by another decision. "
            f"segment={encode_id(taken[0].id.segment_id)}",
            code="K447",
        )
    for each in decision.outputs:
        changed = connection.execute(
            update(schema.OWN_SEGMENTS)
            .where(
                *of_segment(held, each.id.segment_id), _S.announced.is_not(None),
                _S.epoch == held.epoch, _S.decision_id.is_(None), _S.is_discarded == 0,
            )
            .values(decision_id=decision.id)
        )  # fmt: skip
        if changed.rowcount != 1:
            raise ConflictError(
                "an output was not announced at this epoch, or is decided already. "
                f"segment={encode_id(each.id.segment_id)}",
                code="K447",
            )


def require_row_unheld(
    connection: Connection, row: RowMapping, end: int, clock: StoreClock
) -> None:
    """Raise ConflictError when a hold of a locked row lies below where a round ends."""
    holds = holds_of(connection, row).get(int(row["id"]), ())
    if holds:
        require_unheld(
            holds[0].partition, holds, clock.now_in(connection), end=end,
            first_dirty=int(row["cleaned_to"]),
        )  # fmt: skip


def restore_rows(
    connection: Connection, held: Attached, decisions: Sequence[Decision],
    own: Sequence[OwnSegment], now_ms: int,
) -> None:  # fmt: skip
    """Insert decisions that were published, and ids; an id that is there gets its decision."""
    for each in decisions:
        is_collected = each.state is DecisionState.COLLECTED
        connection.execute(
            insert(schema.DECISIONS).values(
                id=each.id, attached_id=held.row_id, epoch=each.epoch, state=each.state.value,
                sources=segment_texts(each.sources), outputs=segment_texts(each.outputs),
                cleaned_to=each.cleaned_to, metadata_partition=each.metadata_partition,
                floor_offset=each.floor_offset, first_offset=each.first_offset,
                last_offset=each.last_offset, decided_ms=each.decided_ms,
                published_ms=each.decided_ms if is_collected else now_ms,
                collected_ms=now_ms if is_collected else None,
            )
        )  # fmt: skip
    ids = schema.OWN_SEGMENTS.c
    for segment in own:
        name = encode_id(segment.segment_id)
        changed = connection.execute(
            update(schema.OWN_SEGMENTS)
            .where(ids.attached_id == held.row_id, ids.segment_id == name)
            .values(decision_id=segment.decision_id, is_discarded=0)
        )
        if changed.rowcount:
            continue
        connection.execute(
            insert(schema.OWN_SEGMENTS).values(
                attached_id=held.row_id, segment_id=name, start_offset=segment.start_offset,
                epoch=segment.epoch, at_ms=segment.at_ms, decision_id=segment.decision_id,
                announced=None if segment.announced is None else segment_text(segment.announced),
                is_discarded=0,
            )
        )  # fmt: skip


_A, _D = schema.ATTACHED.c, schema.DECISIONS.c


class Decided(Struct, frozen=True):
    """Swaps that were decided since some time, and their segments, replaced and new.

    ``taken_back`` are ids that were announced since then and that no decision has.
    """

    swaps: int
    segments: int
    taken_back: int


class Waiting(Struct, frozen=True):
    """What is left to do for a partition.

    ``is_undone`` says that something was begun and not ended. ``published`` are swaps whose sources
    are not collected: when they were published, and for how long they keep them at least.
    """

    is_undone: bool
    published: tuple[tuple[int, int], ...]

    def is_collectable(self, grace_ms: int, now_ms: int) -> bool:
        """Say whether the grace of a swap's sources has passed."""
        return any(at_ms + max(grace_ms, keep_ms) <= now_ms for at_ms, keep_ms in self.published)


class DecisionCounts:
    """Counts of one decision log."""

    def __init__(self, reading: Callable[[], AbstractContextManager[Connection]]) -> None:
        """Take what begins a transaction that only reads."""
        self._reading = reading

    def decided_since(self, cluster_id: str, since_ms: int) -> Decided:
        """Return what was decided of a cluster at or after ``since_ms``."""
        # Segments are strings of a JSON list without a quote in them: each has two around it.
        both = _D.sources + _D.outputs
        quotes = func.length(both) - func.length(func.replace(both, '"', ""))
        decided = (
            select(func.count(), func.coalesce(func.sum(quotes), 0))
            .select_from(schema.DECISIONS)
            .join(schema.ATTACHED, _A.id == _D.attached_id)
            .where(_A.cluster_id == cluster_id, _D.decided_ms >= since_ms)
        )
        taken_back = (
            select(func.count())
            .select_from(schema.OWN_SEGMENTS)
            .join(schema.ATTACHED, _A.id == _S.attached_id)
            .where(
                _A.cluster_id == cluster_id, _S.at_ms >= since_ms, _S.decision_id.is_(None),
                _S.announced.is_not(None),
            )
        )  # fmt: skip
        with self._reading() as connection:
            swaps, found = connection.execute(decided).one()
            count = int(connection.execute(taken_back).scalar() or 0)
        return Decided(int(swaps), int(found) // 2, count)

    def with_ids(self, cluster_id: str) -> set[int]:
        """Return the rows of partitions under which an id was ever given out."""
        query = (
            select(_S.attached_id)
            .distinct()
            .join(schema.ATTACHED, _A.id == _S.attached_id)
            .where(_A.cluster_id == cluster_id)
        )
        with self._reading() as connection:
            return {row_id for (row_id,) in connection.execute(query)}

    def waiting(self, cluster_id: str) -> dict[int, Waiting]:
        """Return what is left to do, by the partition's row."""
        decisions = (
            select(_D.attached_id, _D.state, _D.published_ms, _D.keep_ms)
            .join(schema.ATTACHED, _A.id == _D.attached_id)
            .where(
                _A.cluster_id == cluster_id, _D.state.in_([each.value for each in OPEN])
            )
        )  # fmt: skip
        leftovers = (
            select(_S.attached_id)
            .distinct()
            .join(schema.ATTACHED, _A.id == _S.attached_id)
            .where(
                _A.cluster_id == cluster_id, _S.decision_id.is_(None), _S.is_discarded == 0
            )
        )  # fmt: skip
        undone: set[int] = set()
        published: dict[int, list[tuple[int, int]]] = {}
        with self._reading() as connection:
            for row_id, state, published_ms, keep_ms in connection.execute(decisions):
                if state == DecisionState.DECIDED.value:
                    undone.add(row_id)
                else:
                    published.setdefault(row_id, []).append(
                        (int(published_ms or 0), int(keep_ms or 0))
                    )
            undone.update(row_id for (row_id,) in connection.execute(leftovers))
        return {
            each: Waiting(each in undone, tuple(sorted(published.get(each, ()))))
            for each in undone | published.keys()
        }
