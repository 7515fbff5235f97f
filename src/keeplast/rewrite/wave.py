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
from keeplast.rewrite.group import PassContext
from keeplast.rewrite.index import Indexed, index_partition
from keeplast.rewrite.marked_plan import MarkedPlan
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
from keeplast.rewrite.workspace import DecompressedCache, Workspace

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

    def run(self) -> TaskResult:
        """Index unless an earlier wave has, rewrite as many groups as may be, and tell of it."""
        self._workspace.take_payloads()
        carry = self._indexed() if self._task.carry is None else self._task.carry
        started = self._clock.seconds()
        source_crcs: dict[int, int] = {}
        second = self._second_pass(carry, source_crcs)
        self._rewrite(second)
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
            clean_seconds=self._clock.seconds() - started,
            peak_rss_bytes=peak_rss_bytes(),
            carry=rest,
            source_crcs=source_crcs,
            output_crcs=second.output_crcs,
            payloads=self._workspace.take_payloads(),
            filters=replace(skipped, written=second.filters, bytes_written=second.filter_bytes),
        )

    def _indexed(self) -> Carry:
        """Do the first pass; a round for what has expired has none."""
        plan = self._task.plan
        started = self._clock.seconds()
        if plan.is_expired_round:
            indexed = Indexed(self._ranking.new_map(), plan.bound, IndexStats())
        else:
            indexed = index_partition(
                self._task, self._files, self._workspace, self._cache, self._progressed,
                self._marked.ask,
            )  # fmt: skip
        groups = plan_groups(plan, indexed.end_offset)
        return Carry(
            end_offset=indexed.end_offset,
            groups=indexed.skips.rest(groups),
            key_map=indexed.key_map,
            transactions=second_pass_start(self._marked.plan),
            counters=np.zeros(verdicts.COUNTERS, np.int64),
            index=replace(indexed.stats, seconds=self._clock.seconds() - started),
            skips=indexed.skips,
        )

    def _second_pass(self, carry: Carry, source_crcs: dict[int, int]) -> SecondPass:
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
            source_crcs=source_crcs if self._task.takes_crcs else None,
            ledger=carry.key_map.ledger,
            known_filters=carry.skips.known,
        )
        return SecondPass(context, carry.transactions, list(carry.groups), staged=self._staged)

    def _rewrite(self, second: SecondPass) -> None:
        """Do groups until the wave has its bytes; one at the least, for rounds have to end."""
        limit = self._task.wave_bytes_max
        wave_bytes = 0
        while second.pending:
            size = second.pending[0].size_bytes
            if self._staged and limit is not None and wave_bytes + size > limit:
                break
            groups_done = len(second.done)
            second.step()
            if len(second.done) > groups_done:
                wave_bytes += size


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
