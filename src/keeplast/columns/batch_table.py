"""The table of batches of a window: one row a batch, one column a constant below.

A window is a run of whole batches of one segment in one byte array. Positions are relative to the
array they point into; offsets and timestamps are absolute. A batch of magic 0 or 1 has one row
too: an uncompressed message is its own batch, a compressed wrapper is one batch.

``PAYLOAD_*`` says where the batch's records lie *in the record layout of magic 2*: in the window
itself (``PAYLOAD_IN`` 0), or in the scratch array (1) into which compressed batches are
decompressed and old messages are converted, or nowhere yet (-1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
