"""Turns messages of magic 0 and 1 into records of the magic 2 layout, in the scratch array.

Everything after this sees one record layout. Timestamps are kept as deltas to a base timestamp of
zero (-1 stays -1, "none"); offsets as deltas to the batch's base offset. Inner messages may have
another magic than their wrapper (KAFKA-4298). Source: ``AbstractLegacyRecordBatch``;
formats.md section 1.5.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.columns.kernel import BAD_LEGACY, OK, kernel, outline
from keeplast.columns.machine import copy_bytes, load_be32, load_be64
from keeplast.columns.varints import varlong_bytes, write_varlong

MESSAGE_GROWTH_MAX = 8
"""A converted message is at most this much larger than its entry."""


@outline
def _convert(data, at, end, timestamp, offset_delta, out, out_at):
    """Convert the message whose key length field is at ``at``; returns the position or -1."""
    if end - at < 8:
        return np.int64(-1)
    key_length = load_be32(data, at)
    key_at = at + 4
    if key_length > end - key_at - 4:
        return np.int64(-1)
    value_field = key_at + max(key_length, 0)
    value_length = load_be32(data, value_field)
    value_at = value_field + 4
    if value_length > end - value_at:
        return np.int64(-1)
    key_length = max(key_length, np.int64(-1))
    value_length = max(value_length, np.int64(-1))
    body = 2 + varlong_bytes(timestamp) + varlong_bytes(offset_delta)
    body += varlong_bytes(key_length) + max(key_length, 0)
    body += varlong_bytes(value_length) + max(value_length, 0)
    out_at = write_varlong(out, out_at, body)
    out[out_at] = 0
    out_at = write_varlong(out, out_at + 1, timestamp)
    out_at = write_varlong(out, out_at, offset_delta)
    out_at = write_varlong(out, out_at, key_length)
    if key_length > 0:
        copy_bytes(out, out_at, data, key_at, key_length)
        out_at += key_length
    out_at = write_varlong(out, out_at, value_length)
    if value_length > 0:
        copy_bytes(out, out_at, data, value_at, value_length)
        out_at += value_length
    out[out_at] = 0
    return out_at + 1


@kernel("UniTuple(int64, 2)(uint8[::1], int64[:, ::1], int64, uint8[::1], int64)")
def convert_message(window, table, i, scratch, scratch_at):
    """Convert the uncompressed message of row ``i``. Returns (next scratch position, code)."""
    position = table[i, t.POSITION]
    magic = table[i, t.MAGIC]
    end = position + table[i, t.SIZE]
    timestamp = table[i, t.MAX_TIMESTAMP]
    body = position + (26 if magic == 1 else 18)
    out_at = _convert(window, body, end, timestamp, np.int64(0), scratch, scratch_at)
    if out_at < 0:
        return scratch_at, BAD_LEGACY
    table[i, t.BASE_TIMESTAMP] = 0
    table[i, t.PAYLOAD_IN] = 1
    table[i, t.PAYLOAD_START] = scratch_at
    table[i, t.PAYLOAD_END] = out_at
    return out_at, OK


@kernel("UniTuple(int64, 2)(int64[:, ::1], int64, uint8[::1], int64, uint8[::1], int64)")
def convert_set(table, i, inner, inner_bytes, scratch, scratch_at):
    """Convert the decompressed inner messages of the wrapper of row ``i``.

    Needs ``inner_bytes`` + count * MESSAGE_GROWTH_MAX bytes of scratch, where a message takes at
    least 26 bytes. Returns (next scratch position, code).
    """
    magic = table[i, t.MAGIC]
    wrapper_offset = table[i, t.LAST_OFFSET]
    is_append_time = table[i, t.ATTRIBUTES] & t.LOG_APPEND_TIME != 0
    at = 0
    count = 0
    first = np.int64(0)
    last = np.int64(0)
    # A partial inner message at the end is dropped, as the JVM's reader does.
    while inner_bytes - at >= t.PREFIX_BYTES:
        size = load_be32(inner, at + 8)
        if size < t.MESSAGE_BYTES_MIN:
            return scratch_at, BAD_LEGACY
        if size > inner_bytes - at - t.PREFIX_BYTES:
            break
        last = load_be64(inner, at)
        if count == 0:
            first = last
        count += 1
        at += t.PREFIX_BYTES + size
    if count == 0:
        return scratch_at, BAD_LEGACY
    base = np.int64(0)
    if magic == 1 and wrapper_offset != 0:
        # Relative offsets hang from the last one, whatever was compacted away before it.
        base = wrapper_offset - last
        if base < 0:
            return scratch_at, BAD_LEGACY
    out_at = scratch_at
    at = 0
    for _ in range(count):
        size = load_be32(inner, at + 8)
        end = at + t.PREFIX_BYTES + size
        inner_magic = np.int64(np.int8(inner[at + 16]))
        if inner_magic < 0 or inner_magic > 1 or inner[at + 17] & t.CODEC_MASK != 0:
            return scratch_at, BAD_LEGACY
        if inner_magic == 1 and size < 22:
            return scratch_at, BAD_LEGACY
        timestamp = np.int64(-1)
        if inner_magic == 1:
            timestamp = load_be64(inner, at + 18)
            if is_append_time:
                timestamp = table[i, t.MAX_TIMESTAMP]
        delta = load_be64(inner, at) - first
        if delta < 0 or delta > 2147483647:
            return scratch_at, BAD_LEGACY
        body = at + (26 if inner_magic == 1 else 18)
        out_at = _convert(inner, body, end, timestamp, delta, scratch, out_at)
        if out_at < 0:
            return scratch_at, BAD_LEGACY
        at = end
    table[i, t.BASE_OFFSET] = base + first
    table[i, t.BASE_TIMESTAMP] = 0
    table[i, t.COUNT] = count
    table[i, t.PAYLOAD_IN] = 1
    table[i, t.PAYLOAD_START] = scratch_at
    table[i, t.PAYLOAD_END] = out_at
    return out_at, OK
