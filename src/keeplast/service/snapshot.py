"""What the daemon knows of every partition, frozen after each round: what gauges are made from.

A snapshot is replaced and never changed, so that another thread may read it at leisure. The daemon
hands it to an :class:`Observer`; nobody asks the daemon anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from keeplast.cleaner.section import LogFigures
from keeplast.cleaner.selection import Choice
from keeplast.model.partition import TopicPartition
from keeplast.service.directory_look import DirectoryLook
from keeplast.survey.report import RoundReport


class PartitionCondition(StrEnum):
    """What the daemon will do with a partition next."""

    ELIGIBLE = "eligible"
    """A round is worth it now and will come."""
    NOT_DUE = "not due"
    """Nothing to clean, not enough of it, or held back."""
    RETRYING = "retrying"
    """The last attempt failed in a way that may pass; another one follows at ``retry_at_ms``."""
    SET_ASIDE = "set aside"
    """It cannot be cleaned until its files change or somebody says so (Kafka: uncleanable)."""
    REFUSED = "refused"
    """Its settings or its name keep it from being looked at."""
    ELSEWHERE = "owned elsewhere"
    """Another host owns it; of a store only."""


@dataclass(frozen=True, slots=True)
class TierFacts:
    """What only a partition of a store has; ``orphans`` are replaced segments not yet removed.

    ``unserved_offsets`` is of how many offsets brokers serve nothing though they should, None where
    no broker serves.
    """

    owner: str
    epoch: int
    remote_bytes: int
    orphans: int
    orphan_bytes: int
    unserved_offsets: int | None = None


@dataclass(frozen=True, slots=True)
class TierTotals:
    """What was moved to a store and removed from it since the start.

    Expired is what is read no more, collected what is gone from the object store. Replaced are
    ranges for which a copy could have missed a delete, refused the copies that found no way out.
    """

    copied_segments: int = 0
    copied_bytes: int = 0
    replaced_ranges: int = 0
    refused_copies: int = 0
    expired_segments: int = 0
    expired_bytes: int = 0
    collected_objects: int = 0
    collected_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AttachedTotals(TierTotals):
    """The same of a live cluster's remote tier, and what its caps count.

    ``swaps`` and ``metadata_records`` are those of the last 24 hours, of all hosts, beside their
    caps; the rest is this process's since its start.
    """

    swaps: int = 0
    swaps_max: int = 0
    metadata_records: int = 0
    metadata_records_max: int = 0
    requests: int = 0
    moved_bytes: int = 0
    slow_downs: int = 0
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition as of the last look at it; ``figures`` are None while it was never surveyed.

    Of one that fails they are those of the last look that went well, at ``surveyed_ms``, but for
    ``compaction_delay_ms``, which goes on growing. ``log_end`` is exclusive.
    ``reason`` says in words why it is in its state.
    ``is_held_back`` says of a log that is not due that closed segments may not be cleaned yet.
    ``is_expired_round`` says that only removable tombstones and markers make it eligible.
    ``rounds`` counts those since the start, and ``last_round`` is the last of them that was not
    skipped, failed ones included.
    """

    partition: TopicPartition
    path: Path
    state: PartitionCondition
    reason: str
    log_start: int | None = None
    log_end: int | None = None
    figures: LogFigures | None = None
    surveyed_ms: int | None = None
    is_held_back: bool = False
    is_expired_round: bool = False
    rounds: int = 0
    last_round: RoundReport | None = None
    last_round_ms: int | None = None
    failures: int = 0
    retry_at_ms: int | None = None
    set_aside_since_ms: int | None = None
    tier: TierFacts | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All partitions of the data directory or store, ascending, as of ``looked_ms``.

    ``turn`` counts the daemon's choices since ``started_ms``; ``cleaned`` are the partitions that
    the last of them took, empty when it found nothing to do. ``slots`` is how many workers there
    are. ``queue`` is what would be taken next, the first one first, and why. ``look`` is there when
    somebody watches a directory. All times are milliseconds since 1970.
    """

    root: Path | str
    started_ms: int
    looked_ms: int
    turn: int
    slots: int
    partitions: tuple[PartitionFacts, ...]
    cleaned: tuple[TopicPartition, ...] = ()
    tier: TierTotals | None = None
    queue: tuple[Choice, ...] = ()
    look: DirectoryLook | None = None


class Observer(Protocol):
    """Receiver of snapshots; calls come from the daemon's thread and must not block."""

    def published(self, snapshot: Snapshot) -> None:
        """Take what is known after a look, and again after the rounds that it led to."""
        ...
