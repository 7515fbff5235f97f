"""How long the sources of a decision are kept, whichever process collects them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add what says so; of what was decided before, the grace alone counts."""
    op.add_column("decisions", sa.Column("keep_ms", sa.BigInteger, nullable=True))
