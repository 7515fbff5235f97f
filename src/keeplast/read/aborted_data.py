"""Tells a reader which of a window's data belongs to aborted transactions, by the markers ahead.

A transaction index is not asked: it may lag its log where a host was killed, or be another's. The
rule: data was aborted when the next marker of its producer is an ABORT. So nothing that lies before
a window has to be known, and a reader may begin anywhere; what lies behind it is read ahead to the
last marker that its data waits for, headers only, and each byte at most once. A log without
transactions is not read ahead at all.

Who asks for a state as of an offset gets transactions as they were decided there: a marker at or
behind it counts as not written, and data that no marker in front of it ends is hidden too.

Answers to ``CompletedFetch``, which is told by the index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.columns.scan import HAS_EVENTS
from keeplast.format.control import ControlType
from keeplast.log.transactions import markers_of
from keeplast.log.windows import Window
from keeplast.model.offsets import INT64_MAX
from keeplast.read.transaction_outcomes import is_transactional_data

PRUNED_FROM = 4096
"""Markers of a producer that are behind the reader are forgotten so many at a time."""


@dataclass(slots=True)
class _Markers:
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

        What no marker ends is not aborted, and goes by ``hides_undecided``.
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
    in buffers of its own. With ``decided_before`` no marker at or behind that offset counts, and
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
