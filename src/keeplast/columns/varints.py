"""Varints inside kernels, as the JVM reads and writes them.

A reader returns (value, next position); the position is -1 when the number runs past ``end`` or
past its last permitted byte. Excess bits of the last byte are dropped, as Java does.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns.kernel import inline, outline


@outline
def _read_long(data, at, end, last_shift):
    """Read three bytes or more; ``last_shift`` is that of the last byte the number may have.

    Kept out of line: inlined, this loop costs a record ten times what parsing it takes.
    """
    bits = np.uint64(0)
    shift = np.uint64(0)
    while True:
        if at >= end:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[at])
        at += 1
        if shift == last_shift and byte >= np.uint64(128):
            return np.int64(0), np.int64(-1)
        bits |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            break
        shift += np.uint64(7)
    if last_shift == np.uint64(28):
        bits &= np.uint64(0xFFFFFFFF)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), at


@inline
def _read(data, at, end, last_shift):
    if at >= end:
        return np.int64(0), np.int64(-1)
    low = np.int64(data[at])
    if low < 128:
        return (low >> 1) ^ -(low & 1), at + 1
    if at + 1 >= end:
        return np.int64(0), np.int64(-1)
    high = np.int64(data[at + 1])
    if high < 128:
        bits = (low & 127) | (high << 7)
        return (bits >> 1) ^ -(bits & 1), at + 2
    return _read_long(data, at, end, last_shift)


@inline
def read_varint(data, at, end):
    """Read a zig-zag int32 of one to five bytes."""
    return _read(data, at, end, np.uint64(28))


@inline
def read_varlong(data, at, end):
    """Read a zig-zag int64 of one to ten bytes."""
    return _read(data, at, end, np.uint64(63))


@inline
def _is_shortest(data, start, at, bytes_max, last_max):
    last = data[at - 1]
    return at - start == 1 or (last != 0 and (at - start < bytes_max or last <= last_max))


@inline
def is_shortest_varint(data, start, at):
    """Say whether the varint in ``data[start:at]``, which was read, is as a writer makes it.

    Its last byte tells: a 0 there adds nothing, and of a fifth one four bits count.
    """
    return _is_shortest(data, start, at, 5, 0x0F)


@inline
def is_shortest_varlong(data, start, at):
    """Say of a varlong what :func:`is_shortest_varint` says; of a tenth byte one bit counts."""
    return _is_shortest(data, start, at, 10, 0x01)


@inline
def varlong_bytes(value):
    """Return how many bytes the shortest encoding of a signed number takes."""
    bits = np.uint64((value << 1) ^ (value >> 63))
    n = 1
    while bits >= np.uint64(128):
        bits >>= np.uint64(7)
        n += 1
    return n


@inline
def write_varlong(data, at, value):
    """Write the shortest encoding; for an int32 it equals its varint. Returns the next position."""
    bits = np.uint64((value << 1) ^ (value >> 63))
    while bits >= np.uint64(128):
        data[at] = np.uint8((bits & np.uint64(127)) | np.uint64(128))
        bits >>= np.uint64(7)
        at += 1
    data[at] = np.uint8(bits)
    return at + 1
