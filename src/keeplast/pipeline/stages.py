"""What runs inside a Spark task: one wave or one unit, on the files that the task's recipe opens.

A worker process keeps its workspace from task to task. It refuses to work when its codecs differ
from the driver's, because its bytes would too.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.daemon import manager

from keeplast import kernel_cache
from keeplast.clock import SystemClock
from keeplast.columns import kernel
from keeplast.columns.winners import KeyMap
from keeplast.errors import CompactionError, RefusedError, invariant
from keeplast.log.files import FileSystem
from keeplast.log.throttle import Throttle, ThrottledFiles
from keeplast.rewrite.joint_run import JointRun, Meeting, Run, do_run
from keeplast.rewrite.stage_work import (
    Tools,
    ask_in_steps,
    consult,
    index_to_block,
    mark,
    raise_to_block,
    rewrite,
    scan,
    split_hashes,
)
from keeplast.rewrite.staged_round import place_of
from keeplast.rewrite.standings import MapStandings, Standings, ledger_of
from keeplast.rewrite.task import PartitionTask, TaskResult
from keeplast.rewrite.transactions import MarkersNeededError
from keeplast.rewrite.units import (
    NO_HASHES,
    AskUnit,
    Failed,
    FilterUnit,
    HashChunk,
    IndexUnit,
    KeyChunk,
    MarkUnit,
    RaiseUnit,
    RewriteUnit,
    ScanUnit,
    Unit,
    UnitResult,
    Unmarked,
)
from keeplast.rewrite.wave import failed_result, run_wave
from keeplast.rewrite.workspace import DecompressedCache, Workspace
from keeplast.run.local_runner import OpenedFiles

ATTEMPT_MARK = "x"
"""Stands in a staged name between the attempt of a round and that of a Spark task."""

_workspaces: dict[int, Workspace] = {}
_opened = OpenedFiles()


class Versions(Struct, frozen=True):
    """What decides the bytes a worker writes."""

    keeplast: str
    cramjam: str
    zstandard: str
    zlib: str


@cache
def own_versions() -> Versions:
    """Return the versions of this process; looked up once, as every task asks."""
    return Versions(
        importlib.metadata.version("keeplast"),
        importlib.metadata.version("cramjam"),
        importlib.metadata.version("zstandard"),
        zlib.ZLIB_RUNTIME_VERSION,
    )


class Worker(Struct, frozen=True):
    """What every task of a job is given: the driver's versions, and how to report progress.

    ``share`` is how many tasks may run at once: of a limit on bytes each keeps to that part.
    """

    versions: Versions
    progressed: Callable[[int], None]
    share: int

    def run(self, task: PartitionTask) -> TaskResult:
        """Run one wave here; the result carries every fault."""
        try:
            attempt, workspace, files = self._prepare(task)
        except RefusedError as error:
            return failed_result(task, error)
        return run_wave(attempt, files, SystemClock(), workspace, self.progressed)

    def index(self, task: PartitionTask, units: Sequence[IndexUnit]) -> Iterator[UnitResult]:
        """Index consecutive extents of a round; the first fault is the last result."""
        at = place_of(units[0])
        try:
            for number, found in enumerate(index_to_block(units, self._tools(task)), 1):
                yield found
                at = place_of(units[min(number, len(units) - 1)])
        except MarkersNeededError:
            yield Unmarked()
        except (CompactionError, OSError, MemoryError) as error:
            yield Failed(at, error)

    def do(
        self, task: PartitionTask, unit: Unit, key_map: KeyMap | None, standings: Standings | None
    ) -> UnitResult:
        """Do one unit of a round in stages; ``key_map`` is the one that the units before filled.

        A group with everything noted needs none.
        """
        try:
            tools = self._tools(task)
            if isinstance(unit, MarkUnit):
                return mark(tools)
            if isinstance(unit, ScanUnit):
                return scan(unit, tools)
            if isinstance(unit, RaiseUnit):
                invariant(key_map is not None, "a unit needs a key map that was not sent")
                return raise_to_block(unit, tools, cast(KeyMap, key_map))
            invariant(isinstance(unit, RewriteUnit), f"no unit of a task. unit={type(unit)}")
            group = cast(RewriteUnit, unit)
            source = MapStandings(key_map) if standings is None else standings
            return rewrite(group, tools, source, ledger_of(group.notes))
        except MarkersNeededError:
            return Unmarked()
        except (CompactionError, OSError, MemoryError) as error:
            return Failed(place_of(unit), error)

    def consult(
        self, task: PartitionTask, unit: FilterUnit, hashes: NDArray[np.uint64]
    ) -> UnitResult:
        """Ask filters for the dirty keys with these hashes."""
        try:
            return consult(unit, self._tools(task), hashes)
        except (CompactionError, OSError, MemoryError) as error:
            return Failed(place_of(unit), error)

    def ask(
        self, task: PartitionTask, unit: AskUnit
    ) -> Iterator[KeyChunk | HashChunk | UnitResult]:
        """Yield the chunks of an extent as they fill, and last what was read, or the fault.

        Hashes for filters go to buckets, too, and never to the driver.
        """
        waiting: deque[KeyChunk] = deque()
        try:
            # A generator cannot be handed a callback that yields; parts of an extent can.
            for step in ask_in_steps(unit, self._tools(task), waiting.append):
                while waiting:
                    yield waiting.popleft()
                if step is not None:
                    yield from split_hashes(step.hashes, unit.buckets)
                    yield replace(step, hashes=None if step.hashes is None else NO_HASHES)
        except MarkersNeededError:
            yield Unmarked()
        except (CompactionError, OSError, MemoryError) as error:
            yield Failed(place_of(unit), error)

    def join(self, task: PartitionTask, run: Run) -> JointRun | None:
        """Do a run of a round next to the tasks that have the others; None when one gave up."""
        try:
            tools = self._tools(task)
        except CompactionError:
            return None
        clock = SystemClock()
        meeting = Meeting(
            task.target, f"{task.attempt}{ATTEMPT_MARK}", tools.task.attempt, run.number, run.runs,
            tools.files, clock, lambda: self.progressed(0),
        )  # fmt: skip
        # Both passes are here: the second has what the first decompressed.
        kept = DecompressedCache(tools.workspace.cache_bytes)
        return do_run(run, replace(tools, cache=kept), clock, meeting)

    def _tools(self, task: PartitionTask) -> Tools:
        attempt, workspace, files = self._prepare(task)
        # Passes are apart here: what one decompresses is gone when the other runs.
        return Tools(attempt, files, workspace, DecompressedCache(0), self.progressed)

    def _prepare(self, task: PartitionTask) -> tuple[PartitionTask, Workspace, FileSystem]:
        own = own_versions()
        if own != self.versions:
            raise RefusedError(
                f"the executor's codecs differ from the driver's, so its bytes would; install the "
                f"same versions. driver={self.versions} executor={own}",
                code="K507",
            )
        workspace = _workspaces.get(task.memory_bytes)
        if workspace is None:
            _workspaces.clear()
            workspace = _workspaces[task.memory_bytes] = Workspace(task.memory_bytes)
        # A retried or speculative attempt may still be writing: no two share a staged name.
        context = TaskContext.get()
        number = 0 if context is None else context.taskAttemptId()
        attempt = replace(task, attempt=f"{task.attempt}{ATTEMPT_MARK}{number}")
        files = _opened.of(task)
        if task.io_bytes_per_second is not None:
            throttle = Throttle(SystemClock(), task.io_bytes_per_second / self.share)
            files = ThrottledFiles(files, throttle, lambda: self.progressed(0))
        return attempt, workspace, files


def get_ready(_: int = 0) -> None:
    """Read the kernels that are compiled.

    What is there by then is never searched for garbage: a worker does so after every task, and
    takes as long for that as for a small one.
    """
    for name in filter(kernel_cache.is_kept, kernel.names()):
        kernel.make_ready(name)
    gc.freeze()


def read_token(path: str) -> str | None:
    """Return the content of a probe file as this host sees it, None when it does not."""
    try:
        return Path(path).read_text()
    except OSError:
        return None


if __name__ == "__main__":
    # As the daemon of a local session: its workers are copies of a process that has all of this.
    importlib.import_module("keeplast.pipeline.stages").get_ready()
    manager()
