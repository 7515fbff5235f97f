"""What is done side by side and what one after the other: small work, and commits of partitions.

The thread that hands out small pieces of work may do them one after the other. Threads gain where
others wait for a disk, or in kernels. A log of a few kilobytes is neither. It takes a hundred short
calls, and threads that make such calls side by side spend as much again on the interpreter lock as
the work takes. So that thread does small pieces, by their bytes, at once, as long as that is quick
by the clock. Where a flush takes long, threads take over, and one piece in so many is tried again,
as disks change. It is about processor time alone. The work, and its order for one partition, are
the same.

Commits of several partitions go side by side: each waits for the disk, and disks take many at once.
A commit is some ten flushes that must follow one another; a journal that is asked by several at
once writes them together. Partitions share nothing but the checkpoint file, which is not written
here. Waves of one partition never meet: the next one is not run before this one has ended. The
calling thread commits small ones as long as the disk is quick.

Leaving waits for every commit that has begun, whatever the reason: nothing that belongs to one may
be removed meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor

from keeplast.clock import Clock
from keeplast.errors import CompactionError
from keeplast.rewrite.task import PartitionTask, TaskResult

SMALL_BYTES_MAX = 256 << 10
"""A round that reads no more in both passes is small: its kernels take a millisecond at most."""

QUICK_SECONDS_MAX = 0.008
"""What threads cost a piece is two or three milliseconds; one that takes longer may be worth it."""

SLOW_IN_TURN = 4
"""Fewer slow pieces in turn are of a busy machine, where threads would wait too, not of a disk."""

TRIED_AGAIN = 64
"""After so many pieces that were left to threads, one is tried again."""


def is_small(task: PartitionTask) -> bool:
    """Say whether a wave is too little to share out; one that waits for other hosts never is."""
    return task.cost_bytes <= SMALL_BYTES_MAX and task.files.is_on_disk(task.target)


class Quickness:
    """How long small pieces of one kind have taken; for the one thread that hands them out."""

    def __init__(self, clock: Clock) -> None:
        """Take them for quick, until it is seen that they are not."""
        self._clock = clock
        self._slow = 0
        self._left = 0

    def takes_next(self) -> bool:
        """Say whether the next piece is done by the calling thread; counts those that are not."""
        if self._slow < SLOW_IN_TURN:
            return True
        self._left += 1
        return self._left > TRIED_AGAIN

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a piece that the calling thread does."""
        started = self._clock.seconds()
        try:
            yield
        finally:
            is_quick = self._clock.seconds() - started <= QUICK_SECONDS_MAX
            self._slow = 0 if is_quick else self._slow + 1
            self._left = 0


COMMITS_MAX = 8
"""How many commits run at once; more gained nothing on the disks that were measured."""

Ended = tuple[TaskResult, CompactionError | OSError | None]
"""A wave, and why it is not in place, if it is not."""


class Publishing:
    """Publishes waves, in threads; a failed commit is a result, any other error ends the call."""

    def __init__(self, commit: Callable[[TaskResult], None], clock: Clock) -> None:
        """Take what commits one wave; no thread is there before it is needed."""
        self._commit = commit
        self._pace = Quickness(clock)
        self._pool = ThreadPoolExecutor(COMMITS_MAX, "keeplast-commit")
        self._running: set[Future[Ended]] = set()

    def __enter__(self) -> Publishing:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, result: TaskResult, *, among: int, is_small: bool = False) -> list[Ended]:
        """Begin the commit of a wave that ``among`` so many may come; returns what has ended.

        The only one is committed in the calling thread, and so is a small one while that is quick.
        Otherwise this waits only while as many run as may.
        """
        if among == 1:
            return [self._do(result)]
        if is_small and self._pace.takes_next():
            with self._pace.measured():
                ended = self._do(result)
            return [ended, *self._take(_wait(self._running, 0))] if self._running else [ended]
        self._running.add(self._pool.submit(self._do, result))
        return self._take(_wait(self._running, 0 if len(self._running) < COMMITS_MAX else None))

    def _do(self, result: TaskResult) -> Ended:
        try:
            self._commit(result)
        except (CompactionError, OSError) as error:
            return result, error
        return result, None

    def rest(self) -> Iterator[list[Ended]]:
        """Yield everything else as it ends, what ended together together."""
        while self._running:
            yield self._take(_wait(self._running))

    def _take(self, done: set[Future[Ended]]) -> list[Ended]:
        self._running -= done
        return [future.result() for future in done]


def _wait(running: set[Future[Ended]], seconds: float | None = None) -> set[Future[Ended]]:
    """Return what has ended, at least one of them unless ``seconds`` have passed."""
    return futures.wait(running, seconds, futures.FIRST_COMPLETED).done
