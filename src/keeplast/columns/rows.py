"""Records of batches as rows: offset, key identity, position, and what is null.

A row column is one array; row ``r`` of batch ``i`` satisfies
``table[i, FIRST_ROW] <= r < table[i, FIRST_ROW] + table[i, ROWS]``, in record order. A record's
bytes run from its position to the next row's of the same batch, or to the end of the payload.

Everything is parsed, header fields included, because Kafka's cleaner does so too and fails on
what does not parse (``DefaultRecord.readFrom``; formats.md section 1.3).
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.columns.hashing import siphash128
from keeplast.columns.kernel import BAD_COUNT, BAD_RECORD, OK, TOO_MANY, inline, kernel
from keeplast.columns.varints import (
    is_shortest_varint,
    is_shortest_varlong,
    read_varint,
    read_varlong,
)
from keeplast.columns.winners import UNKNOWN

HAS_KEY = 1
HAS_VALUE = 2
PLAIN = 4
"""The record's bytes are what Kafka's writer would write for the same values."""


@inline
def parse_record(data, at, end):
    """Parse one record of the magic 2 layout.

    Returns (next position or -1, timestamp delta, offset delta, key position, key length or -1,
    value length or -1, is plain).
    """
    bad = (
        np.int64(-1),
        np.int64(0),
        np.int64(0),
        np.int64(0),
        np.int64(0),
        np.int64(0),
        np.int64(0),
    )
    start = at
    length, at = read_varint(data, at, end)
    if at < 0 or length < 0 or length > end - at:
        return bad
    plain = is_shortest_varint(data, start, at)
    stop = at + length
    if at >= stop:
        return bad
    plain = plain and data[at] == 0
    at += 1
    start = at
    timestamp_delta, at = read_varlong(data, at, stop)
    if at < 0:
        return bad
    plain = plain and is_shortest_varlong(data, start, at)
    start = at
    offset_delta, at = read_varint(data, at, stop)
    if at < 0:
        return bad
    plain = plain and is_shortest_varint(data, start, at)
    start = at
    key_length, at = read_varint(data, at, stop)
    if at < 0 or key_length > stop - at:
        return bad
    plain = plain and is_shortest_varint(data, start, at) and key_length >= -1
    key_at = at
    if key_length > 0:
        at += key_length
    start = at
    value_length, at = read_varint(data, at, stop)
    if at < 0 or value_length > stop - at:
        return bad
    plain = plain and is_shortest_varint(data, start, at) and value_length >= -1
    if value_length > 0:
        at += value_length
    start = at
    headers, at = read_varint(data, at, stop)
    if at < 0 or headers < 0 or headers > stop - at:
        return bad
    plain = plain and is_shortest_varint(data, start, at)
    for _ in range(headers):
        start = at
        n, at = read_varint(data, at, stop)
        if at < 0 or n < 0 or n > stop - at:
            return bad
        plain = plain and is_shortest_varint(data, start, at)
        at += n
        start = at
        n, at = read_varint(data, at, stop)
        if at < 0 or n > stop - at:
            return bad
        plain = plain and is_shortest_varint(data, start, at) and n >= -1
        if n > 0:
            at += n
    if at != stop:
        return bad
    return (
        at,
        timestamp_delta,
        offset_delta,
        key_at,
        max(key_length, np.int64(-1)),
        max(value_length, np.int64(-1)),
        np.int64(plain),
    )


@kernel(
    "UniTuple(int64, 4)(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, int64, uint64, uint64,"
    " int64[::1], uint64[:, ::1], int32[::1], uint8[::1], int64, uint8[::1], uint8[::1])"
)
def parse_rows(
    window, scratch, table, first, last, first_row, k0, k1, offsets, hashes, positions, flags,
    first_noted, notes, standings,
):  # fmt: skip
    """Fill rows from the batches ``[first, last)``, rows starting at ``first_row``.

    Batches with VERDICT ``DELETE`` get no rows. ``standings`` receives what the ``notes`` of a
    ledger that starts at offset ``first_noted`` say, and ``hashes`` (rows, 2) the identity of the
    keys of which they say nothing, for their records to be looked up. Returns (next batch, end
    of the rows, rows with a hash, code); code ``TOO_MANY`` means that the row arrays are full
    before the next batch, any other code describes the batch ``next batch``.
    """
    n = first_row
    hashed = 0
    for i in range(first, last):
        table[i, t.FIRST_ROW] = n
        table[i, t.ROWS] = 0
        if table[i, t.VERDICT] == t.DELETE:
            continue
        count = table[i, t.COUNT]
        if count == 0:
            continue
        at = table[i, t.PAYLOAD_START]
        end = table[i, t.PAYLOAD_END]
        if count > (end - at) // 7 + 1:
            return i, n, hashed, BAD_COUNT
        if n + count > offsets.shape[0]:
            return i, n, hashed, TOO_MANY
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        base = table[i, t.BASE_OFFSET]
        is_data = table[i, t.ATTRIBUTES] & t.CONTROL == 0
        for _ in range(count):
            position = at
            at, _timestamp, delta, key_at, key_length, value_length, plain = parse_record(
                data, at, end
            )
            if at < 0:
                return i, n, hashed, BAD_RECORD
            offsets[n] = base + delta
            positions[n] = position
            mark = PLAIN if plain != 0 else 0
            if key_length >= 0:
                mark |= HAS_KEY
                if is_data:
                    noted = base + delta - first_noted
                    known = UNKNOWN
                    if 0 <= noted < notes.shape[0]:
                        known = notes[noted]
                    standings[n] = known
                    if known == UNKNOWN:
                        a, b = siphash128(data, key_at, key_length, k0, k1)
                        hashes[n, 0] = a
                        hashes[n, 1] = b
                        hashed += 1
            if value_length >= 0:
                mark |= HAS_VALUE
            flags[n] = mark
            n += 1
        if at != end:
            return i, n, hashed, BAD_COUNT
        table[i, t.ROWS] = count
    return last, n, hashed, OK
