"""What the threads of a runner work with: files once a round, a workspace each, one limit for all.

A workspace is made once a thread and used for every task with the same memory. Threads that share a
round begin on different processors.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Sequence

from keeplast.clock import Clock
from keeplast.log.files import FileSystem
from keeplast.log.throttle import Throttle, ThrottledFiles
from keeplast.rewrite.runner import Progressed
from keeplast.rewrite.task import PartitionTask
from keeplast.rewrite.workspace import Workspace
from keeplast.run.opened_files import OpenedFiles


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
        limits = [x.io_bytes_per_second for x in tasks if x.io_bytes_per_second is not None]
        self._throttle.limit(min(limits, default=None))

    def files_of(self, task: PartitionTask, progressed: Progressed) -> FileSystem:
        """Return the files of the round that a task is part of, within the limit."""
        files = self._opened.of(task) if self._files is None else self._files
        if task.io_bytes_per_second is None:
            return files
        # A wait tells that nothing has moved, so that a stop ends it.
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

        Linux wakes a thread that has slept beside whoever woke it. Two that began a round together
        shared a processor for 40 ms beside an idle one, a tenth of what a log of 256 MiB takes.
        After its first piece a thread goes where it likes.
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
