"""Fingerprints of keys, records and batches for ``verify``: equal bytes, equal numbers.

A polynomial in two random points modulo 2^61 - 1. Two different strings of n bytes agree with
probability (n / 7 / 2^61)^2 whatever the strings are, so a pair cannot be crafted. It shares
nothing with the hash that distinguishes keys in the cleaner, so that a fault there shows here.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batches as t
from keeplast.columns.kernel import BAD_COUNT, BAD_RECORD, OK, TOO_MANY, inline, kernel, outline
from keeplast.columns.machine import load_le64
from keeplast.columns.rows import HAS_KEY, HAS_VALUE, parse_record

PRIME = (1 << 61) - 1
_P = np.uint64(PRIME)
_LOW_32 = np.uint64((1 << 32) - 1)
_LOW_29 = np.uint64((1 << 29) - 1)
_LOW_56 = np.uint64((1 << 56) - 1)
_3, _8, _29, _32, _61 = (np.uint64(n) for n in (3, 8, 29, 32, 61))


@inline
def _step(a, b, word):
    """Return ``a * b + word`` modulo the prime; ``a`` and ``b`` are below it, ``word`` 2^57."""
    a0, a1 = a & _LOW_32, a >> _32
    b0, b1 = b & _LOW_32, b >> _32
    low = a0 * b0
    middle = a0 * b1 + a1 * b0
    total = (a1 * b1 << _3) + (middle >> _29) + ((middle & _LOW_29) << _32)
    total += (low >> _61) + (low & _P) + word
    total = (total & _P) + (total >> _61)
    return total - _P if total >= _P else total


@outline
def _extend(data, at, length, h0, h1, seeds):
    """Append a string to two hashes, its length first."""
    r0, r1 = seeds[0], seeds[1]
    head = np.uint64(length + 1)
    h0, h1 = _step(h0, r0, head), _step(h1, r1, head)
    end = at + length
    # The load takes eight bytes; seven of them are used.
    while end - at >= 8:
        word = load_le64(data, at) & _LOW_56
        h0, h1 = _step(h0, r0, word), _step(h1, r1, word)
        at += 7
    if at < end:
        word = np.uint64(0)
        while end > at:
            end -= 1
            word = (word << _8) | np.uint64(data[end])
        h0, h1 = _step(h0, r0, word), _step(h1, r1, word)
    return h0, h1


@kernel(
    "UniTuple(int64, 3)(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, uint64[::1],"
    " int64[::1], int64[:, ::1], int64[:, ::1], uint8[::1])"
)
def fingerprint_rows(window, scratch, table, first, last, seeds, offsets, keys, contents, flags):
    """Fill one row a record from the batches ``[first, last)``, rows starting at 0.

    ``keys`` identify the key, ``contents`` key, value, headers and timestamp as a reader gets
    them. FIRST_ROW, ROWS and OUT_MAX_TIMESTAMP (of the records) of the table are set. Returns
    (next batch, rows, code) as :func:`keeplast.columns.rows.parse_rows` does.
    """
    n = 0
    for i in range(first, last):
        table[i, t.FIRST_ROW] = n
        table[i, t.ROWS] = 0
        table[i, t.OUT_MAX_TIMESTAMP] = -1
        count = table[i, t.COUNT]
        if count == 0:
            continue
        at = table[i, t.PAYLOAD_START]
        end = table[i, t.PAYLOAD_END]
        if count > (end - at) // 7 + 1:
            return i, n, BAD_COUNT
        if n + count > offsets.shape[0]:
            return i, n, TOO_MANY
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        base = table[i, t.BASE_OFFSET]
        is_append_time = table[i, t.ATTRIBUTES] & t.LOG_APPEND_TIME != 0
        for _ in range(count):
            at, timestamp, delta, key_at, key_length, value_length, _plain = parse_record(
                data, at, end
            )
            if at < 0:
                return i, n, BAD_RECORD
            if is_append_time:
                timestamp = table[i, t.MAX_TIMESTAMP]
            else:
                timestamp += table[i, t.BASE_TIMESTAMP]
            if timestamp > table[i, t.OUT_MAX_TIMESTAMP]:
                table[i, t.OUT_MAX_TIMESTAMP] = timestamp
            key_bytes = max(key_length, np.int64(0))
            h0, h1 = np.uint64(0), np.uint64(0)
            if key_length >= 0:
                h0, h1 = _extend(data, key_at, key_bytes, h0, h1, seeds)
            keys[n, 0] = np.int64(h0)
            keys[n, 1] = np.int64(h1)
            rest = key_at + key_bytes
            h0, h1 = _extend(data, rest, at - rest, h0, h1, seeds)
            stamp = np.uint64(timestamp)
            h0, h1 = _step(h0, seeds[0], stamp >> _32), _step(h1, seeds[1], stamp >> _32)
            h0, h1 = _step(h0, seeds[0], stamp & _LOW_32), _step(h1, seeds[1], stamp & _LOW_32)
            contents[n, 0] = np.int64(h0)
            contents[n, 1] = np.int64(h1)
            offsets[n] = base + delta
            flags[n] = (HAS_KEY if key_length >= 0 else 0) | (HAS_VALUE if value_length >= 0 else 0)
            n += 1
        if at != end:
            return i, n, BAD_COUNT
        table[i, t.ROWS] = count
    return last, n, OK


@kernel("void(uint8[::1], int64[:, ::1], int64[::1], uint64[::1], int64[:, ::1])")
def fingerprint_batches(window, table, chosen, seeds, digests):
    """Fill one row for each of the ``chosen`` batches from all of its bytes."""
    for n in range(chosen.shape[0]):
        i = chosen[n]
        h0, h1 = _extend(
            window, table[i, t.POSITION], table[i, t.SIZE], np.uint64(0), np.uint64(0), seeds
        )
        digests[n, 0] = np.int64(h0)
        digests[n, 1] = np.int64(h1)
