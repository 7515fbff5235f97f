"""Runs waves in threads of this process; kernels release the interpreter lock.

The only thread pool below ``service``. One workspace a thread, made once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from keeplast.clock import Clock, SystemClock
from keeplast.engine.runner import Progressed
from keeplast.engine.task import PartitionTask, TaskResult
from keeplast.engine.wave import run_wave
from keeplast.engine.workspace import Workspace
from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.log.throttle import Throttle, ThrottledFiles


class LocalRunner:
    """A pool of ``cores`` threads (None: one for each processor this process may use)."""

    def __init__(
        self,
        cores: int | None = None,
        *,
        files: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; InvalidError when ``cores`` is less than one."""
        self._slots = len(os.sched_getaffinity(0)) if cores is None else cores
        if self._slots < 1:
            raise InvalidError(f"at least one core is needed. cores={cores}")
        self._files = LocalFiles() if files is None else files
        self._clock = SystemClock() if clock is None else clock
        self._throttle = Throttle(self._clock)
        self._pool: ThreadPoolExecutor | None = None
        self._local = threading.local()

    @property
    def slots(self) -> int:
        """Return the number of threads."""
        return self._slots

    def __enter__(self) -> LocalRunner:
        """Start the threads."""
        self._pool = ThreadPoolExecutor(self._slots, "keeplast")
        return self

    def __exit__(self, *_: object) -> None:
        """Let running tasks end; drop what has not started."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        """Yield results as tasks end; all threads share one limit on their bytes, the least."""
        limits = [x.io_bytes_per_second for x in tasks if x.io_bytes_per_second is not None]
        self._throttle.limit(min(limits, default=None))
        if len(tasks) == 1 or self._pool is None:
            for task in tasks:
                yield self._execute(task, progressed)
            return
        futures = [self._pool.submit(self._execute, task, progressed) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def _execute(self, task: PartitionTask, progressed: Progressed) -> TaskResult:
        workspace: Workspace | None = getattr(self._local, "workspace", None)
        if workspace is None or self._local.memory_bytes != task.memory_bytes:
            workspace = Workspace(task.memory_bytes)
            self._local.workspace = workspace
            self._local.memory_bytes = task.memory_bytes
        files = self._files
        if task.io_bytes_per_second is not None:
            # A wait tells that nothing has moved, so that a stop ends it.
            files = ThrottledFiles(files, self._throttle, lambda: progressed(0))
        return run_wave(task, files, self._clock, workspace, progressed)
