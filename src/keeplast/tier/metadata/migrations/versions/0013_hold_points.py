"""The point of a hold; rounds have to end below it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column; of a hold of before the point is where rounds have to end."""
    op.add_column("holds", sa.Column("point", sa.BigInteger, nullable=True))
