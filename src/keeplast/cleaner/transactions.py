"""Which transactions were aborted, followed through a pass in offset order.

The state at the entry of a group is a fold over everything before it. In sequence it is handed from
group to group. In parallel it is computed from the *events* of the segments before it, which are
what a fold can notice of them. Both folds give the same state. Kafka:
``CleanedTransactionMetadata``; cleaning.md section 3.5.

It also says which batch of each producer a round must keep, at least empty. An active producer's
last data batch holds the sequence number that shows a broker a duplicate. Of a producer with known
markers only, every marker with its epoch does. Kafka: ``ProducerStateManager``,
``Cleaner.cleanSegments`` (last records of active producers).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import transactions as kernels
from keeplast.columns.kernel import OK
from keeplast.errors import invariant
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.txn_index import AbortedTransaction


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


SLOTS_MIN = 256
REPLAYED_AT_ONCE = 4096
"""Events replayed in one step: each step reserves a slot for each of its events."""


class TransactionState:
    """The transactions of one pass over a log; picklable between batches.

    ``aborted`` is every aborted transaction that the pass can meet. Those are the ones of the
    transaction indexes from the first segment read on that end at or above the log start and begin
    below the bound. Kafka collects the same set segment by segment. Up to the first event it makes
    no difference: a fold that comes to that must know them. ``since`` is the base offset of the
    first segment that the pass reads.
    """

    __slots__ = ("_counters", "_keys", "_producers", "aborted", "knows_aborted", "since")

    def __init__(self, aborted: Iterable[AbortedTransaction] | None, since: int = 0) -> None:
        """Start before the first batch; ``aborted`` None is given later."""
        self.since = since
        self.knows_aborted = False
        self.aborted: tuple[AbortedTransaction, ...] = ()
        self._keys = aborted_keys(())
        self._producers = _new_table(SLOTS_MIN)
        self._counters = np.zeros(2, np.int64)
        if aborted is not None:
            self.take_aborted(aborted)

    def take_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Take what was aborted; once, and before the first event."""
        invariant(not self.knows_aborted, "a pass is given aborted transactions twice")
        self.knows_aborted = True
        in_order = attrgetter("first_offset", "producer_id", "last_offset", "last_stable_offset")
        self.aborted = tuple(sorted(set(aborted), key=in_order))
        self._keys = aborted_keys(self.aborted)

    def copy(self) -> TransactionState:
        """Return an independent state at the same point."""
        twin = TransactionState(None, self.since)
        twin.knows_aborted, twin.aborted, twin._keys = self.knows_aborted, self.aborted, self._keys
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
        self._require_aborted()
        self._make_room(last - first)
        finished = np.empty(last - first, np.int64)
        count, code, bad = kernels.follow(
            data, scratch, table, first, last, self._producers, self._counters, self._keys,
            finished,
        )  # fmt: skip
        done = tuple(self.aborted[k] for k in finished[:count].tolist())
        return done, None if code == OK else bad

    def at_entry(self, offset: int) -> TransactionState:
        """Return an independent, small state before the batch that ends at or above ``offset``."""
        twin = self.copy()
        if not self.knows_aborted:
            return twin
        twin.replay(np.array([(offset - 1, -1, kernels.OTHER_MARKER)], np.int64))
        open_ = int((twin._producers[:, 1] > 0).sum())
        producers = _new_table(2 * open_ + 2)
        kernels.move_producers(twin._producers, producers)
        twin._producers = producers
        twin._counters[kernels.USED] = open_
        return twin

    def aborted_open(self) -> frozenset[int]:
        """Return the producers whose data counts as aborted now."""
        is_open = (self._producers[:, 1] > 0) & (self._producers[:, 1] & kernels.ABORTED_OPEN != 0)
        return frozenset(self._producers[is_open, 0].tolist())

    def replay(self, events: NDArray[np.int64]) -> None:
        """Advance over the events of segments instead of over their batches."""
        if len(events):
            self._require_aborted()
        for first in range(0, len(events), REPLAYED_AT_ONCE):
            last = min(len(events), first + REPLAYED_AT_ONCE)
            self._make_room(last - first)
            kernels.replay(events, first, last, self._producers, self._counters, self._keys)

    def _require_aborted(self) -> None:
        # Without it aborted data would pass for committed.
        invariant(self.knows_aborted, "an event comes before anybody says who was aborted")

    def _make_room(self, more: int) -> None:
        self._producers = _with_room(
            self._producers, int(self._counters[kernels.USED]) + more + len(self.aborted)
        )


class EventLister:
    """Lists the events of one segment, or of one range of it, window by window."""

    __slots__ = ("_counters", "_keys", "_parts", "_producers")

    def __init__(self, aborted: NDArray[np.int64]) -> None:
        """Start at the first batch; ``aborted`` is what :func:`aborted_keys` returns."""
        self._keys = aborted
        self._producers = _new_table(SLOTS_MIN)
        self._counters = np.zeros(2, np.int64)
        self._parts: list[NDArray[np.int64]] = []

    def add(
        self,
        data: NDArray[np.uint8],
        scratch: NDArray[np.uint8],
        table: NDArray[np.int64],
        first: int,
        last: int,
    ) -> int | None:
        """List batches ``[first, last)``; returns a control batch that cannot be read, or None."""
        used = int(self._counters[kernels.USED])
        self._producers = _with_room(self._producers, used + (last - first) + len(self._keys))
        events = np.empty((last - first, kernels.EVENT_COLUMNS), np.int64)
        count, code, bad = kernels.list_events(
            data, scratch, table, first, last, self._producers, self._counters, self._keys, events
        )
        if count:
            self._parts.append(events[:count].copy())
        return None if code == OK else int(bad)

    def events(self) -> NDArray[np.int64]:
        """Return all events so far, (n, 3): last offset, producer id, kind."""
        return np.concatenate([no_events(), *self._parts])


def no_events() -> NDArray[np.int64]:
    """Return no events, with the shape of some: (0, 3), int64."""
    return np.empty((0, kernels.EVENT_COLUMNS), np.int64)


def aborted_keys(aborted: Iterable[AbortedTransaction]) -> NDArray[np.int64]:
    """Return (first offset, producer id) of each, as the kernels take them.

    They stay in the order of ``aborted``, which ascends: an index into one is one into the other.
    """
    keys = [(txn.first_offset, txn.producer_id) for txn in aborted]
    return np.array(keys, np.int64).reshape(-1, 2)


def _with_room(producers: NDArray[np.int64], taken: int) -> NDArray[np.int64]:
    """Return the table, or a larger copy of it, with room for ``taken`` slots."""
    room = 2 * taken + 2
    if producers.shape[0] >= room:
        return producers
    grown = _new_table(2 * room)
    kernels.move_producers(producers, grown)
    return grown


def _new_table(slots: int) -> NDArray[np.int64]:
    table = np.zeros((slots, 3), np.int64)
    table[:, 1] = kernels.MARK_EMPTY
    return table
