"""The second pass over a run of groups: rewrite, then check, one after another.

A group whose indexes would overflow is done again as two; everything that the pass had learned
until then (transactions, counters) is put back first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from keeplast.cleaner.plan import GroupPlan
from keeplast.cleaner.transactions import TransactionState
from keeplast.errors import UnavailableError
from keeplast.log.files import FileSystem
from keeplast.rewrite.check import GroupCheck
from keeplast.rewrite.completion import complete_outputs
from keeplast.rewrite.group import rewrite_group
from keeplast.rewrite.output import IndexFullError, PassContext
from keeplast.rewrite.skipping import ContentsBuilder, write_filter
from keeplast.rewrite.task import PartitionTask, StagedGroup
from keeplast.tier.objects.filters import SegmentBytes
from keeplast.tier.objects.round_files import filter_file, new_segment_id

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

        Filters are written beside it.
        ``begun`` has read a part of its one output. InvariantError or CorruptError when it is not
        what was reported.
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
        """Put a filter beside what was staged, or beside a segment that stays and has none."""
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
