"""How far the rounds that cleaned a partition went, those that were cut short too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add what says so; a round of before went at most to the end of what was copied."""
    op.add_column(
        "partitions", sa.Column("cleaned_for", sa.BigInteger, nullable=False, server_default="0")
    )
    op.execute(
        "UPDATE partitions SET cleaned_for = COALESCE("
        "(SELECT MAX(routing.last_offset) + 1 FROM routing "
        "WHERE routing.partition_id = partitions.id), 0) "
        "WHERE EXISTS (SELECT 1 FROM segments JOIN routing ON routing.segment_id = segments.id "
        "WHERE routing.partition_id = partitions.id AND segments.kind = 'cleaned')"
    )
