"""Faults at a chosen place of a Spark job, struck by the very task that is to suffer from them.

The driver's worker and its function for buckets are wrapped; the wrappers travel with the tasks as
the originals do, so the cluster has to see this package. Who strikes first makes a file that
keeps every other attempt from striking too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from pyspark import TaskContext

from keeplast.cleaner.plan import RoundPlan
from keeplast.columns.winners import KeyMap
from keeplast.log.files import FilesRecipe
from keeplast.pipeline import export, jobs
from keeplast.pipeline.export_tasks import ExportedFile, export_part
from keeplast.pipeline.stages import Worker
from keeplast.read.log_state import (
    BucketRows,
    CutState,
    StatePart,
    Winners,
    send_keys,
    winners_of_bucket,
)
from keeplast.rewrite.joint_run import JointRun, Run
from keeplast.rewrite.stage_work import resolve
from keeplast.rewrite.standings import Standings
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.rewrite.units import (
    Answer,
    AskUnit,
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
)
from tests.support.waiting import SECONDS_MAX

_Found = TypeVar("_Found")

POLL_SECONDS = 0.02
LATE_SECONDS = 0.5
"""Enough for a driver to take a result, less than Spark leaves an attempt that it has given up."""


class Stage(StrEnum):
    """What a task does when the fault strikes."""

    WHOLE = "whole"
    MARK = "mark"
    SCAN = "scan"
    INDEX = "index"
    RAISE = "raise"
    ASK = "ask"
    RESOLVE = "resolve"
    REWRITE = "rewrite"
    SHOW = "show"
    JOINT = "joint"


class Moment(StrEnum):
    """Before anything was done, with files half written, or when all is done and not reported."""

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


class Act(StrEnum):
    """What happens.

    ``executor`` kills the JVM alone, so that its worker goes on for a while; ``worker`` the Python
    process; ``host`` both. ``wait`` holds the task until another attempt at it has come to the same
    place, so that both go on side by side; ``late`` until the other one is through and the driver
    has what it wanted; ``hold`` until :meth:`Fault.release`.
    """

    EXECUTOR = "executor"
    WORKER = "worker"
    HOST = "host"
    WAIT = "wait"
    LATE = "late"
    HOLD = "hold"


UNITS = {
    ScanUnit: Stage.SCAN, IndexUnit: Stage.INDEX, RaiseUnit: Stage.RAISE,
    RewriteUnit: Stage.REWRITE, MarkUnit: Stage.MARK,
}  # fmt: skip


class Fault(Struct, frozen=True):
    """One fault. ``scratch`` is an empty directory that all hosts see; what ran is noted there."""

    stage: Stage
    moment: Moment
    act: Act
    scratch: Path

    @property
    def has_struck(self) -> bool:
        """Say whether it has."""
        return (self.scratch / "struck").exists()

    def attempts(self) -> set[tuple[int, int]]:
        """Return the attempts that came by, each as attempt and process."""
        names = [path.name.split("-") for path in self.scratch.glob("at-*")]
        return {(int(attempt), int(process)) for _, attempt, process in names}

    def at(self, stage: Stage, moment: Moment) -> None:
        """Pass a place: strike if it is the one and there was no strike."""
        if stage == self.stage and moment is Moment.AFTER and self.has_struck and self._is_twin():
            (self.scratch / "through").touch()
        if (stage, moment) != (self.stage, self.moment):
            return
        is_first = _makes(self.scratch / "struck")
        context = TaskContext.get()
        number = 0 if context is None else context.taskAttemptId()
        if is_first or self._is_twin():
            (self.scratch / f"at-{number}-{os.getpid()}").touch()
        if is_first:
            (self.scratch / "twin").write_text(_place())
            self._strike()

    def _is_twin(self) -> bool:
        """Say whether this is another attempt at what the first one did."""
        with contextlib.suppress(OSError):
            return (self.scratch / "twin").read_text() == _place()
        return False

    def _strike(self) -> None:
        if self.act in (Act.EXECUTOR, Act.HOST):
            os.kill(_parent(os.getppid()), signal.SIGKILL)
        if self.act in (Act.WORKER, Act.HOST):
            os.kill(os.getpid(), signal.SIGKILL)
        deadline = time.monotonic() + SECONDS_MAX
        while self._waits() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if self.act is Act.LATE:
            time.sleep(LATE_SECONDS)

    def _waits(self) -> bool:
        match self.act:
            case Act.WAIT:
                return len(self.attempts()) < 2
            case Act.LATE:
                return not (self.scratch / "through").exists()
            case Act.HOLD:
                return not (self.scratch / "go").exists()
            case _:
                return False

    def release(self) -> None:
        """Let a task that is held go on."""
        (self.scratch / "go").touch()


def _place() -> str:
    """Return what names the same piece of work in every attempt at it."""
    context = TaskContext.get()
    return "" if context is None else f"{context.stageId()}/{context.partitionId()}"


def _makes(path: Path) -> bool:
    """Make a file; False when it is there."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _parent(pid: int) -> int:
    """Return the parent of a process: of the daemon that forks workers, the executor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class _Progress(Struct, frozen=True):
    """A worker's progress; half way is where a file of a stage that writes is open."""

    progressed: Callable[[int], None]
    fault: Fault
    stage: Stage
    target: Path

    def __call__(self, read_bytes: int) -> None:
        self.progressed(read_bytes)
        writes = self.stage in (Stage.WHOLE, Stage.REWRITE, Stage.JOINT)
        # Objects cannot be seen half written: in an object store a stage that writes has no middle.
        names = os.listdir(self.target) if self.target.is_dir() else []
        if not writes or any(name.endswith(".deleted") for name in names):
            self.fault.at(self.stage, Moment.DURING)


class FaultyWorker(Struct, frozen=True):
    """A worker that passes its fault's places."""

    worker: Worker
    fault: Fault

    def run(self, task: PartitionTask) -> TaskResult:
        """Run a wave."""
        self.fault.at(Stage.WHOLE, Moment.BEFORE)
        result = self._telling(Stage.WHOLE, task).run(task)
        self.fault.at(Stage.WHOLE, Moment.AFTER)
        return result

    def index(self, task: PartitionTask, units: Sequence[IndexUnit]) -> Iterator[UnitResult]:
        """Index some extents."""
        stage = UNITS[IndexUnit]
        return _past(self.fault, stage, self._telling(stage, task).index(task, units))

    def do(
        self, task: PartitionTask, unit: Unit, key_map: KeyMap | None, standings: Standings | None
    ) -> UnitResult:
        """Do a unit."""
        stage = UNITS[type(unit)]
        self.fault.at(stage, Moment.BEFORE)
        result = self._telling(stage, task).do(task, unit, key_map, standings)
        self.fault.at(stage, Moment.AFTER)
        return result

    def join(self, task: PartitionTask, run: Run) -> JointRun | None:
        """Do a run next to the tasks that have the others."""
        self.fault.at(Stage.JOINT, Moment.BEFORE)
        result = self._telling(Stage.JOINT, task).join(task, run)
        self.fault.at(Stage.JOINT, Moment.AFTER)
        return result

    def consult(
        self, task: PartitionTask, unit: FilterUnit, hashes: NDArray[np.uint64]
    ) -> UnitResult:
        """Ask filters."""
        return self.worker.consult(task, unit, hashes)

    def ask(
        self, task: PartitionTask, unit: AskUnit
    ) -> Iterator[KeyChunk | HashChunk | UnitResult]:
        """Ask about an extent."""
        self.fault.at(Stage.ASK, Moment.BEFORE)
        yield from self._telling(Stage.ASK, task).ask(task, unit)
        self.fault.at(Stage.ASK, Moment.AFTER)

    def _telling(self, stage: Stage, task: PartitionTask) -> Worker:
        progress = _Progress(self.worker.progressed, self.fault, stage, task.target)
        return replace(self.worker, progressed=progress)


def _past(fault: Fault, stage: Stage, found: Iterable[_Found]) -> Iterator[_Found]:
    """Yield what a stage finds, past the fault's places before, in and after it."""
    fault.at(stage, Moment.BEFORE)
    for each in found:
        yield each
        fault.at(stage, Moment.DURING)
    fault.at(stage, Moment.AFTER)


class _FaultyResolve(Struct, frozen=True):
    """The answer of a bucket, given past the fault's places."""

    fault: Fault

    def __call__(
        self, chunks: Sequence[KeyChunk], plan: RoundPlan, parts: int
    ) -> Iterator[Answer | int]:
        return _past(self.fault, Stage.RESOLVE, resolve(chunks, plan, parts))


class _FaultySend(Struct, frozen=True):
    """The keys of a part of a state, sent past the fault's places."""

    fault: Fault

    def __call__(self, part: StatePart, progressed: Progressed) -> Iterator[BucketRows]:
        return _past(self.fault, Stage.ASK, send_keys(part, progressed))


class _FaultyFind(Struct, frozen=True):
    """The winners of a bucket, found past the fault's places."""

    fault: Fault

    def __call__(
        self, state: CutState, arrived: Iterable[BucketRows]
    ) -> Iterator[tuple[int, Winners]]:
        return _past(self.fault, Stage.RESOLVE, winners_of_bucket(state, arrived))


class _FaultyShow(Struct, frozen=True):
    """A part of a state, written past the fault's places."""

    fault: Fault

    def __call__(
        self,
        part: StatePart,
        winners: Winners,
        target: Path,
        progressed: Progressed,
        *,
        out: FilesRecipe,
        tombstones: bool,
    ) -> ExportedFile:
        def telling(read_bytes: int) -> None:
            progressed(read_bytes)
            self.fault.at(Stage.SHOW, Moment.DURING)

        self.fault.at(Stage.SHOW, Moment.BEFORE)
        result = export_part(part, winners, target, telling, out=out, tombstones=tombstones)
        self.fault.at(Stage.SHOW, Moment.AFTER)
        return result


def inject_into_export(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Let an export that is cut meet ``fault``, in the stages ``ask``, ``resolve`` and ``show``."""
    patch.setattr(jobs, "send_keys", _FaultySend(fault))
    patch.setattr(jobs, "winners_of_bucket", _FaultyFind(fault))
    patch.setattr(export, "export_part", _FaultyShow(fault))


def inject(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Let the jobs of this driver meet ``fault``."""
    patch.setattr(jobs, "Worker", lambda *arguments: FaultyWorker(Worker(*arguments), fault))
    patch.setattr(jobs, "resolve", _FaultyResolve(fault))
