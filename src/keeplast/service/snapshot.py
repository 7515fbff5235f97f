"""What the daemon knows of every partition, frozen after each round: what gauges are made from.

A snapshot is replaced and never changed, so that another thread may read it at leisure. The daemon
hands it to an :class:`Observer`, and is never asked.

One look at a data directory is a value too, made without the directory's lock, or by the loop that
holds it. It may be joined to a status later and in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from keeplast.cleaner.dirty_section import LogFigures
from keeplast.cleaner.erasure import Pace
from keeplast.cleaner.log_order import Choice
from keeplast.config.precedence import Settings
from keeplast.config.selection import Selection
from keeplast.errors import CorruptError
from keeplast.inspect.status import LogStatus, TombstoneReading, find_statuses
from keeplast.log.files import FileSystem
from keeplast.log.lock import is_locked
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.service.schedule import FAILING_NAME, FILE_NAME, SetAside, daemon_pace, read_set_aside
from keeplast.service.status import (
    DirectoryStatus,
    LastRound,
    State,
    find_sizes,
    find_timestamp_ahead_max,
    join_status,
)
from keeplast.survey.report import PartitionReport, RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest


class DirectoryLook(Struct, frozen=True):
    """What was found of each log at ``now_ms``; the arguments of ``join_status``.

    ``warnings`` are what else the user should know. ``settings`` are those that counted.
    """

    root: Path
    now_ms: int
    is_locked: bool
    pace: Pace
    found: tuple[tuple[PartitionRequest, LogStatus | Exception], ...]
    decided: tuple[PartitionReport, ...]
    marks: Mapping[TopicPartition, SetAside]
    failures: Mapping[TopicPartition, SetAside]
    sizes: Mapping[TopicPartition, int]
    settings: Settings
    warnings: tuple[str, ...] = ()

    def joined(
        self, files: FileSystem, last_rounds: Mapping[TopicPartition, LastRound]
    ) -> DirectoryStatus:
        """Return the status; reads the names of files of what is set aside, and nothing else."""
        return join_status(
            self.found,
            self.decided,
            root=self.root,
            files=files,
            now_ms=self.now_ms,
            is_locked=self.is_locked,
            pace=self.pace,
            marks=self.marks,
            failures=self.failures,
            last_rounds=last_rounds,
            sizes=[*self.sizes.values()],
        )


def look_at_directory(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    *,
    tombstones: TombstoneReading | None = TombstoneReading.SKIP,
    round_seconds: float | None = None,
    planned: Callable[[int], None] | None = None,
    progressed: Callable[[int], None] = lambda _: None,
    brokers: GroupReader | None = None,
) -> DirectoryLook:
    """Look at the chosen partitions, without the lock; errors are those of the directory itself.

    ``tombstones`` None reads headers, as is usual. ``planned`` and ``progressed`` hear of the bytes
    that counting tombstones goes through; for ``planned`` all logs are measured first. ``brokers``
    read what consumer groups have committed, None where files do.
    """
    root, settings = selection.directory.root, selection.settings
    cleaner = settings.cleaner_config()
    request = CleanRequest(
        selection.partitions, now_ms, rolls_idle=True, expired=cleaner.has_expired_rounds
    )
    warnings: list[str] = []
    marks = _marks(files, root, FILE_NAME, warnings)
    failures = _marks(files, root, FAILING_NAME, warnings)
    reading = tombstones or TombstoneReading.HEADERS
    if planned is not None and reading is not TombstoneReading.SKIP:
        sizes = find_sizes(selection.directory, files)
        planned(sum(sizes[each.partition] for each in selection.partitions))
    found = find_statuses(
        request,
        root,
        files,
        now_ms,
        timestamp_ahead_max_ms=cache(partial(find_timestamp_ahead_max, settings)),
        tombstones=reading,
        progressed=progressed,
        brokers=brokers,
    )
    return DirectoryLook(
        root, now_ms, is_locked(root), daemon_pace(cleaner, round_seconds), tuple(found),
        selection.decided, marks, failures, find_sizes(selection.directory, files, found),
        settings, tuple(warnings),
    )  # fmt: skip


def _marks(
    files: FileSystem, root: Path, name: str, warnings: list[str]
) -> Mapping[TopicPartition, SetAside]:
    """Return which partitions failed by one of the daemon's files; a damaged one is a warning."""
    try:
        return read_set_aside(files, root, name)
    except CorruptError as error:
        warnings.append(f"{error}; nothing in it counts")
        return {}


LOOP_STATES = (
    State.ELIGIBLE, State.NOT_DUE, State.RETRYING, State.SET_ASIDE, State.REFUSED, State.ELSEWHERE,
)  # fmt: skip
"""What a loop will do with a partition next, in the order in which metrics show it. Eligible: a
round will come. Not due: also what is held back. Set aside: until its files change or a wish."""


class TierFacts(Struct, frozen=True):
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


class TierTotals(Struct, frozen=True):
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


class AttachedTotals(TierTotals, frozen=True):
    """The same of a live cluster's remote tier, and what its caps count.

    ``swaps`` and ``metadata_records`` are those of the last 24 hours, of all hosts, with their
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


class PartitionFacts(Struct, frozen=True):
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
    state: State
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


class Snapshot(Struct, frozen=True):
    """All partitions of the data directory or store, ascending, as of ``looked_ms``.

    ``turn`` counts the daemon's choices since ``started_ms``; ``cleaned`` are the partitions that
    the last of them took, empty when it found nothing to do. ``slots`` is how many workers there
    are. ``queue`` is what would be taken next, the first one first, and why. ``look`` is there when
    a console watches a directory. All times are milliseconds since 1970.
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


class Observers(Struct, frozen=True):
    """Hands each snapshot to several, in this order."""

    receivers: tuple[Observer, ...]

    def published(self, snapshot: Snapshot) -> None:
        """Hand it on."""
        for each in self.receivers:
            each.published(snapshot)
