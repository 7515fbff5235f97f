"""The batches of a window: the table that has a row for each, and how they are found and checked.

*The table* has one row a batch, one column a constant below. A window is a run of whole batches of
one segment in one byte array. Positions are relative to the array they point into; offsets and
timestamps are absolute. A batch of magic 0 or 1 has one row too: an uncompressed message is its own
batch, a compressed wrapper is one batch.

``PAYLOAD_*`` says where the batch's records lie *in the record layout of magic 2*. That is in the
window itself (``PAYLOAD_IN`` 0), in the scratch array (1), or nowhere yet (-1). Compressed batches
are decompressed, and old messages converted, into the scratch array.

*Finding.* A batch is trusted to the extent of its size field only: everything else in its header is
copied to the table as found. Its CRC is checked. Kafka's counterparts are
``ByteBufferLogInputStream`` and ``DefaultRecordBatch``; formats.md sections 1.1, 1.2 and 1.5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.kernel import BAD_CODEC, BAD_COUNT, BAD_MAGIC, BAD_SIZE, OK, inline, kernel
from keeplast.columns.machine import (
    HAS_CRC_INSTRUCTION,
    crc32,
    crc32c,
    load_be16,
    load_be32,
    load_be64,
)

POSITION = 0
SIZE = 1
BASE_OFFSET = 2
LAST_OFFSET = 3
MAGIC = 4
ATTRIBUTES = 5
COUNT = 6
MAX_TIMESTAMP = 7
BASE_TIMESTAMP = 8
PRODUCER_ID = 9
PRODUCER_EPOCH = 10
PAYLOAD_IN = 11
PAYLOAD_START = 12
PAYLOAD_END = 13
STATE = 14
VERDICT = 15
FIRST_ROW = 16
ROWS = 17
KEPT = 18
KEPT_TOMBSTONES = 19
ACTION = 20
PACKED_START = 21
PACKED_SIZE = 22
OUT_BASE_TIMESTAMP = 23
OUT_MAX_TIMESTAMP = 24
OUT_BASE_OFFSET = 25
OUT_LAST_OFFSET = 26
COLUMNS = 27

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

HEADER_BYTES = 61
PREFIX_BYTES = 12
MESSAGE_BYTES_MIN = 14
SCAN_BYTES_MIN = 18
"""A file's reader stops when fewer bytes than this remain (``FileLogInputStream``)."""

ABORTED = 1
"""``STATE``: a data batch of an aborted transaction."""
UNNEEDED = 2
"""``STATE``: a control batch whose transaction has no data left."""

KEEP_WHOLE = -1
"""``VERDICT``: it stays as it is; like one with DELETE it gets no rows."""
DELETE = 0
DELETE_EMPTY = 1
RETAIN_EMPTY = 2

ACTION_DROP = 0
ACTION_COPY = 1
ACTION_EMPTY = 2
ACTION_REBUILD = 3


def new_batch_table(rows: int) -> NDArray[np.int64]:
    """Return an uninitialised table for ``rows`` batches."""
    return np.empty((rows, COLUMNS), np.int64)


CRC_IN_KERNEL_BYTES_MAX = (1 << 31) - 1 if HAS_CRC_INSTRUCTION else 4 << 10
"""Above this size the crc32c package is faster than a kernel, call included."""


HAS_HIDDEN = 1
"""Mark: a batch whose records are not readable in place (compressed, or of an old format)."""
HAS_HIDDEN_CONTROL = 2
"""Mark: a compressed control batch."""
HAS_EVENTS = 4
"""Mark: a batch of a transaction, or a control batch."""
HAS_GAPS = 8
"""Mark: batches that go were left out of the table (:mod:`keeplast.columns.shortcuts`)."""


@inline
def describe_batch(window, position, length, table, n):
    """Fill row ``n`` with the batch that starts at ``position`` of ``window[:length]``.

    At least 18 bytes must be left. Returns (size, marks, code); a size of 0 without a code is a
    batch that is cut by the end of the window.
    """
    nothing = np.int64(0)
    size_field = load_be32(window, position + 8)
    if size_field < MESSAGE_BYTES_MIN:
        return nothing, nothing, np.int64(BAD_SIZE)
    size = size_field + PREFIX_BYTES
    magic = np.int64(np.int8(window[position + 16]))
    if magic < 0 or magic > 2:
        return nothing, nothing, np.int64(BAD_MAGIC)
    if magic == 2 and size < HEADER_BYTES:
        return nothing, nothing, np.int64(BAD_SIZE)
    if magic == 1 and size < 34:
        return nothing, nothing, np.int64(BAD_SIZE)
    if size > length - position:
        return nothing, nothing, np.int64(OK)
    marks = nothing
    offset = load_be64(window, position)
    table[n, POSITION] = position
    table[n, SIZE] = size
    table[n, MAGIC] = magic
    table[n, STATE] = 0
    table[n, VERDICT] = DELETE_EMPTY
    table[n, ROWS] = 0
    if magic == 2:
        attributes = np.int64(window[position + 22])
        count = load_be32(window, position + 57)
        # A compressed batch can hold more records than it has bytes; one in the open cannot.
        if count < 0 or (count > size and attributes & CODEC_MASK == 0):
            return nothing, nothing, np.int64(BAD_COUNT)
        table[n, BASE_OFFSET] = offset
        table[n, LAST_OFFSET] = offset + load_be32(window, position + 23)
        table[n, COUNT] = count
        table[n, BASE_TIMESTAMP] = load_be64(window, position + 27)
        table[n, MAX_TIMESTAMP] = load_be64(window, position + 35)
        table[n, PRODUCER_ID] = load_be64(window, position + 43)
        table[n, PRODUCER_EPOCH] = load_be16(window, position + 51)
        table[n, PAYLOAD_START] = position + HEADER_BYTES
        table[n, PAYLOAD_END] = position + size
        table[n, PAYLOAD_IN] = 0
        if attributes & (CONTROL | TRANSACTIONAL) != 0:
            marks |= HAS_EVENTS
        if attributes & CODEC_MASK != 0 and count > 0:
            table[n, PAYLOAD_IN] = -1
            marks |= HAS_HIDDEN
            if attributes & CONTROL != 0:
                marks |= HAS_HIDDEN_CONTROL
    else:
        attributes = np.int64(window[position + 17])
        table[n, BASE_OFFSET] = offset
        table[n, LAST_OFFSET] = offset
        table[n, COUNT] = 1
        table[n, BASE_TIMESTAMP] = -1
        table[n, MAX_TIMESTAMP] = load_be64(window, position + 18) if magic == 1 else -1
        table[n, PRODUCER_ID] = -1
        table[n, PRODUCER_EPOCH] = -1
        table[n, PAYLOAD_IN] = -1
        marks |= HAS_HIDDEN
        attributes &= CODEC_MASK | (LOG_APPEND_TIME if magic == 1 else 0)
    if attributes & CODEC_MASK > 4:
        return nothing, nothing, np.int64(BAD_CODEC)
    table[n, ATTRIBUTES] = attributes
    return size, marks, np.int64(OK)


@inline
def has_right_crc(window, table, i):
    """Say whether the CRC of batch ``i`` is that of its bytes."""
    position = table[i, POSITION]
    end = position + table[i, SIZE]
    if table[i, MAGIC] == 2:
        return crc32c(window, position + 21, end) == load_be32(window, position + 17) & 0xFFFFFFFF
    return crc32(window, position + 16, end) == load_be32(window, position + 12) & 0xFFFFFFFF


@kernel("UniTuple(int64, 5)(uint8[::1], int64, int64[:, ::1])")
def scan_batches(window, length, table):
    """Fill ``table`` with the whole batches of ``window[:length]``.

    Returns (batches, consumed bytes, marks, largest batch, code). Stops without a code before a
    batch that is cut by the end of the window, when fewer than 18 bytes remain, or when the table
    is full. A code describes the batch that starts at the consumed position. The marks say what
    occurs at all, so that no pass has to look for what is not there.
    """
    position = 0
    n = 0
    marks = 0
    largest = 0
    while length - position >= SCAN_BYTES_MIN and n < table.shape[0]:
        size, more, code = describe_batch(window, position, length, table, n)
        if size == 0:
            return n, position, marks, largest, code
        marks |= more
        position += size
        largest = max(largest, size)
        n += 1
    return n, position, marks, largest, OK


@kernel("int64(uint8[::1], int64[:, ::1], int64, int64)")
def find_bad_crc(window, table, n, size_max):
    """Return the row of the first batch whose CRC is wrong, or -1.

    Batches of magic 2 that are larger than ``size_max`` bytes are left to the caller.
    """
    for i in range(n):
        if table[i, MAGIC] == 2 and table[i, SIZE] > size_max:
            continue
        if not has_right_crc(window, table, i):
            return i
    return -1
