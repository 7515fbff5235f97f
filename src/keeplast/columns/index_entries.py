"""Derives offset and time index entries while batches are appended to a segment.

One rule for cleaned segments and for indexes rebuilt in memory would be wrong: the cleaner counts
bytes since the last entry *before* adding a batch and may index a batch only after more than
``index.interval.bytes`` of others (F3), which is also what recovery does by positions
(formats.md section 2.4). The two agree, so one kernel serves both.

State (5): bytes since the last entry, maximum timestamp so far, its offset, last indexed
timestamp, position of the next batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.kernel import kernel

SINCE = 0
MAX_TIMESTAMP = 1
MAX_TIMESTAMP_OFFSET = 2
LAST_TIMESTAMP = 3
POSITION = 4
STATE_SIZE = 5


def new_index_state(base_offset: int) -> NDArray[np.int64]:
    """Return the state at the start of a segment."""
    return np.array([0, -1, base_offset, -1, 0], np.int64)


@kernel(
    "UniTuple(int64, 2)(int64[:, ::1], int64, int64, int64, int64[::1], int64[:, ::1],"
    " int64[:, ::1])"
)
def index_batches(batches, n, base_offset, interval, state, offset_entries, time_entries):
    """Append ``n`` batches (size, last offset, maximum timestamp) and emit the entries due.

    Entries are (relative offset, position) and (timestamp, relative offset); there is room for
    one of each per batch. Returns (offset entries, time entries).
    """
    o = 0
    k = 0
    for i in range(n):
        if batches[i, 2] > state[MAX_TIMESTAMP]:
            state[MAX_TIMESTAMP] = batches[i, 2]
            state[MAX_TIMESTAMP_OFFSET] = batches[i, 1]
        if state[SINCE] > interval:
            offset_entries[o, 0] = batches[i, 1] - base_offset
            offset_entries[o, 1] = state[POSITION]
            o += 1
            if state[MAX_TIMESTAMP] > state[LAST_TIMESTAMP]:
                time_entries[k, 0] = state[MAX_TIMESTAMP]
                time_entries[k, 1] = state[MAX_TIMESTAMP_OFFSET] - base_offset
                state[LAST_TIMESTAMP] = state[MAX_TIMESTAMP]
                k += 1
            state[SINCE] = 0
        state[SINCE] += batches[i, 0]
        state[POSITION] += batches[i, 0]
    return o, k


def final_time_entry(state: NDArray[np.int64], base_offset: int) -> tuple[int, int] | None:
    """Return the entry that closes a segment's time index, or None when it adds nothing."""
    if state[MAX_TIMESTAMP] > state[LAST_TIMESTAMP]:
        return int(state[MAX_TIMESTAMP]), int(state[MAX_TIMESTAMP_OFFSET]) - base_offset
    return None
