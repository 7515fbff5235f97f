"""Which transactions are in flight at an offset: begun in front of it, their marker behind it.

A state as of that offset does not have them. Two things follow:

* Who goes on from the state reads again from where the first of them begins, or its records in
  front of the offset would be in nobody's hands.
* A cleaner believed a transaction that is committed by now, also where its data lies in what was
  cleaned and its marker behind the offset: what was final without it is gone, and so is the state.

The second can only happen to a transaction that began below where the log was cleaned to. Who had
one open there is told by a producer snapshot from between there and the offset; brokers write one
where a segment begins. Without one a producer may have had one until its first marker behind there,
unless its sequence begins behind there: data in front of it may have been superseded, or deleted,
and leave no trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keeplast.clock import Clock
from keeplast.columns import batch_table as t
from keeplast.columns.scan import HAS_EVENTS
from keeplast.errors import CorruptError
from keeplast.format import producer_snapshot
from keeplast.format.batch import decode_batch
from keeplast.format.control import ControlType
from keeplast.format.filename import SNAPSHOT, segment_file
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import SNAPSHOT_BYTES_MAX
from keeplast.log.transactions import TransactionFold, markers_of
from keeplast.log.windows import Window, WindowBuffers
from keeplast.model.offsets import INT64_MAX
from keeplast.read.log_ranges import Split, Wanted
from keeplast.read.log_view import LogView
from keeplast.read.record_source import read_wanted
from keeplast.read.transaction_outcomes import is_transactional_data


@dataclass(frozen=True, slots=True)
class InFlight:
    """The transactions that are in flight at an offset.

    ``first_offset`` is where the earliest of them begins, as far as it has left data; None without
    one. ``believed_to`` is behind the last marker of those that a cleaner may have believed though
    they are undecided at the offset; None without one, and then the state can be told.
    ``snapshot`` is the offset of the producer snapshot from which on they were followed; None where
    there was none, so that it was from the log start. ``has_producers`` says that there was one at
    all, in the snapshot or behind it.
    """

    first_offset: int | None
    believed_to: int | None
    snapshot: int | None
    has_producers: bool


def find_in_flight(
    view: LogView, end_offset: int, cleaned_to: int | None, files: FileSystem, clock: Clock
) -> InFlight:
    """Return what is in flight at ``end_offset`` of a log that was cleaned to ``cleaned_to``.

    None was never cleaned, as far as anybody says; otherwise it is at most ``end_offset``. Reads
    headers: up to there from the newest snapshot behind what was cleaned, without one from the log
    start; to the log end where that may matter. CorruptError as for a round.
    """
    first = max(view.log_start, cleaned_to or 0)
    snapshot, entries = _newest_snapshot(view, first, end_offset, files)
    start = view.log_start if snapshot is None else snapshot
    fold = TransactionFold(_opened(entries))
    has_producers = bool(entries)
    for window in _headers(view, start, end_offset, files, clock):
        fold.add(window)
        has_producers |= bool(window.marks & HAS_EVENTS)
    open_from = dict(fold.opened())
    is_cleaned = first > view.log_start
    is_known = snapshot is not None
    suspects = {producer for producer, offset in open_from.items() if offset < first}
    believed_to = None
    if is_cleaned and not is_known:
        believed_to = _believed_to(view, first, end_offset, None, files, clock)
    elif is_cleaned and suspects:
        believed_to = _believed_to(view, end_offset, end_offset, suspects, files, clock)
    first_offset = min(open_from.values(), default=None)
    return InFlight(first_offset, believed_to, snapshot, has_producers)


def _believed_to(
    view: LogView,
    start: int,
    end_offset: int,
    suspects: set[int] | None,
    files: FileSystem,
    clock: Clock,
) -> int | None:
    """Return the offset behind the last COMMIT, from ``end_offset`` on, that is the first marker of
    a suspect from ``start`` on; None without one.

    ``suspects`` None are all producers whose transaction does not begin behind ``start`` for sure.
    """
    seen: set[int] = set()
    found = None
    for window in _headers(view, start, INT64_MAX, files, clock):
        began = _began_here(window, seen) if suspects is None else {}
        for producer, offset, kind in markers_of(window).tolist():
            if producer in seen or (suspects is not None and producer not in suspects):
                continue
            seen.add(producer)
            is_behind = began.get(producer, offset) < offset
            if kind == ControlType.COMMIT and offset >= end_offset and not is_behind:
                found = offset + 1
        seen.update(began)
    return found


def _began_here(window: Window, seen: Collection[int]) -> dict[int, int]:
    """Return producers, not ``seen``, whose first data of the window begins their sequence, and
    where that lies: nothing of their transaction is in front of it.
    """
    rows = window.table[: window.batches]
    first: dict[int, int] = {}
    for row in np.flatnonzero(is_transactional_data(rows)).tolist():
        first.setdefault(int(rows[row, t.PRODUCER_ID]), row)
    began = {}
    for producer, row in first.items():
        if producer not in seen:
            at = int(rows[row, t.POSITION])
            raw = window.data[at : at + int(rows[row, t.SIZE])].tobytes()
            if decode_batch(raw).base_sequence == 0:
                began[producer] = int(rows[row, t.BASE_OFFSET])
    return began


def _newest_snapshot(
    view: LogView, first: int, end_offset: int, files: FileSystem
) -> tuple[int | None, Sequence[ProducerEntry]]:
    """Return from where in [first, end] to follow the producers, and who they are there.

    None, and nobody, without a snapshot in that range.
    """
    for segment in reversed(view.segments):
        at = segment.base_offset
        if not (first <= at <= end_offset and view.log_start < at):
            continue
        path = view.path / segment_file(at, SNAPSHOT)
        try:
            entries = producer_snapshot.decode(files.read_bytes(path, SNAPSHOT_BYTES_MAX))
        except (CorruptError, FileNotFoundError):
            continue
        return at, entries
    return None, []


def _opened(entries: Iterable[ProducerEntry]) -> list[tuple[int, int]]:
    opened = [(each.producer_id, each.current_txn_first_offset) for each in entries]
    return [each for each in opened if each[1] >= 0]


def _headers(
    view: LogView, first: int, end: int, files: FileSystem, clock: Clock
) -> Iterator[Window]:
    """Yield windows with the batches that begin below ``end`` and reach to ``first``."""
    split = Split(view.partition, view.path, Wanted(first, end), 0)
    at = first
    for _, window, _, _ in read_wanted(split, files, clock, WindowBuffers(), checks_crc=False):
        rows = window.table[: window.batches]
        lasts = rows[:, t.LAST_OFFSET]
        chosen = (lasts >= at) & (rows[:, t.BASE_OFFSET] < end)
        if not chosen.any():
            continue
        at = int(lasts[chosen].max()) + 1
        table = np.ascontiguousarray(rows[chosen])
        yield replace(window, table=table, batches=len(table))
