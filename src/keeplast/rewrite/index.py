"""The first pass: reads the dirty section and learns each key's winner.

Keys go to the key map as blocks, window by window, in log order. A bounded map ends the round at
the exact record that no longer fits, as Kafka's does. How far the map reaches does not depend on
which records win. Where versions rank, the clean section follows: :mod:`keeplast.rewrite.ranking`.
Kafka: ``Cleaner.buildOffsetMap``; cleaning.md section 2.

Keys of plain batches are fed without reading values that are large. A value of 100 KB costs the
copy out of the page cache and nothing else: the first pass does not look at it. So where records
reach far beyond a window, only a piece with the next key is read. On a cold disk pieces would come
one by one, so the whole range is fetched ahead all the same. The second pass needs every byte of
it, and checks every CRC.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.cleaner.plan import RoundPlan, plan_groups
from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import batches as t
from keeplast.columns import retained, winners
from keeplast.columns import shortcuts as kernels
from keeplast.columns.batches import HAS_EVENTS, HAS_HIDDEN
from keeplast.columns.filters import KeyHashes
from keeplast.columns.kernel import OK
from keeplast.columns.version_ranks import RankedKeyMap
from keeplast.columns.winners import KeyMap, new_ledger
from keeplast.errors import CorruptError, invariant
from keeplast.format.filename import LOG, segment_file
from keeplast.log.files import FileSystem, LocalReadHandle, ReadHandle, reading
from keeplast.log.paths import child_path
from keeplast.log.windows import Window, read_windows
from keeplast.model.partition import INT64_MAX
from keeplast.rewrite.ranking import Ranking, VersionCounts, raise_over_clean, ranking_of
from keeplast.rewrite.skipping import find_skips, hashes_max, note_dirty
from keeplast.rewrite.task import (
    NO_SKIPS,
    FilterSpec,
    IndexStats,
    PartitionTask,
    Progressed,
    Skips,
    first_pass_start,
)
from keeplast.rewrite.transactions import AskMarkers, follow_window
from keeplast.rewrite.workspace import DecompressedCache, Slice, Workspace

PIECE_BYTES = 4 << 10
"""What is read for the next key, after a value that was stepped over."""
STEP_BYTES_MIN = 16 << 10
"""To step over less saves less than another call costs."""
AHEAD_BYTES = 4 << 20
ADVICE_BYTES = 512 << 10
"""The system takes only so much of one piece of advice."""


class KeyStream:
    """The rows of plain batches of one pass, appended to a workspace's held rows."""

    def __init__(
        self, workspace: Workspace, hash_key: tuple[int, int], first_dirty: int, last_offset: int
    ) -> None:
        """Start between two batches; offsets should ascend from ``last_offset``."""
        self._w = workspace
        self._k0, self._k1 = hash_key
        self._first_dirty = first_dirty
        self._state = kernels.new_stream_state()
        self._state[kernels.LAST_OFFSET] = last_offset
        self._state[kernels.LATEST] = -1

    @property
    def last_offset(self) -> int:
        """Return the last offset, or DISORDER when offsets did not ascend."""
        return int(self._state[kernels.LAST_OFFSET])

    @property
    def latest(self) -> int:
        """Return how far the dirty batches that were read reach, -1 when there was none."""
        return int(self._state[kernels.LATEST])

    @property
    def messages(self) -> int:
        """Return the records of the batches that were begun."""
        return int(self._state[kernels.MESSAGES])

    def read(
        self,
        handle: ReadHandle,
        path: Path,
        start: int,
        end: int,
        enough: Callable[[], None],
        progressed: Callable[[int], None],
    ) -> int:
        """Read ``[start, end)`` up to a batch that is not plain; returns where that begins.

        ``enough`` must take the rows that are held. CorruptError says no more than that the other
        way of reading will know what is wrong.
        """
        w = self._w
        window_bytes = w.buffers.window_bytes
        local = handle if isinstance(handle, LocalReadHandle) else None
        advised = position = start
        want = window_bytes
        while position < end:
            length = min(want, end - position)
            w.buffers.make_room(length)
            data = w.buffers.data
            if handle.pread_into(data.data[:length], position) < length:
                raise self._corrupt(path, position)
            done, w.rows_held, code = kernels.stream_keys(
                data, length, end - position, self._first_dirty, self._state, w.rows_held,
                self._k0, self._k1, w.offsets, w.hashes, w.flags,
            )  # fmt: skip
            position += done
            if done:
                progressed(done)
            if w.rows_held >= w.rows_wanted:
                enough()
            if code == kernels.REFUSED:
                break
            if code == kernels.BROKEN or position > end:
                raise self._corrupt(path, position)
            if code == kernels.CUT and not done:
                if length == end - position:
                    if self._state[kernels.LEFT]:
                        raise self._corrupt(path, position)
                    break
                want = 2 * length
            elif local is not None and done - length >= STEP_BYTES_MIN:
                want = PIECE_BYTES
                while advised < min(position + AHEAD_BYTES, end):
                    advised = max(advised, position)
                    local.read_ahead(advised, ADVICE_BYTES)
                    advised += ADVICE_BYTES
            elif code in (OK, kernels.CUT):
                want = min(2 * want, window_bytes)
        return position

    def _corrupt(self, path: Path, position: int) -> CorruptError:
        return CorruptError(
            "record does not fit its batch", path=str(path), position=position,
            expected="a key", found="something else", code="K217",
        )  # fmt: skip


class Indexed(Struct, frozen=True):
    """Winners of the dirty keys, and the exclusive end of what they cover."""

    key_map: KeyMap
    end_offset: int
    stats: IndexStats
    skips: Skips = NO_SKIPS


def _ignore(window: Window) -> None:
    """Do nothing."""


class _Full(Exception):
    """The key map has no room for the next record. Carries nothing; the pass knows where."""


def index_partition(
    task: PartitionTask,
    files: FileSystem,
    workspace: Workspace,
    cache: DecompressedCache,
    progressed: Progressed,
    ask_markers: AskMarkers,
) -> Indexed:
    """Read every dirty segment of the plan until the end or until the map is full."""
    # The second pass reads all of this again and checks every CRC before anything is committed,
    # unless waves commit part of the round earlier.
    try:
        return _index(
            task, files, workspace, cache, progressed, ask_markers,
            checks_crc=task.wave_bytes_max is not None,
        )  # fmt: skip
    except CorruptError:
        # What does not parse most likely has a wrong CRC too, and that is the better message.
        return _index(task, files, workspace, cache, progressed, ask_markers, checks_crc=True)


def _index(
    task: PartitionTask,
    files: FileSystem,
    workspace: Workspace,
    cache: DecompressedCache,
    progressed: Progressed,
    ask_markers: AskMarkers,
    *,
    checks_crc: bool,
) -> Indexed:
    plan = task.plan
    ranking = ranking_of(plan.topic)
    dirty = plan.dirty_segments()
    ledger = new_ledger(plan.first_dirty, plan.indexed_to, workspace.ledger_bytes_max)
    cache.give_up(ledger.standings.nbytes)
    own = ranking.new_map(ledger)
    indexing = Indexing(task, workspace, cache, ranking, own, own.forget_notes, ask_markers)
    indexing.begin(first_pass_start(plan))
    try:
        for number, segment in enumerate(dirty):
            path = child_path(task.path, segment_file(segment.base_offset, LOG))
            start = first_pass_position(plan) if number == 0 else 0
            with reading(files, path) as handle:
                indexing.read_segment(
                    handle, path, segment.base_offset, start, segment.size_bytes, progressed,
                    checks_crc=checks_crc,
                )  # fmt: skip
            following = number + 1 < len(dirty)
            indexing.latest = (dirty[number + 1].base_offset if following else plan.indexed_to) - 1
        indexing.end(plan.indexed_to)
    except _Full:
        pass
    skips = NO_SKIPS
    if task.filters is not None:
        groups = plan_groups(plan, indexing.latest + 1)
        skips = find_skips(
            task.filters, plan, task.path, groups, indexing.dirty_keys, files,
            has_versions=ranking.has_versions,
        )  # fmt: skip
    counts = indexing.versions
    if isinstance(own, RankedKeyMap):
        counts += raise_over_clean(
            task, own, ranking, files, workspace, cache, progressed, ask_markers,
            checks_crc=checks_crc, unranked=skips.unranked,
        )  # fmt: skip
    # A full map also knows keys that it announced and then had no room for.
    keys = min(len(own), task.plan.key_capacity or len(own))
    stats = IndexStats(
        indexing.messages, indexing.bytes, keys,
        versions_missing=counts.missing, versions_malformed=counts.malformed,
    )  # fmt: skip
    return Indexed(own, indexing.latest + 1, stats, skips)


def first_pass_position(plan: RoundPlan) -> int:
    """Return the byte of the first dirty segment at which the first pass begins.

    A transaction that ended before the start position may pass for open (F5). By offset that is
    Kafka's way and harmless; by version it could hide the record that wins.
    """
    return 0 if ranking_of(plan.topic).has_versions else plan.start_position


class KeySink(Protocol):
    """What the first pass puts keys into, block by block."""

    def put(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Take every row of a block."""


class Indexing:
    """The pass between windows: where the keys go, and how far it reaches.

    A bounded map must be the sink itself; without a bound any sink will do. ``disordered`` is
    called, once, when offsets do not ascend.
    """

    def __init__(
        self,
        task: PartitionTask,
        workspace: Workspace,
        cache: DecompressedCache,
        ranking: Ranking,
        sink: KeySink,
        disordered: Callable[[], None],
        ask_markers: AskMarkers,
    ) -> None:
        """Prepare; :meth:`begin` comes before the first window."""
        plan: RoundPlan = task.plan
        self._first_dirty = plan.first_dirty
        self._capacity = plan.key_capacity
        self._hash_key = task.hash_key
        self._workspace = workspace
        self._cache = cache
        self._ranking = ranking
        self._sink = sink
        self._disordered = disordered
        self._ask_markers = ask_markers
        self.versions = VersionCounts()
        self._holds = plan.key_capacity is None
        self._filters: FilterSpec | None = task.filters
        # The stream has no windows, in which versions lie, and filters find the keys they note.
        self._streams = self._holds and not ranking.has_versions and task.filters is None
        self.dirty_keys = KeyHashes(hashes_max(task.memory_bytes))
        self.latest = -1
        self.messages = 0
        self.bytes = 0

    def begin(self, state: TransactionState, after: int = -1) -> None:
        """Start before a window, with its transactions; all offsets to come lie above ``after``."""
        self._state = state
        self._last_offset = after
        self._workspace.rows_held = 0

    def end(self, before: int) -> None:
        """Give away what is held; all offsets should lie below ``before``."""
        self.put_held()
        if self._last_offset >= before:
            self._disordered()

    def read_segment(
        self,
        handle: ReadHandle,
        path: Path,
        base_offset: int,
        start: int,
        end: int,
        progressed: Progressed,
        *,
        checks_crc: bool,
        looked_at: Callable[[Window], None] = _ignore,
    ) -> None:
        """Index the bytes ``[start, end)`` of a segment; raises _Full as :meth:`read` does.

        ``looked_at`` hears of every window, in which alone there are transactions. Without
        ``checks_crc`` a CorruptError need not say what is wrong.
        """
        position, patience = start, 1
        while position < end:
            if self._streams and not checks_crc:
                position = self._stream(handle, path, position, end, progressed)
            plain = 0
            for window in read_windows(
                handle, path, self._workspace.buffers, start=position, end=end,
                checks_crc=checks_crc,
            ):  # fmt: skip
                looked_at(window)
                self.read(window, base_offset)
                progressed(window.length)
                position = window.position + window.length
                plain = 0 if window.marks & (HAS_EVENTS | HAS_HIDDEN) else plain + 1
                if plain == patience and self._streams and not checks_crc:
                    break
            # Each time that the stream stops, it takes more to let it begin again.
            patience *= 2

    def _stream(
        self, handle: ReadHandle, path: Path, start: int, end: int, progressed: Progressed
    ) -> int:
        """Index plain batches from ``start`` on; returns where the first other one begins."""
        if self._last_offset == retained.DISORDER:
            return start
        stream = KeyStream(self._workspace, self._hash_key, self._first_dirty, self._last_offset)
        try:
            position = stream.read(handle, path, start, end, self.put_held, progressed)
        finally:
            self._last_offset = stream.last_offset
            if self._last_offset == retained.DISORDER:
                self._disordered()
        self.messages += stream.messages
        self.bytes += position - start
        self.latest = max(self.latest, stream.latest)
        return position

    def read(self, window: Window, base_offset: int) -> None:
        """Index one window; raises _Full at the record that does not fit."""
        follow_window(self._state, window, self._workspace, self._ask_markers)
        if window.marks & HAS_EVENTS:
            retained.select_indexed(window.table, 0, window.batches)
        for part in self._workspace.slices(
            window, base_offset, self._hash_key, self._cache, keeps=True, appends=self._holds
        ):
            self._check_order(part)
            if self._filters is not None:
                note_dirty(
                    self.dirty_keys, self._filters, window, part, self._workspace,
                    self._first_dirty,
                )  # fmt: skip
            if self._holds:
                self._hold(window, part)
            else:
                self._index(window, part)
        self.latest = self._find_reach(window, window.batches)
        self.bytes += window.length

    def _find_reach(self, window: Window, batches: int) -> int:
        """Return how far the first ``batches`` of a window extend the map's coverage."""
        for batch in range(batches - 1, -1, -1):
            last_offset = int(window.table[batch, t.LAST_OFFSET])
            if last_offset >= self._first_dirty:
                return last_offset
        return self.latest

    def _check_order(self, part: Slice) -> None:
        """Drop the notes when an offset does not ascend; they would be another record's."""
        if self._last_offset != retained.DISORDER:
            self._last_offset = retained.last_ascending(
                part.first_row, part.rows, self._last_offset, self._workspace.offsets
            )
            if self._last_offset == retained.DISORDER:
                self._disordered()

    def _hold(self, window: Window, part: Slice) -> None:
        """Leave the rows where they are until there are enough of them for the map.

        Their versions are read while the window is there.
        """
        w = self._workspace
        if self._ranking.has_versions and self._mark(part.first_row, part.rows):
            self.versions += self._ranking.read_versions(window, part, w)
        w.rows_held = part.rows
        self.messages += retained.count_messages(window.table, part.first, part.last)
        if part.last < window.batches or w.rows_held >= w.rows_wanted:
            self.put_held()

    def put_held(self) -> None:
        """Give the rows that are held to the map."""
        w = self._workspace
        held, w.rows_held = w.rows_held, 0
        if self._mark(0, held):
            self._sink.put(self._ranking.block_of(held, w), w.starts)

    def _mark(self, first: int, last: int) -> int:
        """Mark which of the rows ``[first, last)`` have a key for the map; returns how many."""
        w = self._workspace
        marked: int = retained.mark_indexed(
            last - first, self._first_dirty, INT64_MAX,
            w.offsets[first:], w.flags[first:], w.marks[first:],
        )  # fmt: skip
        return marked

    def _index(self, window: Window, part: Slice) -> None:
        """Index a slice at once: the map may fill."""
        w = self._workspace
        count = self._mark(0, part.rows)
        stop = part.rows
        if self._capacity is not None and len(self._key_map) + count > self._capacity:
            stop = self._find_room(part, self._capacity)
        if count:
            w.marks[stop : part.rows] = 0
            self.versions += self._ranking.read_versions(window, part, w)
            self._sink.put(self._ranking.block_of(part.rows, w), w.starts)
        if stop < part.rows:
            self._end_inside(window, part, stop)
            raise _Full
        self.messages += retained.count_messages(window.table, part.first, part.last)

    @property
    def _key_map(self) -> KeyMap:
        """Return the sink of a pass that has a bound."""
        invariant(isinstance(self._sink, KeyMap), "only a key map of the pass's own has a bound")
        return cast(KeyMap, self._sink)

    def _find_room(self, part: Slice, capacity: int) -> int:
        """Return the first row of the slice that does not fit, or its number of rows."""
        w = self._workspace
        room = capacity - len(self._key_map)
        block = self._ranking.block_of(part.rows, w)
        wanted = w.marks[: part.rows].copy()
        is_new = np.zeros(part.rows, np.uint8)
        self._key_map.announce(block, w.starts, w.block_rows, is_new)
        full_at = winners.find_overflow(is_new, 0, part.rows, room)
        # The row that does not fit is the next one that would have been indexed.
        later = np.flatnonzero(wanted[full_at:])
        return int(full_at + later[0]) if len(later) else part.rows

    def _end_inside(self, window: Window, part: Slice, stop: int) -> None:
        """Account for a map that fills before row ``stop``."""
        w = self._workspace
        table = window.table
        firsts = table[part.first : part.last, t.FIRST_ROW]
        batch = part.first + int(np.searchsorted(firsts, stop, side="right")) - 1
        while table[batch, t.ROWS] == 0:
            batch -= 1
        self.latest = self._find_reach(window, batch)
        first_row = int(table[batch, t.FIRST_ROW])
        stored = np.flatnonzero(w.marks[first_row:stop])
        if len(stored):
            self.latest = int(w.offsets[first_row + stored[-1]])
        self.messages += retained.count_messages(window.table, part.first, batch) + stop - first_row
        self.bytes += int(table[batch, t.POSITION])
