"""Whether small pieces of work are done one after the other by the thread that hands them out.

Threads gain where others wait for a disk, or in kernels. A log of a few kilobytes is neither: it
takes a hundred short calls, and threads that make such calls side by side spend as much again on
the interpreter lock as the work takes. So what is small, by its bytes, is done at once by whoever
holds it, as long as that is quick by the clock: where a flush takes long, threads take over, and
one piece in so many is tried again, as disks change.

It is about processor time alone. What is done, and in what order for one partition, is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from keeplast.clock import Clock
from keeplast.rewrite.task import PartitionTask

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
