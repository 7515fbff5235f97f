"""What a log knows of its producers: last batch, epoch, open transaction.

Fed with every batch in offset order, and only so: the answer to "which transactions are open" is a
fold over the log. An end-transaction marker with a newer epoch clears the producer's data history.
Answers to ``ProducerStateManager``, ``ProducerAppendInfo`` and ``ProducerStateEntry``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from keeplast.format.batch import RecordBatch
from keeplast.format.control import (
    ControlType,
    decode_control_type,
    decode_end_transaction,
)
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.offsets import decrement_sequence

NOTHING_SEEN = ProducerEntry(
    producer_id=-1,
    epoch=-1,
    last_sequence=-1,
    last_offset=-1,
    offset_delta=0,
    timestamp=-1,
    coordinator_epoch=-1,
    current_txn_first_offset=-1,
)


BATCHES_KEPT = 5
"""So many requests may a producer have on their way. Kafka:
``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``; a snapshot keeps the last one alone."""


class ProducerState:
    """The table of producers of one log, up to some offset."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        """Start from a snapshot's entries; of a repeated producer the last one counts."""
        self._entries = {entry.producer_id: entry for entry in entries}
        self._ended: list[tuple[int, int]] = []
        self._batches: dict[int, deque[tuple[int, int, int]]] = {}
        for entry in self._entries.values():
            if entry.last_sequence >= 0:
                self._remember(entry)

    def add(self, batch: RecordBatch) -> AbortedTransaction | None:
        """Account for a batch; return the aborted transaction that it ends, if any.

        CorruptError when it is a control batch whose record cannot be read. An empty control
        batch is no event: the whole transaction has been cleaned away.
        """
        if batch.producer_id < 0:
            return None
        if not batch.is_control:
            self.add_data(
                batch.producer_id,
                batch.producer_epoch,
                base_offset=batch.base_offset,
                last_offset=batch.last_offset,
                last_sequence=batch.last_sequence,
                timestamp=batch.max_timestamp,
                is_transactional=batch.is_transactional,
            )
            return None
        for record in batch.records():
            if decode_control_type(record.key) not in (ControlType.ABORT, ControlType.COMMIT):
                continue
            marker = decode_end_transaction(record.key, record.value)
            return self.end_transaction(
                batch.producer_id,
                batch.producer_epoch,
                outcome=marker.control_type,
                offset=record.offset,
                timestamp=record.timestamp,
                coordinator_epoch=marker.coordinator_epoch,
            )
        return None

    def first_open_transaction(self) -> int | None:
        """Return the first offset of the earliest open transaction, None when all are decided."""
        opened = [entry.current_txn_first_offset for entry in self._entries.values()]
        return min((offset for offset in opened if offset >= 0), default=None)

    def first_undecided(self, high_watermark: int) -> int | None:
        """Return the first offset of the earliest transaction that is open, or whose end not every
        replica has: another leader may end it otherwise. None without one.

        Transactions that ended below ``high_watermark`` are forgotten: it never falls behind what
        was decided. Kafka: ``ProducerStateManager.firstUnstableOffset``, ``unreplicatedTxns``.
        """
        self._ended = [each for each in self._ended if each[1] >= high_watermark]
        opened = self.first_open_transaction()
        firsts = [first for first, _ in self._ended] + ([] if opened is None else [opened])
        return min(firsts, default=None)

    def find(self, producer_id: int) -> ProducerEntry | None:
        """Return what is known of a producer, None when nothing is."""
        return self._entries.get(producer_id)

    def find_batch(self, producer_id: int, first: int, last: int) -> int | None:
        """Return the base offset of the batch with these sequence numbers, both inclusive.

        None when it is not among the producer's last :data:`BATCHES_KEPT` of its newest epoch.
        """
        for first_known, last_known, base_offset in self._batches.get(producer_id, ()):
            if (first_known, last_known) == (first, last):
                return base_offset
        return None

    def _remember(self, entry: ProducerEntry) -> None:
        first = decrement_sequence(entry.last_sequence, entry.offset_delta)
        kept = self._batches.setdefault(entry.producer_id, deque(maxlen=BATCHES_KEPT))
        kept.append((first, entry.last_sequence, entry.last_offset - entry.offset_delta))

    def entries(self) -> tuple[ProducerEntry, ...]:
        """Return what a snapshot holds, by ascending producer id."""
        return tuple(self._entries[producer_id] for producer_id in sorted(self._entries))

    def add_data(
        self,
        producer_id: int,
        epoch: int,
        *,
        base_offset: int,
        last_offset: int,
        last_sequence: int,
        timestamp: int,
        is_transactional: bool,
    ) -> None:
        """Account for a data batch of a producer (id >= 0); offsets are inclusive."""
        entry = self._entries.get(producer_id, NOTHING_SEEN)
        first_offset = entry.current_txn_first_offset
        if is_transactional and first_offset < 0:
            first_offset = base_offset
        made = ProducerEntry(
            producer_id=producer_id,
            epoch=epoch,
            last_sequence=last_sequence,
            last_offset=last_offset,
            offset_delta=last_offset - base_offset,
            timestamp=timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_first_offset=first_offset,
        )
        self._entries[producer_id] = made
        if entry.epoch != epoch:
            # Sequences begin anew with an epoch: an older one's batch is no duplicate.
            self._batches.pop(producer_id, None)
        if last_sequence >= 0:
            self._remember(made)

    def end_transaction(
        self,
        producer_id: int,
        epoch: int,
        *,
        outcome: ControlType,
        offset: int,
        timestamp: int,
        coordinator_epoch: int,
    ) -> AbortedTransaction | None:
        """Account for a marker; return what the transaction index gets, None when nothing.

        Only an aborted transaction with data is worth an entry.
        """
        entry = self._entries.get(producer_id, NOTHING_SEEN)
        first_offset = entry.current_txn_first_offset
        if entry.epoch != epoch:
            entry = NOTHING_SEEN
            self._batches.pop(producer_id, None)
        self._entries[producer_id] = replace(
            entry,
            producer_id=producer_id,
            epoch=epoch,
            timestamp=timestamp,
            coordinator_epoch=coordinator_epoch,
            current_txn_first_offset=-1,
        )
        if first_offset < 0:
            return None
        self._ended.append((first_offset, offset))
        if outcome is not ControlType.ABORT:
            return None
        still_open = [
            other.current_txn_first_offset
            for other in self._entries.values()
            if other.current_txn_first_offset >= 0
        ]
        return AbortedTransaction(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=offset,
            last_stable_offset=min(still_open, default=offset + 1),
        )
