"""Advances the state of transactions over a window, compressed control batches included."""

from __future__ import annotations

import numpy as np

from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import batch_table as t
from keeplast.columns.kernel import BAD_CONTROL, PROBLEMS
from keeplast.columns.scan import HAS_EVENTS, HAS_HIDDEN_CONTROL
from keeplast.engine.workspace import Workspace
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.windows import Window


def follow_window(
    state: TransactionState, window: Window, workspace: Workspace
) -> list[AbortedTransaction]:
    """Advance ``state`` over a window; returns the aborted transactions that ended in it."""
    if not window.marks & HAS_EVENTS:
        return []  # what may have begun meanwhile is caught up with at the next event
    if not window.marks & HAS_HIDDEN_CONTROL:
        return _follow(state, window, workspace, 0, window.batches)
    rows = window.table[: window.batches]
    is_control = (rows[:, t.ATTRIBUTES] & t.CONTROL != 0) & (rows[:, t.MAGIC] == 2)
    hidden = np.flatnonzero(is_control & (rows[:, t.PAYLOAD_IN] < 0))
    finished: list[AbortedTransaction] = []
    first = 0
    for last in [*hidden.tolist(), window.batches]:
        is_hidden = last < window.batches
        if is_hidden:
            workspace.uncover_control(window, last)
        end = last + 1 if is_hidden else last
        finished += _follow(state, window, workspace, first, end)
        if is_hidden:
            window.table[last, t.PAYLOAD_IN] = -1
        first = end
    return finished


def _follow(
    state: TransactionState, window: Window, workspace: Workspace, first: int, last: int
) -> list[AbortedTransaction]:
    done, bad = state.follow(window.data, workspace.scratch, window.table, first, last)
    if bad is not None:
        raise window.corrupt(
            bad, PROBLEMS[BAD_CONTROL], "a key of version >= 0 and a type", "something else"
        )
    return list(done)
