"""The time index of a segment (``.timeindex``): the offset at which a timestamp had been reached.

An array of 12-byte big-endian entries, no header, no checksum:

    ===  ====  ========================================================
    off  size  field
    ===  ====  ========================================================
    0    8     greatest batch timestamp so far, in milliseconds
    8    4     relative offset: last offset of the first batch having it
    ===  ====  ========================================================

Timestamps ascend strictly, offsets do not descend. The last entry of a closed segment carries the
segment's greatest timestamp; retention and rolling rely on it.
Answers to ``TimeIndex``; formats.md section 2.5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from keeplast.errors import CorruptError, invariant
from keeplast.format.checksum import Buffer
from keeplast.model.partition import INT32_MAX

ENTRY_BYTES = 12

Entries = NDArray[np.int64]
"""Shape (n, 2): timestamp, relative offset."""

_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])


def decode(data: Buffer) -> Entries:
    """Return the entries; raises :class:`CorruptError` when the length is not a multiple of 12."""
    if len(data) % ENTRY_BYTES:
        raise CorruptError(
            "time index ends inside an entry",
            position=len(data) - len(data) % ENTRY_BYTES,
            expected=f"a multiple of {ENTRY_BYTES} bytes",
            found=f"{len(data)} bytes",
            code="K219",
        )
    rows = np.frombuffer(data, dtype=_ENTRY)
    entries = np.empty((len(rows), 2), dtype=np.int64)
    entries[:, 0] = rows["timestamp"]
    entries[:, 1] = rows["relative_offset"]
    return entries


def encode(entries: Entries | Sequence[tuple[int, int]]) -> bytes:
    """Return the file's bytes; relative offsets must lie in 0 to 2^31-1."""
    table = np.asarray(entries, dtype=np.int64).reshape(-1, 2)
    offsets = table[:, 1]
    invariant(
        table.size == 0 or (int(offsets.min()) >= 0 and int(offsets.max()) <= INT32_MAX),
        "time index entry out of range",
    )
    rows = np.empty(len(table), dtype=_ENTRY)
    rows["timestamp"] = table[:, 0]
    rows["relative_offset"] = offsets
    return rows.tobytes()


def find_problem(entries: Entries, log_size_bytes: int) -> str | None:
    """Return why an index cannot belong to a log of that size, or None when nothing is wrong."""
    if len(entries) == 0:
        return None
    falling = entries[1:, 0] <= entries[:-1, 0]
    descending = entries[1:, 1] < entries[:-1, 1]
    # Of entries that ascend the first has the least values.
    if (
        np.count_nonzero(falling)
        or np.count_nonzero(descending)
        or entries.item(0) < 0
        or entries.item(1) < 0
    ):
        if np.count_nonzero(entries < 0):
            return f"negative value. entry={_first(entries.min(axis=1) < 0)}"
        if np.count_nonzero(falling):
            return f"timestamps do not ascend. entry={_first(falling) + 1}"
        return f"offsets descend. entry={_first(descending) + 1}"
    if log_size_bytes == 0:
        return "entries for an empty log. entry=0"
    return None


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))
