"""Transactions in a pass: their state over each window, and what the log's markers say of aborts.

The state is advanced over each window, compressed control batches included. A plan takes what the
log's markers say of aborted transactions once a pass needs to know it. A survey does not read a
log, so its plan has what the transaction indexes say. Those may lag the log where a host was
killed, or be gone or another's. A round that believed them would take an aborted record for its
key's last. So at the first batch of a transaction or of a marker that a round meets, the headers of
the log are read once more. All of them are read: what the clean section holds of a transaction
decides, too. A log without transactions has no such batch, and is not read for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from keeplast.cleaner.plan import RoundPlan
from keeplast.cleaner.transactions import EventLister, TransactionState
from keeplast.columns import batches as t
from keeplast.columns.batches import HAS_EVENTS, HAS_HIDDEN_CONTROL
from keeplast.columns.kernel import BAD_CONTROL, PROBLEMS
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.transactions import aborted_by_segment
from keeplast.log.windows import Window, WindowBuffers
from keeplast.rewrite.workspace import Workspace

AskMarkers = Callable[[], RoundPlan]
"""Returns the plan with what the markers say; or raises what they cannot be asked for."""


def follow_window(
    state: TransactionState, window: Window, workspace: Workspace, ask_markers: AskMarkers
) -> list[AbortedTransaction]:
    """Advance ``state`` over a window; returns the aborted transactions that ended in it.

    Asks the markers at the first event of a pass that has not asked them yet.
    """
    if not window.marks & HAS_EVENTS:
        return []  # what may have begun meanwhile is caught up with at the next event
    if not state.knows_aborted:
        state.take_aborted(ask_markers().aborted_from(state.since))
    finished: list[AbortedTransaction] = []

    def follow(first: int, last: int) -> int | None:
        done, bad = state.follow(window.data, workspace.scratch, window.table, first, last)
        finished.extend(done)
        return bad

    _visit(window, workspace, follow)
    return finished


def list_window(lister: EventLister, window: Window, workspace: Workspace) -> None:
    """Add the transaction events of a window to ``lister``, those hidden among gaps included."""
    if not window.marks & HAS_EVENTS:
        return

    def add(first: int, last: int) -> int | None:
        return lister.add(window.data, workspace.scratch, window.table, first, last)

    _visit(window, workspace, add)


def _visit(window: Window, workspace: Workspace, visit: Callable[[int, int], int | None]) -> None:
    """Call ``visit`` for all batches in order, each compressed control batch readable meanwhile.

    It returns a control batch that cannot be read, or None.
    """
    hidden: list[int] = []
    if window.marks & HAS_HIDDEN_CONTROL:
        rows = window.table[: window.batches]
        is_control = (rows[:, t.ATTRIBUTES] & t.CONTROL != 0) & (rows[:, t.MAGIC] == 2)
        hidden = np.flatnonzero(is_control & (rows[:, t.PAYLOAD_IN] < 0)).tolist()
    first = 0
    for last in [*hidden, window.batches]:
        is_hidden = last < window.batches
        if is_hidden:
            workspace.decompress_at(window, last, 0)
        end = last + 1 if is_hidden else last
        bad = visit(first, end)
        if bad is not None:
            raise window.corrupt(
                bad, PROBLEMS[BAD_CONTROL], "a key of version >= 0 and a type", "something else"
            )
        if is_hidden:
            window.table[last, t.PAYLOAD_IN] = -1
        first = end


class MarkersNeededError(Exception):
    """A batch of a transaction was met where the markers cannot be asked. Nothing is left."""


class MarkedPlan:
    """The plan of a round in one process; ``plan`` gets aborted transactions by :meth:`ask`.

    Any wave may be the first to ask: those before it met no transactions, so that what they put in
    place says of them what was there before.
    """

    __slots__ = ("_files", "_path", "_progressed", "plan")

    def __init__(
        self, plan: RoundPlan, path: Path, files: FileSystem, progressed: Callable[[int], None]
    ) -> None:
        """Begin with what is known; ``progressed`` hears that work goes on."""
        self.plan = plan
        self._path = path
        self._files = files
        self._progressed = progressed

    def ask(self) -> RoundPlan:
        """Return the plan with the aborted transactions of the log as it is; reads it once.

        CorruptError where a batch or a marker cannot be read.
        """
        if self.plan.aborted is None:
            listing = list_partition(self._path, self._files)
            aborted = []
            # What lies above the round is looked at as far as it decides what lies in it.
            for segment, entries in aborted_by_segment(
                listing, find_tail(listing, self._files), self._files,
                WindowBuffers(), deciding=self.plan.bound,
            ):  # fmt: skip
                aborted.append((segment.base_offset, entries))
                self._progressed(0)
            self.plan = replace(self.plan, aborted=tuple(aborted))
        return self.plan
