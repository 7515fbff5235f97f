"""A runner that has threads do what it can of its rounds jointly, as tasks of Spark do.

All else of the pipeline is as on Spark but for Spark: the same runs, meetings and files.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.pipeline.driven_round import DrivenRound, runs_of_groups
from keeplast.rewrite.joint_run import JointRun, Meeting, Run, do_run, is_joint
from keeplast.rewrite.stage_work import Tools
from keeplast.rewrite.staged_round import Stage, StagedRound
from keeplast.rewrite.task import PartitionTask, Progressed, Runner, TaskResult
from keeplast.rewrite.workspace import DecompressedCache, Workspace
from tests.support.waiting import SECONDS_MAX

TASKS = 3


class JointRunner:
    """Does rounds jointly where they may be; ``inner`` does the others, and those that gave up."""

    slots = TASKS
    shares_memory = False

    def __init__(self, inner: Runner) -> None:
        """Begin without a round."""
        self._inner = inner
        self.joined = 0
        """Rounds that were done jointly to their end."""
        self.gave_up = 0

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        """Run tasks one after another."""
        for task in tasks:
            result = self._jointly(task) if task.is_staged else None
            if result is None:
                yield from self._inner.run([task], progressed)
            else:
                yield result

    def _jointly(self, task: PartitionTask) -> TaskResult | None:
        driven = DrivenRound(StagedRound(task, SystemClock()))
        if driven.round.stage is not Stage.INDEX or not is_joint(task):
            return None
        runs = runs_of_groups(driven.round, TASKS)
        if len(runs) < 2:
            return None
        found: list[JointRun | None] = [None] * len(runs)

        def work(run: Run) -> None:
            own = replace(task, attempt=f"{task.attempt}x{run.number}")
            files = task.files.open()
            workspace = Workspace(task.memory_bytes)
            cache = DecompressedCache(workspace.cache_bytes)
            tools = Tools(own, files, workspace, cache, lambda count: None)
            clock = SystemClock()
            meeting = Meeting(
                task.target, f"{task.attempt}x", own.attempt, run.number, len(runs), files, clock,
                lambda: None,
            )  # fmt: skip
            found[run.number] = do_run(run, tools, clock, meeting)

        threads = [threading.Thread(target=work, args=(run,), daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        driven.take_joint(found)
        if not driven.round.is_done:
            self.gave_up += 1
            return None
        self.joined += 1
        return driven.round.result()

    def __enter__(self) -> JointRunner:
        """Return the runner."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the inner runner to who made it."""
