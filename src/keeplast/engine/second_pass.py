"""The second pass over a run of groups: rewrite, then check, one after another.

A group whose indexes would overflow is done again as two; everything that the pass had learned
until then (transactions, counters) is put back first.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from keeplast.cleaner.plan import GroupPlan
from keeplast.cleaner.transactions import TransactionState
from keeplast.engine.check import check_group
from keeplast.engine.rewrite import IndexFullError, PassContext, rewrite_group
from keeplast.engine.task import PartitionTask, StagedGroup
from keeplast.errors import UnavailableError
from keeplast.log.files import FileSystem


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

    def step(self) -> None:
        """Rewrite and check the next group, or split it in two."""
        c, group = self.context, self.pending[0]
        entry = self.transactions.copy(), c.counters.copy()
        try:
            outputs, copied_bytes = rewrite_group(c, group, self.transactions)
        except IndexFullError as full:
            self.transactions, c.counters[:] = entry
            self.pending[0:1] = [
                GroupPlan(group.sources[: full.sources]),
                GroupPlan(group.sources[full.sources :]),
            ]
            return
        self.staged.extend(outputs)
        for output in outputs:
            crc = check_group(c.task, output, c.files, c.workspace)
            if crc is not None:
                self.output_crcs[output.base_offset] = crc
        self.copied_bytes += copied_bytes
        if c.task.writes:
            self.left_alone += not any(output.files for output in outputs)
        self.done.append(group)
        self.pending.pop(0)


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
