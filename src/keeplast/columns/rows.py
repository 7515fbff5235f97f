"""Records of batches as rows, and the identity of their keys.

The identity of a key inside one round is a keyed 128-bit SipHash. The hash key is random per round,
so that two keys with one identity cannot be crafted; ten thousand million keys collide with
probability 10^-19. One compression round and three finalisation rounds (SipHash-1-3): the output is
never shown, so the stronger 2-4 buys nothing. Source: Aumasson and Bernstein, "SipHash: a fast
short-input PRF", with its 128-bit variant.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batches as t
from keeplast.columns.kernel import BAD_COUNT, BAD_RECORD, OK, TOO_MANY, inline, kernel
from keeplast.columns.machine import (
    is_shortest_varint,
    is_shortest_varlong,
    load_le64,
    read_varint,
    read_varlong,
)
from keeplast.columns.winners import UNKNOWN


@inline
def _rotate(x, bits):
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@inline
def _round(v0, v1, v2, v3):
    v0 += v1
    v1 = _rotate(v1, 13)
    v1 ^= v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16)
    v3 ^= v2
    v0 += v3
    v3 = _rotate(v3, 21)
    v3 ^= v0
    v2 += v1
    v1 = _rotate(v1, 17)
    v1 ^= v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inline
def siphash128(data, start, length, k0, k1):
    """Return the two halves of the hash of ``data[start : start + length]`` as uint64."""
    v0 = k0 ^ np.uint64(0x736F6D6570736575)
    v1 = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = k0 ^ np.uint64(0x6C7967656E657261)
    v3 = k1 ^ np.uint64(0x7465646279746573)
    at = start
    whole = start + (length & ~7)
    while at < whole:
        word = load_le64(data, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    word = np.uint64(length & 0xFF) << np.uint64(56)
    rest = length & 7
    if rest and length > 7:
        # The last eight bytes at once, without those of them that are in a word already.
        word |= load_le64(data, whole + rest - 8) >> np.uint64(64 - 8 * rest)
    else:
        for i in range(rest):
            word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@kernel("void(uint8[::1], uint64, uint64, uint64[::1])")
def hash_of(key, k0, k1, found):
    """Write the two halves of the hash of one key to ``found``."""
    found[0], found[1] = siphash128(key, 0, key.shape[0], k0, k1)


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

    Batches with VERDICT ``DELETE`` or ``KEEP_WHOLE`` get no rows. ``standings`` receives what the
    ``notes`` of a ledger that starts at offset ``first_noted`` say. ``hashes`` (rows, 2) receives
    the identity of the keys without a note, for their records to be looked up. Returns (next
    batch, end of the rows, rows with a hash, code). Code ``TOO_MANY`` means that the row arrays are
    full before the next batch, any other code describes the batch ``next batch``.
    """
    n = first_row
    hashed = 0
    for i in range(first, last):
        table[i, t.FIRST_ROW] = n
        table[i, t.ROWS] = 0
        if table[i, t.VERDICT] <= t.DELETE:
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
