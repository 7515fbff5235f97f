"""What is known of how the directories were cleaned that partitions are copied from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table; of what was copied before, nothing is known."""
    op.create_table(
        "visits",
        sa.Column(
            "partition_id",
            sa.Integer,
            sa.ForeignKey("partitions.id", name="fk_visits_partition_id_partitions"),
            nullable=False,
        ),
        sa.Column("directory", sa.String(64), nullable=False),
        sa.Column("latest_ms", sa.BigInteger, nullable=False),
        sa.Column("seen", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "directory", name="pk_visits"),
    )
