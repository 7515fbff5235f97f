"""What a worker is given and gives back, and the port of the runners that execute tasks.

A task is one wave of one partition's round, or a whole round in stages
(:mod:`keeplast.rewrite.staged_round`). The rule: it holds values only, because it travels to
threads and to Spark's executors alike, and so do results.

A worker commits nothing. It leaves staged files, named by attempt, and says what they are; whatever
no commit names is collected.

A runner executes tasks: threads here, Spark in ``pipeline``. It commits nothing and decides
nothing. It may run a task on any host and more than once. Only the result that it yields counts,
and it yields exactly one for every task, in any order.

*Decompression counts* say how often the records of compressed batches were decompressed, and how
often that was saved. What the first pass has decompressed is kept for those that follow while there
is room, and while keeping is measured to gain
(:class:`keeplast.rewrite.workspace.DecompressedCache`). Batches whose records are not needed again
count once (:func:`keeplast.columns.shortcuts.settle_batches`).

*Filters*: how a round on the tier uses them, what they say, and what they let it leave out. A task
carries the first. A round in stages gathers the second from wherever filters were asked. The third
is handed from wave to wave.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.cleaner.plan import GroupPlan, RoundPlan
from keeplast.cleaner.shapes import WHOLE, ShapeChoice
from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import retained
from keeplast.columns.winners import KeyMap
from keeplast.format.filename import Kind
from keeplast.log.files import FilesRecipe, LocalRecipe
from keeplast.model.topic_config import Shape
from keeplast.rewrite.stats import FilterStats, Reasons
from keeplast.tier.objects.filters import FILTER_BYTES_MAX, FilterKey, SegmentBytes


class Payloads(Struct, frozen=True):
    """Compressed batches whose records were needed, by where these came from.

    A batch counts once each time that it was decompressed, and once each time that a later pass
    found it decompressed in memory. Bytes are those of the records, uncompressed.
    """

    decompressed: int = 0
    decompressed_bytes: int = 0
    reused: int = 0
    reused_bytes: int = 0

    def __add__(self, other: Payloads) -> Payloads:
        """Return the sum of two parts of a round."""
        return Payloads(
            self.decompressed + other.decompressed,
            self.decompressed_bytes + other.decompressed_bytes,
            self.reused + other.reused,
            self.reused_bytes + other.reused_bytes,
        )


NO_PAYLOADS = Payloads()
"""Nothing compressed was met."""


SMALL_BYTES = 4 << 10
"""A request costs more than reading so many bytes with it."""


class FilterSpec(Struct, frozen=True):
    """How a round uses filters: the store's key, the rate, and what the log consists of.

    ``segments`` are the very bytes of each segment, by base offset. A filter that is larger than
    ``bytes_max``, or than the share ``share_max`` of its segment's bytes, is not written; one of
    up to :data:`SMALL_BYTES` is in any case.
    """

    key: FilterKey
    fpp: float
    segments: Mapping[int, SegmentBytes]
    bytes_max: int = FILTER_BYTES_MAX
    share_max: float = math.inf

    def takes(self, size_bytes: int, segment: SegmentBytes) -> bool:
        """Say whether a filter of this size is written for ``segment``."""
        return size_bytes <= min(
            self.bytes_max, max(self.share_max * segment.size_bytes, SMALL_BYTES)
        )


class Asked(Struct, frozen=True):
    """What the filter of the clean segment at ``base_offset`` says of some of the dirty keys.

    ``size_bytes`` is the filter's own, 0 without a good one. ``stays`` and ``needs_no_ranking`` say
    that neither these keys nor time change the segment, and that it cannot hold a winner.
    """

    base_offset: int
    size_bytes: int = 0
    stays: bool = False
    needs_no_ranking: bool = False
    bytes_read: int = 0
    is_damaged: bool = False

    def __and__(self, other: Asked) -> Asked:
        """Return what the same filter says of the keys that either was asked for."""
        return Asked(
            self.base_offset,
            min(self.size_bytes, other.size_bytes),
            self.stays and other.stays,
            self.needs_no_ranking and other.needs_no_ranking,
            self.bytes_read + other.bytes_read,
            self.is_damaged or other.is_damaged,
        )


class Skips(Struct, frozen=True):
    """Base offsets of the segments that stay as they are, of those that need no ranking, and of
    those whose filter is good."""

    staying: frozenset[int] = frozenset()
    unranked: frozenset[int] = frozenset()
    known: frozenset[int] = frozenset()
    stats: FilterStats = field(default_factory=FilterStats)

    def rest(self, groups: Sequence[GroupPlan]) -> tuple[GroupPlan, ...]:
        """Return the groups that must be read."""
        return tuple(
            group
            for group in groups
            if len(group.sources) > 1 or group.base_offset not in self.staying
        )


NO_SKIPS = Skips()


class Carry(Struct, frozen=True):
    """What one wave hands to the next: the sealed rest of the round and the state at its entry."""

    end_offset: int
    groups: tuple[GroupPlan, ...]
    key_map: KeyMap
    transactions: TransactionState
    counters: NDArray[np.int64]
    index: IndexStats
    skips: Skips = NO_SKIPS


class IndexStats(Struct, frozen=True):
    """What the first pass read. ``bytes_read`` is exact unless the key map filled.

    Messages and bytes are of the dirty section, versions of all records that were ranked.
    """

    messages_read: int = 0
    bytes_read: int = 0
    distinct_keys: int = 0
    seconds: float = 0.0
    versions_missing: int = 0
    versions_malformed: int = 0


class PartitionTask(Struct, frozen=True):
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


class StagedFile(Struct, frozen=True):
    """A staged file of kind ``kind`` (``.log``, ``.index``, ...) and its size."""

    kind: Kind
    name: str
    size_bytes: int


class StagedGroup(Struct, frozen=True):
    """An output of a group and what a re-read of it must find; no files when the source stays as it
    is.

    A group has one output, or several where its offsets do not fit one segment. Then ``sources``
    are those of the first, and none of the others. ``end_offset`` is the offset after the last
    batch of the file, 0 without a batch.
    """

    base_offset: int
    sources: tuple[int, ...]
    files: tuple[StagedFile, ...]
    size_bytes: int
    batches: int
    end_offset: int = 0


class TaskResult(Struct, frozen=True):
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


def new_hash_key() -> tuple[int, int]:
    """Return a key to hash keys with; all parts of one pass have the same."""
    return secrets.randbits(64), secrets.randbits(64)


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
    records = counters[
        retained.REASON_RECORDS : retained.REASON_RECORDS + retained.REASONS
    ].tolist()
    sizes = counters[retained.REASON_BYTES : retained.REASON_BYTES + retained.REASONS].tolist()
    return Reasons(
        superseded_records=records[retained.SUPERSEDED],
        superseded_bytes=sizes[retained.SUPERSEDED],
        tombstone_records=records[retained.EXPIRED_TOMBSTONE],
        tombstone_bytes=sizes[retained.EXPIRED_TOMBSTONE],
        aborted_records=records[retained.ABORTED_DATA],
        aborted_bytes=sizes[retained.ABORTED_DATA],
        keyless_records=records[retained.KEYLESS],
        keyless_bytes=sizes[retained.KEYLESS],
        marker_records=records[retained.EXPIRED_MARKER],
        marker_bytes=sizes[retained.EXPIRED_MARKER],
    )


Progressed = Callable[[int], None]


class Runner(Protocol):
    """Executes tasks. A context manager: leaving it stops what was started."""

    @property
    def slots(self) -> int:
        """Return how many tasks run at once; memory is shared out by it."""

    @property
    def shares_memory(self) -> bool:
        """Say whether all tasks share one memory, so that a key map is made once for all."""

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        """Yield one result a task, as they end; ``progressed`` hears bytes read meanwhile."""

    def __enter__(self) -> Runner: ...

    def __exit__(self, *_: object) -> None: ...
