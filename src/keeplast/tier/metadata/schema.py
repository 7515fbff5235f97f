"""The tables of the metadata store (SQLAlchemy Core); every change of them is a new migration.

Lists and maps are JSON text with sorted keys. Offsets and times are 64-bit. Source: tiering.md
section 9.1.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from keeplast.model.hold import NAME_CHARS_MAX
from keeplast.model.partition import TOPIC_CHARS_MAX

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
"""The fact that is the newest mark of a store: its number, and its content behind a space."""

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
goes when its objects have. ``cleaned_for`` is the greatest end of a round by which anything that is
read was cleaned, whether or not the round was finished: no state in front of it can be told.
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
