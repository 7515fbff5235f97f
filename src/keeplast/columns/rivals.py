"""Key maps of tasks that each know a part of a log: what one hands over, and who loses to another.

The best record of a key in one part may be outranked by that of another part. A part's map gives
its rows away (:class:`PartKeyMap`); a map of all of them then says which of these rows lose
(:class:`RivalKeyMap`). By offset alone; :mod:`keeplast.columns.winners` has the tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.kernel import kernel
from keeplast.columns.noting import NotingKeyMap
from keeplast.columns.winners import KEYS, SHARDS, KeyMap, find_slot, prefetch_home


@kernel("int64(uint64[:, ::1], uint64[:, ::1], int64)")
def gather_rows(table, rows, at):
    """Put the keys of a table with their offsets to ``rows`` from row ``at`` on; return the end.

    No more than ``rows`` has room for, which is enough for a map's own count of its keys.
    """
    for s in range(table.shape[0]):
        if table[s, 2] > np.uint64(1) and at < rows.shape[0]:
            rows[at, 0] = table[s, 0]
            rows[at, 1] = table[s, 1]
            rows[at, 2] = table[s, 2] - np.uint64(2)
            at += 1
    return at


@kernel("int64(uint64[:, ::1], uint64[:, ::1], int64, int64, int64[::1], int64)")
def gather_losers(table, rows, first, last, losers, at):
    """Put the offsets of rows ``[first, last)`` that lose to ``losers`` from ``at`` on.

    Every key is in the table, and ``losers`` has room for all rows. Returns the end.
    """
    for i in range(first, last):
        prefetch_home(table, rows, i, last)
        s = find_slot(table, rows[i, 0], rows[i, 1])
        if rows[i, 2] + np.uint64(2) < table[s, 2]:
            losers[at] = np.int64(rows[i, 2])
            at += 1
    return at


class PartKeyMap(NotingKeyMap):
    """The winners of a part of a log, and notes of its records."""

    __slots__ = ()

    def to_block(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return every key with its offset as one block and its shards' starts."""
        starts = np.zeros(SHARDS + 1, np.int64)
        np.cumsum(self._shards[:, KEYS], out=starts[1:])
        rows = np.empty((len(self), self.WORDS), np.uint64)
        for shard, table in enumerate(self._tables):
            gather_rows(table, rows, int(starts[shard]))
        return rows, starts


class RivalKeyMap(KeyMap):
    """The winners among the winners of parts."""

    __slots__ = ()

    def losers(self, rows: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the offsets of a part's rows that lose; all of its keys are here."""
        losers, at, bounds = np.empty(len(rows), np.int64), 0, starts.tolist()
        for shard, table in enumerate(self._tables):
            at = gather_losers(table, rows, bounds[shard], bounds[shard + 1], losers, at)
        return losers[:at]
