"""The units of work of a round in stages, and what each gives back: values only, for any runner.

    mark     a log's headers      -> its aborted transactions, once a unit has met any transaction
    scan     a run of batches     -> the events of its transactions
    index    a run of batches     -> keys, to a map or to hash buckets, and events
    filter   clean segments       -> which of them no dirty key is in, as far as their filters know
    raise    a clean run          -> clean records that outrank a dirty one, where versions rank
    resolve  a hash bucket        -> how the rows that were asked about stand
    rewrite  a group              -> staged files that have been checked

A unit is a function of the task, of itself and of what the stage before gave; it may run anywhere,
twice, in any order. Source: architecture, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.cleaner.plan import AbortedBySegment, GroupPlan
from keeplast.cleaner.transactions import TransactionState
from keeplast.rewrite.stats import FilterStats
from keeplast.rewrite.task import NO_PAYLOADS, Asked, IndexStats, Payloads, StagedGroup

NO_HASHES: NDArray[np.uint64] = np.empty(0, np.uint64)

Events = NDArray[np.int64]
"""(n, 3): last offset, producer id, kind; see :func:`keeplast.columns.transactions.list_events`."""


class Extent(Struct, frozen=True):
    """Whole batches of a segment: the bytes ``[start, end)`` of its log file."""

    base_offset: int
    start: int
    end: int


Edge = tuple[int, int]
"""Where a piece of a segment begins after the first one: position and base offset of a batch.

The base offset is -1 where it is not known.
"""


class MarkUnit(Struct, frozen=True):
    """Ask the markers of the whole log what was aborted."""

    number: int
    cost_bytes: int
    """A part of the bytes it reads, as for a scan."""


class ExtentUnit(Struct, frozen=True):
    """A unit that reads one extent of the task with that number."""

    number: int
    extent: Extent

    @property
    def cost_bytes(self) -> int:
        """Return the bytes it reads."""
        return self.extent.end - self.extent.start


class ScanUnit(ExtentUnit, frozen=True):
    """List the transaction events of one extent."""

    @property
    def cost_bytes(self) -> int:
        """Return the bytes it reads, less than what work on every record is worth."""
        return (self.extent.end - self.extent.start) // 8


class IndexUnit(ExtentUnit, frozen=True):
    """Put the keys of an extent of the dirty section into a map.

    ``entry`` holds the transactions of the first pass at the first batch. All offsets of the
    extent should lie in ``[first_offset, end_offset)``.
    """

    entry: TransactionState
    lists_events: bool
    first_offset: int
    end_offset: int


class FilterUnit(Struct, frozen=True):
    """Ask the filters of the clean segments at ``bases`` for dirty keys."""

    number: int
    bases: tuple[int, ...]

    @property
    def cost_bytes(self) -> int:
        """Return 0: next to the log there is nothing to read."""
        return 0


class RaiseUnit(ExtentUnit, frozen=True):
    """Raise the keys of a map to clean records that outrank their dirty ones."""

    entry: TransactionState


class AskUnit(ExtentUnit, frozen=True):
    """Send the keys of an extent to hash buckets.

    ``indexes`` says that they may win, ``asks`` that the second pass will look them up; both are
    one unit wherever the two passes agree on what is aborted.
    """

    entry: TransactionState
    buckets: int
    indexes: bool
    asks: bool
    lists_events: bool


class KeyChunk(Struct, frozen=True):
    """Keys of an extent that fall into one cell of the hash space, in the order of the log.

    ``rows`` (k, words) are packed as in a block. ``asked`` (bits) says which of ``count`` rows they
    are, where rows that another one of the same extent outranks were left out; None for all.
    """

    extent: Extent
    part: int
    cell: int
    rows: NDArray[np.uint64]
    count: int
    asked: bytes | None
    indexes: bool
    asks: bool


class HashChunk(Struct, frozen=True):
    """Hashes of dirty keys as filters know them, those that one of the buckets asks for."""

    bucket: int
    hashes: NDArray[np.uint64]


class ResolveUnit(Struct, frozen=True):
    """Answer for all rows of one bucket."""

    number: int
    bucket: int
    chunks: tuple[KeyChunk, ...]

    @property
    def cost_bytes(self) -> int:
        """Return the bytes of its keys."""
        return sum(chunk.rows.nbytes for chunk in self.chunks)


class Answer(Struct, frozen=True):
    """The standings of ``count`` rows of a cell, two bits a row."""

    extent: Extent
    part: int
    cell: int
    count: int
    loses: bytes
    wins: bytes


class Notes(Struct, frozen=True):
    """A ledger of ``count`` offsets from ``first_offset`` on, as it travels: two bits an offset."""

    first_offset: int
    count: int
    loses: bytes
    wins: bytes


class RewriteUnit(Struct, frozen=True):
    """Rewrite and check one group; ``entry`` None while the transactions there are not known.

    ``known_filters`` are the base offsets of its sources that have a good filter. ``notes`` are
    what the first pass noted of its records, for a worker that has no ledger.
    """

    number: int
    group: GroupPlan
    entry: TransactionState | None
    known_filters: frozenset[int] = frozenset()
    notes: Notes | None = None

    @property
    def cost_bytes(self) -> int:
        """Return the bytes it reads."""
        return self.group.size_bytes


Unit = (
    MarkUnit | ScanUnit | IndexUnit | FilterUnit | RaiseUnit | AskUnit | ResolveUnit | RewriteUnit
)


class Marked(Struct, frozen=True):
    """Result: the aborted transactions that markers name, by segment."""

    aborted: AbortedBySegment


class Unmarked(Struct, frozen=True):
    """A unit that met a transaction before the markers were asked; nothing of it counts."""


class Scanned(Struct, frozen=True):
    """Result: the transaction events of one extent, in the order of offsets."""

    extent: Extent
    events: Events


class IndexedUnit(Struct, frozen=True):
    """What an index unit read. Keys travel apart: in the sink, ``block``, or ``chunks``.

    ``notes`` go with a block: what is known already of its extents' records, None when their
    offsets do not ascend. ``hashes`` are those of the dirty keys as filters know them, None when
    they were too many.
    """

    extent: Extent
    events: Events | None
    stats: IndexStats
    peak_rss_bytes: int
    block: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None
    notes: Notes | None = None
    chunks: tuple[KeyChunk, ...] = ()
    payloads: Payloads = NO_PAYLOADS
    hashes: NDArray[np.uint64] | None = field(default_factory=lambda: NO_HASHES)


class Filtered(Struct, frozen=True):
    """What filters say of all dirty keys, or of those of one bucket."""

    answers: tuple[Asked, ...]
    peak_rss_bytes: int


class Resolved(Struct, frozen=True):
    """Answers of a bucket and how many keys with a dirty record it has."""

    answers: tuple[Answer, ...]
    distinct_keys: int
    peak_rss_bytes: int


class Rewritten(Struct, frozen=True):
    """What a group became; ``groups`` is empty when the state at its entry is needed first."""

    base_offset: int
    groups: tuple[GroupPlan, ...]
    staged: tuple[StagedGroup, ...] = ()
    counters: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    left_alone: int = 0
    copied_bytes: int = 0
    peak_rss_bytes: int = 0
    source_crcs: Mapping[int, int] = field(default_factory=dict)
    output_crcs: Mapping[int, int] = field(default_factory=dict)
    payloads: Payloads = NO_PAYLOADS
    filters: FilterStats = field(default_factory=FilterStats)


class Failed(Struct, frozen=True):
    """A unit that gave nothing but an error; ``at`` orders failures by place in the log."""

    at: tuple[int, int]
    error: Exception


UnitResult = Marked | Unmarked | Scanned | IndexedUnit | Filtered | Resolved | Rewritten | Failed
