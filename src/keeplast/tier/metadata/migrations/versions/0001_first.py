"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    op.create_table(
        "store",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_store"),
    )
    op.create_table(
        "partitions",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("topic", sa.String(249), nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("topic_id", sa.String(32), nullable=False),
        sa.Column("leader_epoch", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("log_start", sa.BigInteger, nullable=False),
        sa.Column("remote_bytes", sa.BigInteger, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("uncleanable_reason", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_partitions"),
        sa.UniqueConstraint("topic", "partition", name="uq_partitions_topic_partition"),
    )
    op.create_table(
        "lineage",
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("start_offset", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "epoch", name="pk_lineage"),
        sa.ForeignKeyConstraint(
            ["partition_id"], ["partitions.id"], name="fk_lineage_partition_id"
        ),
    )
    op.create_table(
        "publications",
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("offsets", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "epoch", "number", name="pk_publications"),
        sa.ForeignKeyConstraint(
            ["partition_id"], ["partitions.id"], name="fk_publications_partition_id"
        ),
    )
    op.create_table(
        "segments",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("base_offset", sa.BigInteger, nullable=False),
        sa.Column("last_offset", sa.BigInteger, nullable=False),
        sa.Column("epochs", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("max_timestamp_ms", sa.BigInteger, nullable=False),
        sa.Column("mtime_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("leader_epoch", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("cleaner_offsets", sa.Text, nullable=False),
        sa.Column("files", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_since_ms", sa.BigInteger, nullable=False),
        sa.Column("not_before_ms", sa.BigInteger, nullable=True),
        sa.Column("replaced_by", sa.String(32), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_segments"),
        sa.ForeignKeyConstraint(
            ["partition_id"], ["partitions.id"], name="fk_segments_partition_id"
        ),
    )
    op.create_index("ix_segments_partition_id_state", "segments", ["partition_id", "state"])
    op.create_table(
        "routing",
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("base_offset", sa.BigInteger, nullable=False),
        sa.Column("last_offset", sa.BigInteger, nullable=False),
        sa.Column("segment_id", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "base_offset", name="pk_routing"),
        sa.ForeignKeyConstraint(
            ["partition_id"], ["partitions.id"], name="fk_routing_partition_id"
        ),
        sa.ForeignKeyConstraint(["segment_id"], ["segments.id"], name="fk_routing_segment_id"),
    )
    op.create_table(
        "commits",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_commits"),
        sa.ForeignKeyConstraint(
            ["partition_id"], ["partitions.id"], name="fk_commits_partition_id"
        ),
    )


def downgrade() -> None:
    """Remove everything."""
    for table in (
        "commits", "routing", "segments", "publications", "lineage", "partitions", "store",
    ):  # fmt: skip
        op.drop_table(table)
