"""Advances the state of transactions over a window, compressed control batches included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keeplast.cleaner.plan import RoundPlan
from keeplast.cleaner.transactions import EventLister, TransactionState
from keeplast.columns import batch_table as t
from keeplast.columns.kernel import BAD_CONTROL, PROBLEMS
from keeplast.columns.scan import HAS_EVENTS, HAS_HIDDEN_CONTROL
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.windows import Window
from keeplast.rewrite.workspace import Workspace

AskMarkers = Callable[[], RoundPlan]
"""Returns the plan with what the markers say; or raises what they cannot be asked for."""


def follow_window(
    state: TransactionState, window: Window, workspace: Workspace, ask_markers: AskMarkers
) -> list[AbortedTransaction]:
    """Advance ``state`` over a window; returns the aborted transactions that ended in it.

    Asks the markers at the first event of a pass for which nobody has.
    """
    if not window.marks & HAS_EVENTS:
        return []  # what may have begun meanwhile is caught up with at the next event
    if not state.is_told:
        state.tell(ask_markers().aborted_from(state.since))
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
            workspace.uncover_control(window, last)
        end = last + 1 if is_hidden else last
        bad = visit(first, end)
        if bad is not None:
            raise window.corrupt(
                bad, PROBLEMS[BAD_CONTROL], "a key of version >= 0 and a type", "something else"
            )
        if is_hidden:
            window.table[last, t.PAYLOAD_IN] = -1
        first = end
