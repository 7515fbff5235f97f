"""What becomes of records without a key, which a topic that no broker compacts may hold."""

from __future__ import annotations

from enum import StrEnum


class Keyless(StrEnum):
    """Kafka's cleaner drops them, and its brokers refuse them in a compacted topic."""

    FAIL = "fail"
    DROP = "drop"
    RETAIN = "retain"
