"""Reads and writes the rows of the metadata store; each call is part of its caller's transaction.

What a row says as a value is :mod:`.schema`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import (
    Connection,
    RowMapping,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from keeplast.errors import ConflictError, InvalidError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.schema import (
    BrokenRowError,
    epoch_of,
    find_fact,
    hold_of,
    holder_of,
    id_of,
    json_text,
    offsets_of,
    publication_of,
    read_row,
    route_of,
    segment_columns,
    segment_of,
    settings_of,
    visits_of,
    whole,
    write_fact,
)
from keeplast.tier.state.continuity import Visits
from keeplast.tier.state.partition_state import PartitionState, Publication
from keeplast.tier.state.segment import RemoteSegment, Route, SegmentState, check_routes

_T = TypeVar("_T")

NO_PART = (0, -1)
"""Of the routes the last one alone: what most commits have to see."""
KEPT_MS = 7 * 24 * 60 * 60 * 1000
"""How long the outcome of a commit can be looked up, and the id of a deleted segment is refused.

A process that may still come with one of them was fenced long before: a transaction lives for
minutes.
"""
PRUNED_MAX = 10
"""Of old rows a change takes so many away and adds one: what is kept is bounded, and no change has
to wait for the others' past."""
IDS_MAX = 500
"""So many values a statement names at most: databases have limits."""
DIRECTORIES_MAX = 8
"""Of so many directories, the newest, it is remembered how they were cleaned."""


# What is asked for again and again is built once: that is a quarter of what asking costs.

_PARTITION = select(schema.PARTITIONS).where(
    schema.PARTITIONS.c.topic == bindparam("topic"),
    schema.PARTITIONS.c.partition == bindparam("partition"),
)
_HOLDS = select(schema.HOLDS).where(schema.HOLDS.c.partition_id == bindparam("number"))
_PARTITION_LOCKED = _PARTITION.with_for_update()
_COMMIT = select(schema.COMMITS.c.version).where(schema.COMMITS.c.id == bindparam("id"))
_LINEAGE = (
    select(schema.LINEAGE.c.epoch, schema.LINEAGE.c.start_offset)
    .where(schema.LINEAGE.c.partition_id == bindparam("number"))
    .order_by(schema.LINEAGE.c.epoch)
)
_PUBLICATIONS = (
    select(schema.PUBLICATIONS.c.epoch, schema.PUBLICATIONS.c.number, schema.PUBLICATIONS.c.offsets)
    .where(schema.PUBLICATIONS.c.partition_id == bindparam("number"))
    .order_by(schema.PUBLICATIONS.c.epoch, schema.PUBLICATIONS.c.number)
)
_ROUTES = (
    select(schema.ROUTING.c.base_offset, schema.ROUTING.c.last_offset, schema.ROUTING.c.segment_id)
    .where(schema.ROUTING.c.partition_id == bindparam("number"))
    .order_by(schema.ROUTING.c.base_offset)
)
_SEGMENTS = (
    select(schema.SEGMENTS)
    .join(schema.ROUTING, schema.ROUTING.c.segment_id == schema.SEGMENTS.c.id)
    .where(schema.ROUTING.c.partition_id == bindparam("number"))
)
_PART = _ROUTES.where(schema.ROUTING.c.base_offset.between(bindparam("first"), bindparam("last")))
_LAST = _ROUTES.order_by(None).order_by(schema.ROUTING.c.base_offset.desc()).limit(1)
_NAMED_SEGMENTS = select(schema.SEGMENTS).where(
    schema.SEGMENTS.c.id.in_(bindparam("segment_ids", expanding=True))
)
_ROUTED = select(
    func.min(schema.ROUTING.c.base_offset), func.max(schema.ROUTING.c.base_offset)
).where(schema.ROUTING.c.segment_id.in_(bindparam("segment_ids", expanding=True)))
"""Ids are the whole store's: by them alone the rows are found without those of the partition."""
_UNROUTE = delete(schema.ROUTING).where(
    schema.ROUTING.c.partition_id == bindparam("number"),
    schema.ROUTING.c.base_offset == bindparam("first"),
)
_BEFORE = (
    _ROUTES.where(schema.ROUTING.c.base_offset < bindparam("first"))
    .order_by(None)
    .order_by(schema.ROUTING.c.base_offset.desc())
    .limit(1)
)
_FROM = _ROUTES.where(schema.ROUTING.c.base_offset >= bindparam("first")).limit(bindparam("count"))
_PRUNE_COMMITS = delete(schema.COMMITS).where(
    schema.COMMITS.c.id.in_(
        select(schema.COMMITS.c.id)
        .where(
            schema.COMMITS.c.partition_id == bindparam("number"),
            schema.COMMITS.c.at_ms < bindparam("before_ms"),
        )
        .order_by(schema.COMMITS.c.at_ms)
        .limit(PRUNED_MAX)
    )
)
_PRUNE_SEGMENTS = delete(schema.SEGMENTS).where(
    schema.SEGMENTS.c.id.in_(
        select(schema.SEGMENTS.c.id)
        .where(
            schema.SEGMENTS.c.partition_id == bindparam("number"),
            schema.SEGMENTS.c.state == SegmentState.DELETED,
            schema.SEGMENTS.c.state_since_ms < bindparam("before_ms"),
        )
        .order_by(schema.SEGMENTS.c.state_since_ms)
        .limit(PRUNED_MAX)
    )
)


def find_partition(
    connection: Connection, partition: TopicPartition, *, locks: bool = False
) -> RowMapping:
    """Return the row of a partition, locked for a change; InvalidError when there is none."""
    partition.checked()
    named = {"topic": partition.topic, "partition": partition.partition}
    query = _PARTITION_LOCKED if locks else _PARTITION
    row = connection.execute(query, named).mappings().first()
    if row is None:
        raise InvalidError(
            f"the partition is not in the store; import or create it. partition={partition}",
            code="K115",
        )
    return row


def find_commit(connection: Connection, commit_id: str) -> int | None:
    """Return the version that a commit made, None when it never happened."""
    found = connection.execute(_COMMIT, {"id": commit_id}).scalar()
    return None if found is None else int(found)


def raise_mark(connection: Connection, token: str, above: int) -> tuple[int, str]:
    """Keep the next mark, greater than ``above`` too; ConflictError when two make the first."""
    found = find_fact(connection, schema.MARK, locks=True)
    number = max(above, 0 if found is None else int(found.partition(" ")[0])) + 1
    write_fact(connection, schema.MARK, f"{number} {token}", is_new=found is None)
    return number, token


def load_state(
    connection: Connection, row: RowMapping, part: tuple[int, int] | None = None,
    *, broken: list[BrokenRowError] | None = None,
) -> PartitionState:  # fmt: skip
    """Return all that is known of the partition whose row this is.

    With ``part``, two offsets, only the routes that begin between them, both inclusive, and the
    last one. What a commit has to see costs what it changes, not what the partition holds.
    BrokenRowError for a row that cannot be read; with ``broken`` it is put there and left out, but
    for what a partition cannot be without.
    """
    number = int(row["id"])
    named = {"number": number}
    lineage = connection.execute(_LINEAGE, named).all()
    publications = connection.execute(_PUBLICATIONS, named).all()
    if part is None:
        routes = connection.execute(_ROUTES, named).all()
        segments = connection.execute(_SEGMENTS, named).mappings()
    else:
        bounds = {**named, "first": part[0], "last": part[1]}
        last = connection.execute(_LAST, named).all()
        routes = sorted({*connection.execute(_PART, bounds).all(), *last})
        ids = {"segment_ids": [route.segment_id for route in routes]}
        segments = connection.execute(_NAMED_SEGMENTS, ids).mappings()
    partition = TopicPartition(row["topic"], row["partition"])

    def kept(table: str, key: object, decode: Callable[..., _T], *values: object) -> list[_T]:
        try:
            return [read_row(table, partition, key, decode, *values)]
        except BrokenRowError as error:
            if broken is None:
                raise
            broken.append(error)
            return []

    def number_of(name: str) -> int:
        return read_row(schema.PARTITIONS.name, partition, name, whole, row[name], name)

    settings = kept(schema.PARTITIONS.name, "settings", settings_of, row["settings"])
    holder = kept(schema.PARTITIONS.name, "holder_process", holder_of, row)
    return PartitionState(
        row_id=number,
        partition=partition,
        topic_id=read_row(
            schema.PARTITIONS.name, partition, "topic_id", id_of, row["topic_id"], "topic_id"
        ),
        leader_epoch=number_of("leader_epoch"),
        owner=row["owner"],
        version=number_of("version"),
        log_start=number_of("log_start"),
        remote_bytes=number_of("remote_bytes"),
        lineage=tuple(
            each
            for r in lineage
            for each in kept(schema.LINEAGE.name, f"epoch {r[0]}", epoch_of, *r)
        ),
        publications=tuple(
            each
            for r in publications
            for each in kept(
                schema.PUBLICATIONS.name, f"epoch {r[0]} number {r[1]}", publication_of, *r
            )
        ),
        routes=tuple(
            each for r in routes
            for each in kept(schema.ROUTING.name, f"base_offset {r[0]}", route_of, *r)
        ),
        segments={
            each.segment_id: each
            for found in segments
            for each in kept(schema.SEGMENTS.name, found["id"], segment_of, found)
        },
        settings=settings[0] if settings else {},
        uncleanable_reason=row["uncleanable_reason"],
        holder=holder[0] if holder else None,
        held_since_ms=row["held_since_ms"],
        forgotten_ms=row["forgotten_ms"],
        cleaned_for=number_of("cleaned_for"),
        holds=tuple(
            each for found in connection.execute(_HOLDS, named).mappings()
            for each in kept(schema.HOLDS.name, found["name"], hold_of, partition, found)
        ),
    )  # fmt: skip


def check_unchanged(state: PartitionState, known: PartitionState) -> PartitionState:
    """Return ``state``; ConflictError when it is not the version that was decided by."""
    if state.version != known.version:
        raise ConflictError(
            f"the partition changed meanwhile; do it again. partition={known.partition}",
            code="K329",
        )
    return state


def raise_version(connection: Connection, row: RowMapping, **values: Any) -> None:
    """Raise the version; ConflictError when a database that does not lock let another one in."""
    changed = connection.execute(
        update(schema.PARTITIONS)
        .where(schema.PARTITIONS.c.id == row["id"], schema.PARTITIONS.c.version == row["version"])
        .values(version=int(row["version"]) + 1, **values)
    )
    if changed.rowcount != 1:
        raise ConflictError(
            f"the partition changed meanwhile. partition={row['topic']}", code="K329"
        )


def raise_cleaned_for(connection: Connection, number: int, end: int) -> None:
    """Keep that a round with the end ``end``, exclusive, has changed what is read; never back."""
    connection.execute(
        update(schema.PARTITIONS)
        .where(schema.PARTITIONS.c.id == number, schema.PARTITIONS.c.cleaned_for < end)
        .values(cleaned_for=end)
    )


def write_lineage(
    connection: Connection, before: PartitionState, lineage: Sequence[LeaderEpoch]
) -> None:
    """Replace the leader epochs of a partition, where they differ."""
    number = before.row_id
    if tuple(lineage) == before.lineage:
        return
    connection.execute(delete(schema.LINEAGE).where(schema.LINEAGE.c.partition_id == number))
    rows = [
        {"partition_id": number, "epoch": entry.epoch, "start_offset": entry.start_offset}
        for entry in lineage
    ]
    if rows:
        connection.execute(insert(schema.LINEAGE), rows)


def write_publication(connection: Connection, number: int, made: Publication) -> None:
    """Keep a leader's claim and its newest publication: the greatest one counts."""
    connection.execute(
        delete(schema.PUBLICATIONS).where(
            schema.PUBLICATIONS.c.partition_id == number,
            schema.PUBLICATIONS.c.epoch == made.epoch,
            schema.PUBLICATIONS.c.number > 0,
        )
    )
    connection.execute(
        insert(schema.PUBLICATIONS).values(
            partition_id=number, epoch=made.epoch, number=made.number,
            offsets=json_text({str(epoch): offset for epoch, offset in made.offsets.items()}),
        )
    )  # fmt: skip


def write_vectors(
    connection: Connection, number: int, made: Publication, segment_ids: Sequence[str]
) -> None:
    """Let live segments carry what ``made`` says.

    KIP-1272, "Each uploaded segment contains the current cleanerOffset value".
    """
    segments = schema.SEGMENTS.c
    for at in range(0, len(segment_ids), IDS_MAX):
        connection.execute(
            update(schema.SEGMENTS)
            .where(
                segments.partition_id == number, segments.state == SegmentState.LIVE,
                segments.id.in_(segment_ids[at : at + IDS_MAX]),
            )
            .values(cleaner_offsets=json_text({str(e): to for e, to in made.offsets.items()}))
        )  # fmt: skip


def lower_vectors(connection: Connection, number: int, made: Publication) -> None:
    """Let live segments that call clean what lies beyond ``made`` carry what it says."""
    segments = schema.SEGMENTS.c
    rows = connection.execute(
        select(segments.id, segments.cleaner_offsets).where(
            segments.partition_id == number, segments.state == SegmentState.LIVE
        )
    ).all()
    beyond = [
        str(segment_id)
        for segment_id, text in rows
        if max(offsets_of(text, "cleaner_offsets").values(), default=0) > made.cleaned_to
    ]
    write_vectors(connection, number, made, beyond)


def renew_publications(connection: Connection, number: int, made: Publication) -> None:
    """Forget how far the log was said to be clean, but for ``made``."""
    connection.execute(
        delete(schema.PUBLICATIONS).where(schema.PUBLICATIONS.c.partition_id == number)
    )
    write_publication(connection, number, made)
    lower_vectors(connection, number, made)


def load_visits(
    connection: Connection, partition: TopicPartition, number: int, directory: str
) -> Visits:
    """Return what is known of how a directory was cleaned; BrokenRowError as for a state."""
    row = connection.execute(
        select(schema.VISITS.c.seen, schema.VISITS.c.latest_ms).where(
            schema.VISITS.c.partition_id == number, schema.VISITS.c.directory == directory
        )
    ).first()
    if row is None:
        return Visits()
    return read_row(schema.VISITS.name, partition, directory, visits_of, row.seen, row.latest_ms)


def write_visits(connection: Connection, number: int, directory: str, visits: Visits) -> None:
    """Replace what is known of a directory; of more than DIRECTORIES_MAX the oldest are let go."""
    of_partition = schema.VISITS.c.partition_id == number
    connection.execute(
        delete(schema.VISITS).where(of_partition, schema.VISITS.c.directory == directory)
    )
    connection.execute(
        insert(schema.VISITS).values(
            partition_id=number, directory=directory, latest_ms=visits.latest_ms,
            seen=visits.to_json(),
        )
    )  # fmt: skip
    known = connection.execute(
        select(schema.VISITS.c.directory)
        .where(of_partition)
        .order_by(schema.VISITS.c.latest_ms.desc(), schema.VISITS.c.directory)
    ).scalars()
    for old in [each for each in known if each != directory][DIRECTORIES_MAX - 1 :]:
        connection.execute(
            delete(schema.VISITS).where(of_partition, schema.VISITS.c.directory == old)
        )


def routed_part(connection: Connection, segment_ids: Sequence[str]) -> tuple[int, int] | None:
    """Return where the first and the last route of ``segment_ids`` begin, None without any."""
    found = connection.execute(_ROUTED, {"segment_ids": list(segment_ids)}).one()
    return None if found[0] is None else (int(found[0]), int(found[1]))


def change_routes(
    connection: Connection, row: RowMapping, before: PartitionState, after: Sequence[Route],
    made: Sequence[RemoteSegment] = (),
) -> None:  # fmt: skip
    """Make the routes of ``before``, a part or all of them, those of ``after``; I-14 is checked.

    Only rows that differ are written, and only the neighbours of what was written are read again.
    ``made`` are the segments of ``after`` that ``before`` did not have.
    """
    number = int(row["id"])
    were, are = set(before.routes), set(after)
    gone = [route for route in before.routes if route not in are]
    new = [route for route in after if route not in were]
    if gone:
        connection.execute(
            _UNROUTE, [{"number": number, "first": route.base_offset} for route in gone]
        )
    if new:
        connection.execute(
            insert(schema.ROUTING),
            [
                {
                    "partition_id": number,
                    "base_offset": route.base_offset,
                    "last_offset": route.last_offset,
                    "segment_id": route.segment_id,
                }
                for route in new
            ],
        )
    _check_neighbours(connection, number, [*gone, *new], len(new))
    kept = {route.segment_id for route in after}
    dropped = {route.segment_id for route in gone} - kept
    grown = sum(segment.size_bytes for segment in made)
    grown -= sum(before.segments[segment_id].size_bytes for segment_id in dropped)
    if grown:
        connection.execute(
            update(schema.PARTITIONS)
            .where(schema.PARTITIONS.c.id == number)
            .values(remote_bytes=schema.PARTITIONS.c.remote_bytes + grown)
        )


def mend_size(connection: Connection, state: PartitionState) -> PartitionState:
    """Keep how many bytes the segments of ``state``, all of them, have; returns it with that."""
    size = state.effective_bytes()
    if size == state.remote_bytes:
        return state
    connection.execute(
        update(schema.PARTITIONS)
        .where(schema.PARTITIONS.c.id == state.row_id)
        .values(remote_bytes=size)
    )
    return replace(state, remote_bytes=size)


def _check_neighbours(
    connection: Connection, number: int, changed: Sequence[Route], made: int
) -> None:
    """InvariantError when what was changed left a hole or an overlap, in itself or next to it."""
    if not changed:
        return
    named = {"number": number, "first": min(route.base_offset for route in changed)}
    found = list(connection.execute(_BEFORE, named).all())
    # All that was made lies there without another between, or the next ones show that it does not.
    found.extend(connection.execute(_FROM, {**named, "count": made + 1}).all())
    check_routes([Route(base, last, segment_id) for base, last, segment_id in found])


def insert_segment(
    connection: Connection, number: int, segment: RemoteSegment, *, now_ms: int
) -> None:
    """Make a segment live; ConflictError for an id that was ever used (I-9)."""
    connection.execute(
        insert(schema.SEGMENTS).values(
            **segment_columns(segment), partition_id=number, state=SegmentState.LIVE,
            state_since_ms=now_ms,
        )
    )  # fmt: skip


def retire_segments(
    connection: Connection, segment_ids: Iterable[str], commit_id: str, *, now_ms: int,
    grace_ms: int,
) -> None:  # fmt: skip
    """Say of segments that are read no more when they may be deleted at the earliest."""
    connection.execute(
        update(schema.SEGMENTS)
        .where(schema.SEGMENTS.c.id.in_(list(segment_ids)))
        .values(
            state=SegmentState.REPLACED, state_since_ms=now_ms, not_before_ms=now_ms + grace_ms,
            replaced_by=commit_id,
        )
    )  # fmt: skip


def prune_commits(connection: Connection, number: int, *, now_ms: int) -> None:
    """Forget a few commits of a partition that are not asked for any more."""
    connection.execute(_PRUNE_COMMITS, {"number": number, "before_ms": now_ms - KEPT_MS})


def prune_segments(connection: Connection, number: int, *, now_ms: int) -> None:
    """Forget a few segments of a partition that were deleted long ago, with their ids."""
    connection.execute(_PRUNE_SEGMENTS, {"number": number, "before_ms": now_ms - KEPT_MS})


def raise_fact(connection: Connection, key: str, value: str) -> None:
    """Raise a fact of the store that is there to a greater text; a lesser one changes nothing."""
    connection.execute(
        update(schema.STORE)
        .where(schema.STORE.c.key == key, schema.STORE.c.value < value)
        .values(value=value)
    )
