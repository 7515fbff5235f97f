"""One wave of one partition, start to end: index, resolve, seal, rewrite, check.

The same function runs in a thread of LocalRunner and in a Spark task. It never raises for a fault
of the data or the disk: the result carries the error, and what was staged is removed.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from keeplast.cleaner.plan import plan_groups
from keeplast.clock import Clock
from keeplast.columns import verdicts
from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem
from keeplast.rewrite.decompressed_cache import DecompressedCache
from keeplast.rewrite.index import Indexed, index_partition
from keeplast.rewrite.marked_plan import MarkedPlan
from keeplast.rewrite.output import PassContext
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.second_pass import SecondPass, discard
from keeplast.rewrite.standings import MapStandings
from keeplast.rewrite.stats import FilterStats
from keeplast.rewrite.task import (
    Carry,
    IndexStats,
    PartitionTask,
    StagedGroup,
    TaskResult,
    second_pass_start,
)
from keeplast.rewrite.workspace import Workspace

Progressed = Callable[[int], None]


def run_wave(
    task: PartitionTask,
    files: FileSystem,
    clock: Clock,
    workspace: Workspace,
    progressed: Progressed,
) -> TaskResult:
    """Do one wave of ``task``; see :class:`TaskResult`."""
    staged: list[StagedGroup] = []
    try:
        return _Wave(task, files, clock, workspace, progressed, staged).run()
    except (CompactionError, OSError, MemoryError) as error:
        discard(task, staged, files)
        return failed_result(task, error)


class _Wave:
    """One wave under way; ``staged`` receives what there is to remove when it fails."""

    def __init__(
        self,
        task: PartitionTask,
        files: FileSystem,
        clock: Clock,
        workspace: Workspace,
        progressed: Progressed,
        staged: list[StagedGroup],
    ) -> None:
        self._task = task
        self._files = files
        self._clock = clock
        self._workspace = workspace
        self._progressed = progressed
        self._staged = staged
        self._cache = DecompressedCache(workspace.cache_bytes)
        self._ranking = ranking_of(task.plan.topic)
        self._marked = MarkedPlan(task.plan, task.path, files, progressed)
        self._source_crcs: dict[int, int] = {}

    def run(self) -> TaskResult:
        """Do the five steps; the first two only where no earlier wave of the round has."""
        self._workspace.take_payloads()
        carry = self._task.carry
        if carry is None:
            carry = self._resolve(self._index())
        started = self._clock.seconds()
        second = self._second_pass(carry)
        while second.pending and self._has_room(second):
            rewritten = second.rewrite()
            if rewritten is not None:
                second.check(rewritten)
        return self._result(carry, second, self._clock.seconds() - started)

    def _index(self) -> Indexed:
        """Find the winners of the dirty section; a round for what has expired asks for none."""
        plan = self._task.plan
        if plan.is_expired_round:
            return Indexed(self._ranking.new_map(), plan.bound, IndexStats())
        started = self._clock.seconds()
        indexed = index_partition(
            self._task, self._files, self._workspace, self._cache, self._progressed,
            self._marked.ask,
        )  # fmt: skip
        seconds = self._clock.seconds() - started
        return replace(indexed, stats=replace(indexed.stats, seconds=seconds))

    def _resolve(self, indexed: Indexed) -> Carry:
        """Seal the round where the winners end: its groups, and what stands at their entry."""
        return Carry(
            end_offset=indexed.end_offset,
            groups=indexed.skips.rest(plan_groups(self._task.plan, indexed.end_offset)),
            key_map=indexed.key_map,
            transactions=second_pass_start(self._marked.plan),
            counters=np.zeros(verdicts.COUNTERS, np.int64),
            index=indexed.stats,
            skips=indexed.skips,
        )

    def _second_pass(self, carry: Carry) -> SecondPass:
        """Begin to rewrite and check the groups that are left of a round."""
        context = PassContext(
            task=self._task,
            end_offset=carry.end_offset,
            standings=MapStandings(carry.key_map),
            files=self._files,
            workspace=self._workspace,
            cache=self._cache,
            counters=carry.counters,
            progressed=self._progressed,
            ranking=self._ranking,
            ask_markers=self._marked.ask,
            source_crcs=self._source_crcs if self._task.takes_crcs else None,
            ledger=carry.key_map.ledger,
            known_filters=carry.skips.known,
        )
        return SecondPass(context, carry.transactions, list(carry.groups), staged=self._staged)

    def _has_room(self, second: SecondPass) -> bool:
        """Say whether the wave may do one more group; one at the least, for rounds have to end."""
        limit = self._task.wave_bytes_max
        if limit is None or not self._staged:
            return True
        return sum(group.size_bytes for group in (*second.done, second.pending[0])) <= limit

    def _result(self, carry: Carry, second: SecondPass, clean_seconds: float) -> TaskResult:
        rest = None
        if second.pending:
            rest = replace(carry, groups=tuple(second.pending), transactions=second.transactions)
        skipped = carry.skips.stats if self._task.carry is None else FilterStats()
        return TaskResult(
            number=self._task.number,
            staged=tuple(self._staged),
            end_offset=carry.end_offset,
            groups=tuple(second.done),
            counters=carry.counters,
            index=carry.index,
            segments_left_alone=second.left_alone,
            copied_bytes=second.copied_bytes,
            clean_seconds=clean_seconds,
            peak_rss_bytes=peak_rss_bytes(),
            carry=rest,
            source_crcs=self._source_crcs,
            output_crcs=second.output_crcs,
            payloads=self._workspace.take_payloads(),
            filters=replace(skipped, written=second.filters, bytes_written=second.filter_bytes),
        )


def failed_result(task: PartitionTask, error: Exception) -> TaskResult:
    """Return the result of a task that gave nothing but an error."""
    return TaskResult(
        task.number, (), task.plan.first_dirty, (), np.zeros(verdicts.COUNTERS, np.int64),
        IndexStats(), 0, 0, 0.0, peak_rss_bytes(), None, error,
    )  # fmt: skip


def peak_rss_bytes() -> int:
    """Return the most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
