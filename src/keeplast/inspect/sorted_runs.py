"""Sorts any number of rows in bounded memory: sorted runs on disk, then merged.

A row is six int64: two halves of a key's fingerprint, version, offset, delete horizon, flags. The
lower half is shifted by one bit, which says whether the record has a version. So rows come out by
key, and within a key by rank, when sorted by the first four as they are. Rows equal in those come
out next to each other. What fits into one run never touches the disk.

The final record of every key on two sides comes from such rows. A row says on which sides its
record is. Rows of one record (same key, same offset) count as one with the flags of all. Memory is
bounded even for a key with any number of records: what is carried from piece to piece are three
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    # Rows mostly come in offset order, so that one stable sort does it where nothing else ranks.
    # Two keys with the same half of a fingerprint, or rows out of order, need all columns.
    rows = rows[np.argsort(rows[:, KEY_HIGH], kind="stable")]
    same = rows[1:, KEY_HIGH] == rows[:-1, KEY_HIGH]
    differs = (rows[1:, KEY_LOW] != rows[:-1, KEY_LOW]) | (rows[1:, VERSION] != rows[:-1, VERSION])
    falling = differs | (rows[1:, OFFSET] < rows[:-1, OFFSET])
    if bool((same & falling).any()):
        rows = rows[np.lexsort(rows[:, OFFSET::-1].T)]
    return rows


class _Run:
    """One sorted run, with a block at a time in memory."""

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


ON_LEFT = 1
ON_RIGHT = 2
IS_TOMBSTONE = 4
IS_OLD_FORMAT = 8

OLDER_LEFT = COLUMNS
OLDER_RIGHT = COLUMNS + 1
"""Columns that a final record has beyond those of a row: the offset, on that side, of its key's
record that ranks next to it, or -1."""


def final_records(pieces: Iterable[Rows]) -> Iterator[Rows]:
    """Yield a row for each key: its greatest record, with what ranks next on either side."""
    carried = np.empty((0, COLUMNS), np.int64)
    for piece in pieces:
        rows = _merge(np.concatenate([carried, piece]))
        start = int(_starts(rows)[-1])
        if start:
            yield _fold(rows[:start])
        carried = _condense(rows[start:])
    if len(carried):
        yield _fold(carried)


def _starts(rows: Rows) -> Rows:
    """Return where each key begins."""
    keys = rows[:, [KEY_HIGH, KEY_LOW]]
    keys[:, 1] >>= KEY_SHIFT
    differs = np.ones(len(rows), np.bool_)
    differs[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return np.flatnonzero(differs)


def _merge(rows: Rows) -> Rows:
    """Return one row a record."""
    differs = np.ones(len(rows), np.bool_)
    differs[1:] = (rows[1:, :HORIZON] != rows[:-1, :HORIZON]).any(axis=1)
    if bool(differs.all()):
        return rows
    starts = np.flatnonzero(differs)
    merged = rows[starts]
    merged[:, FLAGS] = np.bitwise_or.reduceat(rows[:, FLAGS], starts)
    merged[:, HORIZON] = np.maximum.reduceat(rows[:, HORIZON], starts)
    return merged


def _fold(rows: Rows) -> Rows:
    starts = _starts(rows)
    last = np.concatenate([starts[1:], [len(rows)]]) - 1
    folded = np.empty((len(starts), COLUMNS + 2), np.int64)
    folded[:, :COLUMNS] = rows[last]
    for side, column in ((ON_LEFT, OLDER_LEFT), (ON_RIGHT, OLDER_RIGHT)):
        places = np.where(rows[:, FLAGS] & side != 0, np.arange(len(rows)), -1)
        places[last] = -1
        next_to = np.maximum.reduceat(places, starts)
        folded[:, column] = np.where(next_to < 0, -1, rows[next_to, OFFSET])
    return folded


def _condense(rows: Rows) -> Rows:
    """Return those rows of one key that decide: the last, and the last below it on each side."""
    chosen = {len(rows) - 1}
    for side in (ON_LEFT, ON_RIGHT):
        older = np.flatnonzero(rows[:-1, FLAGS] & side != 0)
        chosen.update(older[-1:].tolist())
    return rows[sorted(chosen)]
