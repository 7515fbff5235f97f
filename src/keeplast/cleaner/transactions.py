"""Which transactions were aborted, followed through a pass in offset order.

The state at the entry of a group is a fold over everything before it: in sequence it is handed
from group to group. Kafka: ``CleanedTransactionMetadata``; cleaning.md section 3.5.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import transactions as kernels
from keeplast.columns.kernel import OK
from keeplast.format.txn_index import AbortedTransaction

SLOTS_MIN = 256


class TransactionState:
    """The transactions of one pass over a log; picklable between batches.

    ``aborted`` is every aborted transaction that the pass can meet: those of the transaction
    indexes from the first segment read on, that end at or above the log start and begin below the
    bound. Kafka collects the same set segment by segment.
    """

    __slots__ = ("_counters", "_keys", "_producers", "aborted")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Start before the first batch."""
        self.aborted = tuple(sorted(set(aborted), key=lambda txn: txn.first_offset))
        self._keys = np.array(
            [(txn.first_offset, txn.producer_id) for txn in self.aborted], np.int64
        ).reshape(-1, 2)
        self._producers = _new_table(max(SLOTS_MIN, 4 * len(self.aborted)))
        self._counters = np.zeros(2, np.int64)

    def copy(self) -> TransactionState:
        """Return an independent state at the same point."""
        twin = TransactionState(())
        twin.aborted, twin._keys = self.aborted, self._keys
        twin._producers, twin._counters = self._producers.copy(), self._counters.copy()
        return twin

    def follow(
        self,
        data: NDArray[np.uint8],
        scratch: NDArray[np.uint8],
        table: NDArray[np.int64],
        first: int,
        last: int,
    ) -> tuple[tuple[AbortedTransaction, ...], int | None]:
        """Set STATE of batches ``[first, last)`` and advance.

        Returns the aborted transactions whose marker was met after their data, in order, and the
        index of a control batch that cannot be read, or None.
        """
        room = 2 * (int(self._counters[kernels.USED]) + (last - first) + len(self.aborted)) + 2
        if self._producers.shape[0] < room:
            grown = _new_table(2 * room)
            kernels.move_producers(self._producers, grown)
            self._producers = grown
        finished = np.empty(last - first, np.int64)
        count, code, bad = kernels.follow(
            data, scratch, table, first, last, self._producers, self._counters, self._keys,
            finished,
        )  # fmt: skip
        done = tuple(self.aborted[k] for k in finished[:count].tolist())
        return done, None if code == OK else bad


def _new_table(slots: int) -> NDArray[np.int64]:
    table = np.zeros((slots, 3), np.int64)
    table[:, 1] = kernels.MARK_EMPTY
    return table
