"""How large an index can be, given its segment: what a file's size claims is not believed.

No index has more entries than its segment has batches, and the smallest batch takes 26 bytes; an
empty segment may have one entry. Checked before memory is taken for an index.
"""

from __future__ import annotations

from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.filename import INDEX, TIME_INDEX, TXN_INDEX, Kind

BATCH_BYTES_MIN = 26
ENTRY_BYTES: dict[Kind, int] = {
    INDEX: offset_index.ENTRY_BYTES,
    TIME_INDEX: time_index.ENTRY_BYTES,
    TXN_INDEX: txn_index.ENTRY_BYTES,
}


def index_bytes_max(segment_bytes: int, kind: Kind) -> int:
    """Return the most that an index of ``kind`` of a segment of ``segment_bytes`` can hold."""
    return (segment_bytes // BATCH_BYTES_MIN + 2) * ENTRY_BYTES[kind]
