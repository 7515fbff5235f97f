"""What each producer did last, and which transactions are open.

A fold over the batches that carry a producer id, in offset order, from a snapshot or from nothing.
Two results matter to a round: the last stable offset, and each active producer's last batch, which
must survive at least empty. Kafka: ``ProducerStateManager``, ``ProducerAppendInfo``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.offsets import NO_SEQUENCE, increment_sequence


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """One batch with a producer id, as the fold sees it.

    ``marker`` is None for data, else the control type (0 abort, 1 commit) of its record; an empty
    control batch is no event at all. ``timestamp_ms`` is the batch's maximum timestamp.
    """

    producer_id: int
    epoch: int
    base_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int
    is_transactional: bool
    marker: int | None = None
    coordinator_epoch: int = -1


class ProducerTable:
    """The producers of a log at some offset; mutable while it is folded."""

    __slots__ = ("_entries", "aborted")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        """Start from a snapshot's entries."""
        self._entries = {entry.producer_id: entry for entry in entries}
        self.aborted: list[AbortedTransaction] = []

    def apply(self, batch: ProducerBatch) -> None:
        """Fold one batch; aborted transactions with data are collected in ``aborted``."""
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            entry = ProducerEntry(
                producer_id=batch.producer_id, epoch=batch.epoch, last_sequence=-1,
                last_offset=-1, offset_delta=0, timestamp=-1, coordinator_epoch=-1,
                current_txn_first_offset=-1,
            )  # fmt: skip
        elif entry.epoch != batch.epoch:
            # A new epoch clears the data history, a marker's epoch bump included.
            entry = replace(
                entry, epoch=batch.epoch, last_sequence=-1, last_offset=-1, offset_delta=0
            )
        if batch.marker is not None:
            first = entry.current_txn_first_offset
            entry = replace(
                entry,
                timestamp=batch.timestamp_ms,
                coordinator_epoch=batch.coordinator_epoch,
                current_txn_first_offset=-1,
            )
            self._entries[batch.producer_id] = entry
            if first >= 0 and batch.marker == 0:
                stable = min(
                    (
                        other.current_txn_first_offset
                        for other in self._entries.values()
                        if other.current_txn_first_offset >= 0
                    ),
                    default=batch.last_offset + 1,
                )
                self.aborted.append(
                    AbortedTransaction(batch.producer_id, first, batch.last_offset, stable)
                )
            return
        delta = batch.last_offset - batch.base_offset
        last_sequence = (
            NO_SEQUENCE
            if batch.base_sequence == NO_SEQUENCE
            else increment_sequence(batch.base_sequence, delta)
        )
        opens = batch.is_transactional and entry.current_txn_first_offset < 0
        self._entries[batch.producer_id] = replace(
            entry,
            last_sequence=last_sequence,
            last_offset=batch.last_offset,
            offset_delta=delta,
            timestamp=batch.timestamp_ms,
            current_txn_first_offset=(
                batch.base_offset if opens else entry.current_txn_first_offset
            ),
        )

    def first_open_transaction(self) -> int | None:
        """Return the first offset of the earliest open transaction, None when all are decided."""
        return min(
            (
                entry.current_txn_first_offset
                for entry in self._entries.values()
                if entry.current_txn_first_offset >= 0
            ),
            default=None,
        )

    def entries(self) -> tuple[ProducerEntry, ...]:
        """Return all entries, ascending by producer id."""
        return tuple(self._entries[key] for key in sorted(self._entries))

    def last_records(self, *, now_ms: int, expiration_ms: int) -> NDArray[np.int64]:
        """Return (producer id, last data offset or -1, epoch) of the active producers, ascending.

        A producer expires after ``expiration_ms`` without a batch (equality expires), unless its
        transaction is open.
        """
        rows = [
            (entry.producer_id, max(entry.last_offset, -1), entry.epoch)
            for entry in self.entries()
            if entry.current_txn_first_offset >= 0 or now_ms - entry.timestamp < expiration_ms
        ]
        return np.array(rows, np.int64).reshape(-1, 3)
