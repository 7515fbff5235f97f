"""What each unit of a round in stages does; the same functions on threads and in Spark tasks.

Order of the stages is the caller's business (:mod:`keeplast.rewrite.staged_round`). Nothing here
depends on the order in which units of one stage run. A map takes the greatest rank of a key
whenever it comes, and a bucket answers only when all of its keys are in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.cleaner.plan import RoundPlan
from keeplast.cleaner.transactions import EventLister, aborted_keys
from keeplast.columns import retained, winners
from keeplast.columns.batches import HAS_EVENTS
from keeplast.columns.filters import KeyHashes
from keeplast.columns.version_ranks import RankedKeyMap
from keeplast.columns.winners import NO_LEDGER, SHARDS, KeyMap, ReasonLedger, new_ledger
from keeplast.errors import CorruptError, invariant
from keeplast.format.filename import LOG, segment_file
from keeplast.log.files import FileSystem, reading
from keeplast.log.windows import Window, read_windows
from keeplast.rewrite.group import EntryNeededError
from keeplast.rewrite.index import Indexing, KeySink
from keeplast.rewrite.output import PassContext
from keeplast.rewrite.ranking import RaiseKnown, VersionCounts, raise_over_extent, ranking_of
from keeplast.rewrite.skipping import ask_filters, hashes_max, note_dirty, ranks_apart
from keeplast.rewrite.standings import Standings, WaitingRows, notes_of, pack_bits, parts_of
from keeplast.rewrite.stats import FilterStats
from keeplast.rewrite.task import (
    FilterSpec,
    IndexStats,
    PartitionTask,
    Payloads,
    Progressed,
    StagedGroup,
    second_pass_start,
)
from keeplast.rewrite.transactions import MarkedPlan, MarkersNeededError, follow_window, list_window
from keeplast.rewrite.units import (
    Answer,
    AskUnit,
    Extent,
    Filtered,
    FilterUnit,
    HashChunk,
    IndexedUnit,
    IndexUnit,
    KeyChunk,
    Marked,
    RaiseUnit,
    Resolved,
    ResolveUnit,
    RewriteUnit,
    Rewritten,
    Scanned,
    ScanUnit,
)
from keeplast.rewrite.wave import SecondPass, discard, peak_rss_bytes
from keeplast.rewrite.workspace import DecompressedCache, Workspace

Emit = Callable[[KeyChunk], None]


class Tools(Struct, frozen=True):
    """What a worker has at hand for any unit of a task."""

    task: PartitionTask
    files: FileSystem
    workspace: Workspace
    cache: DecompressedCache
    progressed: Progressed

    def path_of(self, extent: Extent) -> Path:
        """Return the log file of an extent."""
        path: Path = self.task.path / segment_file(extent.base_offset, LOG)
        return path

    @contextmanager
    def windows(self, extent: Extent, *, checks_crc: bool) -> Iterator[Iterator[Window]]:
        """Open the windows of an extent for the length of a ``with`` block."""
        path = self.path_of(extent)
        with reading(self.files, path) as handle:
            yield read_windows(
                handle, path, self.workspace.buffers, start=extent.start, end=extent.end,
                checks_crc=checks_crc,
            )  # fmt: skip

    def lister(self) -> EventLister:
        """Return a lister of events for one extent; it knows as little as the task does."""
        return EventLister(aborted_keys(second_pass_start(self.task.plan).aborted))

    def ask_markers(self) -> RoundPlan:
        """Return the plan with what the markers say, MarkersNeededError without.

        The whole log is not for one of many units to read.
        """
        if self.task.plan.aborted is None:
            raise MarkersNeededError
        return self.task.plan

    def list_events(self, lister: EventLister | None, window: Window) -> None:
        """List the events of a window, if they are wanted; MarkersNeededError as above."""
        if lister is not None and window.marks & HAS_EVENTS:
            self.ask_markers()
            list_window(lister, window, self.workspace)


class SharedKeyMap:
    """A key map that several threads put into: one lock a run of shards.

    A run is one call of a kernel: each time that it ends, a thread waits for the interpreter.
    """

    RUN = 8

    def __init__(self, key_map: KeyMap) -> None:
        self.key_map = key_map
        self._locks = [(first, threading.Lock()) for first in range(0, SHARDS, self.RUN)]

    def put(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Raise keys to every row of ``block``."""
        self._each(partial(self.key_map.put_shards, block=block, starts=starts))

    def raise_known(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Raise keys that are known to the rows of ``block``."""
        if isinstance(self.key_map, RankedKeyMap):
            self._each(partial(self.key_map.raise_shards, block=block, starts=starts))

    def _each(self, act: Callable[[int, int], None]) -> None:
        """Call ``act`` for every run of shards; busy ones are left for last."""
        waiting = self._locks
        for is_patient in (False, True):
            busy = []
            for first, lock in waiting:
                if not lock.acquire(blocking=is_patient):
                    busy.append((first, lock))
                    continue
                try:
                    act(first, first + self.RUN)
                finally:
                    lock.release()
            waiting = busy


def mark(tools: Tools) -> Marked:
    """Read the markers of the log; return which transactions they aborted, by segment."""
    task = tools.task
    plan = MarkedPlan(task.plan, task.path, tools.files, tools.progressed).ask()
    return Marked(plan.aborted or ())


def scan(unit: ScanUnit, tools: Tools) -> Scanned:
    """List the events of an extent; CRCs are left to the pass that reads the records."""
    lister = tools.lister()
    with tools.windows(unit.extent, checks_crc=False) as windows:
        for window in windows:
            tools.list_events(lister, window)
            tools.progressed(0)
    return Scanned(unit.extent, lister.events())


def index(
    unit: IndexUnit, tools: Tools, sink: KeySink, disordered: Callable[[], None]
) -> IndexedUnit:
    """Put the keys of an extent into ``sink``; ``disordered`` hears of offsets out of order."""
    ranking = ranking_of(tools.task.plan.topic)

    def once(*, checks_crc: bool) -> IndexedUnit:
        tools.workspace.take_payloads()
        indexing = Indexing(
            tools.task, tools.workspace, tools.cache, ranking, sink, disordered, tools.ask_markers
        )
        indexing.begin(unit.entry.copy(), unit.first_offset - 1)
        lister = tools.lister() if unit.lists_events else None

        path = tools.path_of(unit.extent)
        with reading(tools.files, path) as handle:
            indexing.read_segment(
                handle, path, unit.extent.base_offset, unit.extent.start, unit.extent.end,
                tools.progressed, checks_crc=checks_crc,
                looked_at=partial(tools.list_events, lister),
            )  # fmt: skip
        indexing.end(unit.end_offset)
        return IndexedUnit(
            unit.extent,
            None if lister is None else lister.events(),
            _stats(indexing.messages, indexing.bytes, indexing.versions),
            peak_rss_bytes(),
            payloads=tools.workspace.take_payloads(),
            hashes=_list_hashes(indexing.dirty_keys),
        )

    # The second pass checks every CRC before anything is committed. What does not parse here most
    # likely has a wrong CRC too, and that is the better message.
    try:
        return once(checks_crc=False)
    except CorruptError:
        return once(checks_crc=True)


def end_of(plan: RoundPlan, base_offset: int) -> int:
    """Return the exclusive end of the offsets of the segment at ``base_offset``."""
    return next((s.base_offset for s in plan.segments if s.base_offset > base_offset), plan.bound)


def index_to_block(units: Sequence[IndexUnit], tools: Tools) -> Iterator[IndexedUnit]:
    """Index consecutive extents into one map of their own; yields a result for each.

    The last one carries one entry for each key of all of them, and what is noted of all.
    """
    plan = tools.task.plan
    first = max(plan.first_dirty, units[0].extent.base_offset)
    end = end_of(plan, units[-1].extent.base_offset)
    ledger = new_ledger(first, end, tools.workspace.ledger_bytes_max)
    own = ranking_of(plan.topic).new_map(ledger)
    for unit in units[:-1]:
        yield index(unit, tools, own, own.forget_notes)
    last = index(units[-1], tools, own, own.forget_notes)
    is_noted = own.ledger is ledger
    yield replace(last, block=own.to_block(), notes=notes_of(ledger) if is_noted else None)


def consult(unit: FilterUnit, tools: Tools, hashes: NDArray[np.uint64]) -> Filtered:
    """Ask the filters of the unit's segments for the dirty keys with these ``hashes``."""
    task, answers = tools.task, []
    spec = task.filters
    invariant(spec is not None, "only a round with filters asks them")
    for answer in ask_filters(
        cast(FilterSpec, spec), task.plan, task.path, unit.bases, hashes, tools.files,
        has_versions=ranks_apart(task),
    ):  # fmt: skip
        answers.append(answer)
        tools.progressed(0)
    return Filtered(tuple(answers), peak_rss_bytes())


def _list_hashes(hashes: KeyHashes) -> NDArray[np.uint64] | None:
    return None if hashes.is_full else hashes.distinct()


def split_hashes(hashes: NDArray[np.uint64] | None, buckets: int) -> Iterator[HashChunk]:
    """Yield ascending ``hashes`` by the bucket that asks for them."""
    if hashes is None:
        return
    # Equal parts of 32 bits.
    bounds = np.array([(number << 32) // buckets for number in range(1, buckets + 1)], np.uint64)
    ends = np.searchsorted(hashes >> np.uint64(32), bounds)
    first = 0
    for bucket, end in enumerate(ends.tolist()):
        if first < end:
            yield HashChunk(bucket, hashes[first:end])
        first = end


def raise_clean(unit: RaiseUnit, tools: Tools, raise_known: RaiseKnown) -> IndexedUnit:
    """Give the clean records of an extent to ``raise_known``."""
    extent = unit.extent

    def once(*, checks_crc: bool) -> IndexedUnit:
        tools.workspace.take_payloads()
        counts = raise_over_extent(
            tools.task, extent.base_offset, extent.start, extent.end, unit.entry.copy(),
            raise_known, ranking_of(tools.task.plan.topic), tools.files, tools.workspace,
            tools.cache, tools.progressed, tools.ask_markers, checks_crc=checks_crc,
        )  # fmt: skip
        payloads = tools.workspace.take_payloads()
        return IndexedUnit(extent, None, _stats(0, 0, counts), peak_rss_bytes(), payloads=payloads)

    try:
        return once(checks_crc=False)
    except CorruptError:
        return once(checks_crc=True)


def raise_to_block(unit: RaiseUnit, tools: Tools, known: KeyMap) -> IndexedUnit:
    """Raise by an extent alone; the result carries the clean records that outrank ``known``."""
    own = ranking_of(tools.task.plan.topic).new_map()

    def take(block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        for shard in range(SHARDS):
            rows = block[int(starts[shard]) : int(starts[shard + 1])]
            rows = rows[known.find_shard(shard, rows) == winners.WINS]
            own.put_shard(shard, rows, 0, len(rows))

    return replace(raise_clean(unit, tools, take), block=own.to_block())


def _stats(messages: int, size: int, counts: VersionCounts) -> IndexStats:
    return IndexStats(
        messages, size, versions_missing=counts.missing, versions_malformed=counts.malformed
    )


def ask_in_steps(unit: AskUnit, tools: Tools, emit: Emit) -> Iterator[IndexedUnit | None]:
    """Send the keys of an extent to ``emit``, in chunks of bounded size.

    Yields None after every window, so that chunks can be taken away, and last what was read.
    """
    tools.workspace.take_payloads()
    asking = _Asking(unit, tools, emit)
    lister = tools.lister() if unit.lists_events else None
    # A chunk cannot be taken back, so what does not parse is read a second time for its message.
    try:
        with tools.windows(unit.extent, checks_crc=False) as windows:
            for window in windows:
                tools.list_events(lister, window)
                asking.read(window)
                tools.progressed(window.length if unit.indexes or asking.has_versions else 0)
                yield None
    except CorruptError:
        with tools.windows(unit.extent, checks_crc=True) as windows:
            for _ in windows:
                pass
        raise
    asking.flush()
    yield IndexedUnit(
        unit.extent,
        None if lister is None else lister.events(),
        _stats(asking.messages, asking.bytes, asking.versions),
        peak_rss_bytes(),
        payloads=tools.workspace.take_payloads(),
        hashes=_list_hashes(asking.dirty_keys),
    )


def ask_to_chunks(unit: AskUnit, tools: Tools) -> IndexedUnit:
    """Ask about an extent; the result carries the chunks."""
    chunks: list[KeyChunk] = []
    found = [step for step in ask_in_steps(unit, tools, chunks.append) if step is not None]
    return replace(found[-1], chunks=tuple(chunks))


class _Asking:
    """An extent on its way to the buckets."""

    def __init__(self, unit: AskUnit, tools: Tools, emit: Emit) -> None:
        self._unit = unit
        self._tools = tools
        self._emit = emit
        self._state = unit.entry.copy()
        self._waiting = WaitingRows(unit.buckets, tools.task.memory_bytes)
        self._part = 0
        self._ranking = ranking_of(tools.task.plan.topic)
        self._filters = tools.task.filters if unit.indexes else None
        self.dirty_keys = KeyHashes(hashes_max(tools.task.memory_bytes))
        self.has_versions = self._ranking.has_versions
        self.versions = VersionCounts()
        self.messages = 0
        self.bytes = 0

    def read(self, window: Window) -> None:
        unit, w, task = self._unit, self._tools.workspace, self._tools.task
        follow_window(self._state, window, w, self._tools.ask_markers)
        retained.select_indexed(window.table, 0, window.batches)
        for part in w.slices(
            window, unit.extent.base_offset, task.hash_key, self._tools.cache, keeps=True
        ):
            if self._filters is not None:
                note_dirty(self.dirty_keys, self._filters, window, part, w, task.plan.first_dirty)
            count = retained.mark_looked_up(
                window.table, part.first, part.last, task.plan.bound - 1, self.has_versions,
                w.offsets, w.flags, w.standings, w.marks,
            )  # fmt: skip
            if unit.indexes:
                self.messages += retained.count_messages(window.table, part.first, part.last)
            if not count:
                continue
            self.versions += self._ranking.read_versions(window, part, w)
            self._waiting.add(self._ranking.block_of(part.rows, w), w.starts)
            if self._waiting.is_full:
                self.flush()
        if unit.indexes:
            self.bytes += window.length

    def flush(self) -> None:
        for cell, rows in self._waiting.take():
            self._emit(self._chunk(cell, rows))
        self._part += 1

    def _chunk(self, cell: int, rows: NDArray[np.uint64]) -> KeyChunk:
        unit = self._unit
        count, asked = len(rows), None
        # Of a key all of whose rows here are dirty, only the best can win; the others lose.
        is_dirty = self._ranking.offsets_of(rows) >= self._tools.task.plan.first_dirty
        if unit.indexes and bool(is_dirty.all()):
            best = self._ranking.best_of(rows)
            if not bool(best.all()):
                rows, asked = rows[best != 0], pack_bits(best)
        return KeyChunk(unit.extent, self._part, cell, rows, count, asked, unit.indexes, unit.asks)


def resolve(chunks: Sequence[KeyChunk], plan: RoundPlan, parts: int) -> Iterator[Answer | int]:
    """Yield an answer for each chunk that asks, and last the number of keys with a dirty record."""
    ranking = ranking_of(plan.topic)
    key_map = ranking.new_map()
    for chunk in chunks:
        if chunk.indexes:
            rows = chunk.rows[ranking.offsets_of(chunk.rows) >= plan.first_dirty]
            key_map.put_shard(chunk.cell // parts, rows, 0, len(rows))
    if isinstance(key_map, RankedKeyMap):
        for chunk in chunks:
            offsets = ranking.offsets_of(chunk.rows)
            # What was deleted outranks nothing: no reader can read it, and its key would be lost.
            rows = chunk.rows[(offsets < plan.first_dirty) & (offsets >= plan.log_start)]
            key_map.raise_shard(chunk.cell // parts, rows, 0, len(rows))
    for chunk in chunks:
        if chunk.asks:
            standings = key_map.find_shard(chunk.cell // parts, chunk.rows)
            if chunk.asked is not None:
                every = np.full(chunk.count, winners.LOSES, np.uint8)
                is_asked = np.unpackbits(np.frombuffer(chunk.asked, np.uint8), count=chunk.count)
                every[is_asked != 0] = standings
                standings = every
            yield Answer(
                chunk.extent, chunk.part, chunk.cell, chunk.count,
                pack_bits(standings == winners.LOSES), pack_bits(standings == winners.WINS),
            )  # fmt: skip
    yield len(key_map)


def resolve_bucket(unit: ResolveUnit, task: PartitionTask, buckets: int) -> Resolved:
    """Answer for all rows of a bucket at once."""
    *answers, keys = resolve(unit.chunks, task.plan, parts_of(buckets))
    return Resolved(
        tuple(each for each in answers if isinstance(each, Answer)),
        keys if isinstance(keys, int) else 0,
        peak_rss_bytes(),
    )


def pass_context(
    unit: RewriteUnit, tools: Tools, standings: Standings, ledger: ReasonLedger
) -> PassContext:
    """Return what it takes to rewrite the group of a unit, with counters of its own."""
    task = tools.task
    return PassContext(
        task, task.plan.bound, standings, tools.files, tools.workspace, tools.cache,
        np.zeros(retained.COUNTERS, np.int64), tools.progressed, ranking_of(task.plan.topic),
        tools.ask_markers, dict[int, int]() if task.takes_crcs else None, ledger,
        knows_entry=unit.entry is not None, known_filters=unit.known_filters,
    )  # fmt: skip


def rewrite(
    unit: RewriteUnit, tools: Tools, standings: Standings, ledger: ReasonLedger = NO_LEDGER
) -> Rewritten:
    """Rewrite and check a group. What it staged is removed again when that fails."""
    task = tools.task
    staged: list[StagedGroup] = []
    context = pass_context(unit, tools, standings, ledger)
    entry = second_pass_start(task.plan) if unit.entry is None else unit.entry.copy()
    second = SecondPass(context, entry, [unit.group], staged=staged)
    tools.workspace.take_payloads()
    try:
        while second.pending:
            rewritten = second.rewrite()
            if rewritten is not None:
                second.check(rewritten)
    except EntryNeededError:
        discard(task, staged, tools.files)
        return Rewritten(unit.group.base_offset, ())
    except BaseException:
        discard(task, staged, tools.files)
        raise
    return rewritten_by(second, unit, tools.workspace.take_payloads())


def rewritten_by(second: SecondPass, unit: RewriteUnit, payloads: Payloads) -> Rewritten:
    """Return what the group of a unit became."""
    return Rewritten(
        unit.group.base_offset,
        tuple(second.done),
        tuple(second.staged),
        second.context.counters,
        second.left_alone,
        second.copied_bytes,
        peak_rss_bytes(),
        second.context.source_crcs or {},
        second.output_crcs,
        payloads,
        FilterStats(written=second.filters, bytes_written=second.filter_bytes),
    )
