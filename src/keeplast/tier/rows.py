"""Rows of the metadata store to values, and back; each call is part of its caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, delete, insert, select, update

from keeplast.errors import ConflictError, InvalidError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import TopicPartition
from keeplast.tier import schema
from keeplast.tier.holder import Holder
from keeplast.tier.partition_state import PartitionState
from keeplast.tier.routing import Route
from keeplast.tier.segment import RemoteFile, RemoteSegment, SegmentKind, SegmentState
from keeplast.tier.vector import Publication

# What is asked for again and again is built once: that is a quarter of what asking costs.

_PARTITION = select(schema.PARTITIONS).where(
    schema.PARTITIONS.c.topic == bindparam("topic"),
    schema.PARTITIONS.c.partition == bindparam("partition"),
)
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


def find_partition(
    connection: Connection, partition: TopicPartition, *, locks: bool = False
) -> RowMapping:
    """Return the row of a partition, locked for a change; InvalidError when there is none."""
    named = {"topic": partition.topic, "partition": partition.partition}
    query = _PARTITION_LOCKED if locks else _PARTITION
    row = connection.execute(query, named).mappings().first()
    if row is None:
        raise InvalidError(
            f"the partition is not in the store; import or create it. partition={partition}"
        )
    return row


def find_commit(connection: Connection, commit_id: str) -> int | None:
    """Return the version that a commit made, None when it never happened."""
    found = connection.execute(_COMMIT, {"id": commit_id}).scalar()
    return None if found is None else int(found)


def load_state(connection: Connection, row: RowMapping) -> PartitionState:
    """Return all that is known of the partition whose row this is."""
    number = int(row["id"])
    named = {"number": number}
    lineage = connection.execute(_LINEAGE, named).all()
    publications = connection.execute(_PUBLICATIONS, named).all()
    routes = connection.execute(_ROUTES, named).all()
    segments = connection.execute(_SEGMENTS, named).mappings()
    return PartitionState(
        row_id=number,
        partition=TopicPartition(row["topic"], row["partition"]),
        topic_id=row["topic_id"],
        leader_epoch=row["leader_epoch"],
        owner=row["owner"],
        version=row["version"],
        log_start=row["log_start"],
        remote_bytes=row["remote_bytes"],
        lineage=tuple(LeaderEpoch(epoch, start) for epoch, start in lineage),
        publications=tuple(Publication(e, n, offsets_of(o)) for e, n, o in publications),
        routes=tuple(Route(base, last, segment_id) for base, last, segment_id in routes),
        segments={found["id"]: segment_of(found) for found in segments},
        settings=json.loads(row["settings"]),
        uncleanable_reason=row["uncleanable_reason"],
        holder=holder_of(row),
        held_since_ms=row["held_since_ms"],
    )


def holder_of(row: RowMapping) -> Holder | None:
    """Return the process that a partition's row names as its holder."""
    if row["holder"] is None:
        return None
    return Holder.of_json(row["holder"], row["holder_process"])


def raise_version(connection: Connection, row: RowMapping, **values: Any) -> None:
    """Raise the version; ConflictError when a database that does not lock let another one in."""
    changed = connection.execute(
        update(schema.PARTITIONS)
        .where(schema.PARTITIONS.c.id == row["id"], schema.PARTITIONS.c.version == row["version"])
        .values(version=int(row["version"]) + 1, **values)
    )
    if changed.rowcount != 1:
        raise ConflictError(f"the partition changed meanwhile. partition={row['topic']}")


def write_lineage(connection: Connection, number: int, lineage: Sequence[LeaderEpoch]) -> None:
    """Replace the leader epochs of a partition."""
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


def write_routes(connection: Connection, number: int, routes: Sequence[Route]) -> None:
    """Replace what of a partition is read where."""
    connection.execute(delete(schema.ROUTING).where(schema.ROUTING.c.partition_id == number))
    rows = [
        {
            "partition_id": number,
            "base_offset": route.base_offset,
            "last_offset": route.last_offset,
            "segment_id": route.segment_id,
        }
        for route in routes
    ]
    if rows:
        connection.execute(insert(schema.ROUTING), rows)


def insert_segment(
    connection: Connection, number: int, segment: RemoteSegment, *, now_ms: int
) -> None:
    """Make a segment live; ConflictError for an id that was ever used (I-9)."""
    connection.execute(
        insert(schema.SEGMENTS).values(
            **_segment_columns(segment), partition_id=number, state=SegmentState.LIVE,
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


def _segment_columns(segment: RemoteSegment) -> dict[str, Any]:
    """Return a segment as the columns of its row, but for its partition and state."""
    return {
        "id": segment.segment_id,
        "base_offset": segment.base_offset,
        "last_offset": segment.last_offset,
        "epochs": json.dumps([[e.epoch, e.start_offset] for e in segment.epochs]),
        "size_bytes": segment.size_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "mtime_ms": segment.mtime_ms,
        "kind": segment.kind.value,
        "leader_epoch": segment.leader_epoch,
        "number": segment.number,
        "cleaner_offsets": json_text({str(e): o for e, o in segment.cleaner_offsets.items()}),
        "files": json_text({s: [f.size_bytes, f.crc32c] for s, f in segment.files.items()}),
    }


def segment_of(row: RowMapping) -> RemoteSegment:
    """Return the segment of a row."""
    return RemoteSegment(
        segment_id=row["id"],
        base_offset=row["base_offset"],
        last_offset=row["last_offset"],
        epochs=tuple(LeaderEpoch(epoch, start) for epoch, start in json.loads(row["epochs"])),
        size_bytes=row["size_bytes"],
        max_timestamp_ms=row["max_timestamp_ms"],
        mtime_ms=row["mtime_ms"],
        kind=SegmentKind(row["kind"]),
        leader_epoch=row["leader_epoch"],
        number=row["number"],
        cleaner_offsets=offsets_of(row["cleaner_offsets"]),
        files={s: RemoteFile(*entry) for s, entry in json.loads(row["files"]).items()},
    )


def offsets_of(text: str) -> dict[int, int]:
    """Return a map of offsets by leader epoch."""
    return {int(epoch): int(offset) for epoch, offset in json.loads(text).items()}


def json_text(value: Mapping[str, Any]) -> str:
    """Return a mapping as text: the same for equal mappings."""
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"))
