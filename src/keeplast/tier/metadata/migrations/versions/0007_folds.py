"""Kept folds of clusters' metadata topics: a cache, which may be emptied at any time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the table; the first look at a cluster fills it."""
    op.create_table(
        "folds",
        sa.Column("cluster_id", sa.String(64), nullable=False),
        sa.Column("partition", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "partition", name="pk_folds"),
    )
