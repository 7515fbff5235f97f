"""One wave of one partition, start to end: index, resolve, seal, rewrite, check.

The same function runs in a thread of LocalRunner and in a Spark task. It never raises for a fault
of the data or the disk: the result carries the error, and what was staged is removed.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from keeplast.cleaner.plan import GroupPlan, plan_groups
from keeplast.cleaner.transactions import TransactionState
from keeplast.clock import Clock
from keeplast.columns import verdicts
from keeplast.engine.check import check_group
from keeplast.engine.index import Indexed, index_partition
from keeplast.engine.ranking import ranking_of
from keeplast.engine.rewrite import IndexFullError, PassContext, rewrite_group
from keeplast.engine.task import Carry, IndexStats, PartitionTask, StagedGroup, TaskResult
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
        return TaskResult(
            task.number, (), task.plan.first_dirty, (), np.zeros(verdicts.COUNTERS, np.int64),
            IndexStats(), 0, 0, 0.0, peak_rss_bytes(), None, error,
        )  # fmt: skip


def discard(task: PartitionTask, staged: list[StagedGroup], files: FileSystem) -> None:
    """Remove the staged files of an attempt that will not be committed.

    A disk that refuses does not hide why; the coordinator tries once more.
    """
    with contextlib.suppress(OSError):
        for group in staged:
            for file in group.files:
                path = task.target / file.name
                if files.exists(path):
                    files.unlink(path)


def _run(
    task: PartitionTask,
    files: FileSystem,
    clock: Clock,
    workspace: Workspace,
    progressed: Progressed,
    staged: list[StagedGroup],
) -> TaskResult:
    cache = DecompressedCache(workspace.cache_bytes)
    ranking = ranking_of(task.plan.topic)
    carry = task.carry
    if carry is None:
        started = clock.seconds()
        if task.plan.is_expired_round:
            indexed = Indexed(ranking.new_map(), task.plan.bound, IndexStats())
        else:
            indexed = index_partition(task, files, workspace, cache, progressed)
        groups = plan_groups(task.plan, indexed.end_offset)
        first_base = task.plan.segments[0].base_offset
        carry = Carry(
            end_offset=indexed.end_offset,
            groups=groups,
            key_map=indexed.key_map,
            transactions=TransactionState(task.plan.aborted_from(first_base)),
            counters=np.zeros(verdicts.COUNTERS, np.int64),
            index=replace(indexed.stats, seconds=clock.seconds() - started),
        )
    started = clock.seconds()
    counters = carry.counters
    source_crcs: dict[int, int] = {}
    output_crcs: dict[int, int] = {}
    context = PassContext(
        task, carry.end_offset, carry.key_map, files, workspace, cache, counters, progressed,
        ranking, source_crcs if task.takes_crcs else None, carry.key_map.ledger,
    )  # fmt: skip
    transactions = carry.transactions
    pending = list(carry.groups)
    done: list[GroupPlan] = []
    wave_bytes = alone = copied = 0
    while pending:
        group = pending[0]
        limit = task.wave_bytes_max
        if staged and limit is not None and wave_bytes + group.size_bytes > limit:
            break
        entry = transactions.copy(), counters.copy()
        try:
            outputs, copied_bytes = rewrite_group(context, group, transactions)
        except IndexFullError as full:
            transactions, counters[:] = entry[0], entry[1]
            pending[0:1] = [
                GroupPlan(group.sources[: full.sources]),
                GroupPlan(group.sources[full.sources :]),
            ]
            continue
        staged.extend(outputs)
        for output in outputs:
            crc = check_group(task, output, files, workspace)
            if crc is not None:
                output_crcs[output.base_offset] = crc
        wave_bytes += group.size_bytes
        copied += copied_bytes
        alone += not any(output.files for output in outputs)
        done.append(group)
        pending.pop(0)
    rest = None
    if pending:
        rest = replace(
            carry,
            groups=tuple(pending),
            transactions=transactions,
        )
    return TaskResult(
        number=task.number,
        staged=tuple(staged),
        end_offset=carry.end_offset,
        groups=tuple(done),
        counters=counters,
        index=carry.index,
        segments_left_alone=alone if task.writes else 0,
        copied_bytes=copied,
        clean_seconds=clock.seconds() - started,
        peak_rss_bytes=peak_rss_bytes(),
        carry=rest,
        source_crcs=source_crcs,
        output_crcs=output_crcs,
    )


def peak_rss_bytes() -> int:
    """Return the most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
