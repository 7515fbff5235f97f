"""Runs rounds in threads of this process; kernels release the interpreter lock.

The only threads below ``service`` but for those that commit (:mod:`keeplast.run.publishing`).
The threads of a round in stages share its key map. Units of such rounds go before whole
partitions, the longest round first, so that a giant one starts at once and small ones fill the gaps
that its stages leave; whole partitions are begun in the order in which they came. Small ones are
done by the thread that asks (:mod:`keeplast.run.pace`), where a slot is free and no round is in
stages.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import TypeVar

from keeplast.clock import Clock, SystemClock
from keeplast.errors import InvalidError, invariant
from keeplast.log.files import FileSystem
from keeplast.read.log_state import Winners
from keeplast.read.state_parts import NO_WINNERS, StatePart, shared_winners
from keeplast.rewrite.runner import Progressed
from keeplast.rewrite.task import PartitionTask, TaskResult
from keeplast.run.events import RoundsProgress
from keeplast.run.local_jobs import LocalJob, StagedJob, WaveJob, Work
from keeplast.run.pace import Quickness
from keeplast.run.workbench import Workbench

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
            raise InvalidError(f"at least one core is needed. cores={cores}")
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

    @property
    def is_cold(self) -> bool:
        """Return False: threads are there at once."""
        return False

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
                    self._do_here(here)
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
            for future in running:
                future.cancel()

    def _next_here(self, staged: Sequence[StagedJob], whole: deque[WaveJob]) -> WaveJob | None:
        """Take the next round when it is for the calling thread; None when it is for another.

        Rounds in stages wait for whoever hands out their units: beside them nothing is done here.
        """
        if staged or not whole or not whole[0].is_small or not self._pace.takes_next():
            return None
        return whole.popleft()

    def _do_here(self, job: WaveJob) -> None:
        if (work := job.next()) is not None:
            with self._pace.measured():
                work()

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
            # Whoever removes what was begun must not meet a thread that still writes.
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
        # A round by itself has the memory of all threads for what it decompresses; beside whole
        # partitions, which keep their own, it has none to spare.
        cut = [task for task in tasks if task.is_staged]
        share = self._slots / len(cut) if cut and len(cut) == len(tasks) else 0.0
        staged = [
            StagedJob(task, self._bench, _of(progressed, task), self._slots, share) for task in cut
        ]
        whole = (
            WaveJob(task, self._bench, _of(progressed, task))
            for task in tasks
            if not task.is_staged
        )
        return staged, deque(whole)


def _of(progressed: Progressed, task: PartitionTask) -> Progressed:
    """Return what hears of one task's bytes, apart from the others' where that is wanted."""
    return progressed.of(task.number) if isinstance(progressed, RoundsProgress) else progressed


def _ended(running: dict[Future[None], LocalJob], *, waits: bool) -> set[Future[None]]:
    """Return what has ended; at least one of them when this ``waits``."""
    if not running:
        return set()
    return wait(running, None if waits else 0, FIRST_COMPLETED).done


def _begin(staged: list[StagedJob], whole: deque[WaveJob]) -> tuple[Work, LocalJob] | None:
    """Return what a free thread does next, and of which job; None while there is nothing."""
    staged.sort(key=lambda job: -job.bytes_left)
    for job in staged:
        if (work := job.next()) is not None:
            return work, job
    while whole:
        wave = whole.popleft()
        if (work := wave.next()) is not None:
            return work, wave
    return None
