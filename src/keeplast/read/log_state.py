"""The state of a log: the record of every key that wins, without those that delete.

A cleaner would leave the same of the whole range, had every tombstone expired; nothing is written.
Two passes: the first learns the offset of each key's winner, the second reads the winners, and
skips batches without one. Records without a key belong to no state. The passes may be cut by
offsets and run anywhere, because nothing but hashes goes into the first and nothing but offsets
into the second.

A log that is cleaned between the passes may have lost a winner that a record above the range
supersedes. A reader that goes on from the range's end gets that record. For all others a split
names its segments, and reading ends with an error when that may have happened.

The state of a large log comes in parts: ranges of its offsets, read side by side.

    index   a part    -> its keys, to one map or to hash buckets
    winner  a bucket  -> the offsets of its winners, by part
    show    a part    -> the records at those offsets, as columns

A part is a function of itself and of the log; it may be read anywhere, twice, in any order. The
stages are those of a round (:mod:`keeplast.rewrite.units`), but a log that is read does not hold
still. Answers are offsets, which mean the same whatever becomes of the segments in between. Threads
fill one map; tasks that share no memory send keys to buckets as shape ``bucket`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.clock import Clock, SystemClock
from keeplast.columns import batches as t
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.columns.winners import SHARDS, WINS, KeyMap
from keeplast.errors import CompactionError
from keeplast.log.files import FilesRecipe, FileSystem, LocalRecipe
from keeplast.log.log_end import noted_high_watermark
from keeplast.log.windows import Window
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_view import LogView, ReaderCheckpoints, Split, Wanted, look_at_log
from keeplast.read.record_source import (
    ColumnCollector,
    RecordColumns,
    aborted_data,
    read_wanted,
    select_batches,
)
from keeplast.read.state_end import require_uncleaned
from keeplast.rewrite.ranking import Ranking, ranking_of
from keeplast.rewrite.stage_work import SharedKeyMap
from keeplast.rewrite.standings import WaitingRows, bucket_of, parts_of
from keeplast.rewrite.task import Progressed, new_hash_key
from keeplast.rewrite.workspace import DecompressedCache, Slice, Workspace
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

HashKey = tuple[int, int]
Winners = NDArray[np.int64]
"""Offsets of winners, in order; those of one key map, or of a range."""


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
    wants; it does not change who wins. A key map needs 24 to 36 bytes a key of what is shown, 32 to
    48 where versions rank, and the offsets of winners 8 more. Where it would grow beyond
    ``key_bytes_max`` the state comes in several rounds. Each of them reads the rest of the log once
    more. ``progressed`` hears the bytes of both passes. Errors as for
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


class StateReader(Struct, frozen=True):
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
        """Report that work goes on: bytes that are read once more are no progress."""
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


class CutState(Struct, frozen=True):
    """What all parts of one state share; ``firsts`` are the first offsets of the parts, ascending.

    ``number`` distinguishes it from others of a call. Without shared memory, keys go to
    ``buckets``.
    """

    number: int
    topic: TopicConfig
    firsts: tuple[int, ...]
    buckets: int
    memory_bytes: int
    hash_key: HashKey = field(default_factory=new_hash_key)
    files: FilesRecipe = field(default_factory=LocalRecipe)

    def by_part(self, winners: Winners) -> Iterator[tuple[int, Winners]]:
        """Yield the number of every part that has some of the winners, with those."""
        ends = np.searchsorted(winners, self.firsts[1:]).tolist()
        for number, (start, end) in enumerate(zip([0, *ends], [*ends, len(winners)], strict=True)):
            if start < end:
                yield number, winners[start:end]


class StatePart(Struct, frozen=True):
    """One part of a state, the ``number``-th."""

    state: CutState
    number: int
    split: Split

    def reader(self, progressed: Progressed) -> StateReader:
        """Return what reads the part here."""
        state = self.state
        return StateReader(
            self.split, ranking_of(state.topic), state.hash_key, state.files.open(), SystemClock(),
            Workspace(state.memory_bytes), progressed,
        )  # fmt: skip

    def show(
        self, winners: Winners, progressed: Progressed, *, deletes: bool = False
    ) -> Iterator[RecordColumns]:
        """Yield the records at ``winners`` that have a value, in offset order.

        With ``deletes`` also those without.
        """
        return self.reader(progressed).show(winners, self.split.wanted, deletes=deletes)


class BucketRows(Struct, frozen=True):
    """Keys of a part that fall into one cell, and so into one bucket, of the hash space."""

    bucket: int
    cell: int
    rows: NDArray[np.uint64]


def send_keys(part: StatePart, progressed: Progressed) -> Iterator[BucketRows]:
    """Yield the keys of a part, in bounded memory; of each key mostly only the best row."""
    state = part.state
    reader = part.reader(progressed)
    waiting = WaitingRows(state.buckets, state.memory_bytes)

    def taken() -> Iterator[BucketRows]:
        for cell, rows in waiting.take():
            best = rows[reader.ranking.best_of(rows) != 0]
            yield BucketRows(bucket_of(cell, state.buckets), cell, best)

    wanted = part.split.wanted
    for block, _ in reader.keys(wanted.first_offset, wanted.end_offset):
        waiting.add(block, reader.w.starts)
        if waiting.is_full:
            yield from taken()
    yield from taken()


def winners_of_bucket(
    state: CutState, arrived: Iterable[BucketRows]
) -> Iterator[tuple[int, Winners]]:
    """Yield the winners of one bucket by part; ``arrived`` are its rows, in any order."""
    ranking = ranking_of(state.topic)
    key_map = ranking.new_map()
    parts = parts_of(state.buckets)
    for each in arrived:
        key_map.put_shard(each.cell // parts, each.rows, 0, len(each.rows))
    yield from state.by_part(winning_offsets(key_map, ranking))


class Each(Protocol):
    """Does work on every item and yields what it gives, as a runner's ``each``."""

    def __call__(
        self,
        work: Callable[[StatePart, Progressed], CompactionError | OSError | None],
        items: Sequence[StatePart],
        progressed: Progressed,
    ) -> Iterable[CompactionError | OSError | None]:
        """Yield results in any order."""


def shared_winners(
    each: Each, parts: Sequence[StatePart], progressed: Progressed
) -> dict[tuple[int, int], Winners]:
    """Return the winners by state and part, of threads that share one key map a state.

    Raises the error of a part that cannot be read.
    """
    states = {part.state.number: part.state for part in parts}
    maps = {
        number: SharedKeyMap(ranking_of(state.topic).new_map()) for number, state in states.items()
    }

    def index(part: StatePart, progressed: Progressed) -> CompactionError | OSError | None:
        reader, sink = part.reader(progressed), maps[part.state.number]
        wanted = part.split.wanted
        try:
            for block, _ in reader.keys(wanted.first_offset, wanted.end_offset):
                sink.put(block, reader.w.starts)
        except (CompactionError, OSError) as error:
            return error
        return None

    for error in each(index, parts, progressed):
        if error is not None:
            raise error
    found: dict[tuple[int, int], Winners] = {}
    for number, state in states.items():
        winners = winning_offsets(maps.pop(number).key_map, ranking_of(state.topic))
        for part, its in state.by_part(winners):
            found[number, part] = its
    return found


NO_WINNERS: Winners = np.empty(0, np.int64)
