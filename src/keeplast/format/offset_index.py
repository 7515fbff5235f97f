"""The offset index of a segment (``.index``): where in the log to start looking for an offset.

An array of 8-byte big-endian entries, no header, no checksum:

    ===  ====  ========================================================
    off  size  field
    ===  ====  ========================================================
    0    4     relative offset: offset minus the segment's base offset
    4    4     position of a batch in the ``.log`` file
    ===  ====  ========================================================

The offset is the *last* offset of the batch at the position, so every batch before the position
ends below it. Both columns ascend strictly and the first batch of a segment never has an entry. An
index that was not trimmed on close is full of zeros at its end. Every slot counts, so it decodes,
and :func:`find_problem` says what is wrong with it. Answers to ``OffsetIndex``; formats.md section
2.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from keeplast.errors import CorruptError, invariant
from keeplast.format.checksum import Buffer
from keeplast.model.partition import INT32_MAX

ENTRY_BYTES = 8

Entries = NDArray[np.int64]
"""Shape (n, 2): relative offset, position."""


def decode(data: Buffer) -> Entries:
    """Return the entries; raises :class:`CorruptError` when the length is not a multiple of 8."""
    if len(data) % ENTRY_BYTES:
        raise CorruptError(
            "offset index ends inside an entry",
            position=len(data) - len(data) % ENTRY_BYTES,
            expected=f"a multiple of {ENTRY_BYTES} bytes",
            found=f"{len(data)} bytes",
            code="K219",
        )
    return np.frombuffer(data, dtype=">i4").astype(np.int64).reshape(-1, 2)


def encode(entries: Entries | Sequence[tuple[int, int]]) -> bytes:
    """Return the file's bytes; both columns must lie in 0 to 2^31-1."""
    table = np.asarray(entries, dtype=np.int64).reshape(-1, 2)
    invariant(
        table.size == 0 or (int(table.min()) >= 0 and int(table.max()) <= INT32_MAX),
        "offset index entry out of range",
    )
    return table.astype(">i4").tobytes()


def find_problem(entries: Entries, log_size_bytes: int) -> str | None:
    """Return why an index cannot belong to a log of that size, or None when nothing is wrong."""
    if len(entries) == 0:
        return None
    falling = entries[1:] <= entries[:-1]
    # Of entries that ascend the first has the least values.
    if np.count_nonzero(falling) or entries.item(0) < 0 or entries.item(1) < 0:
        if np.count_nonzero(entries < 0):
            return f"negative value. entry={_first(entries.min(axis=1) < 0)}"
        column = 0 if falling[:, 0].any() else 1
        name = ("offset", "position")[column]
        return f"{name}s do not ascend. entry={_first(falling[:, column]) + 1}"
    if entries[-1, 1] >= log_size_bytes:
        entry = _first(entries[:, 1] >= log_size_bytes)
        return (
            f"position past the end of the log. entry={entry} position={entries[entry, 1]} "
            f"log_size_bytes={log_size_bytes}"
        )
    return None


def find_position(entries: Entries, relative_offset: int) -> int:
    """Return where to start scanning for ``relative_offset``: 0 when no entry is at or below it."""
    count = int(np.searchsorted(entries[:, 0], relative_offset, side="right"))
    return int(entries[count - 1, 1]) if count else 0


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))
