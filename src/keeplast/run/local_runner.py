"""Runs rounds in threads of this process; kernels release the interpreter lock.

The only threads below ``service`` but for those that commit (:mod:`keeplast.run.pace`). The threads
of a round in stages share its key map. Units of such rounds go before whole partitions, the longest
round first. So a giant one starts at once, and small ones fill the gaps that its stages leave.
Whole partitions are begun in the order in which they came. The calling thread does small ones
(:mod:`keeplast.run.pace`), where a slot is free and no round is in stages.

The process opens file systems for its tasks: one a round, with a few rounds kept. Units of one
round that meet in a process share its findings and its connections. A workspace is made once a
thread and used for every task with the same memory. Threads that share a round begin on different
processors.

A task becomes calls for threads: one for a wave, one a unit for a round in stages. ``next``,
``result`` and the properties are for the one thread that hands the calls out. The calls themselves
run anywhere and touch nothing of the job but what is made for several threads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from functools import partial
from pathlib import Path
from typing import TypeVar

from keeplast.clock import Clock, SystemClock
from keeplast.columns.winners import new_ledger
from keeplast.errors import CompactionError, InvalidError, InvariantError, invariant
from keeplast.log.files import FileSystem
from keeplast.log.throttle import Throttle, ThrottledFiles
from keeplast.read.log_state import NO_WINNERS, StatePart, Winners, shared_winners
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.shared_group import GroupPart, SharedGroup, edges_of_dirty, parts_of
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
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.rewrite.transactions import MarkersNeededError
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
from keeplast.rewrite.workspace import LEDGER_SHARE, DecompressedCache, Workspace, cache_bytes_of
from keeplast.run.events import RoundsProgress
from keeplast.run.pace import Quickness, is_small

ROUNDS_KEPT = 16


class OpenedFiles:
    """Opens by recipe; several threads may ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, FileSystem] = OrderedDict()

    def of(self, task: PartitionTask) -> FileSystem:
        """Return the file system of the round that ``task`` is part of."""
        with self._lock:
            files = self._opened.get(task.attempt)
            if files is None:
                files = self._opened[task.attempt] = task.files.open()
            self._opened.move_to_end(task.attempt)
            while len(self._opened) > ROUNDS_KEPT:
                self._opened.popitem(last=False)
            return files


class Workbench:
    """Shared by all threads of one runner; ``clock`` is the one that their work is timed by."""

    def __init__(self, files: FileSystem | None, clock: Clock, threads: int) -> None:
        """Begin with nothing open; ``files`` stands in for what the recipes of tasks would open."""
        self._threads = threads
        self.clock = clock
        self._files = files
        self._opened = OpenedFiles()
        self._throttle = Throttle(clock)
        self._local = threading.local()
        self._processors = sorted(os.sched_getaffinity(0))
        self._numbers = itertools.count()

    def share_limit(self, tasks: Sequence[PartitionTask]) -> None:
        """Have all threads share one limit on their bytes, the least that a task has."""
        self._throttle.limit(
            min(
                (x.io_bytes_per_second for x in tasks if x.io_bytes_per_second is not None),
                default=None,
            )
        )

    def files_of(self, task: PartitionTask, progressed: Progressed) -> FileSystem:
        """Return the files of the round that a task is part of, within the limit."""
        files = self._opened.of(task) if self._files is None else self._files
        if task.io_bytes_per_second is None:
            return files
        # A wait reports that nothing has moved, so that a stop ends it.
        return ThrottledFiles(files, self._throttle, lambda: progressed(0))

    def workspace_of(self, task: PartitionTask) -> Workspace:
        """Return the calling thread's workspace."""
        workspace: Workspace | None = getattr(self._local, "workspace", None)
        if workspace is None or self._local.memory_bytes != task.memory_bytes:
            workspace = Workspace(task.memory_bytes)
            self._local.workspace = workspace
            self._local.memory_bytes = task.memory_bytes
        return workspace

    @contextlib.contextmanager
    def apart(self, begun: set[int]) -> Iterator[None]:
        """Keep the calling thread on a processor of its own, unless it is among the ``begun``.

        Linux wakes a thread that has slept on the processor of the thread that woke it. Two that
        began a round together shared a processor for 40 ms next to an idle one, a tenth of what a
        log of 256 MiB takes. After its first call of a round a thread goes where it likes.
        """
        number = getattr(self._local, "number", None)
        if number is None:
            number = self._local.number = next(self._numbers)
        if number in begun or self._threads < 2 or self._threads < len(self._processors):
            yield
            return
        begun.add(number)
        allowed = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {self._processors[number % len(self._processors)]} & allowed)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, allowed)


Work = Callable[[], None]

GROUPS_ENOUGH = 2
"""With so many groups a thread each is done by one; with fewer, threads share them by source."""

HELD_SHARE = 4
"""What parts of a group hold for its output may take this part of what is for decompressed data."""


class WaveJob:
    """A wave: one call."""

    def __init__(self, task: PartitionTask, bench: Workbench, progressed: Progressed) -> None:
        self.is_small = is_small(task)
        """Whether it is too little to share out."""
        self._task = task
        self._bench = bench
        self._progressed = progressed
        self._left: Work | None = self.work
        self._result: TaskResult | None = None

    def next(self) -> Work | None:
        """Return the wave the first time, None from then on."""
        left, self._left = self._left, None
        return left

    def work(self) -> None:
        """Do the wave."""
        task, bench, progressed = self._task, self._bench, self._progressed
        files = bench.files_of(task, progressed)
        self._result = run_wave(task, files, bench.clock, bench.workspace_of(task), progressed)

    def result(self) -> TaskResult:
        """Return what the task gave, or raise what it raised."""
        result = self._result
        if result is None:
            raise InvariantError(f"the wave has not ended. path={self._task.path}", code="K901")
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
        # The rows of a bucket's answers come in the order of a segment.
        self._cuts = not self._round.is_bucket and task.files.is_on_disk(task.path)
        if self._cuts and self._round.stage is Stage.INDEX:
            self._round.edges = edges_of_dirty(task, self._files(), slots)
        self._units: Iterator[Unit] = self._round.units()
        self._ahead = next(self._units, None)
        self.parts = deque[Unit | GroupPart]()
        """Pieces and parts that threads take by themselves."""
        self._groups: dict[int, SharedGroup] = {}
        self._threads = set[int]()
        self._running = 0
        self._lock = threading.Lock()
        self._results: list[UnitResult | None] = []
        """None where a call has ended."""
        memory = int(cache_share * cache_bytes_of(task.memory_bytes))
        self._ledger_bytes_max = memory // LEDGER_SHARE
        groups = self._round.groups
        is_cut = any(len(group.sources) > 1 for group in groups)
        # To share what a thread could do alone costs a copy of half of what is written.
        shares = len(groups) < (GROUPS_ENOUGH * slots if is_cut else slots)
        self._held_bytes_max = memory // HELD_SHARE if shares else 0
        self._cache_bytes = memory - self._held_bytes_max
        self._begin_index()

    @property
    def is_done(self) -> bool:
        """Say whether every stage has ended."""
        self._settle()
        return self._round.is_done

    def next(self) -> Work | None:
        """Return the wave the first time, None from then on."""
        self._settle()
        piece: Unit | GroupPart | None = self._take_part() or self._ahead
        if piece is None:
            return None
        if piece is self._ahead:
            piece, *rest = self._cut(piece)
            self.parts.extend(rest)
            self._ahead = next(self._units, None)
        self._running += 1
        self.bytes_left -= piece.cost_bytes
        return partial(self._work, piece)

    def result(self) -> TaskResult:
        """Return what the task gave, or raise what it raised."""
        self._settle()
        return self._round.result()

    def _take_part(self) -> Unit | GroupPart | None:
        with self._lock:
            return self.parts.popleft() if self.parts else None

    def _cut(self, unit: Unit) -> Sequence[Unit | GroupPart]:
        """Return the pieces of the first pass, or the parts of a group, that threads take."""
        if isinstance(unit, IndexUnit) and self._round.edges:
            return (unit, *self._units)
        if not isinstance(unit, RewriteUnit) or not self._held_bytes_max or self._round.has_events:
            return (unit,)
        return parts_of(
            unit, self._round.task, self._shared.key_map.ledger, self._files(), cuts=self._cuts
        ) or (unit,)

    def _files(self) -> FileSystem:
        return self._bench.files_of(self._round.task, self._progressed)

    def _settle(self) -> None:
        """Take what has come back, and go on to the next stage when the present one is through."""
        with self._lock:
            results, self._results = self._results, []
        for result in results:
            if result is None:
                self._running -= 1
                continue
            self._round.take(result)
            if isinstance(result, Failed | Unmarked):
                self._units, self._ahead = iter(()), None
        while not (self._ahead or self.parts or self._running or self._round.is_done):
            self._advance()

    def _begin_index(self) -> None:
        """Know nothing of the log; pieces that began inside a batch may have given anything."""
        plan = self._round.task.plan
        ledger = new_ledger(plan.first_dirty, plan.bound, self._ledger_bytes_max)
        self._shared = SharedKeyMap(ranking_of(plan.topic).new_map(ledger))
        self._standings: Standings = MapStandings(self._shared.key_map)
        self._cache = DecompressedCache(self._cache_bytes - ledger.standings.nbytes)

    def _advance(self) -> None:
        ends_index = self._round.stage is Stage.INDEX and not self._round.is_bucket
        if ends_index and self._round.begins_again:
            self._begin_index()
        self._groups.clear()
        self._round.advance(len(self._shared.key_map) if ends_index else None)
        if self._round.is_bucket and self._round.stage is Stage.REWRITE:
            self._standings = RowStandings(self._round.task.shape.buckets, self._round.answers)
        self._units = self._round.units()
        self._ahead = next(self._units, None)

    def _work(self, piece: Unit | GroupPart) -> None:
        with self._bench.apart(self._threads):
            self._attempt(piece)
            # To be handed the next part takes a thread longer than to take it.
            while (part := self._take_part()) is not None:
                self._attempt(part)
        with self._lock:
            self._results.append(None)

    def _attempt(self, piece: Unit | GroupPart) -> None:
        try:
            result = self._execute(piece)
        except MarkersNeededError:
            result = Unmarked()
        except (CompactionError, OSError, MemoryError) as error:
            result = Failed(place_of(piece.unit if isinstance(piece, GroupPart) else piece), error)
        with self._lock:
            self._results += [] if result is None else [result]
            if isinstance(result, Failed | Unmarked) and isinstance(piece, IndexUnit):
                self.parts.clear()

    def _execute(self, unit: Unit | GroupPart) -> UnitResult | None:
        task = self._round.task
        if isinstance(unit, ResolveUnit):
            return resolve_bucket(unit, task, task.shape.buckets)
        tools = Tools(
            task, self._files(), self._bench.workspace_of(task), self._cache, self._progressed
        )
        match unit:
            case GroupPart():
                return self._group_of(unit, tools).do(unit, tools)
            case MarkUnit():
                return mark(tools)
            case ScanUnit():
                return scan(unit, tools)
            case IndexUnit():
                return index(unit, tools, self._shared, self._shared.key_map.forget_notes)
            case FilterUnit():
                return consult(unit, tools, self._round.dirty_hashes)
            case RaiseUnit():
                return raise_clean(unit, tools, self._shared.raise_known)
            case AskUnit():
                return ask_to_chunks(unit, tools)
            case RewriteUnit():
                return rewrite(unit, tools, self._standings, self._shared.key_map.ledger)

    def _group_of(self, part: GroupPart, tools: Tools) -> SharedGroup:
        """Return the group whose parts several threads do; begun when the first of them comes."""
        base = part.unit.group.base_offset
        with self._lock:
            group = self._groups.get(base)
            if group is None:
                ledger = self._shared.key_map.ledger
                group = SharedGroup(part, tools, self._standings, ledger, self._held_bytes_max)
                self._groups[base] = group
            return group


LocalJob = WaveJob | StagedJob
"""What is left to do of a task."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class LocalRunner:
    """A pool of ``cores`` threads (None: one for each processor this process may use)."""

    def __init__(
        self,
        cores: int | None = None,
        *,
        files: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; InvalidError when ``cores`` is less than one.

        ``files`` stands in for what the recipes of tasks would open.
        """
        self._slots = len(os.sched_getaffinity(0)) if cores is None else cores
        if self._slots < 1:
            raise InvalidError(f"at least one core is needed. cores={cores}", code="K104")
        self._bench = Workbench(files, SystemClock() if clock is None else clock, self._slots)
        self._pace = Quickness(self._bench.clock)
        self._pool: ThreadPoolExecutor | None = None

    @property
    def slots(self) -> int:
        """Return the number of threads."""
        return self._slots

    @property
    def shares_memory(self) -> bool:
        """Return True: a key map is made once for all threads."""
        return True

    def __enter__(self) -> LocalRunner:
        self._pool = ThreadPoolExecutor(self._slots, "keeplast")
        return self

    def __exit__(self, *_: object) -> None:
        """Let running tasks end; drop what has not started."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        """Yield results as tasks end; all threads share one limit on their bytes, the least."""
        self._bench.share_limit(tasks)
        staged, whole = self._jobs(tasks, progressed)
        if self._pool is None or (len(tasks) == 1 and not staged):
            jobs: list[LocalJob] = [*staged, *whole]
            for job in jobs:
                while (work := job.next()) is not None:
                    work()
                yield job.result()
            return
        running: dict[Future[None], LocalJob] = {}
        try:
            while staged or whole or running:
                here: WaveJob | None = None
                while len(running) < self._slots:
                    here = self._next_here(staged, whole)
                    if here is not None or (begun := _begin(staged, whole)) is None:
                        break
                    work, job = begun
                    running[self._pool.submit(work)] = job
                if here is not None:
                    with self._pace.measured():
                        here.work()
                    yield here.result()
                done = _ended(running, waits=here is None)
                for future in done:
                    job = running.pop(future)
                    future.result()
                    if isinstance(job, WaveJob):
                        yield job.result()
                ended = [job for job in staged if job.is_done]
                can_go_on = running or done or ended or whole or here is not None
                invariant(bool(can_go_on), "no round can go on")
                for each in ended:
                    staged.remove(each)
                    yield each.result()
        finally:
            for job in staged:
                job.parts.clear()
            for future in running:
                future.cancel()

    def _next_here(self, staged: Sequence[StagedJob], whole: deque[WaveJob]) -> WaveJob | None:
        """Take the next round when it is for the calling thread; None when it is for another.

        Rounds in stages wait for the thread that hands out their units: during them nothing is done
        here.
        """
        if staged or not whole or not whole[0].is_small or not self._pace.takes_next():
            return None
        return whole.popleft()

    def each(
        self,
        work: Callable[[_Item, Progressed], _Result],
        items: Sequence[_Item],
        progressed: Progressed,
        roots: Iterable[Path] = (),
        names: Sequence[object] = (),
    ) -> Iterator[_Result]:
        """Yield ``work`` of every item as it ends; for what is not a round.

        ``roots`` are what every host must see, which this one does; ``names`` are shown nowhere.
        """
        if self._pool is None:
            for item in items:
                yield work(item, progressed)
            return
        futures = [self._pool.submit(work, item, progressed) for item in items]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
            # The caller that removes what was begun must not meet a thread that still writes.
            wait(futures)

    def latest(
        self,
        parts: Sequence[StatePart],
        show: Callable[[StatePart, Winners, Progressed], _Result],
        progressed: Progressed,
        roots: Iterable[Path] = (),
    ) -> Iterator[_Result]:
        """Yield ``show`` of every part of some states with its winners, as they end.

        Raises the error of a part whose keys cannot be read.
        """
        winners = shared_winners(self.each, parts, progressed)

        def show_one(part: StatePart, progressed: Progressed) -> _Result:
            its = winners.get((part.state.number, part.number), NO_WINNERS)
            return show(part, its, progressed)

        yield from self.each(show_one, parts, progressed, roots)

    def _jobs(
        self, tasks: Sequence[PartitionTask], progressed: Progressed
    ) -> tuple[list[StagedJob], deque[WaveJob]]:
        # A round by itself has the memory of all threads for what it decompresses. Together with
        # whole partitions, which keep their own, it has none to spare.
        cut = [task for task in tasks if task.is_staged]
        share = self._slots / len(cut) if cut and len(cut) == len(tasks) else 0.0
        staged = [
            StagedJob(task, self._bench, _of(progressed, task), self._slots, share) for task in cut
        ]
        return staged, deque(
            WaveJob(task, self._bench, _of(progressed, task))
            for task in tasks
            if not task.is_staged
        )


def _of(progressed: Progressed, task: PartitionTask) -> Progressed:
    """Return what hears of one task's bytes, apart from the others' where that is wanted."""
    return progressed.of(task.number) if isinstance(progressed, RoundsProgress) else progressed


def _ended(running: dict[Future[None], LocalJob], *, waits: bool) -> set[Future[None]]:
    """Return what has ended; at least one of them when this ``waits``."""
    if not running:
        return set()
    return wait(running, None if waits else 0, FIRST_COMPLETED).done


def _begin(staged: list[StagedJob], whole: deque[WaveJob]) -> tuple[Work, LocalJob] | None:
    """Return what a free thread does next, with its job; None while there is nothing."""
    staged.sort(key=lambda job: -job.bytes_left)
    for job in staged:
        if (work := job.next()) is not None:
            return work, job
    while whole:
        wave = whole.popleft()
        if (work := wave.next()) is not None:
            return work, wave
    return None
