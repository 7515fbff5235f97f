"""Follows transactions through the batches of a window, in offset order.

State is carried from window to window and segment to segment in two arrays that the caller owns:

* ``producers`` (slots, 3): an open-addressing table of producer id, marks, index of the aborted
  transaction; ``MARK_EMPTY`` in the marks of a free slot. Slots are never freed during a round.
* ``state``: ``NEXT_ABORTED`` is the first entry of ``aborted`` not yet reached, ``USED`` the
  number of taken slots. The table must have room for one more producer per batch of the window.

Answers to ``CleanedTransactionMetadata``; cleaning.md section 3.5.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.columns.kernel import BAD_CONTROL, OK, kernel, outline
from keeplast.columns.machine import load_be16
from keeplast.columns.rows import parse_record

MARK_EMPTY = -1
COMMITTED_OPEN = 1
ABORTED_OPEN = 2
DATA_SEEN = 4

NEXT_ABORTED = 0
USED = 1

ABORT_MARKER = 0
COMMIT_MARKER = 1


@outline
def _slot(producers, producer_id):
    size = producers.shape[0]
    mixed = np.uint64(producer_id) * np.uint64(0x9E3779B97F4A7C15)
    s = np.int64(mixed >> np.uint64(32)) % size
    while producers[s, 1] != MARK_EMPTY and producers[s, 0] != producer_id:
        s += 1
        if s == size:
            s = 0
    return s


@outline
def _marks(producers, state, producer_id):
    """Return the slot of a producer, taking a free one for a new producer."""
    s = _slot(producers, producer_id)
    if producers[s, 1] == MARK_EMPTY:
        producers[s, 0] = producer_id
        producers[s, 1] = 0
        state[USED] += 1
    return s


@kernel(
    "UniTuple(int64, 3)(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, int64[:, ::1],"
    " int64[::1], int64[:, ::1], int64[::1])"
)
def follow(window, scratch, table, first, last, producers, state, aborted, finished):
    """Set STATE of the batches ``[first, last)``.

    ``aborted`` (n, 2) holds first offset and producer id of the known aborted transactions in
    ascending first offset. ``finished`` receives the indexes of those whose marker was read and
    whose data was seen. Returns (finished, code, batch of the code).
    """
    done = 0
    for i in range(first, last):
        x = table[i, t.LAST_OFFSET]
        while state[NEXT_ABORTED] < aborted.shape[0] and aborted[state[NEXT_ABORTED], 0] <= x:
            k = state[NEXT_ABORTED]
            s = _marks(producers, state, aborted[k, 1])
            # The same transaction may be collected for several segments; the open one stays.
            if producers[s, 1] & ABORTED_OPEN == 0:
                producers[s, 1] = (producers[s, 1] & COMMITTED_OPEN) | ABORTED_OPEN
                producers[s, 2] = k
            state[NEXT_ABORTED] += 1
        attributes = table[i, t.ATTRIBUTES]
        if table[i, t.MAGIC] < 2:
            continue
        producer_id = table[i, t.PRODUCER_ID]
        if attributes & t.CONTROL != 0:
            if table[i, t.COUNT] == 0:
                table[i, t.STATE] = t.UNNEEDED
                continue
            data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
            at, _ts, _delta, key_at, key_length, _value, _plain = parse_record(
                data, table[i, t.PAYLOAD_START], table[i, t.PAYLOAD_END]
            )
            if at < 0 or key_length < 4 or load_be16(data, key_at) < 0:
                return done, BAD_CONTROL, i
            kind = load_be16(data, key_at + 2)
            if kind == ABORT_MARKER:
                s = _slot(producers, producer_id)
                marks = producers[s, 1]
                table[i, t.STATE] = t.UNNEEDED
                if marks != MARK_EMPTY:
                    if marks & DATA_SEEN != 0:
                        table[i, t.STATE] = 0
                        finished[done] = producers[s, 2]
                        done += 1
                    producers[s, 1] = marks & COMMITTED_OPEN
            elif kind == COMMIT_MARKER:
                s = _slot(producers, producer_id)
                marks = producers[s, 1]
                if marks != MARK_EMPTY and marks & COMMITTED_OPEN != 0:
                    producers[s, 1] = marks & ~np.int64(COMMITTED_OPEN)
                else:
                    table[i, t.STATE] = t.UNNEEDED
        elif attributes & t.TRANSACTIONAL != 0:
            s = _marks(producers, state, producer_id)
            if producers[s, 1] & ABORTED_OPEN != 0:
                producers[s, 1] |= DATA_SEEN
                table[i, t.STATE] = t.ABORTED
            else:
                producers[s, 1] |= COMMITTED_OPEN
    return done, OK, 0


@kernel("void(int64[:, ::1], int64[:, ::1])")
def move_producers(source, target):
    """Insert every producer of ``source`` into the larger, empty ``target``."""
    for i in range(source.shape[0]):
        if source[i, 1] != MARK_EMPTY:
            s = _slot(target, source[i, 0])
            target[s, 0] = source[i, 0]
            target[s, 1] = source[i, 1]
            target[s, 2] = source[i, 2]
