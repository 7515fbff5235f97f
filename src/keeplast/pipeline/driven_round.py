"""A round in stages as the driver of Spark's jobs holds it: its progress, and where its keys are.

A key map is sent to every task; keys in buckets lie in a shuffle, at places of their own, which
further keys join.

The driver waits for one job of Spark at a time. It shows the job's progress and name, and reports
its failure. A job that is not waited for any more is cancelled by its tag, so that one call never
ends another's.

A whole round may be one Spark job in tasks that meet: a barrier stage, so that all run at once.
What a reader must not break: a barrier stage waits for a slot for each of its tasks. So it gets no
more than are there, and none where executors come and go or other work of the call has the slots.
Whenever it cannot be, fails as a whole or has tasks that give up, the round is as before, and goes
through its stages.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace
from py4j.protocol import Py4JNetworkError
from pyspark import RDD, Broadcast, SparkContext

from keeplast.cleaner.shapes import NOTED_OFFSETS_MAX
from keeplast.clock import Clock, SystemClock
from keeplast.columns.version_ranks import RankedKeyMap
from keeplast.columns.winners import KeyMap, new_ledger
from keeplast.errors import UnavailableError, invariant
from keeplast.model.topic_config import Shape
from keeplast.pipeline.stages import Worker
from keeplast.rewrite.joint_run import JointRun, Run, cut_runs, is_joint
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.stage_work import end_of
from keeplast.rewrite.staged_round import Stage, StagedRound
from keeplast.rewrite.standings import ledger_of, notes_of
from keeplast.rewrite.task import PartitionTask, Progressed
from keeplast.rewrite.units import (
    AskUnit,
    Failed,
    FilterUnit,
    IndexedUnit,
    RewriteUnit,
    Unit,
    UnitResult,
)

POLL_SECONDS = 0.2
CANCEL_SECONDS_MAX = 30
STAGES_POOL, WAVES_POOL = "keeplast-stages", "keeplast-waves"
POOL_PROPERTY = "spark.scheduler.pool"
"""Pools of a fair scheduler; one that is not fair takes jobs in the order of their coming."""

NAMES_MAX = 3
"""So many partitions are named in the description of a job."""

DRIVER_GONE = (Py4JNetworkError, ConnectionError)
"""What a JVM that has died answers."""

R = TypeVar("R")


class TaskNews:
    """Progress of the jobs of a call, shown while the driver waits for them.

    Several calls may be under way in one session: each tags its jobs, and ends only those.
    """

    def __init__(self, context: SparkContext, progressed: Progressed) -> None:
        self._context = context
        self._progressed = progressed
        self._read = context.accumulator(0)
        self._tag = f"keeplast-{secrets.token_hex(8)}"
        self._reported = 0
        self.add: Callable[[int], None] = self._read.add
        """What tasks call with bytes that they have read."""

    def during(self, act: Callable[[], list[R]], description: str) -> list[R]:
        """Act in a thread, so that progress can be shown meanwhile; Spark shows ``description``.

        UnavailableError when the job fails as a whole.
        """
        job = self.begin(act, STAGES_POOL, description)
        try:
            return self.wait(job)
        finally:
            self.end(job)

    def begin(self, act: Callable[[], list[R]], pool: str, description: str) -> SparkJob[R]:
        """Act in a thread, in a pool of Spark's scheduler; :meth:`end` must follow."""

        def tagged() -> list[R]:
            self._context.addJobTag(self._tag)
            self._context.setLocalProperty(POOL_PROPERTY, pool)
            self._context.setJobDescription(f"keeplast: {description}")
            return act()

        return SparkJob(tagged)

    def wait(self, job: SparkJob[R], is_hopeless: Callable[[], bool] = lambda: False) -> list[R]:
        """Return what a job gave, and show progress until then; errors as for :meth:`during`.

        Also UnavailableError when ``is_hopeless``, which is asked from time to time, says so.
        """
        while True:
            job.join(POLL_SECONDS)
            now = int(self._read.value)
            # No news is reported too: the listener may want the job to end.
            self._progressed(now - self._reported)
            self._reported = now
            if not job.is_alive:
                return job.results()
            if is_hopeless():
                raise UnavailableError(
                    "the cluster has not the slots that a Spark job waits for", code="K503"
                )

    def end(self, job: SparkJob[R]) -> None:
        """Cancel every job of the call when this one still runs, and wait for its end."""
        if job.is_alive:
            self._context.cancelJobsWithTag(self._tag)
            job.join(CANCEL_SECONDS_MAX)


def job_failed(error: Exception) -> UnavailableError:
    """Return the error that reports a job that failed as a whole."""
    if isinstance(error, DRIVER_GONE):
        return UnavailableError(
            "Spark's driver process has ended, most likely for lack of memory; give it more, as by "
            f"SPARK_DRIVER_MEMORY=4g, or cut the work with --shape bucket. error={error}",
            code="K504",
        )
    return UnavailableError(f"the Spark job failed. error={error}", code="K505")


class SparkJob(Generic[R]):
    """A Spark job that a thread of the driver waits for."""

    def __init__(self, act: Callable[[], list[R]]) -> None:
        self._act = act
        self._results: list[R] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="keeplast-spark", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Say whether it has not ended."""
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        self._thread.join(seconds)

    def results(self) -> list[R]:
        """Return what it gave; it has ended. UnavailableError when it failed as a whole."""
        if self._failure is not None:
            raise job_failed(self._failure) from self._failure
        return self._results

    def _run(self) -> None:
        try:
            self._results = self._act()
        except Exception as error:  # noqa: BLE001 - handed to the thread that asks for results
            self._failure = error


def describe_job(act: str, names: Sequence[object]) -> str:
    """Return what Spark's own pages say of a job: what it does, and of what."""
    shown = ", ".join(str(name) for name in names[:NAMES_MAX])
    more = len(names) - NAMES_MAX
    return f"{act} {shown} and {more} more" if more > 0 else f"{act} {shown}"


class Keys(NamedTuple):
    """Where the keys of a round lie after their shuffle: from which partition on, of how many."""

    shuffled: RDD[Any]
    start: int
    places: int


class DrivenRound:
    """A round as the driver holds it: its progress, and its key map or where its keys lie."""

    def __init__(self, staged: StagedRound) -> None:
        """Begin with an empty map and no keys."""
        self.round = staged
        self.is_bucket = self.task.shape.shape is Shape.BUCKET
        self.sent: Broadcast[KeyMap] | None = None
        self.keys: Keys | None = None
        self._begin_map()

    @property
    def task(self) -> PartitionTask:
        """Return the task as far as its plan is known."""
        return self.round.task

    def units(self) -> Iterator[Unit]:
        """Yield the units that need no shuffle."""
        is_shuffled = self.is_bucket and self.round.stage in (
            Stage.INDEX, Stage.ASK, Stage.REWRITE
        )  # fmt: skip
        if not is_shuffled and self.round.stage is not Stage.FILTER:
            for unit in self.round.units():
                yield self._add_notes(unit) if isinstance(unit, RewriteUnit) else unit

    def filter_units(self) -> Iterator[FilterUnit]:
        """Yield the units that ask filters."""
        if self.round.stage is Stage.FILTER:
            yield from (unit for unit in self.round.units() if isinstance(unit, FilterUnit))

    def ask_units(self) -> Iterator[AskUnit]:
        """Yield the units that send keys to buckets."""
        if self.is_bucket and self.round.stage in (Stage.INDEX, Stage.ASK):
            yield from (unit for unit in self.round.units() if isinstance(unit, AskUnit))

    @property
    def is_rewritten_by_rows(self) -> bool:
        """Say whether the answers of buckets are wanted now."""
        return self.is_bucket and self.round.stage is Stage.REWRITE

    def bucket_rewrites(self) -> Iterator[RewriteUnit]:
        """Yield the groups that are rewritten with answers of buckets."""
        if self.is_rewritten_by_rows:
            yield from (unit for unit in self.round.units() if isinstance(unit, RewriteUnit))

    def take(self, result: UnitResult) -> None:
        """Take a result; the keys of a block and its notes go into the map, and nowhere else."""
        if not isinstance(result, IndexedUnit) or result.block is None:
            self.round.take(result)
            return
        block, starts = result.block
        self.round.take(replace(result, block=None, notes=None))
        if self.round.stage is Stage.RAISE and isinstance(self._key_map, RankedKeyMap):
            self._key_map.raise_known(block, starts)
            return
        if result.notes is None:
            self._key_map.forget_notes()
        else:
            self._noted_count += self._key_map.ledger.add(ledger_of(result.notes))
        self._key_map.merge(block, starts)

    def take_joint(self, results: Sequence[JointRun | None]) -> None:
        """Take what tasks gave that did the round together; nothing when they gave up."""
        done = [each for each in results if each is not None]
        rewritten = [part for each in done for part in each.rewritten]
        # A task that asks for transactions that its first pass has not met is not to be believed.
        is_whole = all(isinstance(part, Failed) or part.groups for part in rewritten)
        if len(done) < len(results) or not is_whole:
            return
        for each in done:
            for indexed in each.indexed:
                self.round.take(indexed)
        self.round.advance(
            sum(each.distinct_keys for each in done),
            index_seconds=max(each.index_seconds for each in done),
        )
        invariant(self.round.stage is Stage.REWRITE, "a round that was done is not to be rewritten")
        for part in rewritten:
            self.round.take(part)
        self.round.advance()

    def _add_notes(self, unit: RewriteUnit) -> RewriteUnit:
        """Return a unit with what is noted of its records."""
        first = unit.group.base_offset
        end = end_of(self.task.plan, unit.group.sources[-1].base_offset)
        notes = self._key_map.ledger.part(first, end)
        return replace(unit, notes=notes_of(notes)) if len(notes.standings) else unit

    @property
    def _is_all_noted(self) -> bool:
        """Say whether nothing is left to be looked up: all is dirty and noted, nothing aborted.

        Where transactions abort the two passes may take other records for aborted (finding F5).
        """
        plan = self.task.plan
        start = plan.segments[0].base_offset
        is_whole = self._noted_count == plan.bound - start == len(self._key_map.ledger.standings)
        return is_whole and plan.first_dirty <= start and not self.round.has_transactions

    def advance(self, context: SparkContext) -> None:
        """Go on; a map that has changed is sent to every task."""
        if self.round.is_done:
            return
        before = self.round.stage
        is_void = before is Stage.INDEX and self.round.begins_again
        if is_void:
            self._begin_map()
            self.keys = None
        has_map = before is Stage.INDEX and not self.is_bucket and not is_void
        self.round.advance(len(self._key_map) if has_map else None)
        is_wanted = before is Stage.RAISE or (has_map and not self._is_all_noted)
        if is_wanted and not self.round.is_done:
            self.forget()
            self.sent = context.broadcast(self._key_map)

    def _begin_map(self) -> None:
        plan = self.task.plan
        ledger = new_ledger(plan.first_dirty, plan.bound, NOTED_OFFSETS_MAX)
        self._key_map = ranking_of(plan.topic).new_map(ledger)
        self._noted_count = 0

    def forget(self) -> None:
        """Let executors drop the key map that was sent to them; nothing when none was."""
        if self.sent is not None:
            self.sent.unpersist()
            self.sent = None


def in_one_shuffle(rounds: Iterable[DrivenRound]) -> list[dict[int, DrivenRound]]:
    """Return the rounds by number, those together whose keys lie in one shuffle."""
    together: dict[int, dict[int, DrivenRound]] = {}
    for each in rounds:
        if each.keys is not None:
            together.setdefault(each.keys.shuffled.id(), {})[each.task.number] = each
    return list(together.values())


ASK_SECONDS, HOPELESS_SECONDS = 5.0, 60.0
"""How often slots are counted while a job runs, and how long a cluster may have too few.

A cluster that replaces a lost executor has done so by then.
"""
ARRIVAL_SECONDS, ARRIVAL_ASK_SECONDS = 2.0, 0.1
NEW_SESSION_MS = 60_000
"""How long executors of a session are waited for that is no older than this: stages without them
take longer by more. In an older one, an absent one does not come.
"""


def run_jointly(
    context: SparkContext, rounds: Sequence[DrivenRound], slots: int, worker: Worker, news: TaskNews
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
            _run(context, each, runs, worker, news)


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
    context: SparkContext, each: DrivenRound, runs: list[Run], worker: Worker, news: TaskNews
) -> None:
    task = each.task

    def work(own: Iterable[Run]) -> Iterator[JointRun | None]:
        for run in own:
            yield worker.join(task, run)

    job = context.parallelize(runs, len(runs)).barrier().mapPartitions(work)
    name = describe_job("index and rewrite", [task.plan.partition])
    watch = SlotWatch(len(runs), lambda: slots_at_once(context), SystemClock())
    begun = news.begin(job.collect, STAGES_POOL, name)
    try:
        each.take_joint(news.wait(begun, watch.is_hopeless))
    except UnavailableError as error:
        if isinstance(error.__cause__, DRIVER_GONE):
            raise
    finally:
        news.end(begun)


class SlotWatch:
    """Notices that a barrier stage waits for slots that its cluster has lost.

    A barrier stage begins again when a task of it is lost, and never with fewer tasks.
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
