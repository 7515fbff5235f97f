"""The identity of a key inside one round: a keyed 128-bit SipHash.

The hash key is random per round, so that nobody can craft two keys with one identity; ten
thousand million keys collide with probability 10^-19. One compression round and three
finalisation rounds (SipHash-1-3): the output is never shown, so the stronger 2-4 buys nothing.
Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", with its 128-bit variant.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns.kernel import inline, kernel
from keeplast.columns.machine import load_le64


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
