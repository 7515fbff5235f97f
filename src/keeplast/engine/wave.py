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
from keeplast.engine.index import Indexed, index_partition
from keeplast.engine.ranking import ranking_of
from keeplast.engine.report import FilterStats
from keeplast.engine.rewrite import PassContext
from keeplast.engine.second_pass import SecondPass, discard
from keeplast.engine.standings import MapStandings
from keeplast.engine.task import (
    Carry,
    IndexStats,
    PartitionTask,
    StagedGroup,
    TaskResult,
    second_pass_start,
)
from keeplast.engine.workspace import DecompressedCache, Workspace
from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem

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
        return _run(task, files, clock, workspace, progressed, staged)
    except (CompactionError, OSError, MemoryError) as error:
        discard(task, staged, files)
        return failed_result(task, error)


def _run(
    task: PartitionTask,
    files: FileSystem,
    clock: Clock,
    workspace: Workspace,
    progressed: Progressed,
    staged: list[StagedGroup],
) -> TaskResult:
    cache = DecompressedCache(workspace.cache_bytes)
    workspace.take_payloads()
    ranking = ranking_of(task.plan.topic)
    carry = task.carry
    if carry is None:
        started = clock.seconds()
        if task.plan.is_expired_round:
            indexed = Indexed(ranking.new_map(), task.plan.bound, IndexStats())
        else:
            indexed = index_partition(task, files, workspace, cache, progressed)
        groups = plan_groups(task.plan, indexed.end_offset)
        carry = Carry(
            end_offset=indexed.end_offset,
            groups=indexed.skips.rest(groups),
            key_map=indexed.key_map,
            transactions=second_pass_start(task.plan),
            counters=np.zeros(verdicts.COUNTERS, np.int64),
            index=replace(indexed.stats, seconds=clock.seconds() - started),
            skips=indexed.skips,
        )
    started = clock.seconds()
    source_crcs: dict[int, int] = {}
    context = PassContext(
        task, carry.end_offset, MapStandings(carry.key_map), files, workspace, cache,
        carry.counters, progressed, ranking, source_crcs if task.takes_crcs else None,
        carry.key_map.ledger, known_filters=carry.skips.known,
    )  # fmt: skip
    second = SecondPass(context, carry.transactions, list(carry.groups), staged=staged)
    limit = task.wave_bytes_max
    wave_bytes = 0
    while second.pending:
        size = second.pending[0].size_bytes
        if staged and limit is not None and wave_bytes + size > limit:
            break
        groups_done = len(second.done)
        second.step()
        if len(second.done) > groups_done:
            wave_bytes += size
    rest = None
    if second.pending:
        rest = replace(carry, groups=tuple(second.pending), transactions=second.transactions)
    return TaskResult(
        number=task.number,
        staged=tuple(staged),
        end_offset=carry.end_offset,
        groups=tuple(second.done),
        counters=carry.counters,
        index=carry.index,
        segments_left_alone=second.left_alone,
        copied_bytes=second.copied_bytes,
        clean_seconds=clock.seconds() - started,
        peak_rss_bytes=peak_rss_bytes(),
        carry=rest,
        source_crcs=source_crcs,
        output_crcs=second.output_crcs,
        payloads=workspace.take_payloads(),
        filters=replace(
            carry.skips.stats if task.carry is None else FilterStats(),
            written=second.filters, bytes_written=second.filter_bytes,
        ),
    )  # fmt: skip


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
