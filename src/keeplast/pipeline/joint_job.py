"""One Spark job for a whole round in tasks that meet: a barrier stage, so that all run at once.

What a reader must not break: a barrier stage waits for a slot for each of its tasks, so it gets no
more than are there, and none where executors come and go or other work of the call has the slots.
Whenever it cannot be, fails as a whole or has tasks that give up, the round is as before, and goes
through its stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark import SparkContext

from keeplast.clock import Clock, SystemClock
from keeplast.errors import UnavailableError
from keeplast.model.shape import Shape
from keeplast.pipeline.driven_round import DrivenRound
from keeplast.pipeline.stages import Worker
from keeplast.pipeline.task_news import DRIVER_GONE, STAGES_POOL, TaskNews, describe_job
from keeplast.rewrite.exchange import cut_runs
from keeplast.rewrite.joint_run import JointRun, Run, is_joint
from keeplast.rewrite.staged_round import Stage, StagedRound
from keeplast.rewrite.units import RewriteUnit

ASK_SECONDS, HOPELESS_SECONDS = 5.0, 60.0
"""How often slots are counted while a job runs, and how long a cluster may have too few: one that
replaces a lost executor has done so by then."""
ARRIVAL_SECONDS, ARRIVAL_ASK_SECONDS = 2.0, 0.1
NEW_SESSION_MS = 60_000
"""How long executors of a session are waited for that is no older than this: stages without them
take longer by more. In an older one, who is not there does not come."""


def run_jointly(
    context: SparkContext, rounds: Sequence[DrivenRound], slots: int, worker: Worker, told: TaskNews
) -> None:
    """Do those of ``rounds`` that may be done so, each by as many tasks as there are slots.

    One after another, so each must keep the slots busy by itself.
    """
    fitting = [each for each in rounds if each.round.stage is Stage.INDEX and is_joint(each.task)]
    if len(rounds) > 1:
        fitting = [each for each in fitting if len(each.round.groups) >= slots]
    free = min(slots, arrived_slots(context, slots, SystemClock())) if fitting else 0
    for each in fitting:
        runs = runs_of_groups(each.round, free)
        if len(runs) > 1:
            _run(context, each, runs, worker, told)


def slots_at_once(context: SparkContext) -> int:
    """Return how many tasks of a barrier stage fit now; 0 where there can be none."""
    # Not getConf(), which asks the JVM for every setting.
    if context._conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return 0
    session: Any = context._jsc
    profile = session.sc().resourceProfileManager().defaultResourceProfile()
    return int(session.sc().maxNumConcurrentTasks(profile))


def arrived_slots(context: SparkContext, wanted: int, clock: Clock) -> int:
    """Return how many tasks fit; of a new session when ``wanted`` do, or none came for a while."""
    is_new = clock.now_ms() - int(context.startTime) < NEW_SESSION_MS
    until = clock.seconds() + (ARRIVAL_SECONDS if is_new else 0.0)
    while 0 < (found := slots_at_once(context)) < wanted and clock.seconds() < until:
        clock.sleep(ARRIVAL_ASK_SECONDS)
    return found


def runs_of_groups(round_: StagedRound, tasks: int) -> list[Run]:
    """Return the groups of a round as at most so many runs, each with the extents it indexes."""
    shape = round_.task.shape
    cut = cut_runs(round_.groups, lambda group: group.size_bytes, max(tasks, 1))
    extents = {unit.extent.base_offset: unit for unit in round_.index_units()}
    buckets = max(shape.buckets if shape.shape is Shape.BUCKET else 0, len(cut))
    return [
        Run(
            number, len(cut), buckets,
            tuple(extents[source.base_offset] for group in groups for source in group.sources),
            tuple(RewriteUnit(round_.task.number, group, None) for group in groups),
        )
        for number, groups in enumerate(cut)
    ]  # fmt: skip


def _run(
    context: SparkContext, each: DrivenRound, runs: list[Run], worker: Worker, told: TaskNews
) -> None:
    task = each.task

    def work(own: Iterable[Run]) -> Iterator[JointRun | None]:
        for run in own:
            yield worker.join(task, run)

    job = context.parallelize(runs, len(runs)).barrier().mapPartitions(work)
    name = describe_job("index and rewrite", [task.plan.partition])
    watch = SlotWatch(len(runs), lambda: slots_at_once(context), SystemClock())
    begun = told.begin(job.collect, STAGES_POOL, name)
    try:
        each.take_joint(told.wait(begun, watch.is_hopeless))
    except UnavailableError as error:
        if isinstance(error.__cause__, DRIVER_GONE):
            raise
    finally:
        told.end(begun)


class SlotWatch:
    """Notices that a barrier stage waits for slots that its cluster has lost.

    A barrier stage begins anew when a task of it is lost, and never with fewer tasks.
    """

    def __init__(self, needed: int, slots: Callable[[], int], clock: Clock) -> None:
        """Begin; ``slots`` says how many there are, whether they are free or not."""
        self._needed = needed
        self._slots = slots
        self._clock = clock
        self._asked_at = self._enough_at = clock.seconds()

    def is_hopeless(self) -> bool:
        """Say whether there have been too few for long; asks no more often than it must."""
        now = self._clock.seconds()
        if now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            if self._slots() >= self._needed:
                self._enough_at = now
        return self._asked_at - self._enough_at >= HOPELESS_SECONDS
