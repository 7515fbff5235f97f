"""What a host of a partition may become, as its user says."""

from __future__ import annotations

from enum import StrEnum


class HostRole(StrEnum):
    """Which of leading and following a host does."""

    AUTO = "auto"
    """Leads what no other host leads, follows the rest."""
    LEADER = "leader"
    """Leads what no other host leads, leaves the rest alone."""
    FOLLOWER = "follower"
    """Follows, whatever becomes of the leader."""
