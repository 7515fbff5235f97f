"""What runs inside a Spark task: one wave, on the host's own files.

A worker process keeps its workspace from task to task. It refuses to work when its codecs differ
from the driver's, because its bytes would too.
"""

from __future__ import annotations

import importlib.metadata
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pyspark import TaskContext

from keeplast.clock import SystemClock
from keeplast.columns import verdicts
from keeplast.engine.kernel_cache import load_kernels
from keeplast.engine.task import IndexStats, PartitionTask, TaskResult
from keeplast.engine.wave import run_wave
from keeplast.engine.workspace import Workspace
from keeplast.errors import RefusedError
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.log.throttle import Throttle, ThrottledFiles

_workspaces: dict[int, Workspace] = {}


@dataclass(frozen=True, slots=True)
class Versions:
    """What decides the bytes a worker writes."""

    keeplast: str
    cramjam: str
    zstandard: str
    zlib: str


def own_versions() -> Versions:
    """Return the versions of this process."""
    return Versions(
        importlib.metadata.version("keeplast"),
        importlib.metadata.version("cramjam"),
        importlib.metadata.version("zstandard"),
        zlib.ZLIB_RUNTIME_VERSION,
    )


def execute(
    task: PartitionTask, driver: Versions, progressed: Callable[[int], None], *, share: int = 1
) -> TaskResult:
    """Run one wave here; the result carries every fault.

    ``share`` is how many tasks may run at once: of a limit on bytes each keeps to that part.
    """
    own = own_versions()
    if own != driver:
        error = RefusedError(
            f"the executor's codecs differ from the driver's, so its bytes would; install the "
            f"same versions. driver={driver} executor={own}"
        )
        return TaskResult(
            task.number, (), task.plan.first_dirty, (), np.zeros(verdicts.COUNTERS, np.int64),
            IndexStats(), 0, 0, 0.0, 0, None, error,
        )  # fmt: skip
    workspace = _workspaces.get(task.memory_bytes)
    if workspace is None:
        load_kernels(_silent)
        _workspaces.clear()
        workspace = _workspaces[task.memory_bytes] = Workspace(task.memory_bytes)
    # A retried or speculative attempt may still be writing: no two share a staged name.
    context = TaskContext.get()
    number = 0 if context is None else context.taskAttemptId()
    attempt = replace(task, attempt=f"{task.attempt}x{number}")
    clock = SystemClock()
    files: FileSystem = LocalFiles()
    if task.io_bytes_per_second is not None:
        throttle = Throttle(clock, task.io_bytes_per_second / share)
        files = ThrottledFiles(files, throttle, lambda: progressed(0))
    return run_wave(attempt, files, clock, workspace, progressed)


def read_token(path: str) -> str | None:
    """Return the content of a probe file as this host sees it, None when it does not."""
    try:
        return Path(path).read_text()
    except OSError:
        return None


def _silent(message: str) -> None:
    """Executors say nothing; the driver already did."""
