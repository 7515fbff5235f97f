"""Compares, for ``inspect``, the transaction indexes of a log with its markers.

Kept are the open transactions and those that aborted in one segment. A transaction whose data is
gone may have an entry or none: it hides nothing. Only one that left records must have one, and an
entry must end at an ABORT marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from keeplast.errors import CorruptError
from keeplast.format.batch import RecordBatch
from keeplast.format.control import ControlType, decode_control_type
from keeplast.format.message_set import Batch
from keeplast.format.txn_index import AbortedTransaction


@dataclass(slots=True)
class AbortedScan:
    """What the batches say, fed in log order; a segment begins and ends with :meth:`compare`."""

    _opened: dict[int, int] = field(default_factory=dict)
    _ended: dict[tuple[int, int], int] = field(default_factory=dict)
    _aborts: set[tuple[int, int]] = field(default_factory=set)

    def take(self, batch: Batch) -> None:
        """Account for a batch; one that cannot be read is for others to tell of."""
        if not isinstance(batch, RecordBatch) or batch.producer_id < 0 or not batch.is_valid:
            return
        if not batch.is_control:
            if batch.is_transactional and batch.count > 0:
                self._opened.setdefault(batch.producer_id, batch.base_offset)
            return
        try:
            kinds = {decode_control_type(record.key) for record in batch.records()}
        except CorruptError:
            return
        if not kinds & {ControlType.ABORT, ControlType.COMMIT}:
            return
        first = self._opened.pop(batch.producer_id, None)
        if ControlType.ABORT in kinds:
            end = (batch.producer_id, batch.last_offset)
            self._aborts.add(end)
            if first is not None:
                self._ended[end] = first

    def compare(self, entries: Sequence[AbortedTransaction] | None) -> list[tuple[str, int]]:
        """Return what is wrong with the index of the segment that was read, with offsets, and begin
        the next; ``entries`` None is an index that there is nothing to say of.
        """
        ended, aborts = self._ended, self._aborts
        self._ended, self._aborts = {}, set()
        if entries is None:
            return []
        named = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in entries}
        found = [
            (
                f"no entry for the aborted transaction of producer {producer_id} from {first} on",
                last,
            )
            for (producer_id, last), first in ended.items()
            if named.get((producer_id, last), last) > first
        ]
        found += [
            (f"the entry of producer {producer_id} ends at no abort marker", last)
            for producer_id, last in named
            if (producer_id, last) not in aborts
        ]
        return sorted(found, key=lambda each: each[1])
