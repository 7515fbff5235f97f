"""How the transactions of a log ended, and which data of a window that makes aborted.

Only control markers show how a transaction ended. Every batch is taken in offset order. One entry
is kept for each aborted transaction and one for each producer with an open one: the only thing that
``verify`` holds in memory without a bound.

The markers ahead show a reader which of a window's data belongs to aborted transactions. A
transaction index is not asked: it may lag its log where a host was killed, or be another's. The
rule: data was aborted when the next marker of its producer is an ABORT. So nothing below a window
has to be known, and a reader may begin anywhere. The log above it is read ahead to the last marker
that its data waits for, headers only, and each byte at most once. A log without transactions is not
read ahead at all.

A reader of a state as of an offset gets transactions as they were decided there. A marker at or
above it counts as not written, and data that no marker below it ends is hidden too.

Answers to ``CompletedFetch``, which goes by the index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from enum import IntEnum

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.batches import HAS_EVENTS
from keeplast.format.record import ControlType
from keeplast.log.transactions import markers_of
from keeplast.log.windows import Window
from keeplast.model.partition import INT64_MAX


class TransactionOutcome(IntEnum):
    """What became of the transaction that a data batch belongs to."""

    COMMITTED = 0
    ABORTED = 1
    OPEN = 2


class TransactionOutcomes(Struct):
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


PRUNED_FROM = 4096
"""So many passed markers of a producer are forgotten at a time."""


class _Markers(Struct):
    """The markers of one producer that were read, ascending."""

    offsets: list[int] = field(default_factory=list)
    aborts: list[bool] = field(default_factory=list)

    def forget_below(self, offset: int) -> None:
        """Forget what no later window waits for."""
        passed = bisect_right(self.offsets, offset)
        if passed >= PRUNED_FROM:
            del self.offsets[:passed]
            del self.aborts[:passed]

    def judge(self, offsets: NDArray[np.int64], *, hides_undecided: bool) -> NDArray[np.bool_]:
        """Say of data at some offsets whether it is hidden: the next marker is an ABORT.

        Data that no marker ends is not aborted, and goes by ``hides_undecided``.
        """
        first = bisect_right(self.offsets, int(offsets.min()))
        last = bisect_right(self.offsets, int(offsets.max())) + 1
        ends = np.array(self.offsets[first:last], np.int64)
        aborts = np.array([*self.aborts[first:last], hides_undecided], np.bool_)
        judged: NDArray[np.bool_] = aborts[np.searchsorted(ends, offsets, "right")]
        return judged


class AbortedData:
    """Judges the windows of one reader, which come in log order.

    ``ahead(offset)`` yields windows of the log from the batch on that holds ``offset``, in order,
    in buffers of its own. With ``decided_before`` no marker at or above that offset counts, and
    what is undecided without it is hidden.
    """

    __slots__ = ("_ahead", "_decided_before", "_markers", "_reached", "_windows")

    def __init__(
        self, ahead: Callable[[int], Iterator[Window]], decided_before: int | None = None
    ) -> None:
        self._ahead = ahead
        self._decided_before = decided_before
        self._windows: Iterator[Window] = iter(())
        self._reached = -1
        self._markers: dict[int, _Markers] = {}

    def among(self, window: Window) -> NDArray[np.bool_] | None:
        """Say of each batch of a window whether it is data of an aborted transaction, or hidden
        as undecided.

        None when there is no transactional data in it. Errors as ``ahead`` raises them, and
        CorruptError for a marker that cannot be read.
        """
        if not window.marks & HAS_EVENTS:
            return None
        table = window.table[: window.batches]
        data = np.flatnonzero(is_transactional_data(table))
        if not len(data):
            return None
        offsets, producers = table[data, t.BASE_OFFSET], table[data, t.PRODUCER_ID]
        mine = dict(_by_producer(producers))
        waiting = {each: int(offsets[its].max()) for each, its in mine.items()}
        self._read_ahead(int(offsets.min()), waiting)
        hides_undecided = self._decided_before is not None
        found = np.zeros(window.batches, np.bool_)
        for producer_id, its in mine.items():
            markers = self._markers.setdefault(producer_id, _Markers())
            markers.forget_below(int(offsets[its].min()))
            found[data[its]] = markers.judge(offsets[its], hides_undecided=hides_undecided)
        return found

    def _read_ahead(self, first: int, waiting: dict[int, int]) -> None:
        """Read to a marker of each producer above its offset in ``waiting``, or to the log end."""
        if self._reached < first:
            # Everything up to here was decided, so nothing is lost by what is passed over.
            self._markers.clear()
            self._windows = self._ahead(first)
        for producer_id, markers in self._markers.items():
            if markers.offsets and markers.offsets[-1] > waiting.get(producer_id, first):
                waiting.pop(producer_id, None)
        while waiting:
            window = next(self._windows, None)
            if window is None:
                return
            lasts = window.table[: window.batches, t.LAST_OFFSET]
            self._reached = max(self._reached, int(lasts.max()))
            found = markers_of(window)
            if self._decided_before is not None:
                found = found[found[:, 1] < self._decided_before]
            for producer_id, rows in _by_producer(found[:, 0]):
                its = self._markers.setdefault(producer_id, _Markers())
                # A segment that was replaced meanwhile is read again.
                known = its.offsets[-1] if its.offsets else -1
                new = found[rows[found[rows, 1] > known]]
                its.offsets += new[:, 1].tolist()
                its.aborts += (new[:, 2] == ControlType.ABORT).tolist()
                if its.offsets and its.offsets[-1] > waiting.get(producer_id, INT64_MAX):
                    del waiting[producer_id]


def _by_producer(producers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each producer with the rows that are its, ascending."""
    order = np.argsort(producers, kind="stable")
    ends = np.flatnonzero(np.diff(producers[order])) + 1
    for rows in np.split(order, ends) if len(order) else ():
        yield int(producers[rows[0]]), rows
