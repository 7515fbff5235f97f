"""Records as columns, in buffers laid out the way Arrow has them.

One record is one row. Variable-length columns are an array of bytes and an array of ends: row ``r``
has the bytes from ``ends[r]`` to ``ends[r + 1]``, so both begin with a zero. Headers are a list
column: row ``r`` has the headers from ``ends[HEADERS, r]`` to ``ends[HEADERS, r + 1]``, and those
have ends and bytes of their own.

The buffers are filled from window to window until one of them is full. Where that happened is in
the cursor. So no batch has to fit as a whole and memory is bounded by the buffers. Everything is
parsed as :mod:`keeplast.columns.rows` does, and nothing is believed that was not checked.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batches as t
from keeplast.columns.kernel import BAD_COUNT, BAD_RECORD, OK, TOO_MANY, inline, kernel
from keeplast.columns.machine import copy_bytes, load_be32, read_varint
from keeplast.columns.rows import parse_record
from keeplast.model.partition import INT64_MAX, NO_TIMESTAMP

OFFSET = 0
TIMESTAMP = 1
PRODUCER_ID = 2
LONGS = 3
"""Columns of eight bytes; the timestamp is in microseconds."""

TIMESTAMP_TYPE = 0
LEADER_EPOCH = 1
INTS = 2
"""Columns of four bytes."""

HAS_KEY = 0
HAS_VALUE = 1
HAS_HEADERS = 2
HAS_TIMESTAMP = 3
HAS_PRODUCER = 4
HAS_EPOCH = 5
IS_TRANSACTIONAL = 6
MARKS = 7
"""Columns of one byte, 0 or 1."""

KEYS = 0
VALUES = 1
HEADERS = 2
ENDS = 3
"""Columns of ends."""

HEADER_KEYS = 0
HEADER_VALUES = 1
HEADER_ENDS = 2
"""Columns of ends of the headers' bytes."""

BATCH = 0
RECORD = 1
AT = 2
ROWS = 3
HEADER_ROWS = 4
NEED_KEY = 5
NEED_VALUE = 6
NEED_HEADERS = 7
NEED_HEADER_KEYS = 8
NEED_HEADER_VALUES = 9
CURSOR = 10
"""The cursor: batch, record in it and its position; rows and headers filled; what the record that
did not fit into empty buffers needs."""

FIRST_OFFSET = 0
END_OFFSET = 1
FIRST_MS = 2
LAST_MS = 3
BOUNDS = 4
"""Bounds of the rows that are wanted: offsets [first, end), timestamps [first, last]."""

NO_TIMESTAMP_TYPE = -1
CREATE_TIME = 0
APPEND_TIME = 1

MICROS_MAX = (1 << 63) - 1
_MILLIS_MAX = MICROS_MAX // 1000


@inline
def _micros(millis):
    """Return microseconds; what lies beyond their range becomes its end."""
    if millis > _MILLIS_MAX:
        return np.int64(MICROS_MAX)
    if millis < -_MILLIS_MAX:
        return np.int64(-MICROS_MAX)
    return millis * 1000


@inline
def _measure_headers(data, at, end, count):
    """Return the bytes of all keys and of all values of headers that have been parsed."""
    key_bytes = np.int64(0)
    value_bytes = np.int64(0)
    for _ in range(count):
        n, at = read_varint(data, at, end)
        key_bytes += n
        n, at = read_varint(data, at + n, end)
        if n > 0:
            value_bytes += n
            at += n
    return key_bytes, value_bytes


@inline
def _copy_headers(data, at, end, count, row, ends, marks, keys, values):
    for h in range(row, row + count):
        n, at = read_varint(data, at, end)
        key_end = np.int64(ends[HEADER_KEYS, h])
        copy_bytes(keys, key_end, data, at, n)
        ends[HEADER_KEYS, h + 1] = key_end + n
        n, at = read_varint(data, at + n, end)
        value_end = np.int64(ends[HEADER_VALUES, h])
        marks[h] = n >= 0
        if n > 0:
            copy_bytes(values, value_end, data, at, n)
            value_end += n
            at += n
        ends[HEADER_VALUES, h + 1] = value_end


@kernel(
    "int64(uint8[::1], uint8[::1], int64[:, ::1], int64, uint8[::1], int64[::1], int64[::1],"
    " int64[:, ::1], int32[:, ::1], uint8[:, ::1], int32[:, ::1], uint8[::1], uint8[::1],"
    " int32[:, ::1], uint8[::1], uint8[::1], uint8[::1])"
)
def fill_columns(
    window, scratch, table, last, selected, bounds, cursor,
    longs, ints, marks, ends, keys, values, header_ends, header_marks, header_keys, header_values,
):  # fmt: skip
    """Append the wanted records from the cursor on, up to batch ``last``.

    Batches with VERDICT ``DELETE`` have none. ``selected`` is empty, or says by row of the slice
    (FIRST_ROW and up) which are wanted. Returns OK when the batches or the buffers are exhausted
    (the cursor's BATCH is ``last``, or below it). TOO_MANY says that not even one record fits into
    empty buffers (the cursor says what it needs). Any other code is what is wrong with the cursor's
    batch.
    """
    uses_selection = selected.shape[0] > 0
    # A record without a timestamp lies in no range of times; -1 is not the end of 1969 here.
    is_timed = bounds[FIRST_MS] > -INT64_MAX - 1 or bounds[LAST_MS] < INT64_MAX
    i = cursor[BATCH]
    k = cursor[RECORD]
    at = cursor[AT]
    r = cursor[ROWS]
    h = cursor[HEADER_ROWS]
    code = OK
    while i < last and code == OK:
        count = table[i, t.COUNT]
        if table[i, t.VERDICT] == t.DELETE or count == 0:
            i += 1
            continue
        end = table[i, t.PAYLOAD_END]
        if k == 0:
            at = table[i, t.PAYLOAD_START]
            if count > (end - at) // 7 + 1:
                code = BAD_COUNT
                break
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        is_new = table[i, t.MAGIC] == 2
        attributes = table[i, t.ATTRIBUTES]
        is_append_time = attributes & t.LOG_APPEND_TIME != 0
        kind = APPEND_TIME if is_append_time else CREATE_TIME
        if table[i, t.MAGIC] == 0:
            kind = NO_TIMESTAMP_TYPE
        epoch = load_be32(window, table[i, t.POSITION] + t.PREFIX_BYTES) if is_new else -1
        producer_id = table[i, t.PRODUCER_ID]
        is_transactional = is_new and attributes & t.TRANSACTIONAL != 0
        is_full = False
        while k < count:
            next_at, delta_ms, delta, key_at, key_length, value_length, _plain = parse_record(
                data, at, end
            )
            if next_at < 0:
                code = BAD_RECORD
                break
            offset = table[i, t.BASE_OFFSET] + delta
            millis = table[i, t.BASE_TIMESTAMP] + delta_ms
            if is_new and is_append_time:
                millis = table[i, t.MAX_TIMESTAMP]
            wanted = (
                offset >= bounds[FIRST_OFFSET]
                and offset < bounds[END_OFFSET]
                and millis >= bounds[FIRST_MS]
                and millis <= bounds[LAST_MS]
                and (millis != NO_TIMESTAMP or not is_timed)
            )
            if wanted and uses_selection:
                wanted = selected[table[i, t.FIRST_ROW] + k] != 0
            if wanted:
                key_bytes = max(key_length, np.int64(0))
                value_bytes = max(value_length, np.int64(0))
                _length, value_at = read_varint(data, key_at + key_bytes, end)
                headers, headers_at = read_varint(data, value_at + value_bytes, end)
                header_key_bytes = np.int64(0)
                header_value_bytes = np.int64(0)
                if headers > 0:
                    header_key_bytes, header_value_bytes = _measure_headers(
                        data, headers_at, end, headers
                    )
                key_end = np.int64(ends[KEYS, r])
                value_end = np.int64(ends[VALUES, r])
                if (
                    r >= longs.shape[1]
                    or key_bytes > keys.shape[0] - key_end
                    or value_bytes > values.shape[0] - value_end
                    or headers > header_marks.shape[0] - h
                    or header_key_bytes > header_keys.shape[0] - header_ends[HEADER_KEYS, h]
                    or header_value_bytes > header_values.shape[0] - header_ends[HEADER_VALUES, h]
                ):
                    is_full = True
                    if r == 0:
                        code = TOO_MANY
                        cursor[NEED_KEY] = key_bytes
                        cursor[NEED_VALUE] = value_bytes
                        cursor[NEED_HEADERS] = headers
                        cursor[NEED_HEADER_KEYS] = header_key_bytes
                        cursor[NEED_HEADER_VALUES] = header_value_bytes
                    break
                longs[OFFSET, r] = offset
                longs[TIMESTAMP, r] = _micros(millis)
                longs[PRODUCER_ID, r] = producer_id
                ints[TIMESTAMP_TYPE, r] = kind
                ints[LEADER_EPOCH, r] = epoch
                marks[HAS_KEY, r] = key_length >= 0
                marks[HAS_VALUE, r] = value_length >= 0
                marks[HAS_HEADERS, r] = headers > 0
                marks[HAS_TIMESTAMP, r] = millis != NO_TIMESTAMP
                marks[HAS_PRODUCER, r] = producer_id >= 0
                marks[HAS_EPOCH, r] = epoch >= 0
                marks[IS_TRANSACTIONAL, r] = is_transactional
                copy_bytes(keys, key_end, data, key_at, key_bytes)
                copy_bytes(values, value_end, data, value_at, value_bytes)
                ends[KEYS, r + 1] = key_end + key_bytes
                ends[VALUES, r + 1] = value_end + value_bytes
                if headers > 0:
                    _copy_headers(
                        data, headers_at, end, headers, h,
                        header_ends, header_marks, header_keys, header_values,
                    )  # fmt: skip
                    h += headers
                ends[HEADERS, r + 1] = h
                r += 1
            at = next_at
            k += 1
        if is_full or code != OK:
            break
        if at != end:
            code = BAD_COUNT
            break
        i += 1
        k = 0
    cursor[BATCH] = i
    cursor[RECORD] = k
    cursor[AT] = at
    cursor[ROWS] = r
    cursor[HEADER_ROWS] = h
    return code
