"""Sorts any number of rows in bounded memory: sorted runs on disk, then merged.

A row is six int64: two halves of a key's fingerprint, version, offset, delete horizon, flags. The
lower half is shifted by one bit, which says whether the record has a version: so rows come out by
key, and within a key by rank, when sorted by the first four as they are. Rows equal in those come
out next to each other. What fits into one run never touches the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

COLUMNS = 6
KEY_HIGH, KEY_LOW, VERSION, OFFSET, HORIZON, FLAGS = range(COLUMNS)
KEY_SHIFT = 1
"""Bits of KEY_LOW that are not the key's."""
ROW_BYTES = 8 * COLUMNS
ROWS_MIN = 1 << 10

Rows = NDArray[np.int64]


class SortedRuns:
    """Rows that are added in any order and read once, in order."""

    def __init__(self, directory: Path, memory_bytes: int) -> None:
        """Write runs to ``directory``, which is the caller's to remove."""
        self._directory = directory
        # A run is sorted through an index and a copy: three times its bytes at most.
        self._rows_max = max(memory_bytes // (3 * ROW_BYTES), ROWS_MIN)
        self._pending: list[Rows] = []
        self._pending_rows = 0
        self._runs: list[Path] = []

    @property
    def runs(self) -> int:
        """Return how many runs lie on disk."""
        return len(self._runs)

    def add(self, rows: Rows) -> None:
        """Take rows; the array is copied."""
        if not len(rows):
            return
        self._pending.append(rows.copy())
        self._pending_rows += len(rows)
        if self._pending_rows >= self._rows_max:
            path = self._directory / f"run-{len(self._runs):06d}"
            with path.open("wb") as file:
                self._take_pending().tofile(file)
            self._runs.append(path)

    def merged(self) -> Iterator[Rows]:
        """Yield every row in order, in pieces; pieces may end inside a key."""
        last = self._take_pending()
        if not self._runs:
            if len(last):
                yield last
            return
        block = max(self._rows_max // (len(self._runs) + 1), ROWS_MIN)
        readers = [_Run(path, block) for path in self._runs]
        if len(last):
            readers.append(_Run(None, block, last))
        while readers:
            # Everything up to the smallest last row in memory is complete: the rest of each run
            # comes after what is in memory of it.
            cut = min(tuple(reader.rows[-1, :HORIZON].tolist()) for reader in readers)
            yield sort_rows(np.concatenate([reader.take(cut) for reader in readers]))
            readers = [reader for reader in readers if reader.fill()]

    def _take_pending(self) -> Rows:
        rows = np.concatenate([np.empty((0, COLUMNS), np.int64), *self._pending])
        self._pending, self._pending_rows = [], 0
        return sort_rows(rows)


def sort_rows(rows: Rows) -> Rows:
    """Return ``rows`` sorted by key, then version, then offset."""
    # Rows mostly come in offset order, so that one stable sort does it where nothing else ranks;
    # two keys with the same half of a fingerprint, or rows out of order, need all columns.
    rows = rows[np.argsort(rows[:, KEY_HIGH], kind="stable")]
    same = rows[1:, KEY_HIGH] == rows[:-1, KEY_HIGH]
    differs = (rows[1:, KEY_LOW] != rows[:-1, KEY_LOW]) | (rows[1:, VERSION] != rows[:-1, VERSION])
    falling = differs | (rows[1:, OFFSET] < rows[:-1, OFFSET])
    if bool((same & falling).any()):
        rows = rows[np.lexsort(rows[:, OFFSET::-1].T)]
    return rows


class _Run:
    """One sorted run, of which a block at a time is in memory."""

    def __init__(self, path: Path | None, block: int, rows: Rows | None = None) -> None:
        self._path = path
        self._block = block
        self._position = 0
        self.rows = np.empty((0, COLUMNS), np.int64) if rows is None else rows
        self.fill()

    def fill(self) -> bool:
        """Read the next block when nothing is left; False when the run has ended."""
        if not len(self.rows) and self._path is not None:
            with self._path.open("rb") as file:
                self.rows = self._read(file)
        return len(self.rows) > 0

    def _read(self, file: BinaryIO) -> Rows:
        # Opened for each block: there may be more runs than a process may hold files open.
        file.seek(self._position)
        data = np.fromfile(file, np.int64, self._block * COLUMNS)
        self._position += data.nbytes
        return data.reshape(-1, COLUMNS)

    def take(self, cut: tuple[int, ...]) -> Rows:
        """Return and forget the leading rows that are not above ``cut``."""
        first = int(np.searchsorted(self.rows[:, KEY_HIGH], cut[KEY_HIGH], "left"))
        last = int(np.searchsorted(self.rows[:, KEY_HIGH], cut[KEY_HIGH], "right"))
        tied = self.rows[first:last]
        within = tied[:, OFFSET] <= cut[OFFSET]
        for column in (VERSION, KEY_LOW):
            within &= tied[:, column] == cut[column]
            within |= tied[:, column] < cut[column]
        stop = first + int(within.sum())
        taken, self.rows = self.rows[:stop], self.rows[stop:]
        return taken
