"""Which batch of each producer a round must keep, at least empty.

An active producer's last data batch holds the sequence number by which a broker recognises a
duplicate; of a producer of whom only markers are known, every marker with its epoch does. Kafka:
``ProducerStateManager``, ``Cleaner.cleanSegments`` (last records of active producers).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from keeplast.format.producer_snapshot import ProducerEntry


def last_records(
    entries: Iterable[ProducerEntry], *, now_ms: int, expiration_ms: int
) -> NDArray[np.int64]:
    """Return (producer id, last data offset or -1, epoch) of the active producers, ascending.

    A producer expires after ``expiration_ms`` without a batch (equality expires), unless its
    transaction is open.
    """
    rows = [
        (entry.producer_id, max(entry.last_offset, -1), entry.epoch)
        for entry in entries
        if entry.current_txn_first_offset >= 0 or now_ms - entry.timestamp < expiration_ms
    ]
    return np.array(sorted(rows), np.int64).reshape(-1, 3)
