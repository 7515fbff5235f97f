"""Which log is meant: a topic and a partition number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic; prints as Kafka names its directory, ``topic-partition``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the directory name of the partition."""
        return f"{self.topic}-{self.partition}"
