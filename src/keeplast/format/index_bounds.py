"""How large an index can be, given its segment: what a file's size claims is not believed.

No index has more entries than its segment has batches, and the smallest batch takes 26 bytes; an
empty segment may have one entry. Checked before memory is taken for an index. And which of the
slots are entries, where a broker has not trimmed the file yet; formats.md section 2.4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.filename import INDEX, TIME_INDEX, TXN_INDEX, Kind

BATCH_BYTES_MIN = 26
ENTRY_BYTES: dict[Kind, int] = {
    INDEX: offset_index.ENTRY_BYTES,
    TIME_INDEX: time_index.ENTRY_BYTES,
    TXN_INDEX: txn_index.ENTRY_BYTES,
}


def filled_entries(entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the entries of an index that a broker keeps at full size: those before the first hole.

    Shape (n, 2). A broker fills the slots of the active segment's indexes one after another and
    trims them when it leaves the segment; both columns of the offset index, and the times of the
    time index, ascend strictly, so that no slot behind the first can be all zeros and an entry. The
    first one can: a batch dated 0 that ends at the base offset; it is one when another follows.
    What lies behind a hole was left there by a truncation or a crash, and nobody follows it.
    """
    empty = np.flatnonzero(~entries.any(axis=1))
    holes = empty[empty > 0]
    used = int(holes[0]) if len(holes) else len(entries)
    return entries[:0] if used == 1 and len(empty) and empty[0] == 0 else entries[:used]


def index_bytes_max(segment_bytes: int, kind: Kind) -> int:
    """Return the most that an index of ``kind`` of a segment of ``segment_bytes`` can hold."""
    return (segment_bytes // BATCH_BYTES_MIN + 2) * ENTRY_BYTES[kind]
