"""The state of a log: the record of every key that wins, without those that delete.

What a cleaner would leave of the whole range, had every tombstone expired; nothing is written. Two
passes: the first learns each key's winner, the second reads the winners. Memory is that of the
workspace and 24 bytes a key, 32 where versions rank. Records without a key belong to no state.

A log that is cleaned between the passes may have lost a winner that a record behind the range
supersedes; whoever goes on reading from the range's end gets that record.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from keeplast.clock import Clock
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.columns.winners import WINS, KeyMap
from keeplast.engine.log_ranges import Split, Wanted
from keeplast.engine.log_view import outcomes_of
from keeplast.engine.ranking import Ranking, ranking_of
from keeplast.engine.record_columns import ColumnCollector, RecordColumns
from keeplast.engine.record_source import read_wanted, select_batches
from keeplast.engine.runner import Progressed
from keeplast.engine.workspace import DecompressedCache, Slice, Workspace
from keeplast.log.files import FileSystem
from keeplast.log.windows import Window
from keeplast.model.topic_config import TopicConfig


def read_state(
    split: Split,
    shown: Wanted,
    topic: TopicConfig,
    files: FileSystem,
    clock: Clock,
    workspace: Workspace,
    progressed: Progressed | None = None,
) -> Iterator[RecordColumns]:
    """Yield the winners among the records of ``split`` that have a value, in offset order.

    They rank as ``topic`` says. Of those, only what ``shown`` wants; it does not change who wins.
    ``progressed`` hears the bytes of both passes. Errors as for
    :func:`keeplast.engine.record_source.read_records`.
    """
    state = _State(split, ranking_of(topic), files, clock, workspace, progressed)
    first = split.wanted.first_offset
    if not state.ranking.has_versions:
        # What lies below all that is shown cannot win against it.
        first = max(first, shown.first_offset)
    key_map = state.winners_from(first)
    yield from state.shown(shown, key_map)


@dataclass(frozen=True, slots=True)
class _State:
    """The two passes over one split."""

    split: Split
    ranking: Ranking
    files: FileSystem
    clock: Clock
    w: Workspace
    progressed: Progressed | None = None
    hash_key: tuple[int, int] = field(
        default_factory=lambda: (secrets.randbits(64), secrets.randbits(64))
    )

    def winners_from(self, first_offset: int) -> KeyMap:
        """Return the winner of every key that has a record at or above ``first_offset``."""
        key_map = self.ranking.new_map()
        wanted = self.split.wanted.between(first_offset, self.split.wanted.end_offset)
        for window, part, piece in self._slices(wanted):
            if _mark(part.rows, HAS_KEY, piece, self.w):
                self.ranking.read_versions(window, part, self.w)
                key_map.put(self.ranking.block_of(part.rows, self.w), self.w.starts)
        return key_map

    def shown(self, shown: Wanted, key_map: KeyMap) -> Iterator[RecordColumns]:
        """Yield the winners that have a value and are shown."""
        w = self.w
        collector = ColumnCollector()
        whole = self.split.wanted
        wanted = shown.between(whole.first_offset, whole.end_offset)
        for window, part, piece in self._slices(wanted):
            if not _mark(part.rows, HAS_KEY | HAS_VALUE, piece, w):
                continue
            self.ranking.read_versions(window, part, w)
            block = self.ranking.block_of(part.rows, w)
            key_map.find(block, w.starts, w.block_rows, w.standings)
            rows = slice(0, part.rows)
            w.marks[rows] &= w.standings[rows] == WINS
            yield from collector.add(
                window, w.scratch, part.first, part.last, piece.bounds(), w.marks
            )
        yield from collector.finish()

    def _slices(self, wanted: Wanted) -> Iterator[tuple[Window, Slice, Wanted]]:
        """Yield what holds wanted records, parsed, and what of it is wanted."""
        outcomes = outcomes_of(self.split.aborted)
        # Nothing is kept for the second pass: the segments may be others by then.
        cache = DecompressedCache(0)
        split = replace(self.split, wanted=wanted)
        for base_offset, window, piece in read_wanted(split, self.files, self.clock, self.w):
            if self.progressed is not None:
                self.progressed(window.length)
            if not select_batches(window, piece, outcomes):
                continue
            for part in self.w.slices(window, base_offset, self.hash_key, cache, keeps=True):
                yield window, part, piece


def _mark(rows: int, has: int, wanted: Wanted, w: Workspace) -> int:
    """Mark the rows that have all of ``has`` and a wanted offset; returns how many."""
    offsets = w.offsets[:rows]
    w.marks[:rows] = (
        (w.flags[:rows] & has == has)
        & (offsets >= wanted.first_offset)
        & (offsets < wanted.end_offset)
    )
    return int(np.count_nonzero(w.marks[:rows]))
