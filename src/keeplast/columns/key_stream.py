"""Reads keys from the bytes of plain batches: no table, and of a record only what is in front.

For the first pass, which wants offset and key of each record and nothing else. Plain is a batch of
magic 2 that is neither compressed nor of a transaction nor control; at any other the stream stops.
A record may reach beyond the window: where its key ends inside, the rest is stepped over, so that
values need not be in memory, nor be read.

What this does not look at (values, headers, CRCs) the second pass does, before anything is
committed. Nothing here says what is wrong with a log: whoever is refused reads it the other way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.columns.hashing import siphash128
from keeplast.columns.kernel import OK, TOO_MANY, inline, kernel
from keeplast.columns.machine import load_be32, load_be64
from keeplast.columns.rows import HAS_KEY
from keeplast.columns.varints import read_varint, read_varlong
from keeplast.columns.verdicts import DISORDER

NOT_PLAIN = t.CODEC_MASK | t.CONTROL | t.TRANSACTIONAL

CUT = 101
"""The window ends before the next key does."""
REFUSED = 102
"""The next batch is not plain, or something is wrong with it."""
BROKEN = 103
"""A record does not fit its batch."""

LEFT = 0
"""``state``: records of the present batch that are still to come."""
BASE_OFFSET = 1
BATCH_END = 2
"""``state``: where the present batch ends, from the start of the next window."""
LAST_OFFSET = 3
"""``state``: of the last record, or DISORDER once they did not ascend."""
MESSAGES = 4
LATEST = 5
"""``state``: the last offset of the last batch that reaches the dirty section."""
STATE_SIZE = 6


def new_stream_state() -> NDArray[np.int64]:
    """Return the state between two batches; LAST_OFFSET and LATEST are the caller's to set."""
    return np.zeros(STATE_SIZE, np.int64)


@inline
def _enter_batch(data, at, rest, first_dirty, state):
    """Read the header at ``at``; returns its size, or 0 when the batch is refused."""
    size = load_be32(data, at + 8) + t.PREFIX_BYTES
    count = load_be32(data, at + 57)
    if data[at + 16] != 2 or size < t.HEADER_BYTES or size > rest or count < 0:
        return np.int64(0)
    if np.int64(data[at + 22]) & NOT_PLAIN != 0 or count > (size - t.HEADER_BYTES) // 7 + 1:
        return np.int64(0)
    state[BASE_OFFSET] = load_be64(data, at)
    last_offset = state[BASE_OFFSET] + load_be32(data, at + 23)
    if last_offset >= first_dirty:
        state[LATEST] = last_offset
    state[MESSAGES] += count
    state[LEFT] = count
    state[BATCH_END] = at + size
    return size


@inline
def _find_key(data, at, length, batch_end):
    """Return (end of the record, offset delta, key position, key length, code)."""
    nothing = np.int64(0)
    limit = min(length, batch_end)
    size, at = read_varint(data, at, limit)
    stop = at + size
    if at >= 0:
        if size < 0 or stop > batch_end:
            return nothing, nothing, nothing, nothing, BROKEN
        limit = min(length, stop)
        _timestamp, at = read_varlong(data, at + 1, limit)
        if at >= 0:
            delta, at = read_varint(data, at, limit)
            if at >= 0:
                key_length, at = read_varint(data, at, limit)
                if at >= 0 and key_length <= stop - at:
                    code = OK if at + key_length <= length else CUT
                    return stop, delta, at, key_length, code
                if at >= 0:
                    return nothing, nothing, nothing, nothing, BROKEN
    # A number that runs out of the window may be whole in a larger one.
    return nothing, nothing, nothing, nothing, CUT if limit == length else BROKEN


@kernel(
    "UniTuple(int64, 3)(uint8[::1], int64, int64, int64, int64[::1], int64, uint64, uint64,"
    " int64[::1], uint64[:, ::1], uint8[::1])"
)
def stream_keys(
    data, length, rest, first_dirty, state, first_row, k0, k1, offsets, hashes, flags
):  # fmt: skip
    """Append a row for each record with a key from ``first_dirty`` on, from ``data[:length]``.

    ``rest`` is how many bytes the segment has from the start of the window. Returns (bytes that
    are done, rows, code): more bytes than the window has when a value reaches beyond it. TOO_MANY
    means that the rows are full; the other codes but OK describe what comes next.
    """
    at = np.int64(0)
    n = first_row
    code = np.int64(OK)
    while True:
        if state[LEFT] == 0:
            if at >= length:
                break
            if length - at < t.HEADER_BYTES:
                code = np.int64(CUT)
                break
            size = _enter_batch(data, at, rest - at, first_dirty, state)
            if size == 0:
                code = np.int64(REFUSED)
                break
            if state[LEFT] == 0:
                at += size
                continue
            at += t.HEADER_BYTES
        if at >= length:
            break
        if n == offsets.shape[0]:
            code = np.int64(TOO_MANY)
            break
        stop, delta, key_at, key_length, code = _find_key(data, at, length, state[BATCH_END])
        if code != OK:
            break
        offset = state[BASE_OFFSET] + delta
        ascends = state[LAST_OFFSET] != DISORDER and offset > state[LAST_OFFSET]
        state[LAST_OFFSET] = offset if ascends else DISORDER
        if key_length >= 0 and offset >= first_dirty:
            hashes[n, 0], hashes[n, 1] = siphash128(data, key_at, key_length, k0, k1)
            offsets[n] = offset
            flags[n] = HAS_KEY
            n += 1
        at = stop
        state[LEFT] -= 1
        if state[LEFT] == 0 and at != state[BATCH_END]:
            code = np.int64(BROKEN)
            break
    state[BATCH_END] -= at
    return at, n, code
