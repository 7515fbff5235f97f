"""A task of LocalRunner as calls for threads: one for a wave, one a unit for a round in stages.

``next``, ``result`` and the properties are for the one thread that hands the calls out; the calls
themselves run anywhere and touch nothing of the job but what is made for several threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from keeplast.columns.ledger import new_ledger
from keeplast.errors import CompactionError, InvariantError
from keeplast.model.shape import Shape
from keeplast.rewrite.decompressed_cache import DecompressedCache
from keeplast.rewrite.marked_plan import MarkersNeededError
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.runner import Progressed
from keeplast.rewrite.shared_group import GroupPart, SharedGroup, parts_of
from keeplast.rewrite.stage_work import (
    SharedKeyMap,
    Tools,
    ask_to_chunks,
    consult,
    index,
    mark,
    raise_clean,
    resolve_bucket,
    rewrite,
    scan,
)
from keeplast.rewrite.staged_round import Stage, StagedRound, place_of
from keeplast.rewrite.standings import MapStandings, RowStandings, Standings
from keeplast.rewrite.task import PartitionTask, TaskResult
from keeplast.rewrite.units import (
    AskUnit,
    Failed,
    FilterUnit,
    IndexUnit,
    MarkUnit,
    RaiseUnit,
    ResolveUnit,
    RewriteUnit,
    ScanUnit,
    Unit,
    UnitResult,
    Unmarked,
)
from keeplast.rewrite.wave import run_wave
from keeplast.rewrite.workspace import LEDGER_SHARE, cache_bytes_of
from keeplast.run.pace import is_small
from keeplast.run.workbench import Workbench

Work = Callable[[], None]

GROUPS_ENOUGH = 2
"""With so many groups a thread each is done by one; with fewer, threads share them by source."""

HELD_SHARE = 4
"""What parts of a group hold for its output may take this part of what is for decompressed data."""


class LocalJob(Protocol):
    """What is left to do of a task."""

    def next(self) -> Work | None:
        """Return a call that may run now, None while there is none."""
        ...

    def result(self) -> TaskResult:
        """Return what the task gave, or raise what it raised."""
        ...


class WaveJob:
    """A wave: one call."""

    def __init__(self, task: PartitionTask, bench: Workbench, progressed: Progressed) -> None:
        self.is_small = is_small(task)
        """Whether it is too little to share out."""
        self._task = task
        self._bench = bench
        self._progressed = progressed
        self._is_started = False
        self._result: TaskResult | None = None

    def next(self) -> Work | None:
        """Return the wave the first time, None from then on."""
        if self._is_started:
            return None
        self._is_started = True
        return self._work

    def _work(self) -> None:
        task, bench, progressed = self._task, self._bench, self._progressed
        files = bench.files_of(task, progressed)
        self._result = run_wave(task, files, bench.clock, bench.workspace_of(task), progressed)

    def result(self) -> TaskResult:
        """Return what the task gave, or raise what it raised."""
        result = self._result
        if result is None:
            raise InvariantError(f"the wave has not ended. path={self._task.path}")
        return result


class StagedJob:
    """A round in stages: one call a unit, and nothing to hand out while a stage ends."""

    def __init__(
        self,
        task: PartitionTask,
        bench: Workbench,
        progressed: Progressed,
        slots: int,
        cache_share: float,
    ) -> None:
        """Wait to be started by ``slots`` threads; ``cache_share`` is in their shares of memory."""
        self.bytes_left = task.cost_bytes
        """About how much is still to be read."""
        self._bench = bench
        self._progressed = progressed
        self._round = StagedRound(task, bench.clock)
        self._units: Iterator[Unit] = self._round.units()
        self._ahead = next(self._units, None)
        self._parts = deque[GroupPart]()
        self._groups: dict[int, SharedGroup] = {}
        self._threads = set[int]()
        self._running = 0
        self._lock = threading.Lock()
        self._results: list[UnitResult | None] = []
        memory = int(cache_share * cache_bytes_of(task.memory_bytes))
        self._ledger_bytes_max = memory // LEDGER_SHARE
        self._begin_map()
        groups = self._round.groups
        shares = len(groups) < GROUPS_ENOUGH * slots and any(len(g.sources) > 1 for g in groups)
        self._held_bytes_max = memory // HELD_SHARE if shares else 0
        memory -= self._held_bytes_max
        self._cache = DecompressedCache(memory - self._shared.key_map.ledger.standings.nbytes)

    @property
    def is_done(self) -> bool:
        """Say whether every stage has ended."""
        self._settle()
        return self._round.is_done

    def next(self) -> Work | None:
        """Return the wave the first time, None from then on."""
        self._settle()
        piece: Unit | GroupPart | None = self._parts.popleft() if self._parts else self._ahead
        if piece is None:
            return None
        if piece is self._ahead:
            self._ahead = next(self._units, None)
            if isinstance(piece, RewriteUnit) and self._shares_groups:
                piece, *rest = parts_of(piece, self._round.task) or (piece,)
                self._parts.extend(rest)
        self._running += 1
        self.bytes_left -= piece.cost_bytes
        return partial(self._work, piece)

    def result(self) -> TaskResult:
        """Return what the task gave, or raise what it raised."""
        self._settle()
        return self._round.result()

    @property
    def _shares_groups(self) -> bool:
        return self._held_bytes_max > 0 and not self._round.has_events

    def _settle(self) -> None:
        """Take what has come back, and go on to the next stage when the present one is through."""
        with self._lock:
            results, self._results = self._results, []
        for result in results:
            self._running -= 1
            if result is None:
                continue
            self._round.take(result)
            if isinstance(result, Failed | Unmarked):
                self._units, self._ahead = iter(()), None
        while not (self._ahead or self._parts or self._running or self._round.is_done):
            self._advance()

    def _begin_map(self) -> None:
        plan = self._round.task.plan
        ledger = new_ledger(plan.first_dirty, plan.bound, self._ledger_bytes_max)
        self._shared = SharedKeyMap(ranking_of(plan.topic).new_map(ledger))
        self._standings: Standings = MapStandings(self._shared.key_map)

    def _advance(self) -> None:
        is_bucket = self._round.task.shape.shape is Shape.BUCKET
        ends_index = self._round.stage is Stage.INDEX and not is_bucket
        if ends_index and self._round.is_unmarked:
            self._begin_map()
        self._groups.clear()
        self._round.advance(len(self._shared.key_map) if ends_index else None)
        if is_bucket and self._round.stage is Stage.REWRITE:
            self._standings = RowStandings(self._round.task.shape.buckets, self._round.answers)
        self._units = self._round.units()
        self._ahead = next(self._units, None)

    def _work(self, piece: Unit | GroupPart) -> None:
        result: UnitResult | None
        try:
            with self._bench.apart(self._threads):
                result = self._execute(piece)
        except MarkersNeededError:
            result = Unmarked()
        except (CompactionError, OSError, MemoryError) as error:
            unit = piece.unit if isinstance(piece, GroupPart) else piece
            result = Failed(place_of(unit), error)
        with self._lock:
            self._results.append(result)

    def _execute(self, unit: Unit | GroupPart) -> UnitResult | None:
        task = self._round.task
        if isinstance(unit, ResolveUnit):
            return resolve_bucket(unit, task, task.shape.buckets)
        files, workspace = (
            self._bench.files_of(task, self._progressed),
            self._bench.workspace_of(task),
        )
        tools = Tools(task, files, workspace, self._cache, self._progressed)
        if isinstance(unit, GroupPart):
            return self._group_of(unit.unit, tools).do(unit.number, tools)
        if isinstance(unit, MarkUnit):
            return mark(tools)
        if isinstance(unit, ScanUnit):
            return scan(unit, tools)
        if isinstance(unit, IndexUnit):
            return index(unit, tools, self._shared, self._shared.key_map.forget_notes)
        if isinstance(unit, FilterUnit):
            return consult(unit, tools, self._round.dirty_hashes)
        if isinstance(unit, RaiseUnit):
            return raise_clean(unit, tools, self._shared.raise_known)
        if isinstance(unit, AskUnit):
            return ask_to_chunks(unit, tools)
        return rewrite(unit, tools, self._standings, self._shared.key_map.ledger)

    def _group_of(self, unit: RewriteUnit, tools: Tools) -> SharedGroup:
        """Return the group whose parts several threads do; begun when the first of them comes."""
        with self._lock:
            group = self._groups.get(unit.group.base_offset)
            if group is None:
                ledger = self._shared.key_map.ledger
                group = SharedGroup(unit, tools, self._standings, ledger, self._held_bytes_max)
                self._groups[unit.group.base_offset] = group
            return group
