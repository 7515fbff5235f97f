"""The state of a large log in parts: ranges of its offsets, read side by side.

    index   a part    -> its keys, to one map or to hash buckets
    winner  a bucket  -> the offsets of its winners, by part
    show    a part    -> the records at those offsets, as columns

A part is a function of itself and of the log; it may be read anywhere, twice, in any order. The
stages are those of a round (:mod:`keeplast.rewrite.units`), but nobody holds still a log that is
read: answers are offsets, which mean the same whatever becomes of the segments in between. Threads
fill one map; tasks that share no memory send keys to buckets as shape ``bucket`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from keeplast.clock import SystemClock
from keeplast.errors import CompactionError
from keeplast.log.files import FilesRecipe, LocalRecipe
from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_ranges import Split
from keeplast.read.log_state import HashKey, StateReader, Winners, new_hash_key, winning_offsets
from keeplast.read.record_columns import RecordColumns
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.runner import Progressed
from keeplast.rewrite.stage_work import SharedKeyMap
from keeplast.rewrite.standings import bucket_of, parts_of
from keeplast.rewrite.waiting_rows import WaitingRows
from keeplast.rewrite.workspace import Workspace


@dataclass(frozen=True, slots=True)
class CutState:
    """What all parts of one state share; ``firsts`` are the first offsets of the parts, ascending.

    ``number`` tells it from others of a call. Without shared memory, keys go to ``buckets``.
    """

    number: int
    topic: TopicConfig
    firsts: tuple[int, ...]
    buckets: int
    memory_bytes: int
    hash_key: HashKey = field(default_factory=new_hash_key)
    files: FilesRecipe = field(default_factory=LocalRecipe)

    def by_part(self, winners: Winners) -> Iterator[tuple[int, Winners]]:
        """Yield the number of every part that has some of the winners, with those."""
        ends = np.searchsorted(winners, self.firsts[1:]).tolist()
        for number, (start, end) in enumerate(zip([0, *ends], [*ends, len(winners)], strict=True)):
            if start < end:
                yield number, winners[start:end]


@dataclass(frozen=True, slots=True)
class StatePart:
    """One part of a state, the ``number``-th."""

    state: CutState
    number: int
    split: Split

    def reader(self, progressed: Progressed) -> StateReader:
        """Return what reads the part here."""
        state = self.state
        return StateReader(
            self.split, ranking_of(state.topic), state.hash_key, state.files.open(), SystemClock(),
            Workspace(state.memory_bytes), progressed,
        )  # fmt: skip

    def show(
        self, winners: Winners, progressed: Progressed, *, deletes: bool = False
    ) -> Iterator[RecordColumns]:
        """Yield the records at ``winners`` that have a value, in offset order.

        With ``deletes`` also those without.
        """
        return self.reader(progressed).show(winners, self.split.wanted, deletes=deletes)


@dataclass(frozen=True, slots=True)
class BucketRows:
    """Keys of a part that fall into one cell, and so into one bucket, of the hash space."""

    bucket: int
    cell: int
    rows: NDArray[np.uint64]


def send_keys(part: StatePart, progressed: Progressed) -> Iterator[BucketRows]:
    """Yield the keys of a part, in bounded memory; of each key mostly only the best row."""
    state = part.state
    reader = part.reader(progressed)
    waiting = WaitingRows(state.buckets, state.memory_bytes)

    def taken() -> Iterator[BucketRows]:
        for cell, rows in waiting.take():
            best = rows[reader.ranking.best_of(rows) != 0]
            yield BucketRows(bucket_of(cell, state.buckets), cell, best)

    wanted = part.split.wanted
    for block, _ in reader.keys(wanted.first_offset, wanted.end_offset):
        waiting.add(block, reader.w.starts)
        if waiting.is_full:
            yield from taken()
    yield from taken()


def winners_of_bucket(
    state: CutState, arrived: Iterable[BucketRows]
) -> Iterator[tuple[int, Winners]]:
    """Yield the winners of one bucket by part; ``arrived`` are its rows, in any order."""
    ranking = ranking_of(state.topic)
    key_map = ranking.new_map()
    parts = parts_of(state.buckets)
    for each in arrived:
        key_map.put_shard(each.cell // parts, each.rows, 0, len(each.rows))
    yield from state.by_part(winning_offsets(key_map, ranking))


class Each(Protocol):
    """Does work on every item and yields what it gives, as a runner's ``each``."""

    def __call__(
        self,
        work: Callable[[StatePart, Progressed], CompactionError | OSError | None],
        items: Sequence[StatePart],
        progressed: Progressed,
    ) -> Iterable[CompactionError | OSError | None]:
        """Yield results in any order."""
        ...


def shared_winners(
    each: Each, parts: Sequence[StatePart], progressed: Progressed
) -> dict[tuple[int, int], Winners]:
    """Return the winners by state and part, of threads that share one key map a state.

    Raises the error of a part that cannot be read.
    """
    states = {part.state.number: part.state for part in parts}
    maps = {
        number: SharedKeyMap(ranking_of(state.topic).new_map()) for number, state in states.items()
    }

    def index(part: StatePart, progressed: Progressed) -> CompactionError | OSError | None:
        reader, sink = part.reader(progressed), maps[part.state.number]
        wanted = part.split.wanted
        try:
            for block, _ in reader.keys(wanted.first_offset, wanted.end_offset):
                sink.put(block, reader.w.starts)
        except (CompactionError, OSError) as error:
            return error
        return None

    for error in each(index, parts, progressed):
        if error is not None:
            raise error
    found: dict[tuple[int, int], Winners] = {}
    for number, state in states.items():
        winners = winning_offsets(maps.pop(number).key_map, ranking_of(state.topic))
        for part, its in state.by_part(winners):
            found[number, part] = its
    return found


NO_WINNERS: Winners = np.empty(0, np.int64)
