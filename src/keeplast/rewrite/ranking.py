"""What a round ranks records by: read once from its plan, the same in every pass over it.

The strategy ``offset`` needs nothing but offsets and pays for nothing else. The others read a
version for each row, and carry it through blocks into a map of larger slots. Mixing strategies
within a round could lose every record of a key, so nothing here looks at settings but once.

Where versions rank, the clean section takes part: a clean record may be a dirty key's winner. That
happens between the two passes, and before anything is written. Afterwards the key map knows the
winner of every dirty key wherever it lies and is only read. So neither the order of groups nor what
is committed before a crash can change what remains. No clean key enters the map; what has no dirty
record stays as it is. cleaning.md section 9.3, rule 3, with architecture 5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import retained, version_ranks, winners
from keeplast.columns.version_ranks import NotingKeyMap, RankedKeyMap
from keeplast.columns.winners import NO_LEDGER, KeyMap, ReasonLedger
from keeplast.format.filename import LOG, segment_file
from keeplast.log.files import FileSystem, reading
from keeplast.log.paths import child_path
from keeplast.log.windows import Window, read_windows
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.rewrite.task import PartitionTask, Progressed, pass_start
from keeplast.rewrite.transactions import AskMarkers, follow_window
from keeplast.rewrite.workspace import DecompressedCache, Slice, Workspace


class VersionCounts(Struct, frozen=True):
    """Records without a version: those without the header, and those whose header is malformed."""

    missing: int = 0
    malformed: int = 0

    def __add__(self, other: VersionCounts) -> VersionCounts:
        return VersionCounts(self.missing + other.missing, self.malformed + other.malformed)


class Ranking(Struct, frozen=True):
    """A strategy; ``header`` holds the bytes of the header's name, empty for the others."""

    strategy: Strategy
    header: NDArray[np.uint8]
    keeps_versioned_tombstones: bool

    @property
    def has_versions(self) -> bool:
        """Say whether more than the offset counts, so that a clean record can win."""
        return self.strategy is not Strategy.OFFSET

    @property
    def expiry(self) -> int:
        """Return which tombstones may expire, for :func:`retained.may_expire`."""
        if not self.has_versions:
            return retained.ANY_EXPIRES
        if self.keeps_versioned_tombstones:
            return retained.UNVERSIONED_EXPIRES
        return retained.UNCONTESTED_EXPIRES

    def new_map(self, ledger: ReasonLedger = NO_LEDGER) -> KeyMap:
        """Return an empty key map that takes notes in ``ledger``."""
        return RankedKeyMap(ledger) if self.has_versions else NotingKeyMap(ledger)

    def read_versions(self, window: Window, part: Slice, w: Workspace) -> VersionCounts:
        """Read the versions of the rows that are marked; returns how many have none."""
        if not self.has_versions:
            return VersionCounts()
        found, _ = w.room_for_ranks()
        if self.strategy is Strategy.TIMESTAMP:
            version_ranks.read_timestamps(
                window.data, w.scratch, window.table, part.first, part.last,
                w.marks, w.flags, found,
            )  # fmt: skip
            return VersionCounts()
        missing, malformed = version_ranks.read_header_versions(
            window.data, w.scratch, window.table, part.first, part.last, self.header,
            w.marks, w.flags, found,
        )  # fmt: skip
        return VersionCounts(int(missing), int(malformed))

    def block_of(self, rows: int, w: Workspace) -> NDArray[np.uint64]:
        """Return the marked rows of ``[0, rows)`` as a block for the key map.

        The workspace's ``block_rows`` and ``starts`` go with it. Versions must have been read.
        """
        if not self.has_versions:
            winners.sort_by_shard(
                w.hashes, w.offsets, w.marks, 0, rows, w.block, w.block_rows, w.starts
            )
            return w.block
        found, block = w.room_for_ranks()
        version_ranks.sort_ranks_by_shard(
            w.hashes, w.offsets, found, w.flags, w.marks, 0, rows, block, w.block_rows, w.starts
        )
        return block

    def best_of(self, rows: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Mark the one row of each key of a block that outranks the key's other rows."""
        best = np.zeros(len(rows), np.uint8)
        slots = np.full(2 * len(rows) + 1, -1, np.int32)
        mark = version_ranks.mark_best_ranks if self.has_versions else winners.mark_best
        mark(rows, slots, best)
        return best

    def offsets_of(self, rows: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the offsets of a block's rows."""
        # A rank holds twice its offset, which fits no signed number from 2^62 on.
        offsets = rows[:, 2] >> np.uint64(1) if self.has_versions else rows[:, 2]
        return offsets.view(np.int64)


def ranking_of(topic: TopicConfig) -> Ranking:
    """Return how the records of a topic rank."""
    name = (topic.strategy_header or "").encode() if topic.strategy is Strategy.HEADER else b""
    return Ranking(
        topic.strategy, np.frombuffer(bytearray(name), np.uint8), topic.keep_versioned_tombstones
    )


RaiseKnown = Callable[[NDArray[np.uint64], NDArray[np.int64]], None]


def raise_over_clean(
    task: PartitionTask,
    key_map: RankedKeyMap,
    ranking: Ranking,
    files: FileSystem,
    workspace: Workspace,
    cache: DecompressedCache,
    progressed: Progressed,
    ask_markers: AskMarkers,
    *,
    checks_crc: bool,
    unranked: frozenset[int] = frozenset(),
) -> VersionCounts:
    """Raise the keys of ``key_map`` to their clean winners; returns what had no version.

    Segments at the base offsets ``unranked`` have none of the keys, and no transactions.
    """
    plan = task.plan
    clean = [
        s
        for s in plan.segments
        if s.base_offset < plan.first_dirty and s.base_offset not in unranked
    ]
    if not len(key_map) or not clean:
        return VersionCounts()
    state = pass_start(plan, clean[0].base_offset)
    counts = VersionCounts()
    for segment in clean:
        counts += raise_over_extent(
            task, segment.base_offset, 0, segment.size_bytes, state, key_map.raise_known, ranking,
            files, workspace, cache, progressed, ask_markers, checks_crc=checks_crc,
        )  # fmt: skip
    return counts


def raise_over_extent(
    task: PartitionTask,
    base_offset: int,
    start: int,
    end: int,
    state: TransactionState,
    raise_known: RaiseKnown,
    ranking: Ranking,
    files: FileSystem,
    w: Workspace,
    cache: DecompressedCache,
    progressed: Progressed,
    ask_markers: AskMarkers,
    *,
    checks_crc: bool,
) -> VersionCounts:
    """Give the clean records in the bytes ``[start, end)`` of a segment to ``raise_known``."""
    plan = task.plan
    dirty = plan.dirty_segments()
    # The first pass has kept the payloads of the segment that is clean and dirty.
    keeps = base_offset != (dirty[0].base_offset if dirty else plan.first_dirty)
    path = child_path(task.path, segment_file(base_offset, LOG))
    counts = VersionCounts()
    with reading(files, path) as handle:
        for window in read_windows(
            handle, path, w.buffers, start=start, end=end, checks_crc=checks_crc
        ):
            follow_window(state, window, w, ask_markers)
            retained.select_indexed(window.table, 0, window.batches)
            for part in w.slices(window, base_offset, task.hash_key, cache, keeps=keeps):
                # What was deleted outranks nothing: no reader can read it, and its key would be
                # lost.
                if retained.mark_indexed(
                    part.rows, plan.log_start, plan.first_dirty, w.offsets, w.flags, w.marks
                ):
                    counts += ranking.read_versions(window, part, w)
                    raise_known(ranking.block_of(part.rows, w), w.starts)
            progressed(window.length)
    return counts
