"""A round in stages as the driver of Spark's jobs holds it: its progress, and where its keys are.

A key map is sent to every task; keys in buckets lie in a shuffle, at places of their own, which
further keys join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark import RDD, Broadcast, SparkContext

from keeplast.cleaner.stage_costs import NOTED_OFFSETS_MAX
from keeplast.columns.ledger import new_ledger
from keeplast.columns.ranks import RankedKeyMap
from keeplast.columns.winners import KeyMap
from keeplast.errors import invariant
from keeplast.model.shape import Shape
from keeplast.rewrite.joint_run import JointRun
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.stage_work import end_of
from keeplast.rewrite.staged_round import Stage, StagedRound
from keeplast.rewrite.standings import ledger_of, notes_of
from keeplast.rewrite.task import PartitionTask
from keeplast.rewrite.units import (
    AskUnit,
    Failed,
    FilterUnit,
    IndexedUnit,
    RewriteUnit,
    Unit,
    UnitResult,
)


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
            for unit in self.round.units():
                yield self._add_notes(unit) if isinstance(unit, RewriteUnit) else unit

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
        # Who asks for transactions that its first pass has not met is not to be believed.
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
