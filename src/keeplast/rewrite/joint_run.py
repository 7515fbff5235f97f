"""One task's part of a round that several tasks do together: index, meet, decide, meet, rewrite.

Each task has a *run*, groups that follow one another. It keeps what it learned of them from the
first pass to the second: the notes of its records, and what it decompressed. Only rounds that
:func:`is_joint` allows may be done so.

Tasks find the winners together, through files next to the log:

    keys of a run  ->  a file a run, by bucket  ->  a file a task: which offsets lose, by run

Each task indexes its run into a map of its own, whose ledger notes the best record of each key as
winning. Every task then reads, for its share of the buckets, what all runs wrote, and writes back
the offsets of those that lose to another run. With these the ledger of a run says all that its
second pass asks, and no record is hashed twice.

Where tasks meet, each leaves a word, and goes on when all words are there. Words are small files
next to the log, which every task sees. Spark's own barrier would do, but a task that is not the
last to come to it sleeps a second.

What a reader must not break:

1. Nothing is staged before all have met twice, so a task that gives up makes all of them give up.
   The round's driver takes it through its stages instead, which say what is wrong. What the others
   staged next to one that has given up is not used.
2. A file is read only when every task has said that its own is whole. Offsets must name records
   (they ascend, nothing was aborted), or a ledger would lie. Files have staged names, so that a
   process that collects what an attempt left finds them.
3. A word appears whole, by its rename, and says what depends on nothing but the log. So it does no
   harm to hear one that an earlier attempt of a task has said; what it names may be gone. A task
   that has waited too long leaves, so that none waits without end. It must then not stage anything,
   nor may what others staged be used.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.clock import Clock
from keeplast.columns.version_ranks import PartKeyMap, RivalKeyMap
from keeplast.columns.winners import LOSES, SHARDS, KeyMap, ReasonLedger, new_ledger
from keeplast.errors import CompactionError, UnavailableError
from keeplast.format.filename import LOG
from keeplast.log.files import FileSystem, ReadHandle, WriteHandle, reading
from keeplast.rewrite.output import staged_name
from keeplast.rewrite.stage_work import Tools, end_of, index, rewrite
from keeplast.rewrite.staged_round import place_of
from keeplast.rewrite.standings import MapStandings, cells_of, parts_of
from keeplast.rewrite.task import PartitionTask
from keeplast.rewrite.transactions import MarkersNeededError
from keeplast.rewrite.units import Failed, IndexedUnit, IndexUnit, RewriteUnit, Rewritten

WORD = 8
ROW_WORDS = KeyMap.WORDS
MAP_BYTES_MIN = 16 << 20
"""A map that is bounded is written out at this size at the least; small ones find few doubles."""

T = TypeVar("T")


class KeyFile(Struct, frozen=True):
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
            f"position={position} expected_bytes={words * WORD} found_bytes={count}",
            code="K508",
        )
    return found


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


WORD_BYTES_MAX = 1 << 20
NAP_SECONDS_MIN, NAP_SECONDS_MAX = 0.001, 0.25
NAP_SHARE = 64
"""A nap is this part of the time waited so far, so that little of it is lost."""

PATIENCE_SECONDS, PATIENCE_TIMES = 120.0, 20
"""Others may take so long, or so many times what this task has worked until it came."""


class Meeting:
    """The meetings of one task of a round, one after another.

    ``name`` is what the names of their files have in common, ``own`` that of this attempt alone;
    ``number`` is one of ``tasks``.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        own: str,
        number: int,
        tasks: int,
        files: FileSystem,
        clock: Clock,
        waiting: Callable[[], None],
    ) -> None:
        """Begin; ``waiting`` is called before each nap, and may raise to end it."""
        self._directory = directory
        self._name = name
        self._own = own
        self._number = number
        self._tasks = tasks
        self._files = files
        self._clock = clock
        self._waiting = waiting
        self._begun = clock.seconds()
        self._held = 0

    def meet(self, word: str) -> Sequence[str]:
        """Say ``word`` and return every task's, in the order of their numbers.

        UnavailableError when a task does not come; OSError when the disk refuses.
        """
        self._say(word)
        held, self._held = self._held, self._held + 1
        names = [self._file(held, number) for number in range(self._tasks)]
        self._wait_for(set(names))
        return [
            self._files.read_bytes(self._directory / name, WORD_BYTES_MAX).decode()
            for name in names
        ]

    def _say(self, word: str) -> None:
        name = self._file(self._held, self._number)
        unsaid = self._directory / staged_name(0, LOG, f"{self._own}u")
        handle = self._files.open_write(unsaid, append=True)
        try:
            handle.write(word.encode())
        finally:
            handle.close()
        self._files.rename(unsaid, self._directory / name)

    def _wait_for(self, names: set[str]) -> None:
        came = self._clock.seconds()
        patience = max(PATIENCE_SECONDS, PATIENCE_TIMES * (came - self._begun))
        # A listing, and not a question for each: hosts remember what was not there.
        while not names.issubset(self._files.listdir(self._directory)):
            waited = self._clock.seconds() - came
            if waited > patience:
                raise UnavailableError(
                    "a task of this round did not come to where the others wait. "
                    f"path={self._directory} waited_seconds={waited:.0f}",
                    code="K508",
                )
            self._waiting()
            self._clock.sleep(min(max(waited / NAP_SHARE, NAP_SECONDS_MIN), NAP_SECONDS_MAX))

    def _file(self, held: int, number: int) -> str:
        return staged_name(0, LOG, f"{self._name}m{held}r{number}")


KEYS_MARK, LOSERS_MARK = "k", "l"
"""Stand at the end of an attempt in the name of a file through which tasks exchange keys."""

MAP_SHARE = 4
"""A bounded map may take this part of a task's memory: it is copied while it is written out."""

GIVES_UP = (CompactionError, MarkersNeededError, OSError, MemoryError)
NOTHING = ""
"""What a task says that has given up."""


class Run(Struct, frozen=True):
    """The part of a round that one of ``runs`` tasks does: groups that follow one another.

    ``index`` are the extents of ``groups``, all dirty. ``buckets`` are shared out among the tasks.
    """

    number: int
    runs: int
    buckets: int
    index: tuple[IndexUnit, ...]
    groups: tuple[RewriteUnit, ...]


class JointRun(Struct, frozen=True):
    """What a task did of a round; ``distinct_keys`` are those of its buckets."""

    indexed: tuple[IndexedUnit, ...]
    rewritten: tuple[Rewritten | Failed, ...]
    distinct_keys: int
    index_seconds: float


def is_joint(task: PartitionTask) -> bool:
    """Say whether a round may be done by tasks that meet: one with notes, in a place for files."""
    can_write = task.writes and task.files.is_on_disk(task.target)
    return task.plan.is_decided_by_notes and task.filters is None and can_write


def do_run(run: Run, tools: Tools, clock: Clock, meeting: Meeting) -> JointRun | None:
    """Do a run of a round; None when a task has given up, before anything was staged.

    A group that fails afterwards is in the result as such.
    """
    return _JointTask(run, tools, clock, meeting).do()


class _JointTask:
    def __init__(self, run: Run, tools: Tools, clock: Clock, meeting: Meeting) -> None:
        self._run = run
        self._tools = tools
        self._clock = clock
        self._meeting = meeting
        plan = tools.task.plan
        self._first = run.groups[0].group.base_offset
        self._end = end_of(plan, run.groups[-1].group.sources[-1].base_offset)
        self._indexed: list[IndexedUnit] = []
        self._distinct_keys = 0

    def do(self) -> JointRun | None:
        started = self._clock.seconds()
        tools = self._tools
        # Notes are worth more than what is kept decompressed.
        ledger = new_ledger(self._first, self._end, tools.workspace.cache_bytes)
        tools.cache.give_up(ledger.standings.nbytes)
        keys = self._say(lambda: self._index(ledger))
        losers = None
        if keys is not None:
            said = [_key_file(tools.task, each) for each in keys]
            losers = self._say(lambda: self._decide(said))
        # All have read what this task wrote. What cannot be removed is, with the attempt.
        with contextlib.suppress(OSError, UnavailableError):
            tools.files.unlink(self._path(KEYS_MARK))
        if losers is None:
            return None
        rewritten = list[Rewritten | Failed]()
        try:
            paths = [tools.task.target / name for name in losers]
            note_losers(ledger, paths, self._run.number, self._run.runs, tools.files)
            index_seconds = self._clock.seconds() - started
            for unit in self._run.groups:
                rewritten.append(rewrite(unit, tools, MapStandings(None), ledger))
        except GIVES_UP as error:
            rewritten.append(Failed(place_of(self._run.groups[len(rewritten)]), error))
            index_seconds = 0.0
        return JointRun(tuple(self._indexed), tuple(rewritten), self._distinct_keys, index_seconds)

    def _say(self, step: Callable[[], str]) -> Sequence[str] | None:
        """Do a step and say what it gave; None when any task says nothing, or does not come."""
        try:
            said = step()
        except GIVES_UP:
            said = NOTHING
        try:
            heard = self._meeting.meet(said)
        except GIVES_UP:
            return None
        return None if NOTHING in heard else heard

    def _index(self, ledger: ReasonLedger) -> str:
        """Index the run, and return where its keys are."""
        run, tools = self._run, self._tools
        if len(ledger.standings) < self._end - self._first:
            return NOTHING
        is_ordered = True

        def disordered() -> None:
            nonlocal is_ordered
            is_ordered = False

        path = self._path(KEYS_MARK)
        # Opened to be appended to: what is read at once, and then removed, need not reach a disk.
        handle = tools.files.open_write(path, append=True)
        try:
            writer = KeyWriter(
                ledger, handle, buckets=run.buckets, map_bytes_max=_map_bytes_max(tools.task)
            )
            for unit in run.index:
                found = index(unit, tools, writer, disordered)
                if not is_ordered or found.events is None or len(found.events):
                    return NOTHING
                self._indexed.append(found)
            blocks = writer.end()
        finally:
            handle.close()
        return json.dumps([path.name, blocks])

    def _decide(self, key_files: Sequence[KeyFile]) -> str:
        """Find the losers of the buckets of this task, and return where that is written."""
        run, files = self._run, self._tools.files
        handle = files.open_write(self._path(LOSERS_MARK), append=True)
        try:
            found = list[Sequence[NDArray[np.int64]]]()
            for bucket in range(run.number, run.buckets, run.runs):
                losers, keys = find_losers(key_files, bucket, run.buckets, files)
                found.append(losers)
                self._distinct_keys += keys
            write_losers(found, run.runs, handle)
        finally:
            handle.close()
        return self._path(LOSERS_MARK).name

    def _path(self, mark: str) -> Path:
        task = self._tools.task
        return task.target / staged_name(self._first, LOG, task.attempt + mark)


def _key_file(task: PartitionTask, said: str) -> KeyFile:
    name, blocks = json.loads(said)
    return KeyFile(task.target / name, tuple(blocks))


def _map_bytes_max(task: PartitionTask) -> int | None:
    share = task.shape.task_memory_bytes
    return None if share is None else max(share // MAP_SHARE, MAP_BYTES_MIN)
