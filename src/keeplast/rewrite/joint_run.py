"""One task's part of a round that several tasks do together: index, meet, decide, meet, rewrite.

Each has a run of groups and keeps what it learned of them from the first pass to the second: the
notes of its records, and what it decompressed. Keys travel through files
(:mod:`keeplast.rewrite.exchange`); at a meeting every task says where its file is.

What a reader must not break: nothing is staged before all have met twice, so a task that gives up
makes all of them give up, and whoever drives the round takes it through its stages instead, which
say what is wrong. What the others staged beside one that has given up is not used. Only rounds
that :func:`is_joint` allows may be done so.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.clock import Clock
from keeplast.columns.ledger import ReasonLedger, new_ledger
from keeplast.errors import CompactionError, UnavailableError
from keeplast.format.filename import LOG
from keeplast.rewrite.exchange import (
    MAP_BYTES_MIN,
    KeyFile,
    KeyWriter,
    buckets_of_task,
    find_losers,
    note_losers,
    write_losers,
)
from keeplast.rewrite.marked_plan import MarkersNeededError
from keeplast.rewrite.meeting import Meeting
from keeplast.rewrite.output import staged_name
from keeplast.rewrite.stage_work import Tools, end_of, index, rewrite
from keeplast.rewrite.staged_round import place_of
from keeplast.rewrite.standings import MapStandings
from keeplast.rewrite.task import PartitionTask
from keeplast.rewrite.units import Failed, IndexedUnit, IndexUnit, RewriteUnit, Rewritten

KEYS_MARK, LOSERS_MARK = "k", "l"
"""Stand at the end of an attempt in the name of a file through which tasks exchange keys."""

MAP_SHARE = 4
"""A bounded map may take this part of a task's memory: it is copied while it is written out."""

GIVES_UP = (CompactionError, MarkersNeededError, OSError, MemoryError)
NOTHING = ""
"""What a task says that has given up."""


@dataclass(frozen=True, slots=True)
class Run:
    """The part of a round that one of ``runs`` tasks does: groups that follow one another.

    ``index`` are the extents of ``groups``, all dirty. ``buckets`` are shared out among the tasks.
    """

    number: int
    runs: int
    buckets: int
    index: tuple[IndexUnit, ...]
    groups: tuple[RewriteUnit, ...]


@dataclass(frozen=True, slots=True)
class JointRun:
    """What a task did of a round; ``distinct_keys`` are those of its buckets."""

    indexed: tuple[IndexedUnit, ...]
    rewritten: tuple[Rewritten | Failed, ...]
    distinct_keys: int
    index_seconds: float


def is_joint(task: PartitionTask) -> bool:
    """Say whether a round may be done by tasks that meet: told by notes, in a place for files."""
    can_write = task.writes and task.files.is_on_disk(task.target)
    return task.plan.is_told_by_notes and task.filters is None and can_write


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
        """Find who loses of the buckets of this task, and return where that is written."""
        run, files = self._run, self._tools.files
        handle = files.open_write(self._path(LOSERS_MARK), append=True)
        try:
            found = list[Sequence[NDArray[np.int64]]]()
            for bucket in buckets_of_task(run.number, run.runs, run.buckets):
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
