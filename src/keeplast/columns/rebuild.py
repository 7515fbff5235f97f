"""Writes the batches that remain (copied, emptied or rebuilt) and derives their index entries.

A rebuilt batch keeps base offset, last offset, leader epoch, producer fields, codec, timestamp
type, transactional and control bits. Its base timestamp becomes the delete horizon, or the
timestamp of its first record; deltas follow. An old-format batch becomes magic 2 and spans its
first to its last retained record (F1). Sources: ``MemoryRecords.buildRetainedRecordsInto``,
``DefaultRecordBatch.writeEmptyHeader``; cleaning.md sections 3.7 and 3.8.

Records of compressed batches are written first (:func:`pack_payloads`) for the codec to run over;
then :func:`emit` writes everything in order.

Offset and time index entries are derived while batches are appended to a segment. One kernel serves
cleaned segments and indexes rebuilt in memory, because the two rules agree. The cleaner counts
bytes since the last entry *before* adding a batch. It may index a batch only after more than
``index.interval.bytes`` of others (F3). Recovery does the same by positions (formats.md section
2.4).

State (5): bytes since the last entry, maximum timestamp so far, its offset, last indexed
timestamp, position of the next batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.kernel import (
    BAD_ORDER,
    BAD_PRODUCER,
    BAD_TIMESTAMP,
    OK,
    inline,
    kernel,
    outline,
)
from keeplast.columns.machine import (
    copy_bytes,
    crc32c,
    load_be32,
    read_varint,
    read_varlong,
    store_be16,
    store_be32,
    store_be64,
    varlong_bytes,
    write_varlong,
)
from keeplast.columns.rows import PLAIN, parse_record

RECORD_GROWTH_MAX = 16
"""A re-encoded record is at most this much larger: a ten-byte timestamp delta, longer lengths."""

RUN_BYTES_MIN = 16 << 10
"""Neighbouring untouched batches of at least this size are written from where they lie."""

EXTENT_SOURCE = 0
EXTENT_OUTPUT = 1

RELATIVE_MAX = 2147483647


@inline
def _timestamp_delta(data, position, end):
    _length, at = read_varint(data, position, end)
    delta, at = read_varlong(data, at + 1, end)
    return delta


@kernel(
    "UniTuple(int64, 2)(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, int64[::1],"
    " int32[::1], uint8[::1])"
)
def describe_rebuilt(window, scratch, table, first, last, offsets, positions, keep):
    """Fill OUT_* of the batches to rebuild in ``[first, last)`` and check what a writer checks.

    OUT_BASE_TIMESTAMP comes in as the horizon or -1 and leaves as the base timestamp, with the
    DELETE_HORIZON attribute set or cleared to match. Returns (code, batch of the code).
    """
    for i in range(first, last):
        if table[i, t.ACTION] != t.ACTION_REBUILD:
            continue
        is_old = table[i, t.MAGIC] < 2
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        attributes = table[i, t.ATTRIBUTES]
        rows_start = table[i, t.FIRST_ROW]
        rows_end = rows_start + table[i, t.ROWS]
        is_append_time = attributes & t.LOG_APPEND_TIME != 0
        previous = np.int64(-1)
        first_timestamp = np.int64(0)
        max_timestamp = np.int64(-1)
        first_offset = np.int64(-1)
        for r in range(rows_start, rows_end):
            if keep[r] == 0:
                continue
            if first_offset >= 0 and offsets[r] <= previous:
                return BAD_ORDER, i
            previous = offsets[r]
            if is_append_time:
                timestamp = table[i, t.MAX_TIMESTAMP]
            else:
                end = table[i, t.PAYLOAD_END] if r + 1 == rows_end else positions[r + 1]
                timestamp = table[i, t.BASE_TIMESTAMP] + _timestamp_delta(data, positions[r], end)
            if timestamp < -1:
                return BAD_TIMESTAMP, i
            if first_offset < 0:
                first_offset = offsets[r]
                first_timestamp = timestamp
            max_timestamp = max(max_timestamp, timestamp)
        if is_old:
            table[i, t.OUT_BASE_OFFSET] = first_offset
            table[i, t.OUT_LAST_OFFSET] = previous
        else:
            table[i, t.OUT_BASE_OFFSET] = table[i, t.BASE_OFFSET]
            table[i, t.OUT_LAST_OFFSET] = table[i, t.LAST_OFFSET]
            if table[i, t.PRODUCER_ID] >= 0 and attributes & t.CONTROL == 0:
                if table[i, t.PRODUCER_EPOCH] < 0:
                    return BAD_PRODUCER, i
                if load_be32(window, table[i, t.POSITION] + 53) < 0:
                    return BAD_PRODUCER, i
        if previous - table[i, t.OUT_BASE_OFFSET] > RELATIVE_MAX:
            return BAD_ORDER, i
        table[i, t.OUT_MAX_TIMESTAMP] = (
            table[i, t.MAX_TIMESTAMP] if is_append_time else max_timestamp
        )
        if table[i, t.OUT_BASE_TIMESTAMP] >= 0:
            table[i, t.ATTRIBUTES] = attributes | t.DELETE_HORIZON
        else:
            table[i, t.ATTRIBUTES] = attributes & ~np.int64(t.DELETE_HORIZON)
            table[i, t.OUT_BASE_TIMESTAMP] = first_timestamp
    return OK, 0


@outline
def _write_record(out, at, data, position, end, timestamp_delta, offset_delta):
    """Re-encode one record with new deltas and the shortest varints; headers keep their bytes."""
    _next, _td, _od, key_at, key_length, value_length, _plain = parse_record(data, position, end)
    value_at = key_at + max(key_length, 0)
    _length, value_at = read_varint(data, value_at, end)
    headers_at = value_at + max(value_length, 0)
    headers, header_at = read_varint(data, headers_at, end)
    body = 1 + varlong_bytes(timestamp_delta) + varlong_bytes(offset_delta)
    body += varlong_bytes(key_length) + max(key_length, 0)
    body += varlong_bytes(value_length) + max(value_length, 0)
    body += varlong_bytes(headers)
    scan = header_at
    for _ in range(headers):
        n, scan = read_varint(data, scan, end)
        body += varlong_bytes(n) + n
        scan += n
        n, scan = read_varint(data, scan, end)
        body += varlong_bytes(max(n, np.int64(-1))) + max(n, 0)
        scan += max(n, 0)
    at = write_varlong(out, at, body)
    out[at] = 0
    at = write_varlong(out, at + 1, timestamp_delta)
    at = write_varlong(out, at, offset_delta)
    at = write_varlong(out, at, key_length)
    if key_length > 0:
        copy_bytes(out, at, data, key_at, key_length)
        at += key_length
    at = write_varlong(out, at, value_length)
    if value_length > 0:
        copy_bytes(out, at, data, value_at, value_length)
        at += value_length
    at = write_varlong(out, at, headers)
    scan = header_at
    for _ in range(headers):
        n, scan = read_varint(data, scan, end)
        at = write_varlong(out, at, n)
        copy_bytes(out, at, data, scan, n)
        at += n
        scan += n
        n, scan = read_varint(data, scan, end)
        at = write_varlong(out, at, max(n, np.int64(-1)))
        if n > 0:
            copy_bytes(out, at, data, scan, n)
            at += n
            scan += n
    return at


@inline
def _write_plain_record(out, at, data, position, end, timestamp_delta):
    """Do what :func:`_write_record` does for a PLAIN record whose offset delta stays as it is."""
    _length, body_at = read_varint(data, position, end)
    _delta, rest_at = read_varlong(data, body_at + 1, end)
    rest = end - rest_at
    at = write_varlong(out, at, 1 + varlong_bytes(timestamp_delta) + rest)
    out[at] = 0
    at = write_varlong(out, at + 1, timestamp_delta)
    copy_bytes(out, at, data, rest_at, rest)
    return at + rest


@outline
def _write_records(out, at, window, scratch, table, i, offsets, positions, flags, keep):
    """Write the retained records of batch ``i``; returns the next position."""
    data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
    rows_end = table[i, t.FIRST_ROW] + table[i, t.ROWS]
    base_timestamp = table[i, t.OUT_BASE_TIMESTAMP]
    shift = table[i, t.BASE_TIMESTAMP] - base_timestamp
    is_append_time = table[i, t.ATTRIBUTES] & t.LOG_APPEND_TIME != 0
    base_offset = table[i, t.OUT_BASE_OFFSET]
    keeps_deltas = base_offset == table[i, t.BASE_OFFSET]
    copies = shift == 0 and not is_append_time and keeps_deltas
    r = table[i, t.FIRST_ROW]
    while r < rows_end:
        if keep[r] == 0:
            r += 1
            continue
        start = np.int64(positions[r])
        if copies and flags[r] & PLAIN != 0:
            while r < rows_end and keep[r] != 0 and flags[r] & PLAIN != 0:
                r += 1
            end = table[i, t.PAYLOAD_END] if r == rows_end else np.int64(positions[r])
            copy_bytes(out, at, data, start, end - start)
            at += end - start
            continue
        r += 1
        end = table[i, t.PAYLOAD_END] if r == rows_end else np.int64(positions[r])
        if is_append_time:
            delta = table[i, t.MAX_TIMESTAMP] - base_timestamp
        else:
            delta = _timestamp_delta(data, start, end) + shift
        if keeps_deltas and flags[r - 1] & PLAIN != 0:
            at = _write_plain_record(out, at, data, start, end, delta)
            continue
        at = _write_record(out, at, data, start, end, delta, offsets[r - 1] - base_offset)
    return at


@kernel("int64(int64[:, ::1], int64, int64, int32[::1], uint8[::1], boolean)")
def payload_bytes_max(table, first, last, positions, keep, compressed):
    """Return an upper bound for the records of the batches to rebuild in ``[first, last)``.

    Counts the compressed ones only, or all others only.
    """
    total = 0
    for i in range(first, last):
        if table[i, t.ACTION] != t.ACTION_REBUILD:
            continue
        if (table[i, t.ATTRIBUTES] & t.CODEC_MASK != 0) != compressed:
            continue
        rows_end = table[i, t.FIRST_ROW] + table[i, t.ROWS]
        for r in range(table[i, t.FIRST_ROW], rows_end):
            if keep[r] != 0:
                end = table[i, t.PAYLOAD_END] if r + 1 == rows_end else positions[r + 1]
                total += end - positions[r] + RECORD_GROWTH_MAX
    return total


@kernel(
    "int64(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, int64[::1], int32[::1],"
    " uint8[::1], uint8[::1], uint8[::1])"
)
def pack_payloads(window, scratch, table, first, last, offsets, positions, flags, keep, payload):
    """Write the records of every compressed batch to rebuild, one after another.

    PACKED_START and PACKED_SIZE receive where. Returns the bytes written.
    """
    at = 0
    for i in range(first, last):
        if table[i, t.ACTION] == t.ACTION_REBUILD and table[i, t.ATTRIBUTES] & t.CODEC_MASK != 0:
            start = at
            at = _write_records(
                payload, at, window, scratch, table, i, offsets, positions, flags, keep
            )
            table[i, t.PACKED_START] = start
            table[i, t.PACKED_SIZE] = at - start
    return at


@outline
def _write_header(out, start, size, window, table, i, attributes, base_timestamp, max_timestamp,
                  count):  # fmt: skip
    base_offset = table[i, t.OUT_BASE_OFFSET]
    store_be64(out, start, base_offset)
    store_be32(out, start + 8, size - t.PREFIX_BYTES)
    out[start + 16] = 2
    store_be16(out, start + 21, attributes)
    store_be32(out, start + 23, table[i, t.OUT_LAST_OFFSET] - base_offset)
    store_be64(out, start + 27, base_timestamp)
    store_be64(out, start + 35, max_timestamp)
    if table[i, t.MAGIC] == 2:
        position = table[i, t.POSITION]
        copy_bytes(out, start + 12, window, position + 12, 4)
        copy_bytes(out, start + 43, window, position + 43, 14)
    else:
        store_be32(out, start + 12, -1)
        store_be64(out, start + 43, -1)
        store_be16(out, start + 51, -1)
        store_be32(out, start + 53, -1)
    store_be32(out, start + 57, count)
    store_be32(out, start + 17, crc32c(out, start + 21, start + size))


@kernel(
    "UniTuple(int64, 3)(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, int64[::1],"
    " int32[::1], uint8[::1], uint8[::1], uint8[::1], uint8[::1], int64[:, ::1], int64[:, ::1])"
)
def emit(
    window, scratch, table, first, last, offsets, positions, flags, keep, packed, out, batches,
    extents,
):  # fmt: skip
    """Write the output of batches ``[first, last)``.

    ``batches`` (n, 3) receives size, last offset and maximum timestamp of each output batch.
    ``extents`` (n, 3) receives, in order, kind, start and length of what makes up the output:
    a range of the window (EXTENT_SOURCE) or of ``out``. Returns (bytes in ``out``, output
    batches, extents).
    """
    at = 0
    n = 0
    pieces = 0
    i = first
    while i < last:
        action = table[i, t.ACTION]
        if action == t.ACTION_DROP:
            i += 1
            continue
        start = at
        from_source = False
        if action == t.ACTION_COPY:
            run_start = table[i, t.POSITION]
            run = 0
            # What was left out of the table lies between its neighbours.
            while (
                i < last
                and table[i, t.ACTION] == t.ACTION_COPY
                and table[i, t.POSITION] == run_start + run
            ):
                batches[n, 0] = table[i, t.SIZE]
                batches[n, 1] = table[i, t.LAST_OFFSET]
                batches[n, 2] = table[i, t.MAX_TIMESTAMP]
                run += table[i, t.SIZE]
                n += 1
                i += 1
            from_source = run >= RUN_BYTES_MIN
            if from_source:
                extents[pieces, 0] = EXTENT_SOURCE
                extents[pieces, 1] = run_start
                extents[pieces, 2] = run
                pieces += 1
            else:
                copy_bytes(out, at, window, run_start, run)
                at += run
        else:
            attributes = table[i, t.ATTRIBUTES]
            if action == t.ACTION_EMPTY:
                table[i, t.OUT_BASE_OFFSET] = table[i, t.BASE_OFFSET]
                table[i, t.OUT_LAST_OFFSET] = table[i, t.LAST_OFFSET]
                at += t.HEADER_BYTES
                max_timestamp = table[i, t.MAX_TIMESTAMP]
                _write_header(
                    out, start, t.HEADER_BYTES, window, table, i,
                    attributes & (t.LOG_APPEND_TIME | t.TRANSACTIONAL | t.CONTROL),
                    np.int64(-1), max_timestamp, 0,
                )  # fmt: skip
            else:
                at += t.HEADER_BYTES
                if attributes & t.CODEC_MASK != 0:
                    size = table[i, t.PACKED_SIZE]
                    copy_bytes(out, at, packed, table[i, t.PACKED_START], size)
                    at += size
                else:
                    at = _write_records(
                        out, at, window, scratch, table, i, offsets, positions, flags, keep
                    )
                max_timestamp = table[i, t.OUT_MAX_TIMESTAMP]
                _write_header(
                    out, start, at - start, window, table, i,
                    attributes & 0x7F, table[i, t.OUT_BASE_TIMESTAMP], max_timestamp,
                    table[i, t.KEPT],
                )  # fmt: skip
            batches[n, 0] = at - start
            batches[n, 1] = table[i, t.OUT_LAST_OFFSET]
            batches[n, 2] = max_timestamp
            n += 1
            i += 1
        if not from_source:
            if pieces > 0 and extents[pieces - 1, 0] == EXTENT_OUTPUT:
                extents[pieces - 1, 2] += at - start
            else:
                extents[pieces, 0] = EXTENT_OUTPUT
                extents[pieces, 1] = start
                extents[pieces, 2] = at - start
                pieces += 1
    return at, n, pieces


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
