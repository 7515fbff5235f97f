"""Holds the entries of an offset and a time index against the batches of their segment.

The one proof of what an index says. For every entry it tells what the batches say in its place;
which of that must hold is for who asks: a reader that follows an index needs less than Kafka's
builder gives. Nothing is said of an entry that no batch answers. Kafka: ``OffsetIndex``,
``TimeIndex``; formats.md sections 2.4 and 2.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OffsetAnswers:
    """Entries of the offset index that lie among some batches, a row each.

    ``positions`` and ``offsets`` are what the entries say, offsets of the log. ``starts`` is where
    the batch begins that has the position, ``lasts`` its last offset, and ``floors`` the first
    offset behind all batches before it.
    """

    numbers: Column
    offsets: Column
    positions: Column
    starts: Column
    lasts: Column
    floors: Column


@dataclass(frozen=True, slots=True)
class TimeAnswers:
    """Entries of the time index whose offsets lie among some batches, a row each.

    ``stamps`` and ``offsets`` are what the entries say, offsets of the log. ``owns`` is the
    greatest timestamp of the batch that has the offset, ``before`` that of all batches before it,
    and ``through`` that of all that end at or below the offset; -1 where there is none.
    """

    numbers: Column
    stamps: Column
    offsets: Column
    owns: Column
    before: Column
    through: Column


class IndexWalk:
    """Both indexes of one segment beside its batches, which come in log order.

    ``greatest_ms`` is the greatest timestamp of the batches so far, -1 without one.
    """

    def __init__(
        self, base_offset: int, offsets: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        """Take decoded entries, shape (n, 2) each."""
        self.greatest_ms = -1
        self._at = base_offset
        self._ends = base_offset + offsets[:, 0]
        self._positions = offsets[:, 1]
        self._stamps = times[:, 0]
        self._reached = base_offset + times[:, 1]

    def add(
        self, starts: Column, end: int, lasts: Column, stamps: Column
    ) -> tuple[OffsetAnswers, TimeAnswers]:
        """Take the next batches, one or more: where each begins, its last offset, its timestamp.

        ``end``, exclusive, is where the last of them ends in the file.
        """
        floors = np.maximum.accumulate(np.concatenate([[self._at], lasts[:-1] + 1]))
        greatest = np.maximum.accumulate(np.concatenate([[self.greatest_ms], stamps]))
        here = np.flatnonzero((self._positions >= starts[0]) & (self._positions < end))
        at = np.searchsorted(starts, self._positions[here], "right") - 1
        offsets = OffsetAnswers(
            here, self._ends[here], self._positions[here], starts[at], lasts[at], floors[at]
        )
        here = np.flatnonzero((self._reached >= floors[0]) & (self._reached <= lasts[-1]))
        reached = self._reached[here]
        at = np.searchsorted(lasts, reached)
        through = greatest[np.searchsorted(lasts, reached, "right")]
        times = TimeAnswers(here, self._stamps[here], reached, stamps[at], greatest[at], through)
        self._at = max(self._at, int(lasts.max()) + 1)
        self.greatest_ms = int(greatest[-1])
        return offsets, times
