"""One wave of one partition, start to end: index, resolve, seal, rewrite, check.

Nothing staged is given back before it was read again and compared with the plan, and so before it
may be committed. Every batch must have a right CRC, lie inside the plan's range, and be indexed as
the index files say. The sizes must be those that were reported. Disagreement is our defect, not the
user's data.

Outputs may be more than their files, in places where a segment is described as a whole. In a
directory a staged file is what it will be. Elsewhere others read a segment by a description that
can only be written when all of it is there, range included. A place that keeps such segments gives
a task files that complete each group's outputs before they are checked. So the check reads what
readers will.

The second pass goes over a run of groups: rewrite, then check, one after another. A group whose
indexes would overflow is done again as two. Everything that the pass had learned until then
(transactions, counters) is put back first.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.plan import GroupPlan, plan_groups
from keeplast.cleaner.transactions import TransactionState
from keeplast.clock import Clock
from keeplast.columns import retained
from keeplast.errors import CompactionError, UnavailableError
from keeplast.log.files import FileSystem
from keeplast.log.throttle import ThrottledFiles
from keeplast.rewrite.group import rewrite_group
from keeplast.rewrite.index import Indexed, index_partition
from keeplast.rewrite.output import IndexFullError, Outputs, PassContext
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.skipping import ContentsBuilder, write_filter
from keeplast.rewrite.standings import MapStandings
from keeplast.rewrite.stats import FilterStats
from keeplast.rewrite.task import (
    Carry,
    IndexStats,
    PartitionTask,
    Progressed,
    StagedGroup,
    TaskResult,
    second_pass_start,
)
from keeplast.rewrite.transactions import MarkedPlan
from keeplast.rewrite.workspace import DecompressedCache, Workspace
from keeplast.tier.objects.filters import SegmentBytes
from keeplast.tier.objects.round_files import filter_file, new_segment_id


@runtime_checkable
class CompletesOutputs(Protocol):
    """Files whose outputs have to be completed; errors are those of a task."""

    def complete(self, outputs: Sequence[StagedGroup]) -> None:
        """Complete the outputs of one group; those without files stay as they are."""


def complete_outputs(files: FileSystem, outputs: Sequence[StagedGroup]) -> None:
    """Complete what was staged of a group, where its files ask for that."""
    below = files.inner if isinstance(files, ThrottledFiles) else files
    if isinstance(below, CompletesOutputs):
        below.complete(outputs)


class SecondPass(Struct):
    """Groups that are waiting and what the others gave."""

    context: PassContext
    transactions: TransactionState
    pending: list[GroupPlan]
    done: list[GroupPlan] = field(default_factory=list)
    staged: list[StagedGroup] = field(default_factory=list)
    left_alone: int = 0
    copied_bytes: int = 0
    output_crcs: dict[int, int] = field(default_factory=dict)
    filters: int = 0
    filter_bytes: int = 0

    def rewrite(self) -> Outputs | None:
        """Stage what becomes of the next group; None when it was split in two instead."""
        c, group = self.context, self.pending[0]
        entry = self.transactions.copy(), c.counters.copy()
        try:
            outputs = rewrite_group(c, group, self.transactions)
        except IndexFullError as full:
            self.transactions, c.counters[:] = entry
            self.pending[0:1] = [
                GroupPlan(group.sources[: full.sources]),
                GroupPlan(group.sources[full.sources :]),
            ]
            return None
        self.staged.extend(outputs.staged)
        return outputs

    def check(self, outputs: Outputs) -> None:
        """Complete what was staged of the next group and read the rest of it again; it is done.

        Filters are written next to it. InvariantError or CorruptError when it is not what was
        reported.
        """
        c = self.context
        self.copied_bytes += outputs.copied_bytes
        if c.task.writes:
            complete_outputs(c.files, outputs.staged)
        for output, check in zip(outputs.staged, outputs.checks, strict=True):
            crc = check.finish(output, c.files, c.workspace)
            if crc is not None:
                self.output_crcs[output.base_offset] = crc
        for output, builder in zip(outputs.staged, outputs.contents, strict=False):
            self._write_filter(output, builder)
        if c.task.writes:
            self.left_alone += not any(output.files for output in outputs.staged)
        self.done.append(self.pending.pop(0))

    def _write_filter(self, output: StagedGroup, builder: ContentsBuilder) -> None:
        """Put a filter next to what was staged, or next to a segment that stays and has none."""
        c, base = self.context, output.base_offset
        if output.files:
            attempt = c.task.attempt
            segment = SegmentBytes(
                new_segment_id(attempt, base), output.size_bytes, self.output_crcs[base]
            )
            name = filter_file(base, attempt)
        elif c.task.filters is not None and base not in c.known_filters:
            segment, name = c.task.filters.segments[base], filter_file(base)
        else:
            return
        size = write_filter(c.task, builder, segment, c.task.path / name, c.files)
        self.filters += size > 0
        self.filter_bytes += size


def discard(task: PartitionTask, staged: list[StagedGroup], files: FileSystem) -> None:
    """Remove the staged files of an attempt that will not be committed.

    A disk that refuses does not hide why; the coordinator tries once more.
    """
    with contextlib.suppress(OSError, UnavailableError):
        for group in staged:
            for file in group.files:
                path = task.target / file.name
                if files.exists(path):
                    files.unlink(path)


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
            counters=np.zeros(retained.COUNTERS, np.int64),
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
        task.number, (), task.plan.first_dirty, (), np.zeros(retained.COUNTERS, np.int64),
        IndexStats(), 0, 0, 0.0, peak_rss_bytes(), None, error,
    )  # fmt: skip


def peak_rss_bytes() -> int:
    """Return the most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
