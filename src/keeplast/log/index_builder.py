"""Makes the offset and the time index of one segment while its batches go by.

Whoever writes a segment, checks it or rebuilds what it lacks makes them here, so that all three
agree. The rule is :mod:`keeplast.columns.index_entries`'.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.index_entries import (
    POSITION,
    final_time_entry,
    index_batches,
    new_index_state,
)


class IndexBuilder:
    """The indexes of a segment at ``base_offset``; an entry after more than ``interval`` bytes."""

    def __init__(self, base_offset: int, interval: int) -> None:
        self.offset_entries = self.time_entries = 0
        """How many there are; the last time entry is not among them until :meth:`finish`."""
        self._base = base_offset
        self._interval = interval
        self._state = new_index_state(base_offset)
        self._offsets = [np.empty((0, 2), np.int64)]
        self._times = [np.empty((0, 2), np.int64)]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all batches so far."""
        return int(self._state[POSITION])

    def add(self, batches: NDArray[np.int64]) -> None:
        """Take the next batches, shape (n, 3): size, last offset, maximum timestamp; contiguous."""
        count = len(batches)
        entries = np.empty((2, count, 2), np.int64)
        o, k = index_batches(
            batches, count, self._base, self._interval, self._state, entries[0], entries[1]
        )
        self.offset_entries += o
        self.time_entries += k
        if o:
            self._offsets.append(entries[0, :o].copy())
        if k:
            self._times.append(entries[1, :k].copy())

    def finish(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Close the time index; return the entries of the offset and of the time index, (n, 2)."""
        final = final_time_entry(self._state, self._base)
        if final is not None:
            self._times.append(np.array([final], np.int64))
        return np.concatenate(self._offsets), np.concatenate(self._times)
