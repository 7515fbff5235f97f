"""One group rewritten by several threads, a source each; what they give is appended in log order.

The first source that is not done has the *turn* and writes to the output, as a pass in order would.
The others hold what they would write, within a bound, and wait for their turn beyond it. So the
earliest source never waits, and parts must be begun in the order of the sources. The output and its
indexes belong to the source that has the turn. A thread that ends a part reads again what is
written by then, for the check of the whole.

Only what needs no state at its entry is shared. A thread that meets a transaction, or anything else
that is not plain, gives up. The last thread then does the whole group again, in order. The group is
then what it would have been, and so is the error.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.winners import ReasonLedger
from keeplast.errors import CompactionError, CorruptError
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import ReadHandle
from keeplast.log.windows import Window
from keeplast.model.partition import RELATIVE_OFFSET_MAX
from keeplast.rewrite.group import EntryNeededError, SourceReader
from keeplast.rewrite.output import GroupOutput, IndexFullError, PassContext
from keeplast.rewrite.stage_work import Tools, pass_context, rewrite, rewritten_by
from keeplast.rewrite.standings import Standings
from keeplast.rewrite.task import NO_PAYLOADS, PartitionTask, second_pass_start
from keeplast.rewrite.units import RewriteUnit, Rewritten
from keeplast.rewrite.wave import GroupCheck, SecondPass, discard
from keeplast.rewrite.workspace import Slice, Workspace


class _GivenUpError(Exception):
    """The group cannot be shared, or another part of it has failed."""


_ANEW = (_GivenUpError, EntryNeededError, IndexFullError, CorruptError)
"""After these the group is done once more by one thread."""

_EXPECTED = (*_ANEW, CompactionError, OSError, MemoryError)


@dataclass(frozen=True, slots=True)
class GroupPart:
    """One source of a group: the ``number``-th of ``unit``."""

    unit: RewriteUnit
    number: int

    @property
    def cost_bytes(self) -> int:
        """Return the bytes of the one source that it reads."""
        return self.unit.group.sources[self.number].size_bytes


def parts_of(unit: RewriteUnit, task: PartitionTask) -> Sequence[GroupPart]:
    """Return the parts of a group in the order in which they must begin; none: do it whole."""
    sources = unit.group.sources
    later = [s.base_offset for s in task.plan.segments if s.base_offset > sources[-1].base_offset]
    reach = min(later, default=task.plan.bound) - 1 - unit.group.base_offset
    if len(sources) == 1 or task.filters is not None or reach > RELATIVE_OFFSET_MAX:
        return ()
    return [GroupPart(unit, number) for number in range(len(sources))]


@dataclass(slots=True)
class _Held:
    """What a part has for the output and may not write yet."""

    number: int
    rows: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = field(default_factory=list)
    size: int = 0
    copied_bytes: int = 0


class SharedGroup:
    """A group under way; its parts are the sources, by number."""

    def __init__(
        self, unit: RewriteUnit, tools: Tools, standings: Standings, ledger: ReasonLedger,
        bytes_max: int,
    ) -> None:  # fmt: skip
        """Begin; all parts together hold ``bytes_max`` at most."""
        self._unit = replace(unit, entry=None)
        self._whole = unit
        self._standings = standings
        self._ledger = ledger
        self._context = pass_context(self._unit, tools, standings, ledger)
        self.output = GroupOutput(self._context, unit.group)
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._turn = 0
        self._held_bytes = 0
        self._ended: dict[int, _Held] = {}
        self._left = len(unit.group.sources)
        self._failure: BaseException | None = None
        self._counters = np.zeros_like(self._context.counters)
        self._payloads = NO_PAYLOADS
        self._check = GroupCheck(tools.task, unit.group.base_offset)
        self._checking = threading.Lock()
        self._readable: tuple[Path, int] | None = None

    def do(self, number: int, tools: Tools) -> Rewritten | None:
        """Do one source; the last to end returns what the group became, the others None.

        Raises, from the last one, what a rewrite in order would have raised.
        """
        context = pass_context(self._unit, tools, self._standings, self._ledger)
        tools.workspace.take_payloads()
        try:
            if self._failure is None:
                self._read(number, context)
                self._check_ahead(tools)
        except _EXPECTED as error:
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise
        with self._changed:
            # Those of the context are the output's, and so of the source that has the turn.
            self._counters += context.counters
            if self._context.source_crcs is not None:
                self._context.source_crcs.update(context.source_crcs or {})
            self._payloads += tools.workspace.take_payloads()
            self._left -= 1
            is_last = self._left == 0
        return self._finish(tools) if is_last else None

    def _fail(self, error: BaseException) -> None:
        """Let no thread wait any more; the last one does without what there is."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _read(self, number: int, context: PassContext) -> None:
        part = _PartOutput(self, number)
        output = self.output if number == 0 else part
        start = second_pass_start(context.plan)
        reader = SourceReader(context, self._unit.group, start, output)
        reader.read(number, self._unit.group.sources[number])
        with self._changed:
            if self._turn != number:
                self._ended[number] = part.held
                return
        held: _Held | None = part.held
        while held is not None:
            self.append(held)
            with self._changed:
                self._readable = self.output.readable
                self._turn = held.number + 1
                held = self._ended.pop(self._turn, None)
                self._changed.notify_all()

    def _check_ahead(self, tools: Tools) -> None:
        """Read again what is written so far, unless another thread does.

        At the end there is nothing else to do for all threads but one.
        """
        if self._checking.acquire(blocking=False):
            try:
                if self._readable is None:
                    return
                path, end = self._readable
                # A store has nothing of what is written before it is whole.
                if self._context.task.files.is_on_disk(path):
                    self._check.read(path, end, tools.files, tools.workspace)
            finally:
                self._checking.release()

    def may_write(self, number: int, size: int) -> bool:
        """Return True when a part has the turn, False when it may hold ``size`` bytes instead.

        Waits while neither is so; _GivenUpError when there is nothing to wait for.
        """
        with self._changed:
            while True:
                if self._failure is not None:
                    raise _GivenUpError
                if self._turn == number:
                    return True
                if self._held_bytes + size <= self._bytes_max:
                    self._held_bytes += size
                    return False
                self._changed.wait()

    def append(self, held: _Held) -> None:
        """Write what a part has held; its turn has come."""
        self.output.number = held.number
        for data, batches in held.rows:
            self.output.append([data.data], batches)
        self.output.copied_bytes += held.copied_bytes
        with self._changed:
            self._held_bytes -= held.size
        held.rows, held.size, held.copied_bytes = [], 0, 0

    def _finish(self, tools: Tools) -> Rewritten:
        """Complete and check the output, or do the group in order after all."""
        task, group = self._context.task, self._unit.group
        # The context is the first thread's, the workspace this one's.
        context = replace(self._context, workspace=tools.workspace, progressed=tools.progressed)
        context.counters[:] += self._counters
        second = SecondPass(context, second_pass_start(task.plan), [group])
        try:
            if self._failure is None:
                outputs, second.copied_bytes, contents = self.output.finish()
                second.staged.extend(outputs)
                second.check((outputs, contents), self._check)
                return rewritten_by(second, self._unit, self._payloads)
        except BaseException:
            self.output.discard()
            discard(task, second.staged, tools.files)
            raise
        self.output.discard()
        if not isinstance(self._failure, _ANEW):
            raise self._failure
        return rewrite(self._whole, tools, self._standings, self._ledger)


class _PartOutput:
    """What a source after the first one gives: written when it is its turn, held until then."""

    is_unchanged = False

    def __init__(self, group: SharedGroup, number: int) -> None:
        self._group = group
        self.held = _Held(number)
        self.base_offset = group.output.base_offset
        self.aborted: list[AbortedTransaction] = []
        self._has_turn = False

    @property
    def copied_bytes(self) -> int:
        """Return the bytes that were copied and are not yet counted by the output."""
        return self.held.copied_bytes

    @copied_bytes.setter
    def copied_bytes(self, size: int) -> None:
        self.held.copied_bytes = size

    def start(self, handle: ReadHandle) -> None:
        """Do nothing: the first source has."""

    def note(self, window: Window, part: Slice, workspace: Workspace) -> None:
        """Do nothing: there are no filters."""

    def count(self, batches: NDArray[np.int64]) -> None:
        """Refuse: only the first source may stay where it lies."""
        raise _GivenUpError

    def split(self, handle: ReadHandle, base_offset: int) -> None:
        """Refuse: parts after this one know of one output only."""
        raise _GivenUpError

    def write(
        self, handle: ReadHandle, pieces: Sequence[memoryview], batches: NDArray[np.int64]
    ) -> None:
        """Append, or hold a copy until that may be."""
        size = sum(len(piece) for piece in pieces)
        if not self._has_turn and self._group.may_write(self.held.number, size):
            self._group.append(self.held)
            self._has_turn = True
        if self._has_turn:
            self._group.output.append(pieces, batches)
            return
        data = np.empty(size, np.uint8)
        at = 0
        for piece in pieces:
            data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        self.held.rows.append((data, batches.copy()))
        self.held.size += size
