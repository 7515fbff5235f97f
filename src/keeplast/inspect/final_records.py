"""The final record of every key on two sides, from rows sorted by key and rank.

A row says on which sides its record is. Rows of one record (same key, same offset) count as one
with the flags of all. Memory is bounded even for a key with any number of records: what is carried
from piece to piece are three rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from keeplast.inspect.sorted_runs import (
    COLUMNS,
    FLAGS,
    HORIZON,
    KEY_HIGH,
    KEY_LOW,
    KEY_SHIFT,
    OFFSET,
    Rows,
)

ON_LEFT = 1
ON_RIGHT = 2
IS_TOMBSTONE = 4
IS_OLD_FORMAT = 8

OLDER_LEFT = COLUMNS
OLDER_RIGHT = COLUMNS + 1
"""Columns that a final record has beyond those of a row: the offset of the record of its key on
that side that ranks next to it, or -1."""


def final_records(pieces: Iterable[Rows]) -> Iterator[Rows]:
    """Yield a row for each key: its greatest record, with what ranks next on either side."""
    carried = np.empty((0, COLUMNS), np.int64)
    for piece in pieces:
        rows = _merge(np.concatenate([carried, piece]))
        start = int(_starts(rows)[-1])
        if start:
            yield _fold(rows[:start])
        carried = _condense(rows[start:])
    if len(carried):
        yield _fold(carried)


def _starts(rows: Rows) -> Rows:
    """Return where each key begins."""
    keys = rows[:, [KEY_HIGH, KEY_LOW]]
    keys[:, 1] >>= KEY_SHIFT
    differs = np.ones(len(rows), np.bool_)
    differs[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return np.flatnonzero(differs)


def _merge(rows: Rows) -> Rows:
    """Return one row a record."""
    differs = np.ones(len(rows), np.bool_)
    differs[1:] = (rows[1:, :HORIZON] != rows[:-1, :HORIZON]).any(axis=1)
    if bool(differs.all()):
        return rows
    starts = np.flatnonzero(differs)
    merged = rows[starts]
    merged[:, FLAGS] = np.bitwise_or.reduceat(rows[:, FLAGS], starts)
    merged[:, HORIZON] = np.maximum.reduceat(rows[:, HORIZON], starts)
    return merged


def _fold(rows: Rows) -> Rows:
    starts = _starts(rows)
    last = np.concatenate([starts[1:], [len(rows)]]) - 1
    folded = np.empty((len(starts), COLUMNS + 2), np.int64)
    folded[:, :COLUMNS] = rows[last]
    for side, column in ((ON_LEFT, OLDER_LEFT), (ON_RIGHT, OLDER_RIGHT)):
        places = np.where(rows[:, FLAGS] & side != 0, np.arange(len(rows)), -1)
        places[last] = -1
        next_to = np.maximum.reduceat(places, starts)
        folded[:, column] = np.where(next_to < 0, -1, rows[next_to, OFFSET])
    return folded


def _condense(rows: Rows) -> Rows:
    """Return those rows of one key that decide: the last, and the last below it on each side."""
    chosen = {len(rows) - 1}
    for side in (ON_LEFT, ON_RIGHT):
        older = np.flatnonzero(rows[:-1, FLAGS] & side != 0)
        chosen.update(older[-1:].tolist())
    return rows[sorted(chosen)]
