"""A key map that notes in a ledger how each record stands, while it learns the winners.

The notes are right only while offsets ascend, so that an offset names one record;
:meth:`NotingKeyMap.forget_notes` when they do not. A map that ranks by more than the offset notes
in its own way: :mod:`keeplast.columns.ranks`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.kernel import inline, kernel
from keeplast.columns.ledger import NO_LEDGER, ReasonLedger
from keeplast.columns.machine import table_at
from keeplast.columns.winners import (
    ADDRESS,
    KEYS,
    LOSES,
    SLOTS,
    WINS,
    KeyMap,
    end_of_step,
    find_slot,
    prefetch_home,
)


@inline
def note(standings, at, standing):
    """Note a record's standing, if the ledger reaches there."""
    if 0 <= at < standings.shape[0]:
        standings[at] = standing


@inline
def _insert_rows(table, block, first, last, first_offset, standings):
    new = 0
    for i in range(first, last):
        prefetch_home(table, block, i, last)
        s = find_slot(table, block[i, 0], block[i, 1])
        mark = table[s, 2]
        if mark == np.uint64(0):
            table[s, 0] = block[i, 0]
            table[s, 1] = block[i, 1]
            new += 1
        raised = block[i, 2] + np.uint64(2)
        if raised < mark:
            note(standings, np.int64(block[i, 2]) - first_offset, LOSES)
            continue
        if mark >= np.uint64(2):
            note(standings, np.int64(mark) - 2 - first_offset, LOSES)
        table[s, 2] = raised
        note(standings, np.int64(block[i, 2]) - first_offset, WINS)
    return new


@kernel(
    "int64(int64[:, ::1], uint64[:, ::1], int64[::1], int64[::1], int64, int64, int64, uint8[::1])"
)
def insert_noting(shards, block, at, ends, first, last, first_offset, standings):
    """Do what :func:`keeplast.columns.winners.insert` does, and note who wins and who lost."""
    for shard in range(first, last):
        table = table_at(shards[shard, ADDRESS], shards[shard, SLOTS], block.shape[1])
        while at[shard] < ends[shard]:
            end = end_of_step(shards, shard, at[shard], ends[shard])
            if end == at[shard]:
                return shard
            shards[shard, KEYS] += _insert_rows(
                table, block, at[shard], end, first_offset, standings
            )
            at[shard] = end
    return last


class NotingKeyMap(KeyMap):
    """A key map that keeps a :class:`Ledger` of what is put into it."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: ReasonLedger) -> None:
        super().__init__()
        self._ledger = ledger

    @property
    def ledger(self) -> ReasonLedger:
        """Return the notes; final once :meth:`put` is no longer called."""
        return self._ledger

    def forget_notes(self) -> None:
        """Drop all notes and take no more."""
        self._ledger = NO_LEDGER

    def _insert(
        self,
        block: NDArray[np.uint64],
        at: NDArray[np.int64],
        ends: NDArray[np.int64],
        first: int,
        last: int,
    ) -> int:
        ledger = self._ledger
        stopped: int = insert_noting(
            self._shards, block, at, ends, first, last, ledger.first_offset, ledger.standings
        )
        return stopped
