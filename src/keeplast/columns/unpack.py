"""What has to be brought into form before rows are read: old magics, small compressed batches.

*Old magics.* Messages of magic 0 and 1 become records of the magic 2 layout, in the scratch array.
Everything after this sees one record layout. Timestamps are kept as deltas to a base timestamp of
zero (-1 stays -1, "none"); offsets as deltas to the batch's base offset. Inner messages may have
another magic than their wrapper (KAFKA-4298). Source: ``AbstractLegacyRecordBatch``; formats.md
section 1.5.

*Small compressed batches.* Small lz4 and snappy batches are decompressed without leaving the
kernel; zstd's are found in a row. A call of a codec's library costs as much as decoding some
kilobytes, so a log of small compressed batches would spend its time on calls. Only what Kafka's own
writers write is decoded here. Whatever is framed differently, or looks wrong in any way, is refused
and left to :mod:`keeplast.format.compression`, which decides and finds the words. Formats.md
section 1.6.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batches as t
from keeplast.columns.kernel import BAD_LEGACY, OK, inline, kernel, outline
from keeplast.columns.machine import (
    copy_bytes,
    load_be32,
    load_be64,
    load_be64_unsigned,
    load_le64,
    read_varint,
    varlong_bytes,
    write_varlong,
)

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


SMALL_BYTES_MAX = 2048
"""Larger batches are decoded faster by the libraries, call included."""

FULL = 1
REFUSED = 2

SNAPPY = 2
LZ4 = 3

MARK_BYTES = 16
"""What separates the payloads that :func:`find_payloads` finds."""

_LZ4_HEADER_BYTES = 7
_LZ4_HEADER = np.uint64(0x82_40_60_18_4D_22_04)
"""Magic, version 1 with independent blocks and no checksums, blocks of 64 KiB, header checksum."""
_LZ4_BLOCK_BYTES_MAX = 65536
_LZ4_STORED = 1 << 31
_LZ4_LAST_LITERALS = 5
"""Every writer ends a block with so many literals; a reader may refuse it otherwise."""

_SNAPPY_HEADER_BYTES = 16
_SNAPPY_MAGIC = np.uint64(0x82_53_4E_41_50_50_59_00)
_SNAPPY_VERSIONS = np.uint64(0x00_00_00_01_00_00_00_01)
_LOW_56 = np.uint64((1 << 56) - 1)


@inline
def _copy_match(out, at, offset, length):
    """Append ``length`` bytes that begin ``offset`` before ``at``; the two may overlap."""
    if offset >= length:
        copy_bytes(out, at, out, at - offset, length)
    else:
        for i in range(length):
            out[at + i] = out[at - offset + i]


@outline
def _lz4_length(data, at, end, length):
    """Add the bytes that follow a full nibble; returns (length, next position or -1)."""
    while at < end:
        more = np.int64(data[at])
        at += 1
        length += more
        if more != 255:
            return length, at
    return length, np.int64(-1)


@outline
def _lz4_block(data, at, end, out, start, limit):
    """Decode a raw block to ``out[start:limit]``; returns where it ends, or -1."""
    to = start
    while at < end:
        token = np.int64(data[at])
        at += 1
        literals = token >> 4
        if literals == 15:
            literals, at = _lz4_length(data, at, end, literals)
            if at < 0:
                return -1
        if literals > end - at or literals > limit - to:
            return -1
        copy_bytes(out, to, data, at, literals)
        at += literals
        to += literals
        if at == end:
            return to if literals >= _LZ4_LAST_LITERALS or to - start == literals else -1
        if end - at < 2:
            return -1
        offset = np.int64(data[at]) | (np.int64(data[at + 1]) << 8)
        at += 2
        length = token & 15
        if length == 15:
            length, at = _lz4_length(data, at, end, length)
            if at < 0:
                return -1
        length += 4
        if offset == 0 or offset > to - start or length > limit - to:
            return -1
        _copy_match(out, to, offset, length)
        to += length
    return -1


@outline
def _lz4(data, at, end, out, to):
    """Decode a frame; returns where it ends in ``out``, -FULL or -REFUSED."""
    if end - at < _LZ4_HEADER_BYTES + 4 or load_le64(data, at) & _LOW_56 != _LZ4_HEADER:
        return -REFUSED
    at += _LZ4_HEADER_BYTES
    while end - at >= 4:
        word = (
            np.int64(data[at])
            | (np.int64(data[at + 1]) << 8)
            | (np.int64(data[at + 2]) << 16)
            | (np.int64(data[at + 3]) << 24)
        )
        at += 4
        size = word & (_LZ4_STORED - 1)
        if size == 0:
            return to
        if size > end - at or size > _LZ4_BLOCK_BYTES_MAX:
            return -REFUSED
        if len(out) - to < _LZ4_BLOCK_BYTES_MAX:
            return -FULL
        if word & _LZ4_STORED != 0:
            copy_bytes(out, to, data, at, size)
            to += size
        else:
            to = _lz4_block(data, at, at + size, out, to, to + _LZ4_BLOCK_BYTES_MAX)
            if to < 0:
                return -REFUSED
        at += size
    return -REFUSED


@outline
def _snappy_block(data, at, end, out, start, limit):
    """Decode the elements of a raw block that must fill ``out[start:limit]``; returns success."""
    to = start
    while at < end:
        tag = np.int64(data[at])
        at += 1
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                if extra > 2 or extra > end - at:
                    return False
                length = np.int64(data[at])
                if extra == 2:
                    length |= np.int64(data[at + 1]) << 8
                at += extra
            length += 1
            if length > end - at or length > limit - to:
                return False
            copy_bytes(out, to, data, at, length)
            at += length
        else:
            if kind == 1:
                if at >= end:
                    return False
                length = ((tag >> 2) & 7) + 4
                offset = ((tag >> 5) << 8) | np.int64(data[at])
                at += 1
            elif kind == 2:
                if end - at < 2:
                    return False
                length = (tag >> 2) + 1
                offset = np.int64(data[at]) | (np.int64(data[at + 1]) << 8)
                at += 2
            else:
                return False
            if offset == 0 or offset > to - start or length > limit - to:
                return False
            _copy_match(out, to, offset, length)
        to += length
    return to == limit


@outline
def _snappy(data, at, end, out, to):
    """Decode a xerial stream; returns where it ends in ``out``, -FULL or -REFUSED."""
    if (
        end - at < _SNAPPY_HEADER_BYTES
        or load_be64_unsigned(data, at) != _SNAPPY_MAGIC
        or load_be64_unsigned(data, at + 8) != _SNAPPY_VERSIONS
    ):
        return -REFUSED
    at += _SNAPPY_HEADER_BYTES
    while at < end:
        if end - at < 5:
            return -REFUSED
        stop = at + 4 + load_be32(data, at)
        at += 4
        if stop <= at or stop > end:
            return -REFUSED
        # Kafka writes blocks of 32 KiB, whose size takes three bytes at most.
        size = np.int64(0)
        shift = 0
        while True:
            if at >= stop or shift > 14:
                return -REFUSED
            byte = np.int64(data[at])
            at += 1
            size |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if size * 3 > (stop - at) * 64:
            return -REFUSED
        if size > len(out) - to:
            return -FULL
        if not _snappy_block(data, at, stop, out, to, to + size):
            return -REFUSED
        to += size
        at = stop
    return to


@kernel("UniTuple(int64, 3)(uint8[::1], int64[:, ::1], int64, int64, uint8[::1], int64)")
def unpack_small(window, table, first, last, scratch, at):
    """Decompress the small lz4 and snappy batches of ``[first, last)`` to ``scratch[at:]``.

    PAYLOAD_* say where; other batches, and those whose VERDICT gives no rows, stay as they are.
    Returns (next batch, end in scratch, code): FULL when there may be no room for the next batch,
    REFUSED when it must be decompressed elsewhere.
    """
    for i in range(first, last):
        if table[i, t.PAYLOAD_IN] >= 0 or table[i, t.SIZE] > SMALL_BYTES_MAX:
            continue
        if table[i, t.MAGIC] != 2 or table[i, t.VERDICT] <= t.DELETE:
            continue
        codec = table[i, t.ATTRIBUTES] & t.CODEC_MASK
        start = table[i, t.POSITION] + t.HEADER_BYTES
        end = table[i, t.POSITION] + table[i, t.SIZE]
        if codec == LZ4:
            to = _lz4(window, start, end, scratch, at)
        elif codec == SNAPPY:
            to = _snappy(window, start, end, scratch, at)
        else:
            continue
        if to < 0:
            return i, at, -to
        table[i, t.PAYLOAD_IN] = 1
        table[i, t.PAYLOAD_START] = at
        table[i, t.PAYLOAD_END] = to
        at = to
    return last, at, OK


@kernel("int64(int64[:, ::1], int64[::1], uint8[::1], int64, uint64, uint64)")
def find_payloads(table, chosen, scratch, filled, mark, other_mark):
    """Find the payloads of the ``chosen`` batches, which lie in ``scratch[:filled]`` in turn.

    After each lie sixteen bytes that could not be foreseen, the two marks. Where the records of a
    batch end somewhere else the batch is refused. PAYLOAD_* say where. Returns how many of the
    batches were found before one that is refused, or not whole.
    """
    at = np.int64(0)
    for n in range(len(chosen)):
        i = chosen[n]
        start = at
        for _ in range(table[i, t.COUNT]):
            length, at = read_varint(scratch, at, filled)
            if at < 0 or length < 0 or length > filled - at:
                return n
            at += length
        if at + MARK_BYTES > filled:
            return n
        if load_le64(scratch, at) != mark or load_le64(scratch, at + 8) != other_mark:
            return n
        table[i, t.PAYLOAD_IN] = 1
        table[i, t.PAYLOAD_START] = start
        table[i, t.PAYLOAD_END] = at
        at += MARK_BYTES
    return len(chosen)
