"""One group rewritten by several threads, a part each; what they give is appended in log order.

A part is a source of the group, or a piece of one. Pieces begin where the source's offset index
says that a batch does. That is not believed: the piece before must end there with its last batch,
and the first one begins at 0. A group whose index says anything else cannot be shared. The first
pass has such pieces too (:mod:`keeplast.rewrite.staged_round`).

The first part that is not done has the *turn* and writes to the output, as a pass in order would.
The others hold what they would write, within a bound, and wait for their turn beyond it. So the
earliest part never waits, and parts must be begun in their order. The output and its indexes belong
to the part that has the turn. A thread that ends a part reads again what is written by then, for
the check of the whole.

Only what needs no state at its entry is shared. A thread that meets a transaction, or anything else
that is not plain, gives up. The last thread then does the whole group again, in order. The group is
then what it would have been, and so is the error.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.columns.winners import LOSES, ReasonLedger
from keeplast.errors import CompactionError, CorruptError
from keeplast.format import offset_index
from keeplast.format.filename import INDEX, LOG, segment_file
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem, ReadHandle, reading
from keeplast.log.indexes import read_index
from keeplast.log.paths import child_path
from keeplast.log.windows import Window
from keeplast.model.partition import INT32_MAX, RELATIVE_OFFSET_MAX, SegmentSummary
from keeplast.rewrite.group import EntryNeededError, SourceReader
from keeplast.rewrite.output import GroupOutput, IndexFullError, PassContext
from keeplast.rewrite.stage_work import Tools, pass_context, rewrite, rewritten_by
from keeplast.rewrite.standings import Standings
from keeplast.rewrite.task import NO_PAYLOADS, PartitionTask, second_pass_start
from keeplast.rewrite.units import Edge, RewriteUnit, Rewritten
from keeplast.rewrite.wave import SecondPass, discard
from keeplast.rewrite.workspace import Slice, Workspace


class _GivenUpError(Exception):
    """The group cannot be shared, or another part of it has failed."""


_TO_REDO = (_GivenUpError, EntryNeededError, IndexFullError, CorruptError)
"""After these the group is done once more by one thread."""

_EXPECTED = (*_TO_REDO, CompactionError, OSError, MemoryError)


PART_BYTES = 16 << 20
"""A source is cut into pieces of about so many bytes; smaller ones gained nothing."""

PIECES_A_THREAD = 8
"""The first pass has no more pieces than that: each is a call that waits for a thread."""


class GroupPart(Struct, frozen=True):
    """The ``number``-th part of ``parts``: the bytes ``[start, end)`` of a source of ``unit``."""

    unit: RewriteUnit
    number: int
    parts: int
    source: int
    start: int
    end: int

    @property
    def cost_bytes(self) -> int:
        """Return the bytes that it reads."""
        return self.end - self.start


def parts_of(
    unit: RewriteUnit, task: PartitionTask, ledger: ReasonLedger, files: FileSystem, *, cuts: bool
) -> Sequence[GroupPart]:
    """Return the parts of a group in the order in which they must begin; none: do it whole.

    Sources are taken whole without ``cuts``, and so is a single one that may stay as it is.
    """
    plan, sources = task.plan, unit.group.sources
    later = [s.base_offset for s in plan.segments if s.base_offset > sources[-1].base_offset]
    end = min(later, default=plan.bound)
    if task.filters is not None or end - 1 - unit.group.base_offset > RELATIVE_OFFSET_MAX:
        return ()
    changes = len(sources) > 1 or LOSES in ledger.part(unit.group.base_offset, end).standings
    # A checksum of a whole source, and what closes a group, belong to one reader of its end.
    has_one_reader = task.takes_crcs or plan.closing_epochs
    size = PART_BYTES if cuts and changes and not has_one_reader else INT32_MAX
    pieces = [
        (number, start, stop)
        for number, source in enumerate(sources)
        for start, stop in pairwise(
            [0, *(at for at, _ in _edges(source, task, files, size)), source.size_bytes]
        )
    ]
    if len(pieces) == 1:
        return ()
    return [GroupPart(unit, number, len(pieces), *piece) for number, piece in enumerate(pieces)]


def edges_of_dirty(
    task: PartitionTask, files: FileSystem, threads: int
) -> dict[int, Sequence[Edge]]:
    """Return the edges of large dirty segments, by base offset; right where the indexes are.

    There are none where filters are to be made, nor where transactions are known of: which are
    open at an edge is not.
    """
    may_be_cut = task.filters is None and task.plan.aborted is None
    dirty = task.plan.dirty_segments() if may_be_cut else []
    share = sum(each.size_bytes for each in dirty) // (threads * PIECES_A_THREAD)
    return {
        each.base_offset: edges
        for each in dirty
        if (edges := _edges(each, task, files, max(PART_BYTES, share)))
    }


def _edges(
    source: SegmentSummary, task: PartitionTask, files: FileSystem, size: int
) -> Sequence[Edge]:
    """Return where pieces of about ``size`` bytes begin, if the index of the source is right."""
    wanted = np.arange(size, source.size_bytes - size // 2, size)
    edges: list[Edge] = []
    if not len(wanted):
        return edges
    log, index = (
        child_path(task.path, segment_file(source.base_offset, kind)) for kind in (LOG, INDEX)
    )
    head = bytearray(17)
    try:
        entries = offset_index.decode(read_index(index, INDEX, source.size_bytes, files))
        positions = np.append(entries[:, 1], source.size_bytes)
        found = np.unique(positions[np.searchsorted(positions, wanted)])
        with reading(files, log) as handle:
            for edge in found[(found > 0) & (found < source.size_bytes)].tolist():
                handle.pread_into(memoryview(head), edge)
                # A batch of an older magic may begin with its last offset.
                base = int.from_bytes(head[:8], "big", signed=True)
                edges.append((edge, base if head[16] == 2 else -1))
    except (CompactionError, OSError):
        return ()
    return edges


class SharedGroup:
    """A group under way; its parts are done in any order."""

    def __init__(
        self, part: GroupPart, tools: Tools, standings: Standings, ledger: ReasonLedger,
        bytes_max: int,
    ) -> None:  # fmt: skip
        """Begin with any part of it; all parts together hold ``bytes_max`` at most."""
        unit = part.unit
        self._unit = replace(unit, entry=None)
        self._whole = unit
        self._standings = standings
        self._ledger = ledger
        self._context = pass_context(self._unit, tools, standings, ledger)
        self.output = GroupOutput(self._context, unit.group)
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self.turn = 0
        self._held_bytes = 0
        self._free: list[NDArray[np.uint8]] = []
        self._ended: dict[int, PartOutput] = {}
        self._left = part.parts
        self._failure: BaseException | None = None
        self._counters = np.zeros_like(self._context.counters)
        self._payloads = NO_PAYLOADS

    def do(self, part: GroupPart, tools: Tools) -> Rewritten | None:
        """Do one part; the last to end returns what the group became, the others None.

        Raises, from the last one, what a rewrite in order would have raised.
        """
        context = pass_context(self._unit, tools, self._standings, self._ledger)
        tools.workspace.take_payloads()
        try:
            if self._failure is None:
                self._read(part, context)
        except _EXPECTED as error:
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise
        with self._changed:
            # Those of the context are the output's, and so of the part that has the turn.
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

    def _read(self, part: GroupPart, context: PassContext) -> None:
        own = PartOutput(self, part)
        output = self.output if part.number == 0 else own
        entry = second_pass_start(context.plan)
        reader = SourceReader(context, self._unit.group, entry, output)
        reader.read(part.source, self._unit.group.sources[part.source], part.start, part.end)
        with self._changed:
            if self.turn != part.number:
                self._ended[part.number] = own
                return
        held: PartOutput | None = own
        while held is not None:
            self.append(held)
            with self._changed:
                self.turn = held.part.number + 1
                held = self._ended.pop(self.turn, None)
                self._changed.notify_all()

    def room(self, number: int, size: int) -> NDArray[np.uint8] | None:
        """Return None when a part has the turn, else an array for ``size`` bytes that it may hold.

        Waits while neither is so; _GivenUpError when there is nothing to wait for.
        """
        with self._changed:
            while True:
                if self._failure is not None:
                    raise _GivenUpError
                if self.turn == number:
                    return None
                # New memory costs more than what is copied to it.
                if self._free and len(self._free[-1]) >= size:
                    return self._free.pop()
                if self._held_bytes + size <= self._bytes_max:
                    self._held_bytes += size
                    return np.empty(size, np.uint8)
                if not self._free:
                    self._changed.wait()
                self._held_bytes -= sum(map(len, self._free))
                self._free.clear()

    def append(self, held: PartOutput) -> None:
        """Write what a part has held; its turn has come."""
        self.output.number = held.part.source
        for data, size, batches in held.rows:
            self.output.append([data.data[:size]], batches)
        self.output.copied_bytes += held.copied_bytes
        with self._changed:
            self._free += (data for data, _, _ in held.rows)
            self._changed.notify_all()
        held.rows, held.copied_bytes = [], 0

    def _finish(self, tools: Tools) -> Rewritten:
        """Complete and check the output, or do the group in order after all."""
        task, group = self._context.task, self._unit.group
        # The context is the first thread's, the workspace this one's.
        context = replace(self._context, workspace=tools.workspace, progressed=tools.progressed)
        context.counters[:] += self._counters
        second = SecondPass(context, second_pass_start(task.plan), [group])
        try:
            if self._failure is None:
                outputs = self.output.finish()
                second.staged.extend(outputs.staged)
                second.check(outputs)
                return rewritten_by(second, self._unit, self._payloads)
        except BaseException:
            self.output.discard()
            discard(task, second.staged, tools.files)
            raise
        self.output.discard()
        if not isinstance(self._failure, _TO_REDO):
            raise self._failure
        return rewrite(self._whole, tools, self._standings, self._ledger)


class PartOutput(GroupOutput):
    """What a part after the first one gives: written when it is its turn, held until then.

    It has nothing of an output but what a reader of sources asks for.
    """

    is_unchanged = False

    def __init__(self, group: SharedGroup, part: GroupPart) -> None:
        """Hold nothing yet; ``copied_bytes`` are those that the output has not counted."""
        self.part = part
        self.rows: list[tuple[NDArray[np.uint8], int, NDArray[np.int64]]] = []
        self.copied_bytes = 0
        self.base_offset = group.output.base_offset
        self.aborted: list[AbortedTransaction] = []
        self._shared = group
        self._has_turn = False

    def start(self, handle: ReadHandle) -> None:
        """Do nothing: the first part has."""

    def note(self, window: Window, part: Slice, workspace: Workspace) -> None:
        """Do nothing: there are no filters."""

    def count(self, batches: NDArray[np.int64]) -> None:
        """Refuse: only the first part may stay where it lies."""
        raise _GivenUpError

    def split(self, handle: ReadHandle, base_offset: int) -> None:
        """Refuse: parts after this one know of one output only."""
        raise _GivenUpError

    def check_ahead(self, files: FileSystem, workspace: Workspace) -> None:
        """Read again some of what is written; only the first part knows what is, before it ends."""
        if self._shared.turn > 0:
            self._shared.output.check_ahead(files, workspace)

    def write(
        self, handle: ReadHandle, pieces: Sequence[memoryview], batches: NDArray[np.int64]
    ) -> None:
        """Append, or hold a copy until that may be."""
        size = sum(len(piece) for piece in pieces)
        data = None if self._has_turn else self._shared.room(self.part.number, size)
        if data is None:
            if not self._has_turn:
                self._shared.append(self)
                self._has_turn = True
            self._shared.output.append(pieces, batches)
            return
        parts = [np.frombuffer(piece, np.uint8) for piece in pieces]
        np.concatenate([data[:0], *parts], out=data[:size])
        self.rows.append((data, size, batches.copy()))
