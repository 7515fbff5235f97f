"""Tasks of one round that find the winners together, through files beside the log.

    keys of a run  ->  a file a run, by bucket  ->  a file a task: which offsets lose, by run

Each task indexes a *run*, groups that follow one another, into a map of its own, whose ledger notes
the best record of each key as winning. Of these every task then reads, for its share of the
buckets, what all runs wrote, and writes back the offsets of those that lose to another run. With
these the ledger of a run says all that its second pass asks, and no record is hashed twice.

What a reader must not break: a file is read only when every task has said that its own is whole,
and offsets must name records (they ascend, nothing was aborted), or a ledger would lie. Files have
staged names, so that whoever collects what an attempt left finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.ledger import ReasonLedger
from keeplast.columns.rivals import PartKeyMap, RivalKeyMap
from keeplast.columns.winners import LOSES, SHARDS, KeyMap
from keeplast.errors import UnavailableError
from keeplast.log.files import FileSystem, ReadHandle, WriteHandle, reading
from keeplast.rewrite.standings import cells_of, parts_of

WORD = 8
ROW_WORDS = KeyMap.WORDS
MAP_BYTES_MIN = 16 << 20
"""A map that is bounded is written out at this size at the least; small ones find few doubles."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Where the keys of a run lie: ``blocks`` are the positions of its blocks in the file.

    A block is (cells + 1) numbers, where each cell's rows begin, and then the rows, cell by cell.
    """

    path: Path
    blocks: tuple[int, ...]


class KeyWriter:
    """A sink of the first pass: a key map that is written out when it is full, and at the end."""

    def __init__(
        self, ledger: ReasonLedger, handle: WriteHandle, *, buckets: int, map_bytes_max: int | None
    ) -> None:
        """Begin with an empty map; ``map_bytes_max`` None lets it grow without bound."""
        self._ledger = ledger
        self._handle = handle
        self._parts = parts_of(buckets)
        self._map_bytes_max = map_bytes_max
        self._key_map = PartKeyMap(ledger)
        self._size_bytes = 0
        self._blocks: list[int] = []

    def put(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Raise keys to every row of a block."""
        self._key_map.put(block, starts)
        if self._map_bytes_max is not None and self._key_map.size_bytes > self._map_bytes_max:
            self._write()

    def end(self) -> tuple[int, ...]:
        """Write what is left, and return where the blocks lie; nothing may be put any more."""
        if len(self._key_map):
            self._write()
        return tuple(self._blocks)

    def _write(self) -> None:
        block, starts = self._key_map.to_block()
        self._key_map = PartKeyMap(self._ledger)
        rows, cell_starts = by_cell(block, starts, self._parts)
        self._blocks.append(self._size_bytes)
        for data in (cell_starts.view(np.uint8).data, rows.reshape(-1).view(np.uint8).data):
            self._handle.write(data)
            self._size_bytes += data.nbytes


def by_cell(
    block: NDArray[np.uint64], starts: NDArray[np.int64], parts: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the rows of a block ordered by cell, and where each of all the cells begins."""
    if parts == 1:
        return block, starts
    counts = np.zeros(SHARDS * parts + 1, np.int64)
    chosen = list[NDArray[np.uint64]]()
    for cell, rows in cells_of(block, starts, parts):
        chosen.append(block[rows])
        counts[cell + 1] = len(chosen[-1])
    return np.concatenate(chosen), np.cumsum(counts)


def cells_of_bucket(bucket: int, buckets: int) -> tuple[int, int]:
    """Return the cells ``[first, last)`` of a bucket."""
    cells = SHARDS * parts_of(buckets)
    return -(-bucket * cells // buckets), -(-(bucket + 1) * cells // buckets)


def find_losers(
    key_files: Sequence[KeyFile], bucket: int, buckets: int, files: FileSystem
) -> tuple[list[NDArray[np.int64]], int]:
    """Return the offsets that lose in each run's rows of a bucket, and how many keys there are."""
    parts = parts_of(buckets)
    first, last = cells_of_bucket(bucket, buckets)
    key_map = RivalKeyMap()
    found: list[list[tuple[NDArray[np.uint64], NDArray[np.int64]]]] = []
    for key_file in key_files:
        with reading(files, key_file.path) as handle:
            read = [
                _read_rows(handle, key_file.path, at, first, last, SHARDS * parts)
                for at in key_file.blocks
            ]
        # A bucket begins and ends inside a shard when shards have several cells.
        edges = np.clip(np.arange(SHARDS + 1) * parts, first, last) - first
        found.append([(rows, starts[edges]) for rows, starts in read])
        for rows, starts in found[-1]:
            key_map.merge(rows, starts)
    losers = [
        np.concatenate([_NO_OFFSETS, *(key_map.losers(rows, starts) for rows, starts in run)])
        for run in found
    ]
    return losers, len(key_map)


_NO_OFFSETS: NDArray[np.int64] = np.empty(0, np.int64)


def write_losers(
    buckets: Sequence[Sequence[NDArray[np.int64]]], runs: int, handle: WriteHandle
) -> None:
    """Write what :func:`find_losers` found in some buckets, run by run.

    First where the offsets of each run begin, counted in offsets, and the end; then all of them.
    """
    by_run = [[bucket[run] for bucket in buckets] for run in range(runs)]
    starts = np.zeros(runs + 1, np.int64)
    np.cumsum([sum(map(len, parts)) for parts in by_run], out=starts[1:])
    for part in (starts, *(part for parts in by_run for part in parts)):
        handle.write(part.view(np.uint8).data)


def note_losers(
    ledger: ReasonLedger, paths: Sequence[Path], run: int, runs: int, files: FileSystem
) -> None:
    """Note in the ledger of a run what the tasks found to lose."""
    for path in paths:
        with reading(files, path) as handle:
            first, last = _read(handle, path, run * WORD, 2).tolist()
            offsets = _read(handle, path, (runs + 1 + first) * WORD, last - first)
        ledger.standings[offsets - ledger.first_offset] = LOSES


def _read_rows(
    handle: ReadHandle, path: Path, at: int, first: int, last: int, cells: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the rows of cells ``[first, last)`` of the block at ``at``, and each one's start."""
    starts = _read(handle, path, at + first * WORD, last - first + 1)
    rows_at = at + (cells + 1) * WORD + int(starts[0]) * ROW_WORDS * WORD
    words = _read(handle, path, rows_at, int(starts[-1] - starts[0]) * ROW_WORDS)
    return words.view(np.uint64).reshape(-1, ROW_WORDS), starts - starts[0]


def _read(handle: ReadHandle, path: Path, position: int, words: int) -> NDArray[np.int64]:
    found = np.empty(words, np.int64)
    count = handle.pread_into(found.view(np.uint8).data, position) if words else 0
    if count < words * WORD:
        raise UnavailableError(
            f"a file of keys is shorter here than where it was written; clean again. path={path} "
            f"position={position} expected_bytes={words * WORD} found_bytes={count}"
        )
    return found


def buckets_of_task(task: int, tasks: int, buckets: int) -> Iterator[int]:
    """Yield the buckets that a task asks, of which each belongs to one."""
    yield from range(task, buckets, tasks)


def cut_runs(items: Sequence[T], cost: Callable[[T], int], runs: int) -> list[list[T]]:
    """Return items in their order as at most ``runs`` runs of about the same cost."""
    whole = max(sum(map(cost, items)), 1)
    found: dict[int, list[T]] = {}
    before = 0
    for item in items:
        # An item goes where its middle lies.
        number = min((2 * before + cost(item)) * runs // (2 * whole), runs - 1)
        found.setdefault(number, []).append(item)
        before += cost(item)
    return list(found.values())
