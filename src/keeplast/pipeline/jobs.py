"""The Spark jobs of one call: one for whole partitions, next to it one a stage of rounds in stages.

*Rounds.* A stage has one job for all partitions of a call. Keys and standings travel as packed
arrays, never as rows of a table. With buckets they never pass the driver. One job reads and
shuffles keys to buckets. Another answers, shuffles standings to groups and rewrites; it begins with
the first job's shuffle files. Where filters are asked for the dirty keys between the two, the first
is two. What is clean follows to the same places, as far as it has to be read at all.

*States* are found and shown in parts: keys go to buckets, winners to their parts. They take two
jobs, as for rounds of shape ``bucket``. The first reads and shuffles keys, and brings back the
parts that could not be read. The second begins with its shuffle files, finds each bucket's winners,
shuffles their offsets to the parts and shows these. Nothing of a state passes the driver.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyspark import RDD, Broadcast, SparkContext

from keeplast.clock import SystemClock
from keeplast.errors import CompactionError, invariant
from keeplast.pipeline.driven_round import (
    WAVES_POOL,
    DrivenRound,
    Keys,
    TaskNews,
    describe_job,
    in_one_shuffle,
    run_jointly,
)
from keeplast.pipeline.stages import Worker, own_versions
from keeplast.read.log_state import (
    NO_WINNERS,
    CutState,
    StatePart,
    Winners,
    send_keys,
    winners_of_bucket,
)
from keeplast.rewrite.stage_work import resolve
from keeplast.rewrite.staged_round import Stage, StagedRound
from keeplast.rewrite.standings import RowStandings, bucket_of, parts_of
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
    Resolved,
    RewriteUnit,
    ScanUnit,
    Unit,
    UnitResult,
)
from keeplast.rewrite.wave import peak_rss_bytes

TASKS_PER_SLOT = 4
"""Whole partitions are packed into so many Spark tasks a slot, each of about the same size."""

PACK_BYTES = 1 << 30
"""Units share a Spark task of about so many bytes where every slot has one already.

A task costs some 60 ms of a worker and of its Java process before it has read anything.
"""

ACTS: Mapping[type, str] = {
    MarkUnit: "read the markers of",
    ScanUnit: "follow the transactions of",
    IndexUnit: "index",
    RaiseUnit: "rank the clean section of",
    RewriteUnit: "rewrite",
}

T = TypeVar("T")


class Jobs:
    """Runs the tasks of one call on a cluster."""

    def __init__(
        self,
        context: SparkContext,
        tasks: Sequence[PartitionTask],
        slots: int,
        progressed: Progressed,
    ) -> None:
        """Make what all jobs of the call share."""
        self._context = context
        self._slots = slots
        self._news = TaskNews(context, progressed)
        # A round that is cut takes every slot by itself.
        at_once = slots if any(task.is_staged for task in tasks) else min(slots, len(tasks))
        self._worker = Worker(own_versions(), self._news.add, max(1, at_once))

    def all(self, tasks: Sequence[PartitionTask]) -> Iterator[TaskResult]:
        """Do every task: whole partitions next to the stages of those that are cut.

        The two kinds share the slots fairly where the session's scheduler is fair, as ours is. The
        large rounds begin at once, and small partitions fill what their stages leave idle.
        """
        staged = [task for task in tasks if task.is_staged]
        waves = self._begin([task for task in tasks if not task.is_staged])
        try:
            yield from self._run_stages(staged, waves)
            yield from waves.results()
        finally:
            waves.end()

    def _begin(self, tasks: Sequence[PartitionTask]) -> _Waves:
        """Begin every task as one wave; small ones share a Spark task."""
        packs = packed(tasks, lambda task: task.cost_bytes, self._slots * TASKS_PER_SLOT)
        worker = self._worker

        def work(pack: list[PartitionTask]) -> list[TaskResult]:
            return [worker.run(task) for task in pack]

        def act() -> list[list[TaskResult]]:
            return self._context.parallelize(packs, len(packs)).map(work).collect()

        names = [task.plan.partition for task in tasks]
        return _Waves(self._news, act if tasks else None, describe_job("clean", names))

    def _run_stages(self, tasks: Sequence[PartitionTask], waves: _Waves) -> Iterator[TaskResult]:
        """Take every round through its stages, side by side; yields waves that end meanwhile."""
        if not tasks:
            return
        rounds = [DrivenRound(StagedRound(task, SystemClock())) for task in tasks]
        if not waves.are_any:
            run_jointly(self._context, rounds, self._slots, self._worker, self._news)
        by_number = {each.task.number: each for each in rounds}
        sent: list[Broadcast[Any]] = []
        try:
            while any(not each.round.is_done for each in rounds):
                known = self._context.broadcast({n: each.task for n, each in by_number.items()})
                sent.append(known)
                self._do_units(by_number, known)
                self._do_filters(by_number, known)
                self._do_buckets(by_number, known)
                for each in rounds:
                    each.advance(self._context)
                if waves.are_done:
                    yield from waves.results()
        finally:
            # Not before: a lost executor takes keys along that an earlier stage sent, and an
            # executor that reads them again would look for the file of what it has dropped.
            for known in sent:
                known.unpersist()
            for each in rounds:
                each.forget()
        for each in rounds:
            yield each.round.result()

    def _do_units(self, rounds: dict[int, DrivenRound], known: Broadcast[Any]) -> None:
        """Do what units are functions of the task and, at most, of a key map."""
        units = [unit for each in rounds.values() for unit in each.units()]
        if not units:
            return
        indexing = [unit for unit in units if isinstance(unit, IndexUnit)]
        others = [unit for unit in units if not isinstance(unit, IndexUnit)]
        packs: list[list[Unit]] = [list[Unit](run) for run in runs_of(indexing, self._slots)]
        cost = sum(unit.cost_bytes for unit in others)
        if others:
            packs += packed(
                others, lambda unit: unit.cost_bytes, max(self._slots, cost // PACK_BYTES)
            )
        maps = {number: each.sent for number, each in rounds.items() if each.sent is not None}
        worker = self._worker

        def work(pack: list[Unit]) -> list[tuple[int, UnitResult]]:
            number = pack[0].number
            extents = [unit for unit in pack if isinstance(unit, IndexUnit)]
            if extents:
                return [(number, found) for found in worker.index(known.value[number], extents)]
            return [
                (
                    unit.number,
                    worker.do(
                        known.value[unit.number],
                        unit,
                        maps[unit.number].value if unit.number in maps else None,
                        None,
                    ),
                )
                for unit in pack
            ]

        job = self._context.parallelize(packs, len(packs)).map(work)
        description = _describe(packs[0][0], rounds, {unit.number for unit in units})
        for results in self._news.during(job.collect, description):
            for number, result in results:
                rounds[number].take(result)

    def _do_filters(self, rounds: dict[int, DrivenRound], known: Broadcast[Any]) -> None:
        """Ask filters for all dirty keys, in tasks that have them all or those of a bucket."""
        asking = [each for each in rounds.values() if each.round.stage is Stage.FILTER]
        units = [unit for each in asking if not each.is_bucket for unit in each.filter_units()]
        if units:
            self._filter(rounds, units, known)
        for some in in_one_shuffle([each for each in asking if each.is_bucket]):
            self._filter_in_buckets(some, known)

    def _filter(
        self, rounds: dict[int, DrivenRound], units: list[FilterUnit], known: Broadcast[Any]
    ) -> None:
        numbers = {unit.number for unit in units}
        hashes = self._context.broadcast({n: rounds[n].round.dirty_hashes for n in numbers})
        worker = self._worker

        def work(unit: FilterUnit) -> tuple[int, UnitResult]:
            task = known.value[unit.number]
            return unit.number, worker.consult(task, unit, hashes.value[unit.number])

        try:
            job = self._context.parallelize(units, len(units)).map(work)
            self._collect(job, rounds, _describe("ask filters of", rounds, numbers))
        finally:
            hashes.unpersist()

    def _filter_in_buckets(self, rounds: dict[int, DrivenRound], known: Broadcast[Any]) -> None:
        """Let every bucket ask all filters for its keys, and say which it found."""
        units = {number: list(each.filter_units()) for number, each in rounds.items()}
        worker = self._worker

        def work(index: int, pairs: Iterable[Any]) -> Iterator[tuple[int, UnitResult]]:
            found: dict[int, list[NDArray[np.uint64]]] = {}
            for place, (number, chunk) in pairs:
                if place and isinstance(chunk, HashChunk):
                    found.setdefault(number, []).append(chunk.hashes)
            for number, hashes in found.items():
                distinct = np.unique(np.concatenate(hashes))
                for unit in units.get(number, ()):
                    yield number, worker.consult(known.value[number], unit, distinct)

        shuffled = next(each.keys for each in rounds.values() if each.keys is not None).shuffled
        job = shuffled.mapPartitionsWithIndex(work)
        self._collect(job, rounds, _describe("ask filters of", rounds, units))

    def _collect(self, job: RDD[Any], rounds: Mapping[int, DrivenRound], description: str) -> None:
        """Let each round take what a job has found for it; Spark shows ``description``."""
        for number, result in self._news.during(job.collect, description):
            rounds[number].take(result)

    def _do_buckets(self, rounds: dict[int, DrivenRound], known: Broadcast[Any]) -> None:
        """Ask all buckets, or rewrite with what they answer."""
        asking = [each for each in rounds.values() if next(each.ask_units(), None) is not None]
        fresh = [each for each in asking if each.keys is None]
        if fresh:
            self._ask(fresh, known)
        for some in in_one_shuffle([each for each in asking if each not in fresh]):
            self._ask_more(some, known)
        for some in in_one_shuffle([each for each in rounds.values() if each.is_rewritten_by_rows]):
            self._rewrite(some, known)

    def _ask(self, rounds: list[DrivenRound], known: Broadcast[Any]) -> None:
        """Shuffle the keys to buckets; what was read comes back at once."""
        first: dict[int, int] = {}
        places = 1
        for each in rounds:
            first[each.task.number] = places
            places += each.task.shape.buckets
        by_number = {each.task.number: each for each in rounds}
        shuffled = self._shuffle(by_number, first, places, known)
        for number, each in by_number.items():
            each.keys = Keys(shuffled, first[number], places)

    def _ask_more(self, rounds: dict[int, DrivenRound], known: Broadcast[Any]) -> None:
        """Shuffle further keys to the places where those before them lie."""
        keys = {number: each.keys for number, each in rounds.items() if each.keys is not None}
        first = {number: its.start for number, its in keys.items()}
        its = next(iter(keys.values()))
        more = self._shuffle(rounds, first, its.places, known)
        # Of one partitioner, so that place goes to place and nothing is shuffled again.
        both = its.shuffled.union(more)
        invariant(both.getNumPartitions() == its.places, "two shuffles have other places")
        for number, each in rounds.items():
            each.keys = Keys(both, first[number], its.places)

    def _shuffle(
        self,
        rounds: dict[int, DrivenRound],
        first: dict[int, int],
        places: int,
        known: Broadcast[Any],
    ) -> RDD[Any]:
        """Run what rounds ask of buckets; ``first`` is where the buckets of each begin."""
        units = [unit for each in rounds.values() for unit in each.ask_units()]
        worker = self._worker

        def work(
            unit: AskUnit,
        ) -> Iterator[tuple[int, tuple[int, KeyChunk | HashChunk | UnitResult]]]:
            for found in worker.ask(known.value[unit.number], unit):
                place = 0
                if isinstance(found, KeyChunk):
                    place = first[unit.number] + bucket_of(found.cell, unit.buckets)
                elif isinstance(found, HashChunk):
                    place = first[unit.number] + found.bucket
                yield place, (unit.number, found)

        pairs = self._context.parallelize(units, len(units)).flatMap(work)
        shuffled: RDD[Any] = pairs.partitionBy(places, place_number)
        description = _describe("send the keys of", rounds, {unit.number for unit in units})
        read = self._news.during(lambda: self._context.runJob(shuffled, list, [0]), description)
        for _, (number, result) in read:
            rounds[number].take(result)
        return shuffled

    def _rewrite(self, rounds: dict[int, DrivenRound], known: Broadcast[Any]) -> None:
        """Answer in the buckets, shuffle the answers to groups, and rewrite these."""
        units = [unit for each in rounds.values() for unit in each.bucket_rewrites()]
        if not units:
            return
        groups: dict[int, dict[int, int]] = {}
        for place, unit in enumerate(units):
            for source in unit.group.sources:
                groups.setdefault(unit.number, {})[source.base_offset] = place
        starts = {n: each.keys.start for n, each in rounds.items() if each.keys is not None}
        shuffled = next(each.keys for each in rounds.values() if each.keys is not None).shuffled
        worker = self._worker

        def answer(index: int, pairs: Iterable[Any]) -> Iterator[tuple[int, Answer | Resolved]]:
            chunks: dict[int, list[KeyChunk]] = {}
            for place, (number, chunk) in pairs:
                if place and number in starts and isinstance(chunk, KeyChunk):
                    chunks.setdefault(number, []).append(chunk)
            for number, its in chunks.items():
                task = known.value[number]
                places = groups[number]
                for found in resolve(its, task.plan, parts_of(task.shape.buckets)):
                    if isinstance(found, Answer):
                        yield places[found.extent.base_offset], found
                    else:
                        yield min(places.values()), Resolved((), found, peak_rss_bytes())

        def work(index: int, pairs: Iterable[Any]) -> Iterator[tuple[int, UnitResult]]:
            unit = units[index]
            task = known.value[unit.number]
            answers: list[Answer] = []
            for _, found in pairs:
                if isinstance(found, Resolved):
                    yield unit.number, found
                else:
                    answers.append(found)
            standings = RowStandings(task.shape.buckets, answers)
            yield unit.number, worker.do(task, unit, None, standings)

        answers = shuffled.mapPartitionsWithIndex(answer).partitionBy(len(units), place_number)
        job = answers.mapPartitionsWithIndex(work)
        self._collect(job, rounds, _describe("answer for, and rewrite,", rounds, groups))


class _Waves:
    """The job of the whole partitions of a call, or none; its results are given once."""

    def __init__(
        self, news: TaskNews, act: Callable[[], list[list[TaskResult]]] | None, description: str
    ) -> None:
        self._news = news
        self._job = None if act is None else news.begin(act, WAVES_POOL, description)

    @property
    def are_any(self) -> bool:
        """Say whether there is work whose results have not been given."""
        return self._job is not None

    @property
    def are_done(self) -> bool:
        """Say whether there are results that need no waiting."""
        return self._job is not None and not self._job.is_alive

    def results(self) -> Iterator[TaskResult]:
        """Wait for the job, and yield what has not been given before."""
        if self._job is None:
            return
        found = self._news.wait(self._job)
        self._job = None
        for results in found:
            yield from results

    def end(self) -> None:
        """End the job if it was not waited for."""
        if self._job is not None:
            self._news.end(self._job)


def _describe(act: str | Unit, rounds: Mapping[int, DrivenRound], numbers: Iterable[int]) -> str:
    names = [rounds[number].task.plan.partition for number in sorted(numbers)]
    return describe_job(act if isinstance(act, str) else ACTS[type(act)], names)


def packed(items: Sequence[T], cost: Callable[[T], int], packs: int) -> list[list[T]]:
    """Return at most ``packs`` lists of about the same cost, the most costly first."""
    heap = [(0, number) for number in range(max(1, min(packs, len(items))))]
    found: list[list[T]] = [[] for _ in heap]
    for item in sorted(items, key=cost, reverse=True):
        total, number = heapq.heappop(heap)
        found[number].append(item)
        heapq.heappush(heap, (total + cost(item), number))
    return found


def runs_of(units: Sequence[IndexUnit], runs: int) -> list[list[IndexUnit]]:
    """Return the units of each round, in their order, as runs of about the same cost.

    Each run belongs to one round; there are ``runs`` of all rounds together, or a few more.
    """
    share = sum(unit.cost_bytes for unit in units) / max(runs, 1)
    found: list[list[IndexUnit]] = []
    cost = 0.0
    for unit in units:
        # A unit goes where the greater part of it lies.
        is_full = not found or cost + unit.cost_bytes / 2 > share
        if is_full or found[-1][0].number != unit.number:
            found.append([])
            cost = 0.0
        found[-1].append(unit)
        cost += unit.cost_bytes
    return found


def place_number(key: int) -> int:
    """Return a key that is the number of its partition."""
    return key


R = TypeVar("R")


def show_states(
    context: SparkContext,
    parts: Sequence[StatePart],
    show: Callable[[StatePart, Winners, Progressed], R],
    news: TaskNews,
) -> Iterator[R]:
    """Yield ``show`` of every part with its winners, all of them when the last has ended.

    Raises the error of the first part whose keys cannot be read, UnavailableError when a job fails
    as a whole.
    """
    states = {part.state.number: part.state for part in parts}
    starts: dict[int, int] = {}
    owners: list[CutState | None] = [None]
    for number, state in states.items():
        starts[number] = len(owners)
        owners += [state] * state.buckets
    index_of = {(part.state.number, part.number): i for i, part in enumerate(parts)}
    known = context.broadcast(tuple(parts))
    owner_of = context.broadcast(tuple(owners))
    add = news.add

    def send(index: int) -> Iterator[tuple[int, Any]]:
        part = known.value[index]
        try:
            for found in send_keys(part, add):
                yield starts[part.state.number] + found.bucket, found
        except (CompactionError, OSError, MemoryError) as error:
            yield 0, (index, error)

    def find(place: int, arrived: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Winners]]:
        state = owner_of.value[place]
        if state is None:
            # Nothing came here before. Keys that are read again, because shuffle files were lost,
            # may fail where they did not: winners without them would be wrong.
            for _, (_, error) in arrived:
                raise error
        else:
            for number, winners in winners_of_bucket(state, (rows for _, rows in arrived)):
                yield index_of[state.number, number], winners

    def show_one(index: int, arrived: Iterable[tuple[int, Winners]]) -> Iterator[R]:
        winners = np.concatenate([NO_WINNERS, *(its for _, its in arrived)])
        winners.sort()
        yield show(known.value[index], winners, add)

    try:
        keys = context.parallelize(range(len(parts)), len(parts)).flatMap(send)
        shuffled: RDD[Any] = keys.partitionBy(len(owners), place_number)
        names = sorted({str(part.split.partition) for part in parts})
        unread = news.during(
            lambda: context.runJob(shuffled, list, [0]), describe_job("send the keys of", names)
        )
        if unread:
            raise min((problem for _, problem in unread), key=lambda each: each[0])[1]
        winners = shuffled.mapPartitionsWithIndex(find).partitionBy(len(parts), place_number)
        job = winners.mapPartitionsWithIndex(show_one)
        yield from news.during(job.collect, describe_job("show the state of", names))
    finally:
        known.unpersist()
        owner_of.unpersist()
