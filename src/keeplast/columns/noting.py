"""A key map that notes in a ledger how each record stands, while it learns the winners.

The notes are right only while offsets ascend, so that an offset names one record and the later of
two is the greater; :meth:`NotingKeyMap.forget_notes` when they do not. Only for maps that rank by
offset: by another rank, a record may lose to one that was put before it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.kernel import kernel
from keeplast.columns.ledger import NO_LEDGER, Ledger
from keeplast.columns.machine import prefetch_row
from keeplast.columns.winners import LOSES, PREFETCH_ROWS, WINS, KeyMap, home_slot


@kernel("int64(uint64[:, ::1], uint64[:, ::1], int64, int64, int64, uint8[::1])")
def insert_noting(table, block, first, last, first_offset, standings):
    """Do what :func:`keeplast.columns.winners.insert` does, and note who wins and who lost."""
    slots = table.shape[0]
    new = 0
    for i in range(first, last):
        if i + PREFETCH_ROWS < last:
            prefetch_row(table, home_slot(block[i + PREFETCH_ROWS, 0], slots))
        a = block[i, 0]
        b = block[i, 1]
        s = home_slot(a, slots)
        while True:
            mark = table[s, 2]
            if mark == np.uint64(0):
                table[s, 0] = a
                table[s, 1] = b
                new += 1
                break
            if table[s, 0] == a and table[s, 1] == b:
                lost = np.int64(mark) - 2 - first_offset
                if mark != np.uint64(1) and 0 <= lost < standings.shape[0]:
                    standings[lost] = LOSES
                break
            s += 1
            if s == slots:
                s = 0
        table[s, 2] = block[i, 2] + np.uint64(2)
        won = np.int64(block[i, 2]) - first_offset
        if 0 <= won < standings.shape[0]:
            standings[won] = WINS
    return new


class NotingKeyMap(KeyMap):
    """A key map that keeps a :class:`Ledger` of what is put into it."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: Ledger) -> None:
        """Start empty, with an empty ledger."""
        super().__init__()
        self._ledger = ledger

    @property
    def ledger(self) -> Ledger:
        """Return the notes; final once :meth:`put` is no longer called."""
        return self._ledger

    def forget_notes(self) -> None:
        """Drop all notes and take no more."""
        self._ledger = NO_LEDGER

    def _insert(
        self, table: NDArray[np.uint64], block: NDArray[np.uint64], first: int, last: int
    ) -> int:
        ledger = self._ledger
        new: int = insert_noting(table, block, first, last, ledger.first_offset, ledger.standings)
        return new
