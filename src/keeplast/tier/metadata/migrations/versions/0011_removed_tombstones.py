"""From where on a decision's round was dirty, and below which offset tombstones went with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add both; rounds decided before count as dirty from the start, and nothing went with them."""
    for name in ("first_dirty", "expires_below"):
        op.add_column("decisions", sa.Column(name, sa.BigInteger, nullable=True))
