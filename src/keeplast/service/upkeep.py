"""Upkeep of a place apart from rounds: what is asked for, and what became of each partition.

The rule: a fault of one partition is in its outcome, and keeps no other from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from keeplast.config.layers import PartitionChoice
from keeplast.errors import CompactionError, InvalidError
from keeplast.model.partition import TopicPartition


class Orphans(StrEnum):
    """What becomes of objects that no broker serves."""

    LIST = "list"
    COLLECT = "collect"
    COLLECT_SERVED = "collect-served"


class UpkeepTerms(Struct, frozen=True, kw_only=True):
    """What ``collect``, ``repair`` and ``detach`` go by.

    ``is_agreed`` says yes to a loss; without it the loss is only planned. ``keep_sources_ms`` keeps
    a live cluster's replaced segments for so long at least. ``receipt`` takes a line of what goes.
    """

    takes_over: bool = False
    is_agreed: bool = False
    keep_sources_ms: int = 0
    receipt: Path | None = None


class RepairTerms(UpkeepTerms, frozen=True, kw_only=True):
    """How a repair goes beyond ending what was left undone.

    ``accepts_metadata`` goes on with metadata that were restored. ``rebuilds`` makes a lost
    decision log again. ``truncate_to`` is where the log ends then, exclusive, or a data directory
    that says it.
    """

    accepts_metadata: bool = False
    rebuilds: bool = False
    truncate_to: int | Path | None = None

    def require_one(self, scope: PartitionChoice, where: str) -> None:
        """Raise InvalidError for two repairs of a store at once, or for a part of its metadata."""
        if self.truncate_to is not None and self.accepts_metadata:
            raise InvalidError(
                "to cut a log and to accept metadata are calls of their own; leave one out. "
                f"--truncate-to={self.truncate_to} --accept-metadata=true",
                code="K101",
            )
        if self.truncate_to is None and (scope.topics or scope.partitions):
            raise InvalidError(
                "metadata are restored as a whole; leave --topic and --partition out. "
                f"place={where}",
                code="K101",
            )


class DeletionTerms(Struct, frozen=True, kw_only=True):
    """What ``delete-records`` goes by; fields are those of :func:`keeplast.run.expiry`."""

    high_watermark: int | None = None
    is_unsafe: bool = False
    removes: bool = False
    writes: bool = True
    takes_over: bool = False
    receipt: Path | None = None
    warned: Callable[[str], None] = lambda message: None


class PartitionOutcome(Struct, frozen=True):
    """What was done to a partition, as documents show it, and what went wrong."""

    partition: TopicPartition
    facts: Mapping[str, Any]
    failure: Exception | None = None


class UpkeepReport(Struct, frozen=True):
    """What was done; ``facts`` are about all of the place, as documents show them.

    ``waits`` says that something would be lost, was not agreed to, and did not happen.
    """

    outcomes: tuple[PartitionOutcome, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    waits: bool = False


def outcome_of(
    partition: TopicPartition, act: Callable[[], Iterator[Mapping[str, Any]]]
) -> PartitionOutcome:
    """Return what ``act`` yields of a partition, all of it together, and the fault that ended it.

    What was yielded before a fault stays in it.
    """
    facts: dict[str, Any] = {}
    try:
        for found in act():
            facts |= found
    except (CompactionError, OSError) as error:
        return PartitionOutcome(partition, facts, error)
    return PartitionOutcome(partition, facts)
