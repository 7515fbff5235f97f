"""Partitions of live clusters, what is decided about them, and the segment ids given out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the tables; nothing was attached before."""
    op.create_table(
        "attached",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("cluster_id", sa.String(64), nullable=False),
        sa.Column("topic", sa.String(249), nullable=False),
        sa.Column("topic_id", sa.String(32), nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("holder", sa.String(32), nullable=True),
        sa.Column("holder_process", sa.Text, nullable=True),
        sa.Column("held_since_ms", sa.BigInteger, nullable=True),
        sa.Column("paused_ms", sa.BigInteger, nullable=True),
        sa.Column("detached_ms", sa.BigInteger, nullable=True),
        sa.Column("attached_ms", sa.BigInteger, nullable=False),
        sa.Column("cleaned_to", sa.BigInteger, nullable=False),
        sa.Column("metadata_topic_id", sa.String(32), nullable=False),
        sa.Column("metadata_partition_count", sa.Integer, nullable=False),
        sa.Column("metadata_offset", sa.BigInteger, nullable=False),
        sa.Column("metadata_leader_epoch", sa.Integer, nullable=False),
        sa.Column("metadata_digest", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_attached"),
        sa.UniqueConstraint(
            "cluster_id", "topic_id", "partition", name="uq_attached_cluster_id_topic_id_partition"
        ),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("attached_id", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("sources", sa.Text, nullable=False),
        sa.Column("outputs", sa.Text, nullable=False),
        sa.Column("cleaned_to", sa.BigInteger, nullable=False),
        sa.Column("metadata_partition", sa.Integer, nullable=False),
        sa.Column("floor_offset", sa.BigInteger, nullable=False),
        sa.Column("first_offset", sa.BigInteger, nullable=True),
        sa.Column("last_offset", sa.BigInteger, nullable=True),
        sa.Column("decided_ms", sa.BigInteger, nullable=False),
        sa.Column("published_ms", sa.BigInteger, nullable=True),
        sa.Column("collected_ms", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
        sa.ForeignKeyConstraint(
            ["attached_id"], ["attached.id"], name="fk_decisions_attached_id_attached"
        ),
    )
    op.create_index(
        "ix_decisions_attached_id_state_decided_ms", "decisions",
        ["attached_id", "state", "decided_ms"],
    )  # fmt: skip
    op.create_table(
        "own_segments",
        sa.Column("attached_id", sa.Integer, nullable=False),
        sa.Column("segment_id", sa.String(32), nullable=False),
        sa.Column("start_offset", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("announced", sa.Text, nullable=True),
        sa.Column("decision_id", sa.String(32), nullable=True),
        sa.Column("is_discarded", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("attached_id", "segment_id", name="pk_own_segments"),
        sa.ForeignKeyConstraint(
            ["attached_id"], ["attached.id"], name="fk_own_segments_attached_id_attached"
        ),
    )
    op.create_index(
        "ix_own_segments_attached_id_is_discarded_decision_id", "own_segments",
        ["attached_id", "is_discarded", "decision_id"],
    )  # fmt: skip
