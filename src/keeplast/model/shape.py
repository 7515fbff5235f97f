"""The shapes of a round: how the work of one partition is cut into tasks.

The bytes that are written are the same in every shape. What each costs, and which one is chosen:
:mod:`keeplast.cleaner.shapes`.
"""

from __future__ import annotations

from enum import StrEnum


class Shape(StrEnum):
    """How a round is cut into tasks."""

    PARTITION = "partition"
    BROADCAST = "broadcast"
    BUCKET = "bucket"
