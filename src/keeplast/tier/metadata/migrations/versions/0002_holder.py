"""Which process of its owner holds a partition."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add what says so; no process holds what is there."""
    op.add_column("partitions", sa.Column("holder", sa.String(32), nullable=True))
    op.add_column("partitions", sa.Column("holder_process", sa.Text, nullable=True))
    op.add_column("partitions", sa.Column("held_since_ms", sa.BigInteger, nullable=True))
