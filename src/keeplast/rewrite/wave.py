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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from keeplast.cleaner.plan import GroupPlan, plan_groups
from keeplast.cleaner.transactions import TransactionState
from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.columns import verdicts
from keeplast.errors import CompactionError, CorruptError, UnavailableError, invariant
from keeplast.format import offset_index, time_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import INDEX, LOG, TIME_INDEX
from keeplast.log.files import FileSystem, reading
from keeplast.log.indexes import IndexBuilder
from keeplast.log.paths import child_path
from keeplast.log.throttle import ThrottledFiles
from keeplast.log.windows import read_windows
from keeplast.model.partition import RELATIVE_OFFSET_MAX
from keeplast.rewrite.group import rewrite_group
from keeplast.rewrite.index import Indexed, index_partition
from keeplast.rewrite.output import IndexFullError, PassContext
from keeplast.rewrite.ranking import ranking_of
from keeplast.rewrite.skipping import ContentsBuilder, write_filter
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
from keeplast.rewrite.transactions import MarkedPlan
from keeplast.rewrite.workspace import DecompressedCache, Workspace
from keeplast.tier.objects.filters import SegmentBytes
from keeplast.tier.objects.round_files import filter_file, new_segment_id


class GroupCheck:
    """A staged output while it is read again: from its beginning to its end, in as many steps."""

    def __init__(self, task: PartitionTask, base_offset: int) -> None:
        """Begin; the log file at ``base_offset`` need not be complete."""
        self._task = task
        self._base = base_offset
        self._builder = IndexBuilder(base_offset, task.plan.topic.index_interval_bytes)
        self._batches = self._crc = self._end_offset = 0

    def read(self, path: Path, end: int, files: FileSystem, workspace: Workspace) -> None:
        """Read on to byte ``end`` of the log file at ``path``, where a batch ends.

        Raises CorruptError as :meth:`finish` does.
        """
        plan, base = self._task.plan, self._base
        with reading(files, path) as handle:
            for window in read_windows(
                handle, path, workspace.buffers, start=self._builder.size_bytes, end=end
            ):
                rows = np.ascontiguousarray(
                    window.table[: window.batches, [t.SIZE, t.LAST_OFFSET, t.MAX_TIMESTAMP]]
                )
                lowest, highest = int(rows[:, 1].min()), int(rows[:, 1].max())
                if lowest < base or highest >= plan.bound or highest - base > RELATIVE_OFFSET_MAX:
                    raise CorruptError(
                        "an offset lies outside the group", path=str(path),
                        position=window.position, expected=f"[{base}, {plan.bound})",
                        found=f"{lowest} to {highest}", code="K215",
                    )  # fmt: skip
                self._builder.add(rows)
                self._batches += window.batches
                self._end_offset = int(rows[-1, 1]) + 1
                if self._task.takes_crcs:
                    self._crc = crc32c(window.data.data[: window.length], self._crc)

    def finish(self, staged: StagedGroup, files: FileSystem, workspace: Workspace) -> int | None:
        """Raise InvariantError or CorruptError unless the staged files are what was reported.

        Returns the CRC-32C of the log file as read again, where the task asks for it.
        """
        if not staged.files:
            return None
        paths = {file.kind: child_path(self._task.target, file.name) for file in staged.files}
        for file in staged.files:
            found = files.stat(paths[file.kind]).size_bytes
            what = f"staged size differs. name={file.name} found={found}"
            invariant(found == file.size_bytes, what)
        path = paths[LOG]
        self.read(path, staged.size_bytes, files, workspace)
        invariant(self._batches == staged.batches, f"staged batches differ. path={path}")
        # A swap counts on it for what a start-up removes.
        invariant(self._end_offset == staged.end_offset, f"staged end differs. path={path}")
        offsets, times = self._builder.finish()
        made = {
            paths[INDEX]: offset_index.encode(offsets),
            paths[TIME_INDEX]: time_index.encode(times),
        }
        for path, expected in made.items():
            found_bytes = files.read_bytes(path, len(expected))
            invariant(found_bytes == expected, f"staged index differs. path={path}")
        return self._crc if self._task.takes_crcs else None


@runtime_checkable
class CompletesOutputs(Protocol):
    """Files whose outputs have to be completed; errors are those of a task."""

    def complete(self, outputs: Sequence[StagedGroup]) -> None:
        """Complete the outputs of one group; those without files stay as they are."""
        ...


def complete_outputs(files: FileSystem, outputs: Sequence[StagedGroup]) -> None:
    """Complete what was staged of a group, where its files ask for that."""
    below = files.inner if isinstance(files, ThrottledFiles) else files
    if isinstance(below, CompletesOutputs):
        below.complete(outputs)


Outputs = tuple[Sequence[StagedGroup], Sequence[ContentsBuilder]]
"""What a group became, and what filters are to know of each output where the task has filters."""


@dataclass(slots=True)
class SecondPass:
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
            outputs, copied_bytes, contents = rewrite_group(c, group, self.transactions)
        except IndexFullError as full:
            self.transactions, c.counters[:] = entry
            self.pending[0:1] = [
                GroupPlan(group.sources[: full.sources]),
                GroupPlan(group.sources[full.sources :]),
            ]
            return None
        self.staged.extend(outputs)
        self.copied_bytes += copied_bytes
        return outputs, contents

    def check(self, rewritten: Outputs, begun: GroupCheck | None = None) -> None:
        """Complete and read again what was staged of the next group, which is done then.

        Filters are written next to it. ``begun`` has read a part of its one output. InvariantError
        or CorruptError when it is not what was reported.
        """
        c, (outputs, contents) = self.context, rewritten
        if c.task.writes:
            complete_outputs(c.files, outputs)
        for output in outputs:
            check = GroupCheck(c.task, output.base_offset) if begun is None else begun
            crc = check.finish(output, c.files, c.workspace)
            if crc is not None:
                self.output_crcs[output.base_offset] = crc
        for output, builder in zip(outputs, contents, strict=False):
            self._write_filter(output, builder)
        if c.task.writes:
            self.left_alone += not any(output.files for output in outputs)
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
