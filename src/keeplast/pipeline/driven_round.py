"""A round in stages as the driver of Spark's jobs holds it: its progress, and where its keys are.

A key map is sent to every task; keys in buckets lie in a shuffle, at places of their own, which
further keys join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark import RDD, Broadcast, SparkContext

from keeplast.columns.ranks import RankedKeyMap
from keeplast.columns.winners import KeyMap
from keeplast.model.shape import Shape
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.staged_round import Stage, StagedRound
from keeplast.rewrite.task import PartitionTask
from keeplast.rewrite.units import AskUnit, FilterUnit, IndexedUnit, RewriteUnit, Unit, UnitResult


class Keys:
    """Where the keys of a round lie after their shuffle: from which partition on, of how many."""

    def __init__(self, shuffled: RDD[Any], start: int, places: int) -> None:
        self.shuffled = shuffled
        self.start = start
        self.places = places


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
        """Return the task as far as its plan is told."""
        return self.round.task

    def units(self) -> Iterator[Unit]:
        """Yield the units that need no shuffle."""
        is_shuffled = self.is_bucket and self.round.stage in (
            Stage.INDEX, Stage.ASK, Stage.REWRITE
        )  # fmt: skip
        if not is_shuffled and self.round.stage is not Stage.FILTER:
            yield from self.round.units()

    def filter_units(self) -> Iterator[FilterUnit]:
        """Yield the units that ask filters."""
        if self.round.stage is Stage.FILTER:
            yield from (unit for unit in self.round.units() if isinstance(unit, FilterUnit))

    @property
    def asks_buckets(self) -> bool:
        """Say whether keys are to be sent to buckets now."""
        return next(self.ask_units(), None) is not None

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
        """Take a result; the keys of a block go into the map, and nowhere else."""
        self.round.take(result)
        if isinstance(result, IndexedUnit) and result.block is not None:
            block, starts = result.block
            if self.round.stage is Stage.RAISE and isinstance(self._key_map, RankedKeyMap):
                self._key_map.raise_known(block, starts)
            else:
                self._key_map.put(block, starts)

    def advance(self, context: SparkContext) -> None:
        """Go on; a map that has changed is sent to everybody."""
        if self.round.is_done:
            return
        before = self.round.stage
        is_void = before is Stage.INDEX and self.round.is_unmarked
        if is_void:
            self._begin_map()
            self.keys = None
        has_map = before is Stage.INDEX and not self.is_bucket and not is_void
        self.round.advance(len(self._key_map) if has_map else None)
        if (has_map or before is Stage.RAISE) and not self.round.is_done:
            self.forget()
            self.sent = context.broadcast(self._key_map)

    def _begin_map(self) -> None:
        self._key_map = ranking_of(self.task.plan.topic).new_map()

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
