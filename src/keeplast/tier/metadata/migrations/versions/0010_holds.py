"""Named holds, and how far the rounds that cleaned an attached partition went."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the table, empty; how far earlier rounds went is not known."""
    op.create_table(
        "holds",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=True),
        sa.Column("attached_id", sa.Integer, nullable=True),
        sa.Column("at_offset", sa.BigInteger, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_holds"),
        sa.ForeignKeyConstraint(
            ["partition_id"], ["partitions.id"], name="fk_holds_partition_id_partitions"
        ),
        sa.ForeignKeyConstraint(
            ["attached_id"], ["attached.id"], name="fk_holds_attached_id_attached"
        ),
        sa.UniqueConstraint("partition_id", "name", name="uq_holds_partition_id_name"),
        sa.UniqueConstraint("attached_id", "name", name="uq_holds_attached_id_name"),
    )
    op.add_column(
        "attached", sa.Column("cleaned_for", sa.BigInteger, nullable=False, server_default="0")
    )
