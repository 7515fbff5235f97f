"""What a worker is given, and what it gives back: one wave of one partition's round.

Both travel between processes, so they hold values only. A worker commits nothing: it leaves staged
files, named by attempt, and says what they are; whatever no commit names is collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.cleaner.plan import GroupPlan, RoundPlan
from keeplast.cleaner.shapes import WHOLE, ShapeChoice
from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import rules, verdicts
from keeplast.columns.winners import KeyMap
from keeplast.format.filename import Kind
from keeplast.log.files import FilesRecipe, LocalRecipe
from keeplast.model.shape import Shape
from keeplast.rewrite.filter_spec import NO_SKIPS, FilterSpec, Skips
from keeplast.rewrite.payloads import NO_PAYLOADS, Payloads
from keeplast.rewrite.stats import FilterStats, Reasons


@dataclass(frozen=True, slots=True)
class Carry:
    """What one wave hands to the next: the sealed rest of the round and the state at its entry."""

    end_offset: int
    groups: tuple[GroupPlan, ...]
    key_map: KeyMap
    transactions: TransactionState
    counters: NDArray[np.int64]
    index: IndexStats
    skips: Skips = NO_SKIPS


@dataclass(frozen=True, slots=True)
class IndexStats:
    """What the first pass read. ``bytes_read`` is exact unless the key map filled.

    Messages and bytes are of the dirty section, versions of all records that were ranked.
    """

    messages_read: int = 0
    bytes_read: int = 0
    distinct_keys: int = 0
    seconds: float = 0.0
    versions_missing: int = 0
    versions_malformed: int = 0


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """One wave. ``writes`` False counts what would go and stages nothing.

    ``target`` is where staged files are put: the partition's own directory, or another one.
    ``wave_bytes_max`` bounds the sources of a wave; at least one group is always done.
    ``takes_crcs`` asks for checksums of whole files, for a receipt. ``io_bytes_per_second`` is what
    all workers together may read and write; a runner gives each its share.
    ``files`` is how a worker opens the file system that the paths are in.
    ``shape`` says how the work is cut; what must run in waves is always one task. ``filters`` are
    those of a round on the tier, which asks them and makes them.
    """

    number: int
    plan: RoundPlan
    path: Path
    target: Path
    attempt: str
    hash_key: tuple[int, int]
    memory_bytes: int
    wave_bytes_max: int | None
    writes: bool
    carry: Carry | None = None
    takes_crcs: bool = False
    io_bytes_per_second: float | None = None
    shape: ShapeChoice = WHOLE
    files: FilesRecipe = field(default_factory=LocalRecipe)
    filters: FilterSpec | None = None

    @property
    def is_staged(self) -> bool:
        """Say whether the round is done in stages rather than by one task."""
        in_waves = self.carry is not None or self.wave_bytes_max is not None
        return self.shape.shape is not Shape.PARTITION and not in_waves

    @property
    def cost_bytes(self) -> int:
        """Return about how much there is to read, for tasks to be ordered by."""
        plan = self.plan
        read = sum(s.size_bytes for s in plan.segments if s.base_offset < plan.bound)
        return read + sum(s.size_bytes for s in plan.dirty_segments())


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A staged file of kind ``kind`` (``.log``, ``.index``, ...) and its size."""

    kind: Kind
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StagedGroup:
    """An output of a group and what a re-read of it must find; no files when the source is left
    alone.

    A group has one output, or several where its offsets do not fit one segment; then ``sources``
    are those of the first, and none of the others. ``end_offset`` is behind the last batch of the
    file, 0 without a batch.
    """

    base_offset: int
    sources: tuple[int, ...]
    files: tuple[StagedFile, ...]
    size_bytes: int
    batches: int
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a worker did; ``carry`` is set when groups are left for another wave.

    The CRC-32C of every ``.log`` file that was read, and of every one that was written and read
    again, by base offset, where the task asked for them.
    """

    number: int
    staged: tuple[StagedGroup, ...]
    end_offset: int
    groups: tuple[GroupPlan, ...]
    counters: NDArray[np.int64]
    index: IndexStats
    segments_left_alone: int
    copied_bytes: int
    clean_seconds: float
    peak_rss_bytes: int
    carry: Carry | None = None
    error: Exception | None = None
    source_crcs: Mapping[int, int] = field(default_factory=dict)
    output_crcs: Mapping[int, int] = field(default_factory=dict)
    payloads: Payloads = NO_PAYLOADS
    filters: FilterStats = field(default_factory=FilterStats)


def first_pass_start(plan: RoundPlan) -> TransactionState:
    """Return the transactions before the first batch that the first pass reads."""
    dirty = plan.dirty_segments()
    return pass_start(plan, dirty[0].base_offset if dirty else plan.first_dirty)


def second_pass_start(plan: RoundPlan) -> TransactionState:
    """Return the transactions before the first batch of the log."""
    return pass_start(plan, plan.segments[0].base_offset)


def pass_start(plan: RoundPlan, base_offset: int) -> TransactionState:
    """Return the transactions before the first batch of the segment at ``base_offset``."""
    aborted = None if plan.aborted is None else plan.aborted_from(base_offset)
    return TransactionState(aborted, base_offset)


def reasons_of(counters: NDArray[np.int64]) -> Reasons:
    """Return what went and why, from the counters of the second pass."""
    records = counters[verdicts.REASON_RECORDS : verdicts.REASON_RECORDS + rules.REASONS].tolist()
    sizes = counters[verdicts.REASON_BYTES : verdicts.REASON_BYTES + rules.REASONS].tolist()
    return Reasons(
        superseded_records=records[rules.SUPERSEDED],
        superseded_bytes=sizes[rules.SUPERSEDED],
        tombstone_records=records[rules.EXPIRED_TOMBSTONE],
        tombstone_bytes=sizes[rules.EXPIRED_TOMBSTONE],
        aborted_records=records[rules.ABORTED_DATA],
        aborted_bytes=sizes[rules.ABORTED_DATA],
        keyless_records=records[rules.KEYLESS],
        keyless_bytes=sizes[rules.KEYLESS],
        marker_records=records[rules.EXPIRED_MARKER],
        marker_bytes=sizes[rules.EXPIRED_MARKER],
    )
