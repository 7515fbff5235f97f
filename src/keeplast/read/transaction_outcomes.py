"""How every transaction of a log ended, told by its control markers and by nothing else.

Fed with every batch in offset order. Kept is one entry for each aborted transaction and one for
each producer with an open one: the only thing that ``verify`` holds in memory without a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t


class TransactionOutcome(IntEnum):
    """What became of the transaction that a data batch belongs to."""

    COMMITTED = 0
    ABORTED = 1
    OPEN = 2


@dataclass(slots=True)
class TransactionOutcomes:
    """Aborted and open transactions by producer; offsets are inclusive."""

    open_from: dict[int, int] = field(default_factory=dict)
    aborted: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add_data(self, producer_id: int, base_offset: int) -> None:
        """Note where a producer's open transaction begins; a later batch of it changes nothing."""
        self.open_from.setdefault(producer_id, base_offset)

    def add_marker(self, producer_id: int, offset: int, *, commits: bool) -> None:
        """Account for a marker; one without data ends nothing."""
        first = self.open_from.pop(producer_id, None)
        if first is not None and not commits:
            self.aborted.setdefault(producer_id, []).append((first, offset))

    def first_open(self) -> int | None:
        """Return where the earliest open transaction begins."""
        return min(self.open_from.values(), default=None)

    def aborted_from(self, offset: int) -> list[tuple[int, int]]:
        """Return first offset and producer of those that ended at or above ``offset``."""
        return [
            (first, producer_id)
            for producer_id, ranges in self.aborted.items()
            for first, last in ranges
            if last >= offset
        ]

    def of_batches(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the outcome of each batch of a batch table, COMMITTED outside transactions."""
        outcomes = np.full(len(table), TransactionOutcome.COMMITTED, np.int64)
        data = np.flatnonzero(is_transactional_data(table))
        if not len(data) or not (self.aborted or self.open_from):
            return outcomes
        producers = table[data, t.PRODUCER_ID]
        for producer_id in np.unique(producers).tolist():
            mine = data[producers == producer_id]
            offsets = table[mine, t.BASE_OFFSET]
            ranges = np.array(self.aborted.get(producer_id, ()), np.int64).reshape(-1, 2)
            before = np.searchsorted(ranges[:, 0], offsets, "right") - 1
            inside = before >= 0
            inside[inside] = offsets[inside] <= ranges[before[inside], 1]
            outcomes[mine[inside]] = TransactionOutcome.ABORTED
            start = self.open_from.get(producer_id)
            if start is not None:
                outcomes[mine[offsets >= start]] = TransactionOutcome.OPEN
        return outcomes


def is_transactional_data(table: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say of each batch of a batch table whether it is data of a transaction."""
    marks = table[:, t.ATTRIBUTES] & (t.TRANSACTIONAL | t.CONTROL)
    is_data: NDArray[np.bool_] = (marks == t.TRANSACTIONAL) & (table[:, t.MAGIC] == 2)
    return is_data
