"""What a round ranks records by: read once from its plan, the same in every pass over it.

The strategy ``offset`` needs nothing but offsets and pays for nothing else. The others read a
version for each row, and carry it through blocks into a map of larger slots. Mixing strategies
within a round could lose every record of a key, so nothing here looks at settings but once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import ranks, rules, versions, winners
from keeplast.columns.ledger import NO_LEDGER, ReasonLedger
from keeplast.columns.noting import NotingKeyMap
from keeplast.columns.ranks import RankedKeyMap
from keeplast.columns.winners import KeyMap
from keeplast.log.windows import Window
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import Slice, Workspace


@dataclass(frozen=True, slots=True)
class VersionCounts:
    """Records without a version: those without the header, and those whose header is malformed."""

    missing: int = 0
    malformed: int = 0

    def __add__(self, other: VersionCounts) -> VersionCounts:
        return VersionCounts(self.missing + other.missing, self.malformed + other.malformed)


@dataclass(frozen=True, slots=True)
class Ranking:
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
        """Return which tombstones may expire, for :func:`rules.may_expire`."""
        if not self.has_versions:
            return rules.ANY_EXPIRES
        if self.keeps_versioned_tombstones:
            return rules.UNVERSIONED_EXPIRES
        return rules.UNCONTESTED_EXPIRES

    def new_map(self, ledger: ReasonLedger = NO_LEDGER) -> KeyMap:
        """Return an empty key map that takes notes in ``ledger``."""
        return RankedKeyMap(ledger) if self.has_versions else NotingKeyMap(ledger)

    def read_versions(self, window: Window, part: Slice, w: Workspace) -> VersionCounts:
        """Read the versions of the rows that are marked; returns how many have none."""
        if not self.has_versions:
            return VersionCounts()
        found, _ = w.room_for_ranks()
        if self.strategy is Strategy.TIMESTAMP:
            versions.read_timestamps(
                window.data, w.scratch, window.table, part.first, part.last,
                w.marks, w.flags, found,
            )  # fmt: skip
            return VersionCounts()
        missing, malformed = versions.read_header_versions(
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
        ranks.sort_ranks_by_shard(
            w.hashes, w.offsets, found, w.flags, w.marks, 0, rows, block, w.block_rows, w.starts
        )
        return block

    def best_of(self, rows: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Mark the one row of each key of a block that outranks the key's other rows."""
        best = np.zeros(len(rows), np.uint8)
        slots = np.full(2 * len(rows) + 1, -1, np.int32)
        mark = ranks.mark_best_ranks if self.has_versions else winners.mark_best
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
