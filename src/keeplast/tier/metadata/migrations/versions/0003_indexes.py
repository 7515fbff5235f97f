"""What a commit and the pruning of old rows look for is found without reading a whole table."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the indexes, and the age to one that is there; nothing else changes."""
    op.drop_index("ix_segments_partition_id_state", "segments")
    op.create_index(
        "ix_segments_partition_id_state_state_since_ms",
        "segments",
        ["partition_id", "state", "state_since_ms"],
    )
    op.create_index("ix_routing_segment_id", "routing", ["segment_id"])
    op.create_index("ix_commits_partition_id_at_ms", "commits", ["partition_id", "at_ms"])
