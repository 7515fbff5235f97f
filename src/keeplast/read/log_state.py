"""The state of a log: the record of every key that wins, without those that delete.

What a cleaner would leave of the whole range, had every tombstone expired; nothing is written. Two
passes: the first learns the offset of each key's winner, the second reads what lies there, and
skips batches where nothing does. Records without a key belong to no state.

The passes may be cut by offsets and run anywhere (:mod:`keeplast.read.state_parts`), because
nothing but hashes goes into the first and nothing but offsets into the second.

A log that is cleaned between the passes may have lost a winner that a record behind the range
supersedes; whoever goes on reading from the range's end gets that record. For everybody else a
split names its segments, and reading ends with an error when that may have happened.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.clock import Clock
from keeplast.columns import batch_table as t
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.columns.winners import SHARDS, WINS, KeyMap
from keeplast.log.files import FileSystem
from keeplast.log.log_end import noted_high_watermark
from keeplast.log.windows import Window
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_ranges import Split, Wanted
from keeplast.read.log_view import LogView, ReaderCheckpoints, look_at_log
from keeplast.read.record_columns import ColumnCollector, RecordColumns
from keeplast.read.record_source import aborted_data, read_wanted, select_batches
from keeplast.read.state_end import require_uncleaned
from keeplast.rewrite.decompressed_cache import DecompressedCache
from keeplast.rewrite.ranking import Ranking, ranking_of
from keeplast.rewrite.runner import Progressed
from keeplast.rewrite.workspace import Slice, Workspace
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

HashKey = tuple[int, int]
Winners = NDArray[np.int64]
"""Offsets of winners, in order; those of one key map, or of a range."""


def new_hash_key() -> HashKey:
    """Return a key to hash keys with; all parts of one state have the same."""
    return secrets.randbits(64), secrets.randbits(64)


def read_state(
    split: Split,
    shown: Wanted,
    topic: TopicConfig,
    files: FileSystem,
    clock: Clock,
    workspace: Workspace,
    progressed: Progressed | None = None,
    *,
    key_bytes_max: int | None = None,
    deletes: bool = False,
) -> Iterator[RecordColumns]:
    """Yield the winners among the records of ``split`` that have a value, in offset order.

    With ``deletes`` also those without. They rank as ``topic`` says. Of those, only what ``shown``
    wants; it does not change who wins.
    A key map needs 24 to 36 bytes a key of what is shown, 32 to 48 where versions rank, and the
    offsets of winners 8 more. Where it would grow beyond ``key_bytes_max`` the state comes in
    several rounds, each of which reads the rest of the log once more.
    ``progressed`` hears the bytes of both passes. Errors as for
    :func:`keeplast.read.record_source.read_records` and, at the end, of
    :func:`keeplast.read.state_end.require_uncleaned`.
    """
    reader = StateReader(
        split, ranking_of(topic), new_hash_key(), files, clock, workspace, progressed
    )
    wanted = shown.between(split.wanted.first_offset, split.wanted.end_offset)
    at = wanted.first_offset
    while at < wanted.end_offset:
        winners, reached = reader.winners_from(at, wanted.end_offset, key_bytes_max)
        yield from reader.show(winners, wanted.between(at, reached), deletes=deletes)
        at = reached
    require_uncleaned(split, files, clock)


def find_winners(
    partition: TopicPartition,
    path: Path,
    log_start: int,
    topic: TopicConfig,
    files: FileSystem,
    clock: Clock,
    end_of: Callable[[LogView], int],
) -> tuple[LogView, int, set[int]]:
    """Look at a log from ``log_start`` on; return it, the end of its state, and the winners in it.

    Those that delete their key are among them; winners are offsets. ``end_of`` says where the state
    ends, exclusive: at most where the first open transaction begins. The high watermark has no say,
    but a log that ends below it is a CorruptError.
    Errors as for :func:`read_state`, and as ``end_of`` raises them.
    """
    replicated = noted_high_watermark(files, path)
    view = look_at_log(partition, path, ReaderCheckpoints({partition: log_start}, {}), files, clock)
    if replicated is not None:
        view.require_replicated(replicated)
    end = end_of(view)
    decided_before = end if end < view.last_stable else None
    split = Split(partition, path, Wanted(view.log_start, end), 0, decided_before=decided_before)
    reader = StateReader(
        split, ranking_of(topic), new_hash_key(), files, clock, Workspace(MEMORY_BYTES_DEFAULT)
    )
    winners, _ = reader.winners_from(view.log_start, end, None)
    return view, end, set(winners.tolist())


@dataclass(frozen=True, slots=True)
class StateReader:
    """Reads the records of ``split`` that may be in its state; not shared between threads."""

    split: Split
    ranking: Ranking
    hash_key: HashKey
    files: FileSystem
    clock: Clock
    w: Workspace
    progressed: Progressed | None = None

    def winners_from(self, first: int, end: int, key_bytes_max: int | None) -> tuple[Winners, int]:
        """Return the winners in [first, reached), and how far that is; at most ``end``.

        All of the split takes part in who wins.
        """
        key_map = self.ranking.new_map()
        reached = end
        for rows, last in self.keys(first, end):
            key_map.put(rows, self.w.starts)
            if key_bytes_max is not None and key_map.size_bytes > key_bytes_max:
                reached = min(last + 1, end)
                break
        whole = self.split.wanted
        rests = [(reached, whole.end_offset)]
        if self.ranking.has_versions:
            # What lies below cannot outrank a later record by its offset, but by its version.
            rests.append((whole.first_offset, first))
        silent = replace(self, progressed=self._listen)
        for rest in rests:
            if rest[0] < rest[1] and len(key_map):
                for rows, _ in silent.keys(*rest):
                    _raise_known(key_map, rows, self.w.starts)
        winners = winning_offsets(key_map, self.ranking)
        low, high = np.searchsorted(winners, (first, reached)).tolist()
        return winners[low:high], reached

    def keys(self, first: int, end: int) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """Yield the keys with offsets in [first, end) as blocks, whose starts the workspace has.

        With each comes the last offset up to which all are in it or in those before.
        """
        w = self.w
        for window, part, piece in self._slices(self.split.wanted.between(first, end)):
            if _mark(part.rows, HAS_KEY, piece, w):
                self.ranking.read_versions(window, part, w)
                last = int(window.table[part.first : part.last, t.LAST_OFFSET].max())
                yield self.ranking.block_of(part.rows, w), last

    def show(
        self, winners: Winners, shown: Wanted, *, deletes: bool = False
    ) -> Iterator[RecordColumns]:
        """Yield the records at ``winners`` that have a value and are shown, in offset order.

        With ``deletes`` also those without: what deletes its key.
        """
        w = self.w
        has = HAS_KEY if deletes else HAS_KEY | HAS_VALUE
        collector = ColumnCollector()
        for window, part, piece in self._slices(shown, winners):
            if not _mark(part.rows, has, piece, w):
                continue
            rows = slice(0, part.rows)
            w.marks[rows] &= _is_among(w.offsets[rows], winners)
            yield from collector.add(
                window, w.scratch, part.first, part.last, piece.bounds(), w.marks
            )
        yield from collector.finish()

    def _slices(
        self, wanted: Wanted, winners: Winners | None = None
    ) -> Iterator[tuple[Window, Slice, Wanted]]:
        """Yield what holds wanted records, parsed, and what of it is wanted.

        With ``winners`` batches that have none are left out.
        """
        aborted = aborted_data(self.split, self.files, self.clock)
        # Nothing is kept for the second pass: the segments may be others by then.
        cache = DecompressedCache(0)
        split = replace(self.split, wanted=wanted)
        for base_offset, window, piece, hidden in read_wanted(
            split, self.files, self.clock, self.w.buffers, aborted=aborted
        ):
            if self.progressed is not None:
                self.progressed(window.length)
            chosen = select_batches(window, piece, hidden)
            if chosen and winners is not None:
                chosen = _drop_batches_without(winners, window)
            if not chosen:
                continue
            for part in self.w.slices(window, base_offset, self.hash_key, cache, keeps=True):
                yield window, part, piece

    def _listen(self, read_bytes: int) -> None:
        """Tell that work goes on: what is read once more is no progress."""
        if self.progressed is not None:
            self.progressed(0)


def winning_offsets(key_map: KeyMap, ranking: Ranking) -> Winners:
    """Return the offset of every key's winner, in order."""
    offsets = np.empty(len(key_map), np.int64)
    at = 0
    for rows in key_map.rows():
        offsets[at : at + len(rows)] = ranking.offsets_of(rows)
        at += len(rows)
    offsets.sort()
    return offsets


def _raise_known(key_map: KeyMap, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
    """Give the rows to the map whose key it has; it gets no other."""
    for shard in range(SHARDS):
        rows = block[int(starts[shard]) : int(starts[shard + 1])]
        rows = rows[key_map.find_shard(shard, rows) == WINS]
        key_map.put_shard(shard, rows, 0, len(rows))


def _mark(rows: int, has: int, wanted: Wanted, w: Workspace) -> int:
    """Mark the rows that have all of ``has`` and a wanted offset; returns how many."""
    offsets = w.offsets[:rows]
    w.marks[:rows] = (
        (w.flags[:rows] & has == has)
        & (offsets >= wanted.first_offset)
        & (offsets < wanted.end_offset)
    )
    return int(np.count_nonzero(w.marks[:rows]))


def _is_among(offsets: NDArray[np.int64], winners: Winners) -> NDArray[np.bool_]:
    """Say of each offset whether it is a winner's."""
    at = np.searchsorted(winners, offsets)
    is_within = at < len(winners)
    at[~is_within] = 0
    found: NDArray[np.bool_] = is_within
    if len(winners):
        found = is_within & (winners[at] == offsets)
    return found


def _drop_batches_without(winners: Winners, window: Window) -> int:
    """Set the VERDICT of chosen batches without a winner to DELETE; returns how many are left."""
    table = window.table[: window.batches]
    first = np.searchsorted(winners, table[:, t.BASE_OFFSET])
    after = np.searchsorted(winners, table[:, t.LAST_OFFSET], side="right")
    # The wrapper of an old format says only where it ends.
    has_none = (first == after) & (table[:, t.MAGIC] == 2)
    table[has_none, t.VERDICT] = t.DELETE
    return int(np.count_nonzero(table[:, t.VERDICT] != t.DELETE))
