"""Bloom filters over the keys of a segment, and what else of its batches decides about skipping it.

A key is known by the first half of its :func:`~keeplast.columns.rows.siphash128` under a key of
the whole store, because a filter outlives the round that makes it. Bits are numbered as
``words[bit >> 6] >> (bit & 63)``. KIP-1272, "Bloom Filter Index on Skip Optimization"; tiering.md
section 9.4.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.kernel import inline, kernel
from keeplast.columns.machine import read_varint, read_varlong
from keeplast.columns.retained import horizon_of
from keeplast.columns.rows import HAS_KEY, siphash128

PROBES_MAX = 40
HASHES_MIN = 1 << 12
BITS_MAX = 1 << 31
"""256 MiB; a filter of more keys than this suits finds more than is there, which costs reading."""

KEYLESS = 0
UNSTAMPED = 1
TRANSACTIONAL = 2
OLD_FORMAT = 3
TOMBSTONES = 4
HORIZON_MIN = 5
EMPTIES = 6
FACTS = 7
NEVER = np.iinfo(np.int64).max
"""Stands for no horizon at all in ``HORIZON_MIN``."""


@inline
def _key_of(data, at, end):
    """Return where the key of a record that was parsed before begins, and its length."""
    _length, at = read_varint(data, at, end)
    _timestamp, at = read_varlong(data, at + 1, end)
    _offset, at = read_varint(data, at, end)
    length, at = read_varint(data, at, end)
    return at, length


@kernel(
    "int64(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, int64[::1], int32[::1], uint8[::1],"
    " int64, uint64, uint64, uint64[::1], int64)"
)
def hash_rows(
    window, scratch, table, first, last, offsets, positions, flags, first_offset, k0, k1, hashes, n
):
    """Append the hash of every data record with a key at or above ``first_offset``.

    Of the batches ``[first, last)``, whose rows are parsed. Returns the new number of hashes.
    """
    for i in range(first, last):
        if table[i, t.ATTRIBUTES] & t.CONTROL != 0 or table[i, t.ROWS] == 0:
            continue
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        for r in range(table[i, t.FIRST_ROW], table[i, t.FIRST_ROW] + table[i, t.ROWS]):
            if flags[r] & HAS_KEY != 0 and offsets[r] >= first_offset:
                at, length = _key_of(data, np.int64(positions[r]), table[i, t.PAYLOAD_END])
                hashes[n], _ = siphash128(data, at, length, k0, k1)
                n += 1
    return n


@kernel(
    "int64(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, int32[::1], uint8[::1], uint8[::1],"
    " uint64, uint64, uint64[::1], int64, int64[::1], int64[:, ::1])"
)
def note_kept(
    window, scratch, table, first, last, positions, flags, keep, k0, k1, hashes, n, facts, empties
):
    """Append the hashes of what stays of the judged batches ``[first, last)``, and count facts.

    ``empties`` (n, 2) receives producer id and last offset of the batches that stay empty, as
    many as fit; ``facts[EMPTIES]`` counts all. Returns the new number of hashes.
    """
    for i in range(first, last):
        action = table[i, t.ACTION]
        if action == t.ACTION_DROP:
            continue
        attributes = table[i, t.ATTRIBUTES]
        is_control = attributes & t.CONTROL != 0
        if table[i, t.MAGIC] >= 2 and attributes & (t.CONTROL | t.TRANSACTIONAL) != 0:
            facts[TRANSACTIONAL] += 1
        if action == t.ACTION_EMPTY or table[i, t.COUNT] == 0:
            if facts[EMPTIES] < empties.shape[0]:
                empties[facts[EMPTIES], 0] = table[i, t.PRODUCER_ID]
                empties[facts[EMPTIES], 1] = table[i, t.LAST_OFFSET]
            facts[EMPTIES] += 1
            continue
        is_copied = action == t.ACTION_COPY
        if is_copied and table[i, t.MAGIC] < 2:
            facts[OLD_FORMAT] += 1
        if not is_control and table[i, t.KEPT_TOMBSTONES] > 0:
            facts[TOMBSTONES] += table[i, t.KEPT_TOMBSTONES]
            horizon = horizon_of(table, i) if is_copied else table[i, t.OUT_BASE_TIMESTAMP]
            if horizon < 0:
                facts[UNSTAMPED] += 1
            else:
                facts[HORIZON_MIN] = min(facts[HORIZON_MIN], horizon)
        if is_control:
            continue
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        for r in range(table[i, t.FIRST_ROW], table[i, t.FIRST_ROW] + table[i, t.ROWS]):
            if keep[r] == 0 and not is_copied:
                continue
            if flags[r] & HAS_KEY == 0:
                facts[KEYLESS] += 1
                continue
            at, length = _key_of(data, np.int64(positions[r]), table[i, t.PAYLOAD_END])
            hashes[n], _ = siphash128(data, at, length, k0, k1)
            n += 1
    return n


@inline
def _next_bit(state, bits):
    """Return the next state of a hash's probes, and the bit in ``[0, bits)`` that it names.

    Each probe is mixed again: with a constant stride, filters this sparse would find what shares
    two numbers with a key that is there.
    """
    state += np.uint64(0x9E3779B97F4A7C15)
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return state, ((z >> np.uint64(32)) * np.uint64(bits)) >> np.uint64(32)


@kernel("void(uint64[::1], int64, int64, uint64[::1], int64)")
def add(words, bits, probes, hashes, count):
    """Set the bits of the first ``count`` hashes."""
    for i in range(count):
        state = hashes[i]
        for _ in range(probes):
            state, bit = _next_bit(state, bits)
            words[np.int64(bit >> np.uint64(6))] |= np.uint64(1) << (bit & np.uint64(63))


@kernel("int64(uint64[::1], int64, int64, uint64[::1], int64)")
def find_any(words, bits, probes, hashes, count):
    """Return the first of ``count`` hashes that may be in the filter, -1 when none is."""
    for i in range(count):
        state = hashes[i]
        hits = 0
        while hits < probes:
            state, bit = _next_bit(state, bits)
            if (words[np.int64(bit >> np.uint64(6))] >> (bit & np.uint64(63))) & np.uint64(1) == 0:
                break
            hits += 1
        if hits == probes:
            return i
    return -1


def filter_shape(keys: int, fpp: float) -> tuple[int, int]:
    """Return bits, a multiple of 64, and probes of a filter for ``keys``.

    ``fpp`` is how often as many keys again, which are not there, find one that seems to be. A
    segment is read in vain when a single one of a round's keys does, so that a rate for one key
    would say nothing.
    """
    per_key = fpp / max(keys, 1)
    bits = math.ceil(max(keys, 1) * -math.log(per_key) / math.log(2) ** 2)
    probes = round(-math.log2(per_key))
    return min((bits + 63) // 64 * 64, BITS_MAX), max(1, min(probes, PROBES_MAX))


class KeyHashes:
    """A growing list of at most ``count_max`` hashes; with more it ``is_full`` and keeps none."""

    __slots__ = ("_count_max", "count", "is_full", "values")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.values: NDArray[np.uint64] = np.empty(min(HASHES_MIN, count_max), np.uint64)
        self.count = 0
        self.is_full = False

    def make_room(self, more: int) -> bool:
        """Prepare for ``more`` hashes; False when they are too many, from then on."""
        if self.is_full:
            return False
        if self.count + more <= len(self.values):
            return True
        self.forget_doubles()
        need = self.count + more
        if need > self._count_max:
            self.is_full = True
            self.values = np.empty(0, np.uint64)
            self.count = 0
            return False
        if 2 * need > len(self.values):
            grown = np.empty(min(2 * need, self._count_max), np.uint64)
            grown[: self.count] = self.values[: self.count]
            self.values = grown
        return True

    def distinct(self) -> NDArray[np.uint64]:
        """Return every hash once, ascending; nothing when it is full."""
        self.forget_doubles()
        return self.values[: self.count].copy()

    def forget_doubles(self) -> None:
        """Keep every hash once, in ascending order; the count shrinks."""
        once = np.unique(self.values[: self.count])
        self.count = len(once)
        self.values[: self.count] = once
