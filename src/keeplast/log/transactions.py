"""Derives the aborted transactions of a log from its batches and markers, and from nothing else.

A transaction index may lack what a crash kept from it, belong to another file or be gone. A marker
cannot be missing while data of its transaction is there. So a reader that must not show an aborted
record asks here. It asks an index only where something vouches for it (a store, which derived it
when it took the segment in). What is derived names a transaction where it left data, or a header of
it, or where a snapshot says that it had begun. An entry without data hides nothing.

The value-level twin, one batch at a time, is :class:`keeplast.log.active_segment.ProducerState`.
Answers to ``LogSegment.recover`` and ``ProducerStateManager.completeTxn``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns import transactions as kernels
from keeplast.columns.batches import HAS_EVENTS, HAS_HIDDEN_CONTROL
from keeplast.columns.kernel import BAD_CRC, OK, PROBLEMS
from keeplast.errors import CorruptError
from keeplast.format import producer_snapshot
from keeplast.format.batch import decode_batch
from keeplast.format.filename import SNAPSHOT, segment_file
from keeplast.format.record import ControlType, decode_control_type
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import SNAPSHOT_BYTES_MAX, PartitionFiles, SegmentFiles, Tail
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.model.partition import INT64_MAX

SLOTS_MIN = 256


class TransactionFold:
    """The transactions that are open at some offset; fed with every batch above it, in order.

    Memory is that of the open transactions and of one window's. Started with nothing at any offset
    it is still right from there on about which data was aborted: the next marker of its producer
    says that. Only where such a transaction began, it may then name too late.
    """

    __slots__ = ("_order", "_producers", "_state")

    def __init__(self, opened: Iterable[tuple[int, int]] = ()) -> None:
        """Start with ``opened``: producer id and first offset of each open transaction."""
        self._renew(sorted(dict(opened).items(), key=_first_offset), 0)

    def add(self, window: Window) -> list[AbortedTransaction]:
        """Account for a window; return the aborted transactions whose marker lies in it, in order.

        CorruptError when a control batch cannot be read or its CRC is wrong; those of data batches
        need not have been checked.
        """
        n = window.batches
        if not n or not window.marks & HAS_EVENTS:
            return []
        self._make_room(n)
        ended = np.empty((n, kernels.END_COLUMNS), np.int64)
        count, code, bad = kernels.end_transactions(
            window.data, window.table, n, _hidden_kinds(window),
            self._producers, self._state, self._order, ended,
        )  # fmt: skip
        _require(code, bad, window)
        return [AbortedTransaction(*row) for row in ended[:count].tolist()]

    def opened(self) -> list[tuple[int, int]]:
        """Return producer id and first offset of every open transaction, by first offset."""
        is_open = self._producers[:, 1] == kernels.COMMITTED_OPEN
        rows = self._producers[is_open][:, [0, 2]].tolist()
        return sorted(((producer, first) for producer, first in rows), key=_first_offset)

    def first_open(self) -> int | None:
        """Return where the earliest open transaction began, None without one."""
        head, tail = int(self._state[kernels.HEAD]), int(self._state[kernels.TAIL])
        return int(self._order[head, 1]) if head < tail else None

    def _make_room(self, more: int) -> None:
        """Let ``more`` transactions of as many producers begin."""
        used, tail = int(self._state[kernels.USED]), int(self._state[kernels.TAIL])
        if 2 * (used + more + 1) > len(self._producers) or tail + more > len(self._order):
            self._renew(self.opened(), more)

    def _renew(self, opened: list[tuple[int, int]], more: int) -> None:
        """Begin the tables again with what is open, so that what has ended takes no room."""
        room = len(opened) + more
        known = np.full((len(opened), 3), kernels.COMMITTED_OPEN, np.int64)
        known[:, [0, 2]] = np.array(opened, np.int64).reshape(-1, 2)
        self._producers = np.zeros((max(SLOTS_MIN, 4 * (room + 1)), 3), np.int64)
        self._producers[:, 1] = kernels.MARK_EMPTY
        kernels.move_producers(known, self._producers)
        self._order = np.empty((2 * room + SLOTS_MIN, 2), np.int64)
        self._order[: len(opened)] = known[:, [0, 2]]
        self._state = np.array([0, len(opened), len(opened)], np.int64)


def markers_of(window: Window) -> NDArray[np.int64]:
    """Return the transaction markers of a window, (n, 3): producer id, offset, ControlType.

    CorruptError as for :meth:`TransactionFold.add`.
    """
    if not window.batches or not window.marks & HAS_EVENTS:
        return np.empty((0, 3), np.int64)
    markers = np.empty((window.batches, 3), np.int64)
    count, code, bad = kernels.list_markers(
        window.data, window.table, window.batches, _hidden_kinds(window), markers
    )
    _require(code, bad, window)
    return markers[:count]


def fold_before(
    offset: int,
    listing: PartitionFiles,
    files: FileSystem,
    buffers: WindowBuffers,
    *,
    knows_elsewhere: bool = True,
) -> TransactionFold:
    """Return the transactions that are open below ``offset``, which is at most the log end.

    From the newest snapshot up to there that can be read, and what lies between; without one from
    the first batch of the log. A transaction that began below the first segment is known from a
    snapshot only; without one it begins, for readers, with what is left of it.
    """
    fold, start = TransactionFold(), listing.segments[0].base_offset
    for at in reversed(listing.snapshots):
        if start < at <= offset or (knows_elsewhere and at == offset):
            path = listing.path / segment_file(at, SNAPSHOT)
            try:
                entries = producer_snapshot.decode(files.read_bytes(path, SNAPSHOT_BYTES_MAX))
            except (CorruptError, FileNotFoundError):
                continue
            opened = [(e.producer_id, e.current_txn_first_offset) for e in entries]
            fold, start = TransactionFold(each for each in opened if each[1] >= 0), at
            break
    for segment, end in _between(listing, None, start, offset):
        for window in _windows(segment, end, files, buffers):
            fold.add(cut_window(window, start, offset))
    return fold


def aborted_by_segment(
    listing: PartitionFiles,
    tail: Tail,
    files: FileSystem,
    buffers: WindowBuffers,
    *,
    start: int = 0,
    end: int | None = None,
    deciding: int | None = None,
) -> Iterator[tuple[SegmentFiles, tuple[AbortedTransaction, ...]]]:
    """Yield every segment with offsets in [start, end), and what its transaction index must say.

    These are the aborted transactions whose marker lies in the segment and in [start, end), in
    order of their markers; ``end`` is the log end by default. With ``deciding`` nothing is read, or
    yielded, above where every transaction that began below that offset has ended. Transactions are
    carried from one segment to the next, into the first from the newest snapshot. Reads the headers
    of the segments, and of what lies before them where no snapshot covers it; indexes are not
    looked at. CorruptError where a batch or marker cannot be read, FileNotFoundError when a segment
    is gone.
    """
    end = tail.log_end if end is None else min(end, tail.log_end)
    first = max(start, listing.segments[0].base_offset)
    if first >= end:
        return
    # At its own start a log takes nothing from a snapshot, as a broker does that removes it there.
    fold = fold_before(first, listing, files, buffers, knows_elsewhere=start == first)
    for segment, valid_bytes in _between(listing, tail, first, end):
        if _is_decided(fold, segment.base_offset, deciding):
            return
        found: list[AbortedTransaction] = []
        for window in _windows(segment, valid_bytes, files, buffers):
            found += fold.add(cut_window(window, first, end))
            last = int(window.table[: window.batches, t.LAST_OFFSET].max())
            if _is_decided(fold, last + 1, deciding):
                break
        yield segment, tuple(found)


def aborted_between(
    listing: PartitionFiles,
    tail: Tail,
    files: FileSystem,
    buffers: WindowBuffers,
    *,
    start: int = 0,
    end: int | None = None,
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions whose marker lies in [start, end), as
    :func:`aborted_by_segment` finds them.
    """
    found = aborted_by_segment(listing, tail, files, buffers, start=start, end=end)
    return tuple(entry for _, entries in found for entry in entries)


_NO_KINDS = np.empty(0, np.int64)


def _require(code: int, bad: int, window: Window) -> None:
    if code != OK:
        expected = "the checksum of its bytes" if code == BAD_CRC else "a key and a type"
        raise window.corrupt(int(bad), PROBLEMS[code], expected, "another")


def _is_decided(fold: TransactionFold, reached: int, deciding: int | None) -> bool:
    """Say whether what was read up to ``reached`` decides all that began below ``deciding``."""
    if deciding is None or reached < deciding:
        return False
    opened = fold.first_open()
    return opened is None or opened >= deciding


def _first_offset(opened: tuple[int, int]) -> int:
    return opened[1]


def _hidden_kinds(window: Window) -> NDArray[np.int64]:
    """Return the marker type of every compressed control batch, in a row for each batch.

    None of them is looked for where there is none.
    """
    if not window.marks & HAS_HIDDEN_CONTROL:
        return _NO_KINDS
    kinds = np.full(window.batches, kernels.OTHER_MARKER, np.int64)
    rows = window.table[: window.batches]
    is_hidden = (rows[:, t.ATTRIBUTES] & t.CONTROL != 0) & (rows[:, t.PAYLOAD_IN] < 0)
    for i in np.flatnonzero(is_hidden & (rows[:, t.MAGIC] == 2)).tolist():
        at = int(rows[i, t.POSITION])
        raw = window.data[at : at + int(rows[i, t.SIZE])].tobytes()
        try:
            for record in decode_batch(raw).records():
                kind = decode_control_type(record.key)
                kinds[i] = kernels.OTHER_MARKER if kind is ControlType.UNKNOWN else kind
                break
        except CorruptError as error:
            raise window.corrupt(i, error.problem, error.expected, error.found).placed(
                code=error.code
            ) from error
    return kinds


def _between(
    listing: PartitionFiles, tail: Tail | None, start: int, end: int
) -> Iterator[tuple[SegmentFiles, int]]:
    """Yield the segments with offsets in [start, end) and the bytes of each that can be read."""
    following = [*(segment.base_offset for segment in listing.segments[1:]), INT64_MAX]
    for segment, next_base in zip(listing.segments, following, strict=True):
        if segment.base_offset < end and next_base > start:
            is_cut = tail is not None and segment is listing.active
            yield segment, tail.valid_bytes if tail and is_cut else segment.size_bytes


def _windows(
    segment: SegmentFiles, valid_bytes: int, files: FileSystem, buffers: WindowBuffers
) -> Iterator[Window]:
    if valid_bytes:
        path = segment.log_path
        with reading(files, path) as handle:
            yield from read_windows(handle, path, buffers, end=valid_bytes, checks_crc=False)


def cut_window(window: Window, start: int, end: int) -> Window:
    """Return the window with those batches that end in [start, end), and no others."""
    lasts = window.table[: window.batches, t.LAST_OFFSET]
    chosen = (lasts >= start) & (lasts < end)
    if chosen.all():
        return window
    table = np.ascontiguousarray(window.table[: window.batches][chosen])
    return replace(window, table=table, batches=len(table))
