"""What rounds have kept of what they replaced, so that it can be put back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the tables, empty; segments that were replaced before wait for their grace alone."""
    op.create_table(
        "undo_rounds",
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("chunks", sa.Text, nullable=False),
        sa.Column("kept_at_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("first_dirty_before", sa.BigInteger, nullable=False),
        sa.Column("first_dirty_after", sa.BigInteger, nullable=False),
        sa.Column("cleaned_for_before", sa.BigInteger, nullable=False),
        sa.Column("cleaned_for_after", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "number", name="pk_undo_rounds"),
        sa.ForeignKeyConstraint(
            ["partition_id"], ["partitions.id"], name="fk_undo_rounds_partition_id_partitions"
        ),
    )
    op.create_table(
        "undo_swaps",
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("base_offset", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("last_offset", sa.BigInteger, nullable=False),
        sa.Column("sources", sa.Text, nullable=False),
        sa.Column("outputs", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "number", "base_offset", name="pk_undo_swaps"),
        sa.ForeignKeyConstraint(
            ["partition_id"], ["partitions.id"], name="fk_undo_swaps_partition_id_partitions"
        ),
    )
    op.add_column("segments", sa.Column("undo_number", sa.Integer, nullable=True))
