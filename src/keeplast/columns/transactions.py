"""Follows transactions through the batches of a window, in offset order.

State is carried from window to window and segment to segment in two arrays that the caller owns:

* ``producers`` (slots, 3): an open-addressing table of producer id, marks, index of the aborted
  transaction; ``MARK_EMPTY`` in the marks of a free slot. Slots are never freed during a round.
* ``state``: ``NEXT_ABORTED`` is the first entry of ``aborted`` not yet reached, ``USED`` the
  number of taken slots. The table must have room for one more producer per batch of the window.

:func:`end_transactions` needs no index: it derives what one would say, from data and markers alone.

Answers to ``CleanedTransactionMetadata`` and ``ProducerAppendInfo``; cleaning.md section 3.5.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batches as t
from keeplast.columns.batches import has_right_crc
from keeplast.columns.kernel import BAD_CONTROL, BAD_CRC, OK, inline, kernel, outline
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
DATA = 2
"""Stands among the kinds of an event for transactional data."""
OTHER_MARKER = 3
"""Stands for every control record that ends no transaction."""
EVENT_COLUMNS = 3

HEAD = 0
TAIL = 2
"""In the ``state`` of :func:`end_transactions`: the open ones are ``order[HEAD:TAIL]``."""
END_COLUMNS = 4


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


@inline
def _advance(offset, producers, state, aborted):
    """Open the aborted transactions that begin at or below ``offset``."""
    while state[NEXT_ABORTED] < aborted.shape[0] and aborted[state[NEXT_ABORTED], 0] <= offset:
        k = state[NEXT_ABORTED]
        s = _marks(producers, state, aborted[k, 1])
        # The same transaction may be collected for several segments; the open one stays.
        if producers[s, 1] & ABORTED_OPEN == 0:
            producers[s, 1] = (producers[s, 1] & COMMITTED_OPEN) | ABORTED_OPEN
            producers[s, 2] = k
        state[NEXT_ABORTED] += 1


@inline
def _see_data(producers, state, producer_id):
    """Account for transactional data; says whether its transaction was aborted."""
    s = _marks(producers, state, producer_id)
    if producers[s, 1] & ABORTED_OPEN != 0:
        producers[s, 1] |= DATA_SEEN
        return True
    producers[s, 1] |= COMMITTED_OPEN
    return False


@inline
def _see_marker(producers, producer_id, kind):
    """Account for a marker; returns (is unneeded, aborted transaction that it ends or -1)."""
    s = _slot(producers, producer_id)
    marks = producers[s, 1]
    if kind == ABORT_MARKER:
        if marks == MARK_EMPTY:
            return True, np.int64(-1)
        producers[s, 1] = marks & COMMITTED_OPEN
        if marks & DATA_SEEN != 0:
            return False, producers[s, 2]
        return True, np.int64(-1)
    if marks != MARK_EMPTY and marks & COMMITTED_OPEN != 0:
        producers[s, 1] = marks & ~np.int64(COMMITTED_OPEN)
        return False, np.int64(-1)
    return True, np.int64(-1)


@inline
def _marker_kind(window, scratch, table, i):
    """Return the type of the control record of batch ``i``; -1 when it cannot be read."""
    data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
    at, _ts, _delta, key_at, key_length, _value, _plain = parse_record(
        data, table[i, t.PAYLOAD_START], table[i, t.PAYLOAD_END]
    )
    if at < 0 or key_length < 4 or load_be16(data, key_at) < 0:
        return np.int64(-1)
    kind = load_be16(data, key_at + 2)
    return np.int64(kind) if kind >= 0 else np.int64(OTHER_MARKER)


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
        _advance(table[i, t.LAST_OFFSET], producers, state, aborted)
        attributes = table[i, t.ATTRIBUTES]
        if table[i, t.MAGIC] < 2:
            continue
        if attributes & t.CONTROL != 0:
            if table[i, t.COUNT] == 0:
                table[i, t.STATE] = t.UNNEEDED
                continue
            kind = _marker_kind(window, scratch, table, i)
            if kind < 0:
                return done, BAD_CONTROL, i
            if kind <= COMMIT_MARKER:
                unneeded, ended = _see_marker(producers, table[i, t.PRODUCER_ID], kind)
                table[i, t.STATE] = t.UNNEEDED if unneeded else 0
                if ended >= 0:
                    finished[done] = ended
                    done += 1
        elif attributes & t.TRANSACTIONAL != 0:
            is_aborted = _see_data(producers, state, table[i, t.PRODUCER_ID])
            table[i, t.STATE] = t.ABORTED if is_aborted else 0
    return done, OK, 0


@kernel(
    "UniTuple(int64, 3)(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, int64[:, ::1],"
    " int64[::1], int64[:, ::1], int64[:, ::1])"
)
def list_events(window, scratch, table, first, last, producers, state, aborted, events):
    """List what :func:`replay` needs to know of the batches ``[first, last)``.

    ``events`` (n, 3) receives last offset, producer id and kind: a marker's type, or DATA. Data is
    left out while it can change nothing. That is so when, since the producer's last data that was
    listed, no marker of it was met and none of its aborted transactions began. ``producers`` and
    ``state`` are of the lister's own, empty at the first batch of a segment. Returns as
    :func:`follow` does.
    """
    listed = 0
    for i in range(first, last):
        offset = table[i, t.LAST_OFFSET]
        while state[NEXT_ABORTED] < aborted.shape[0] and aborted[state[NEXT_ABORTED], 0] <= offset:
            s = _marks(producers, state, aborted[state[NEXT_ABORTED], 1])
            producers[s, 1] = 0
            state[NEXT_ABORTED] += 1
        attributes = table[i, t.ATTRIBUTES]
        if table[i, t.MAGIC] < 2:
            continue
        kind = np.int64(OTHER_MARKER)
        producer_id = table[i, t.PRODUCER_ID]
        if attributes & t.CONTROL != 0:
            if table[i, t.COUNT] == 0:
                continue
            kind = _marker_kind(window, scratch, table, i)
            if kind < 0:
                return listed, BAD_CONTROL, i
            if kind > COMMIT_MARKER:
                continue
            s = _marks(producers, state, producer_id)
            producers[s, 1] = 0
        elif attributes & t.TRANSACTIONAL != 0:
            s = _marks(producers, state, producer_id)
            if producers[s, 1] & DATA_SEEN != 0:
                continue
            producers[s, 1] = DATA_SEEN
            kind = np.int64(DATA)
        else:
            continue
        events[listed, 0] = offset
        events[listed, 1] = producer_id
        events[listed, 2] = kind
        listed += 1
    return listed, OK, 0


@kernel("void(int64[:, ::1], int64, int64, int64[:, ::1], int64[::1], int64[:, ::1])")
def replay(events, first, last, producers, state, aborted):
    """Advance over the events ``[first, last)`` as :func:`follow` does over their batches.

    What begins between two events is opened at the later one, which makes no difference.
    """
    for i in range(first, last):
        _advance(events[i, 0], producers, state, aborted)
        kind = events[i, 2]
        if kind == DATA:
            _see_data(producers, state, events[i, 1])
        elif kind <= COMMIT_MARKER:
            _see_marker(producers, events[i, 1], kind)


@kernel("void(int64[:, ::1], int64[:, ::1])")
def move_producers(source, target):
    """Insert every producer of ``source`` with a mark into the empty ``target``, which has room.

    A producer without a mark is as good as one that was never met.
    """
    for i in range(source.shape[0]):
        if source[i, 1] > 0:
            s = _slot(target, source[i, 0])
            target[s, 0] = source[i, 0]
            target[s, 1] = source[i, 1]
            target[s, 2] = source[i, 2]


@kernel(
    "UniTuple(int64, 3)(uint8[::1], int64[:, ::1], int64, int64[::1], int64[:, ::1], int64[::1],"
    " int64[:, ::1], int64[:, ::1])"
)
def end_transactions(window, table, n, kinds, producers, state, order, ended):
    """List the aborted transactions with data that the markers of the first ``n`` batches end.

    ``producers`` has COMMITTED_OPEN and the first offset of each open transaction, and ``n`` slots
    to spare. ``order`` (with ``n`` rows to spare) has producer and first offset of those,
    ascending, among some that have ended since. ``ended`` receives producer id, first offset,
    offset of the marker, and last stable offset after it: where the earliest other transaction
    began, else the next offset. ``kinds`` has the marker type of each compressed control batch; it
    may be empty without any. The CRCs of control batches are checked. Returns (ended, code, batch
    of the code).
    """
    done = 0
    for i in range(n):
        attributes = table[i, t.ATTRIBUTES]
        if table[i, t.MAGIC] < 2 or attributes & (t.TRANSACTIONAL | t.CONTROL) == 0:
            continue
        producer_id = table[i, t.PRODUCER_ID]
        if producer_id < 0:
            continue
        if attributes & t.CONTROL == 0:
            s = _marks(producers, state, producer_id)
            if producers[s, 1] == 0:
                producers[s, 1] = COMMITTED_OPEN
                producers[s, 2] = table[i, t.BASE_OFFSET]
                order[state[TAIL], 0] = producer_id
                order[state[TAIL], 1] = table[i, t.BASE_OFFSET]
                state[TAIL] += 1
            continue
        if table[i, t.COUNT] == 0:
            continue
        if not has_right_crc(window, table, i):
            return done, BAD_CRC, i
        kind = kinds[i] if table[i, t.PAYLOAD_IN] < 0 else _marker_kind(window, window, table, i)
        if kind < 0:
            return done, BAD_CONTROL, i
        s = _slot(producers, producer_id)
        if kind > COMMIT_MARKER or producers[s, 1] != COMMITTED_OPEN:
            continue
        producers[s, 1] = 0
        while state[HEAD] < state[TAIL]:
            at = state[HEAD]
            first = _slot(producers, order[at, 0])
            if producers[first, 1] == COMMITTED_OPEN and producers[first, 2] == order[at, 1]:
                break
            state[HEAD] += 1
        if kind == ABORT_MARKER:
            ended[done, 0] = producer_id
            ended[done, 1] = producers[s, 2]
            ended[done, 2] = table[i, t.LAST_OFFSET]
            is_last = state[HEAD] == state[TAIL]
            ended[done, 3] = table[i, t.LAST_OFFSET] + 1 if is_last else order[state[HEAD], 1]
            done += 1
    return done, OK, 0


@kernel("UniTuple(int64, 3)(uint8[::1], int64[:, ::1], int64, int64[::1], int64[:, ::1])")
def list_markers(window, table, n, kinds, markers):
    """List the transaction markers among the first ``n`` batches: producer id, offset, type.

    ``kinds`` and the rest as for :func:`end_transactions`. Returns (markers, code, batch of it).
    """
    listed = 0
    for i in range(n):
        if table[i, t.MAGIC] < 2 or table[i, t.ATTRIBUTES] & t.CONTROL == 0:
            continue
        if table[i, t.COUNT] == 0 or table[i, t.PRODUCER_ID] < 0:
            continue
        if not has_right_crc(window, table, i):
            return listed, BAD_CRC, i
        kind = kinds[i] if table[i, t.PAYLOAD_IN] < 0 else _marker_kind(window, window, table, i)
        if kind < 0:
            return listed, BAD_CONTROL, i
        if kind <= COMMIT_MARKER:
            markers[listed, 0] = table[i, t.PRODUCER_ID]
            markers[listed, 1] = table[i, t.LAST_OFFSET]
            markers[listed, 2] = kind
            listed += 1
    return listed, OK, 0
