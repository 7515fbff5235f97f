"""When a partition was given up, so that its objects go and an import may begin it again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add what says so; nothing that is there was given up."""
    op.add_column("partitions", sa.Column("forgotten_ms", sa.BigInteger, nullable=True))
