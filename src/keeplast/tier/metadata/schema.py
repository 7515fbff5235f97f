"""The tables of the metadata store (SQLAlchemy Core), and their rows as values.

Every change of a table is a new migration. Lists and maps are JSON text with sorted keys. Offsets
and times are 64-bit. Source: tiering.md section 9.1.

What a reader must not break: nothing that stands in a row is believed. Ids and names become parts
of keys and paths, and SQLite keeps text in a column of numbers; JSON may have been edited by hand.
What cannot be read is a :class:`BrokenRowError`, which names table, partition and key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    UniqueConstraint,
    insert,
    select,
    update,
)

from keeplast.errors import CompactionError, CorruptError, InvalidError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.hold import NAME_CHARS_MAX, Hold, check_hold_name
from keeplast.model.partition import TOPIC_CHARS_MAX, TopicPartition
from keeplast.tier.objects.object_store import ID_CHARS
from keeplast.tier.state.continuity import Visits
from keeplast.tier.state.holder import Holder
from keeplast.tier.state.kept_rounds import KeptSwap
from keeplast.tier.state.partition_state import Publication
from keeplast.tier.state.segment import RemoteFile, RemoteSegment, Route, SegmentKind, check_routes

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

STORE = Table(
    "store",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Facts of the whole store: the key with which its filters hash, where its objects are."""

MARK = "mark"
"""The fact that is the newest mark of a store: its number, and its content after a space."""

PARTITIONS = Table(
    "partitions",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("topic", String(TOPIC_CHARS_MAX), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("topic_id", String(32), nullable=False),
    Column("leader_epoch", Integer, nullable=False),
    Column("owner", String(255), nullable=False),
    Column("holder", String(32), nullable=True),
    Column("holder_process", Text, nullable=True),
    Column("held_since_ms", BigInteger, nullable=True),
    Column("version", BigInteger, nullable=False),
    Column("log_start", BigInteger, nullable=False),
    Column("remote_bytes", BigInteger, nullable=False),
    Column("settings", Text, nullable=False),
    Column("uncleanable_reason", Text, nullable=True),
    Column("forgotten_ms", BigInteger, nullable=True),
    Column("cleaned_for", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("topic", "partition"),
)
"""One row a partition: its owner, and ``version``, which every change raises.

``holder`` is the one process of the owner that may change anything, or was until it gave the
partition back: ``held_since_ms`` is then empty. ``forgotten_ms`` says when it was given up; its row
goes when its objects have. ``cleaned_for`` is the greatest end of a round that cleaned anything
that is read, whether or not the round was finished: no state below it can be shown.
"""

LINEAGE = Table(
    "lineage",
    METADATA,
    Column("partition_id", ForeignKey("partitions.id"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("start_offset", BigInteger, nullable=False),
)

PUBLICATIONS = Table(
    "publications",
    METADATA,
    Column("partition_id", ForeignKey("partitions.id"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("offsets", Text, nullable=False),
)
"""The cleaner-offset vector as it was published; of a leader its claim and its newest are kept."""

SEGMENTS = Table(
    "segments",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("partition_id", ForeignKey("partitions.id"), nullable=False),
    Column("base_offset", BigInteger, nullable=False),
    Column("last_offset", BigInteger, nullable=False),
    Column("epochs", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("max_timestamp_ms", BigInteger, nullable=False),
    Column("mtime_ms", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("leader_epoch", Integer, nullable=False),
    Column("number", Integer, nullable=False),
    Column("cleaner_offsets", Text, nullable=False),
    Column("files", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("state_since_ms", BigInteger, nullable=False),
    Column("not_before_ms", BigInteger, nullable=True),
    Column("replaced_by", String(32), nullable=True),
    Column("undo_number", Integer, nullable=True),
    Index(None, "partition_id", "state", "state_since_ms"),
)
"""``undo_number`` is that of the round in ``undo_rounds`` which has kept the segment."""

UNDO_ROUNDS = Table(
    "undo_rounds",
    METADATA,
    Column("partition_id", ForeignKey("partitions.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("chunks", Text, nullable=False),
    Column("kept_at_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    Column("first_dirty_before", BigInteger, nullable=False),
    Column("first_dirty_after", BigInteger, nullable=False),
    Column("cleaned_for_before", BigInteger, nullable=False),
    Column("cleaned_for_after", BigInteger, nullable=False),
)
"""The rounds that keep what they replaced: a segment that one names is not collected.

``chunks`` are their names in receipts, in order: the first is that of the round.
"""

UNDO_SWAPS = Table(
    "undo_swaps",
    METADATA,
    Column("partition_id", ForeignKey("partitions.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("base_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("last_offset", BigInteger, nullable=False),
    Column("sources", Text, nullable=False),
    Column("outputs", Text, nullable=False),
)
"""What each of those rounds found at [base, last], both inclusive, and what it left there."""

ROUTING = Table(
    "routing",
    METADATA,
    Column("partition_id", ForeignKey("partitions.id"), primary_key=True),
    Column("base_offset", BigInteger, primary_key=True),
    Column("last_offset", BigInteger, nullable=False),
    Column("segment_id", ForeignKey("segments.id"), nullable=False),
    Index(None, "segment_id"),
)
"""Which segment is read for which offsets: disjoint, and without holes."""

VISITS = Table(
    "visits",
    METADATA,
    Column("partition_id", ForeignKey("partitions.id"), primary_key=True),
    Column("directory", String(64), primary_key=True),
    Column("latest_ms", BigInteger, nullable=False),
    Column("seen", Text, nullable=False),
)
"""What is known of the cleaning of a directory that a partition is copied from, by its digest."""

COMMITS = Table(
    "commits",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("partition_id", ForeignKey("partitions.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "partition_id", "at_ms"),
)
"""What was committed, by an id that its author chose: an unknown outcome is looked up here."""

ATTACHED = Table(
    "attached",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("cluster_id", String(64), nullable=False),
    Column("topic", String(TOPIC_CHARS_MAX), nullable=False),
    Column("topic_id", String(32), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("holder", String(32), nullable=True),
    Column("holder_process", Text, nullable=True),
    Column("held_since_ms", BigInteger, nullable=True),
    Column("paused_ms", BigInteger, nullable=True),
    Column("detached_ms", BigInteger, nullable=True),
    Column("attached_ms", BigInteger, nullable=False),
    Column("cleaned_to", BigInteger, nullable=False),
    Column("metadata_topic_id", String(32), nullable=False),
    Column("metadata_partition_count", Integer, nullable=False),
    Column("metadata_offset", BigInteger, nullable=False),
    Column("metadata_leader_epoch", Integer, nullable=False),
    Column("metadata_digest", String(64), nullable=False),
    Column("cleaned_for", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("cluster_id", "topic_id", "partition"),
)
"""Partitions of live clusters that are compacted from outside; ids are Kafka's own text.

``metadata_*`` say how far the cluster's metadata topic was seen, so that another one is recognised.
One that is held and was never claimed has epoch 0 and counts as detached. ``cleaned_for`` as of
``partitions``; 0 also where an earlier version has decided.
"""

HOLDS = Table(
    "holds",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(NAME_CHARS_MAX), nullable=False),
    Column("partition_id", ForeignKey("partitions.id"), nullable=True),
    Column("attached_id", ForeignKey("attached.id"), nullable=True),
    Column("at_offset", BigInteger, nullable=False),
    Column("point", BigInteger, nullable=True),
    Column("since_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    UniqueConstraint("partition_id", "name"),
    UniqueConstraint("attached_id", "name"),
)
"""What keeps cleaning from passing ``at_offset`` for a while: of one partition, stored or attached.

The states as of ``point``, and later, are kept by that; NULL is a point at ``at_offset``.
"""

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("attached_id", ForeignKey("attached.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("sources", Text, nullable=False),
    Column("outputs", Text, nullable=False),
    Column("cleaned_to", BigInteger, nullable=False),
    Column("metadata_partition", Integer, nullable=False),
    Column("floor_offset", BigInteger, nullable=False),
    Column("first_offset", BigInteger, nullable=True),
    Column("last_offset", BigInteger, nullable=True),
    Column("decided_ms", BigInteger, nullable=False),
    Column("published_ms", BigInteger, nullable=True),
    Column("collected_ms", BigInteger, nullable=True),
    Column("keep_ms", BigInteger, nullable=True),
    Column("first_dirty", BigInteger, nullable=True),
    Column("expires_below", BigInteger, nullable=True),
    Index(None, "attached_id", "state", "decided_ms"),
)
"""What was decided about them; segments are base64 of the brokers' own encoding, in a JSON list."""

OWN_SEGMENTS = Table(
    "own_segments",
    METADATA,
    Column("attached_id", ForeignKey("attached.id"), primary_key=True),
    Column("segment_id", String(32), primary_key=True),
    Column("start_offset", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("announced", Text, nullable=True),
    Column("decision_id", String(32), nullable=True),
    Column("is_discarded", Integer, nullable=False),
    Index(None, "attached_id", "is_discarded", "decision_id"),
)
"""Every segment id that was given out here, before anything was written under it."""

FOLDS = Table(
    "folds",
    METADATA,
    Column("cluster_id", String(64), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)
"""What was concluded of a partition of a cluster's metadata topic: a cache with a checksum."""


_T = TypeVar("_T")
_ID = re.compile(rf"[0-9a-f]{{1,{ID_CHARS}}}\Z")
_SUFFIX = re.compile(r"\.?[a-z-]{1,32}\Z")
SHOWN_CHARS = 40
"""So much of a value that is wrong is repeated."""
KEY_CHARS = 80
"""A digest, and what stands before it; ids are shorter."""


class BrokenRowError(CorruptError):
    """A row that cannot be read: it was changed by something else than keeplast."""

    def __init__(self, table: str, partition: TopicPartition, key: str, why: str) -> None:
        """Name the row by its table, its partition and what distinguishes it from others there."""
        self.table = table
        self.key = key
        self.why = why
        super().__init__(
            "a row of the metadata store cannot be read; put it back from a backup, or give the "
            "partition up (keeplast detach) and take it in again: keeplast copy --new. "
            f"table={table} partition={partition} key={key} problem={why}"
        )


def read_row(
    table: str, partition: TopicPartition, key: object, decode: Callable[..., _T], *values: object
) -> _T:
    """Return what ``decode`` makes of the values of a row; BrokenRowError when it cannot."""
    try:
        return decode(*values)
    except (
        ValueError, TypeError, KeyError, AttributeError, RecursionError, CompactionError,
    ) as error:  # fmt: skip
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise BrokenRowError(table, partition, str(key)[:KEY_CHARS], why) from error


def whole(value: object, what: str) -> int:
    """Return a number; ValueError for anything else, also one of a database without types."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} is not a whole number: {_show(value)}")
    return value


def whole_pair(value: object, what: str) -> tuple[int, int]:
    """Return two numbers; ValueError for anything else."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{what} is not a pair of numbers: {_show(value)}")
    return whole(value[0], what), whole(value[1], what)


def _json_in(text: object, what: str) -> Any:
    if not isinstance(text, str):
        raise ValueError(f"{what} is not a text: {_show(text)}")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from error


def _object_in(text: object, what: str) -> dict[str, Any]:
    found = _json_in(text, what)
    if not isinstance(found, dict):
        raise ValueError(f"{what} is not a JSON object: {_show(found)}")
    return found


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"


def segment_columns(segment: RemoteSegment) -> dict[str, Any]:
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
    """Return the segment of a row; ValueError names the column that cannot be read."""
    files = {
        suffix_of(suffix): RemoteFile(*whole_pair(each, f"files[{suffix[:ID_CHARS]}]"))
        for suffix, each in _object_in(row["files"], "files").items()
    }
    return RemoteSegment(
        segment_id=id_of(row["id"], "segment"),
        base_offset=whole(row["base_offset"], "base_offset"),
        last_offset=whole(row["last_offset"], "last_offset"),
        epochs=tuple(
            LeaderEpoch(*whole_pair(each, "epochs")) for each in _json_in(row["epochs"], "epochs")
        ),
        size_bytes=whole(row["size_bytes"], "size_bytes"),
        max_timestamp_ms=whole(row["max_timestamp_ms"], "max_timestamp_ms"),
        mtime_ms=whole(row["mtime_ms"], "mtime_ms"),
        kind=SegmentKind(row["kind"]),
        leader_epoch=whole(row["leader_epoch"], "leader_epoch"),
        number=whole(row["number"], "number"),
        cleaner_offsets=offsets_of(row["cleaner_offsets"], "cleaner_offsets"),
        files=files,
    )


def epoch_of(epoch: object, start_offset: object) -> LeaderEpoch:
    """Return an entry of the lineage; ValueError for what is no whole number."""
    return LeaderEpoch(whole(epoch, "epoch"), whole(start_offset, "start_offset"))


def publication_of(epoch: object, number: object, offsets: str) -> Publication:
    """Return what a leader has published; ValueError for what is no number or vector."""
    return Publication(
        whole(epoch, "epoch"), whole(number, "number"), offsets_of(offsets, "offsets")
    )


def route_of(base_offset: object, last_offset: object, segment_id: str) -> Route:
    """Return which segment is read for a range."""
    return Route(
        whole(base_offset, "base_offset"), whole(last_offset, "last_offset"),
        id_of(segment_id, "segment_id"),
    )  # fmt: skip


def chunks_of(text: str) -> tuple[str, ...]:
    """Return the names of a round's chunks, of a JSON list that is not empty."""
    found = _json_in(text, "chunks")
    if not isinstance(found, list) or not found:
        raise ValueError(f"chunks is not a list of names: {_show(found)}")
    return tuple(id_of(each, "chunk") for each in found)


def kept_swap_of(sources: str, outputs: str) -> KeptSwap:
    """Return what a round found and left, of two JSON lists of [base, last, segment id]."""
    found = []
    for name, text in (("sources", sources), ("outputs", outputs)):
        listed = _json_in(text, name)
        if not isinstance(listed, list) or not listed:
            raise ValueError(f"{name} is not a list of routes: {_show(listed)}")
        found.append(tuple(route_of(*each) for each in listed))
        check_routes(found[-1])
    swap = KeptSwap(*found)
    if (swap.base_offset, swap.last_offset) != (found[1][0].base_offset, found[1][-1].last_offset):
        raise ValueError(f"sources and outputs have other ends: {_show(found)}")
    return swap


def routes_text(routes: Sequence[Route]) -> str:
    """Return the JSON that :func:`kept_swap_of` reads."""
    return json.dumps(
        [[each.base_offset, each.last_offset, each.segment_id] for each in routes],
        separators=(",", ":"),
    )


def settings_of(text: str) -> dict[str, str]:
    """Return a partition's settings from their JSON; ValueError for a value that is no text."""
    found = _object_in(text, "settings")
    for key, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"settings[{key[:SHOWN_CHARS]}] is not a text: {_show(value)}")
    return found


def holder_of(row: RowMapping) -> Holder | None:
    """Return the process that a partition's row names as its holder."""
    if row["holder"] is None:
        return None
    found = Holder.of_json(row["holder"], row["holder_process"])
    whole(found.pid, "pid")
    return found


def hold_of(partition: TopicPartition, row: RowMapping) -> Hold:
    """Return a hold of ``partition``; ValueError, or InvalidError, names what cannot be read."""
    check_hold_name(str(row["name"]))
    limit, since_ms, until_ms = (
        whole(row[each], each) for each in ("at_offset", "since_ms", "until_ms")
    )
    if min(limit, since_ms, until_ms) < 0:
        raise ValueError(f"offset and times are at least 0: {limit} {since_ms} {until_ms}")
    point = limit if row["point"] is None else whole(row["point"], "point")
    if point < limit:
        raise ValueError(f"the point lies at the offset or after it: {point} {limit}")
    return Hold(row["name"], partition, point, since_ms, until_ms, limit)


def visits_of(text: str, latest_ms: int) -> Visits:
    """Return what is known of how a directory was cleaned."""
    found = Visits.of_json(text, whole(latest_ms, "latest_ms"))
    for visit in found.entries:
        for name in visit.__struct_fields__:
            whole(getattr(visit, name), name)
    if found.cleaned_to is not None:
        whole(found.cleaned_to, "cleaned_to")
    return found


def partition_of(topic: str, number: int) -> TopicPartition:
    """Return the partition of a row; CorruptError for one that only a stranger can have written.

    Names become parts of paths and keys: those that no broker takes could lead anywhere.
    """
    try:
        return TopicPartition(topic, number).checked()
    except InvalidError as error:
        raise CorruptError(
            "the metadata store names a partition that no broker has; it was changed by something "
            f"else than keeplast: {error}",
            code="K328",
        ) from error


def id_of(text: str, what: str) -> str:
    """Return an id, which becomes a part of keys; CorruptError for what is none."""
    if _ID.match(text) is None:
        raise CorruptError(
            f"an id in the metadata store is not made of hex digits. {what}={text[:ID_CHARS]!r}",
            code="K328",
        )
    return text


def suffix_of(text: str) -> str:
    """Return the suffix of an object, which becomes a part of keys; CorruptError for another."""
    if _SUFFIX.match(text) is None:
        raise CorruptError(
            f"no file of a segment has this name. suffix={text[:ID_CHARS]!r}", code="K328"
        )
    return text


def offsets_of(text: str, what: str) -> dict[int, int]:
    """Return a map of offsets by leader epoch."""
    return {
        int(epoch): whole(offset, f"{what}[{epoch[:SHOWN_CHARS]}]")
        for epoch, offset in _object_in(text, what).items()
    }


def json_text(value: Mapping[str, Any]) -> str:
    """Return a mapping as text: the same for equal mappings."""
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"))


def find_fact(connection: Connection, key: str, *, locks: bool = False) -> str | None:
    """Return a fact of the store, with ``locks`` locked for a change; None when it is not there."""
    query = select(STORE.c.value).where(STORE.c.key == key)
    found = connection.execute(query.with_for_update() if locks else query).scalar()
    return None if found is None else str(found)


def write_fact(connection: Connection, key: str, value: str, *, is_new: bool) -> None:
    """Add a fact of the store, ConflictError when it is there, or replace the text of one."""
    connection.execute(
        insert(STORE).values(key=key, value=value)
        if is_new
        else update(STORE).where(STORE.c.key == key).values(value=value)
    )
