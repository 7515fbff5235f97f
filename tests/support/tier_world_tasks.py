"""What hosts do, one at a time, stopped at any operation on a disk, an object store or a database.

A task runs until it ends, dies or falls asleep; a sleeping one keeps its stack, in a thread of its
own that waits, and goes on when it is woken: a process that was paused while the world moved on.
Only one thread runs at any time and it is handed on explicitly, so a seed always gives the same
run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.observed_files import Crash

STEPS_MAX = 20_000
"""Looks and operations of one task; the longest ones have a tenth of them."""

Work = Callable[[], object]
Finished = Callable[["Task"], None]


@dataclass(eq=False)
class Life:
    """A process from its start to its end; what it does afterwards has no effect."""

    name: str
    alive: bool = True
    busy: set[str] = field(default_factory=set)
    """What of it is in the hands of a task that sleeps."""


class Task:
    """One piece of work of a process. Operations are counted from 1."""

    def __init__(
        self,
        life: Life,
        name: str,
        work: Work,
        *,
        holds: str,
        epoch: int = -1,
        sleeps_at: int | None = None,
        dies_at: int | None = None,
        fails_at: int | None = None,
    ) -> None:
        """Say what happens at which operation, if it gets that far."""
        self.life = life
        self.name = name
        self.holds = holds
        self.epoch = epoch
        self.operations = 0
        self.steps = 0
        self.result: object = None
        self.error: Exception | None = None
        self.is_dead = False
        self.is_done = False
        self.sleeps_at = sleeps_at
        self.dies_at = dies_at
        self.fails_at = fails_at
        self._work = work
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Begin or go on; returns when it has ended or sleeps."""
        if self._thread is not None:
            self._go.release()
            self._back.acquire()
        elif self.sleeps_at is None:
            self._do()
        else:
            self._thread = threading.Thread(target=self._do_and_return, daemon=True)
            self._thread.start()
            self._back.acquire()
        if self.is_done and self._thread is not None:
            self._thread.join()

    def sleep(self) -> None:
        """Stop here, in the task's own thread, until it is woken."""
        self._back.release()
        self._go.acquire()

    def _do_and_return(self) -> None:
        self._do()
        self._back.release()

    def _do(self) -> None:
        try:
            self.result = self._work()
        except Crash:
            self.is_dead = True
        except Exception as error:  # noqa: BLE001 - handed to who started the task
            self.error = error
        self.is_done = True


class Tasks:
    """Runs tasks, and remembers those that sleep."""

    def __init__(self, trace: Callable[[str], None], died: Callable[[Life], None]) -> None:
        """``trace`` gets a line for every operation, ``died`` hears of a process that stops."""
        self.current: Task | None = None
        self.asleep: list[Task] = []
        self.operations = 0
        self._stays_awake = False
        self._trace = trace
        self._died = died
        self._finished: dict[Task, Finished] = {}

    def start(self, task: Task, finished: Finished) -> None:
        """Run a new task as far as it goes."""
        task.life.busy.add(task.holds)
        self._finished[task] = finished
        self._go(task)

    def wake(self, task: Task) -> None:
        """Let a sleeping task go on."""
        self.asleep.remove(task)
        self._go(task)

    def count_step(self, task: Task) -> None:
        """Count a look or an operation of ``task``; one that does not end is stopped and fails.

        A loop of the product goes on whatever a single error says, so that it dies of this one.
        """
        task.steps += 1
        if task.steps > STEPS_MAX:
            task.error = AssertionError(f"{task.name} does not end. steps={task.steps}")
            task.life.alive = False
            raise Crash(f"{task.name} does not end")

    def bury(self) -> None:
        """End the sleeping tasks of processes that are gone."""
        for task in [task for task in self.asleep if not task.life.alive]:
            self.wake(task)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let no task fall asleep meanwhile: another host's hands are needed."""
        self._stays_awake = True
        try:
            yield
        finally:
            self._stays_awake = False

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Let what happens meanwhile be no operation of a host."""
        task, self.current = self.current, None
        try:
            yield
        finally:
            self.current = task

    def step(self, operation: str) -> bool:
        """Account for an operation; True when it has to fail. What no host does, a check, passes.

        Crash when the process dies before it, or is dead.
        """
        task = self.current
        if task is None:
            return False
        if not task.life.alive:
            raise Crash(operation)
        self.count_step(task)
        task.operations += 1
        self.operations += 1
        self._trace(f"    {task.life.name} {task.name} {task.operations}: {operation}")
        if task.operations == task.sleeps_at and not self._stays_awake:
            self._trace(f"    {task.life.name} {task.name} falls asleep before it")
            task.sleep()
            if not task.life.alive:
                raise Crash(operation)
        if task.operations == task.dies_at:
            self._trace(f"    {task.life.name} dies before it")
            task.life.alive = False
            self._died(task.life)
            raise Crash(operation)
        return task.operations == task.fails_at

    def _go(self, task: Task) -> None:
        self.current = task
        task.run()
        self.current = None
        if not task.is_done:
            self.asleep.append(task)
            return
        task.life.busy.discard(task.holds)
        self._finished.pop(task)(task)
