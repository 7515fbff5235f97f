"""The Spark jobs that find and show states in parts: keys go to buckets, winners to their parts.

Two jobs, as for rounds of shape ``bucket``: the first reads and shuffles keys, and brings back the
parts that could not be read; the second begins with its shuffle files, finds each bucket's winners,
shuffles their offsets to the parts and shows these. Nothing of a state passes the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from pyspark import RDD, SparkContext

from keeplast.errors import CompactionError
from keeplast.pipeline.jobs import place_number
from keeplast.pipeline.task_news import TaskNews, describe_job
from keeplast.read.log_state import Winners
from keeplast.read.state_parts import (
    NO_WINNERS,
    CutState,
    StatePart,
    send_keys,
    winners_of_bucket,
)
from keeplast.rewrite.runner import Progressed

R = TypeVar("R")


def show_states(
    context: SparkContext,
    parts: Sequence[StatePart],
    show: Callable[[StatePart, Winners, Progressed], R],
    told: TaskNews,
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
    add = told.add

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
        unread = told.during(
            lambda: context.runJob(shuffled, list, [0]), describe_job("send the keys of", names)
        )
        if unread:
            raise min((problem for _, problem in unread), key=lambda each: each[0])[1]
        winners = shuffled.mapPartitionsWithIndex(find).partitionBy(len(parts), place_number)
        job = winners.mapPartitionsWithIndex(show_one)
        yield from told.during(job.collect, describe_job("show the state of", names))
    finally:
        known.unpersist()
        owner_of.unpersist()
