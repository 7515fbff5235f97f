"""What the daemon tells a person who follows it; rounds themselves are told by ``Events``.

Calls come from the daemon's thread and must not block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keeplast.cleaner.selection import Choice
from keeplast.model.partition import TopicPartition
from keeplast.service.snapshot import Snapshot
from keeplast.survey.report import ExpiryReport


class Narrator(Protocol):
    """Receiver of what a person wants to follow; rounds themselves are told by ``Events``."""

    def chosen(self, choices: Sequence[Choice]) -> None:
        """Say which partitions are next, and why."""
        ...

    def idle(self, snapshot: Snapshot, seconds: float) -> None:
        """Say that nothing is worth a round, and when the next look is."""
        ...

    def expired(self, partition: TopicPartition, report: ExpiryReport) -> None:
        """Say which segments retention or the log start let go."""
        ...

    def set_aside(self, partition: TopicPartition, reason: str) -> None:
        """Say that a partition will not be cleaned any more."""
        ...

    def retrying(self, partition: TopicPartition, reason: str, seconds: float) -> None:
        """Say that something failed and will be tried again."""
        ...

    def warned(self, message: str) -> None:
        """Say something else the user should know."""
        ...


class TierNarrator(Narrator, Protocol):
    """What a person wants to follow of a store, beside the above."""

    def copied(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Say what a partition has gained."""
        ...

    def replaced(self, partition: TopicPartition, reason: str) -> None:
        """Say that all of a partition was copied anew, and why."""
        ...

    def collected(self, partition: TopicPartition, objects: int, size_bytes: int) -> None:
        """Say what was removed from the object store."""
        ...

    def left_disk(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Say what local retention has removed from this host's disk."""
        ...

    def stands(self, partition: TopicPartition, words: str) -> None:
        """Say whether this host leads a partition, or whom it follows."""
        ...

    def left_alone(self, partition: TopicPartition, reason: str) -> None:
        """Say that another host owns a partition, and that it is left to that one."""
        ...
