"""Where the second pass learns how a record stands: from a key map, or from answers kept by row.

The hash space has *cells*: a shard of the key map, cut into as many parts as it takes for a cell to
fit one task. Rows of one cell keep the order of the log on their way to a bucket and back, so an
answer needs no key, only its turn. :class:`RowStandings` is right for the very rows asked about.

Rows on their way to hash buckets: they wait by cell until there are enough of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.columns.winners import LOSES, NO_LEDGER, SHARDS, UNKNOWN, WINS, KeyMap, ReasonLedger
from keeplast.errors import invariant
from keeplast.rewrite.units import Answer, Notes


class Finder(Protocol):
    """Answers for the rows of one segment that the second pass looks up, in their order."""

    def find(
        self,
        block: NDArray[np.uint64],
        starts: NDArray[np.int64],
        rows: NDArray[np.int32],
        standings: NDArray[np.uint8],
    ) -> None:
        """Write the standing of every block row's record to ``standings[row]``."""


class Standings(Protocol):
    """Says how records stand, segment by segment."""

    def of_segment(self, base_offset: int) -> Finder:
        """Return what answers for a segment from its first row on."""


class MapStandings(Struct, frozen=True):
    """Standings from a key map, which answers in any order; None where a ledger knows them all."""

    key_map: KeyMap | None

    def of_segment(self, base_offset: int) -> Finder:
        """Return the map, which is the same for every segment."""
        return _NO_FINDER if self.key_map is None else self.key_map


class _NoFinder:
    """Is never asked."""

    def find(
        self,
        block: NDArray[np.uint64],
        starts: NDArray[np.int64],
        rows: NDArray[np.int32],
        standings: NDArray[np.uint8],
    ) -> None:
        """Refuse: a record without a note must not pass for one whose key is unknown."""
        invariant(False, "a record of a group that is noted as a whole has no note")


_NO_FINDER = _NoFinder()


def parts_of(buckets: int) -> int:
    """Return how many cells a shard has when there are so many buckets."""
    return -(-buckets // SHARDS)


def bucket_of(cell: int, buckets: int) -> int:
    """Return the bucket that answers for a cell."""
    return cell * buckets // (SHARDS * parts_of(buckets))


def cells_of(
    block: NDArray[np.uint64], starts: NDArray[np.int64], parts: int
) -> Iterator[tuple[int, NDArray[np.intp] | slice]]:
    """Yield each cell with rows in ``block`` and which rows these are, in their order."""
    for shard in range(SHARDS):
        first, last = int(starts[shard]), int(starts[shard + 1])
        if first == last:
            continue
        if parts == 1:
            yield shard, slice(first, last)
            continue
        # The shard and the place in a table follow from the first half of the hash.
        part = ((block[first:last, 1] >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)
        for number in np.unique(part).tolist():
            yield shard * parts + int(number), first + np.flatnonzero(part == np.uint64(number))


class RowStandings:
    """Standings that hash buckets gave for the rows of some segments."""

    def __init__(self, buckets: int, answers: Iterable[Answer]) -> None:
        self._parts = parts_of(buckets)
        self._answers: dict[int, dict[int, list[Answer]]] = {}
        for answer in sorted(answers, key=lambda a: (a.extent.start, a.part)):
            cells = self._answers.setdefault(answer.extent.base_offset, {})
            cells.setdefault(answer.cell, []).append(answer)

    def of_segment(self, base_offset: int) -> Finder:
        """Return the map, which is the same for every segment."""
        return _RowFinder(self._parts, self._answers.get(base_offset, {}))


class _RowFinder:
    """Reads the answers of one segment in turn."""

    def __init__(self, parts: int, cells: dict[int, list[Answer]]) -> None:
        self._parts = parts
        self._cells = {
            cell: np.concatenate([unpack_standings(each) for each in answers])
            for cell, answers in cells.items()
        }
        self._at = dict.fromkeys(cells, 0)

    def find(
        self,
        block: NDArray[np.uint64],
        starts: NDArray[np.int64],
        rows: NDArray[np.int32],
        standings: NDArray[np.uint8],
    ) -> None:
        """Write the standing of every block row's record to ``standings[row]``."""
        for cell, chosen in cells_of(block, starts, self._parts):
            turn = rows[chosen]
            at = self._at.get(cell, 0)
            found = self._cells.get(cell, standings[:0])[at : at + len(turn)]
            invariant(len(found) == len(turn), f"a bucket did not answer for a row. cell={cell}")
            standings[turn] = found
            self._at[cell] = at + len(turn)


def notes_of(ledger: ReasonLedger) -> Notes:
    """Return a ledger as it travels."""
    standings = ledger.standings
    return Notes(
        ledger.first_offset, len(standings),
        pack_bits(standings == LOSES), pack_bits(standings == WINS),
    )  # fmt: skip


def ledger_of(notes: Notes | None) -> ReasonLedger:
    """Return the ledger that has travelled, none when there was none."""
    return NO_LEDGER if notes is None else ReasonLedger(notes.first_offset, unpack_standings(notes))


def unpack_standings(answer: Answer | Notes) -> NDArray[np.uint8]:
    """Return the standing of each row of an answer, or of each offset of some notes."""
    loses = np.unpackbits(np.frombuffer(answer.loses, np.uint8), count=answer.count)
    wins = np.unpackbits(np.frombuffer(answer.wins, np.uint8), count=answer.count)
    standings: NDArray[np.uint8] = np.where(
        loses != 0, np.uint8(LOSES), np.where(wins != 0, np.uint8(WINS), np.uint8(UNKNOWN))
    )
    return standings


def pack_bits(is_set: NDArray[np.bool_] | NDArray[np.uint8]) -> bytes:
    """Return a bit a row, the first in the highest bit, padded with zeros to a byte."""
    return np.packbits(is_set).tobytes()


ROWS_MIN = 1 << 16
ROW_BYTES = 32


class WaitingRows:
    """The rows of an extent that have not been sent yet, in their order within each cell."""

    def __init__(self, buckets: int, memory_bytes: int) -> None:
        """Begin with none, in the memory of a worker that has ``memory_bytes``."""
        self._parts = parts_of(buckets)
        self._cells: dict[int, list[NDArray[np.uint64]]] = {}
        self._count = 0
        # Rows wait in a quarter of the worker's memory; reducing them takes about as much again.
        self._count_max = max(memory_bytes // 4 // ROW_BYTES, ROWS_MIN)

    @property
    def is_full(self) -> bool:
        """Say whether the rows should be taken."""
        return self._count >= self._count_max

    def add(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Take copies of the rows of a block."""
        for cell, chosen in cells_of(block, starts, self._parts):
            self._cells.setdefault(cell, []).append(block[chosen].copy())
        self._count += int(starts[-1])

    def take(self) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Yield each cell with its rows, which wait no longer."""
        cells, self._cells, self._count = self._cells, {}, 0
        for cell, waiting in sorted(cells.items()):
            yield cell, np.concatenate(waiting)
