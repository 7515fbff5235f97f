"""What the first pass already knows of each record it indexed, by offset: whether it still wins.

A key map is asked by key, which costs the second pass a hash and a walk into a table much larger
than any cache, for every record. But when a record replaces another in the map, both their
offsets are at hand: the one is noted as winning, the other as losing, a byte an offset. At the end
of the pass that is the standing of every record that was indexed, and the second pass reads it
with the offset alone. A record without a note (not indexed, or outside the ledger) is looked up.
:mod:`keeplast.columns.noting` takes the notes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ReasonLedger:
    """``standings[n]`` is the standing of the record at ``first_offset + n``, UNKNOWN (0) if none.

    One byte an offset, so that threads that note different records never touch one byte.
    """

    first_offset: int
    standings: NDArray[np.uint8]

    def part(self, first_offset: int, end_offset: int) -> ReasonLedger:
        """Return what is noted of ``[first_offset, end_offset)``, as far as this one reaches."""
        start = max(first_offset - self.first_offset, 0)
        end = max(end_offset - self.first_offset, start)
        return ReasonLedger(self.first_offset + start, self.standings[start:end])

    def add(self, other: ReasonLedger) -> int:
        """Take the notes of another ledger over; returns how many offsets both reach.

        Nothing of these may have been noted before.
        """
        mine = self.part(other.first_offset, other.first_offset + len(other.standings))
        theirs = other.part(mine.first_offset, mine.first_offset + len(mine.standings))
        mine.standings[:] = theirs.standings
        return len(theirs.standings)


NO_LEDGER = ReasonLedger(0, np.empty(0, np.uint8))
"""Knows nothing."""


def new_ledger(first_offset: int, end_offset: int, bytes_max: int) -> ReasonLedger:
    """Return a ledger for ``[first_offset, end_offset)``, or for as much of it as is allowed."""
    length = max(0, min(end_offset - first_offset, bytes_max))
    return ReasonLedger(first_offset, np.zeros(length, np.uint8))
