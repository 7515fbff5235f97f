"""The offset and the time index of a segment: made, read, bounded, and compared with its batches.

*Bounds.* What a file's size claims is not believed before memory is taken for it. No index has more
entries than its segment has batches, and the smallest batch takes 26 bytes; an empty segment may
have one entry. Where a broker has not trimmed the file yet, only some of the slots are entries;
formats.md section 2.4.

*Making.* A writer of a segment, a check and a rebuild make both indexes here while the batches go
by, so that all three agree. The rule is :mod:`keeplast.columns.rebuild`'.

*Comparing.* The entries are compared with the batches of their segment: the one proof of what an
index says. For every entry it shows what the batches say in its place. Which of that must hold is
for the caller: a reader that follows an index needs less than Kafka's builder gives. Nothing is
said of an entry that no batch answers.

*Soundness.* An index is sound when a reader that follows it misses nothing. Its entries may be
those of another rule, or fewer. None leads into a batch or past what it says to lead to, and the
last time is the greatest. That a file's size and order are right says nothing: it may be of an
earlier segment of this name, or have lost its end.

Kafka: ``OffsetIndex``, ``TimeIndex``; formats.md sections 2.4 and 2.5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.rebuild import POSITION, final_time_entry, index_batches, new_index_state
from keeplast.errors import CorruptError
from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.filename import INDEX, TIME_INDEX, TXN_INDEX, Kind
from keeplast.log.files import FileSystem, read_whole, reading
from keeplast.log.windows import Window

BATCH_BYTES_MIN = 26
ENTRY_BYTES: dict[Kind, int] = {
    INDEX: offset_index.ENTRY_BYTES,
    TIME_INDEX: time_index.ENTRY_BYTES,
    TXN_INDEX: txn_index.ENTRY_BYTES,
}


def filled_entries(entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the entries of an index that a broker keeps at full size: those before the first hole.

    Shape (n, 2). A broker fills the slots of the active segment's indexes one after another and
    trims them when it leaves the segment. Both columns of the offset index, and the times of the
    time index, ascend strictly. So no slot after the first can be all zeros and an entry. The first
    one can: a batch dated 0 that ends at the base offset; it is one when another follows. What lies
    after a hole was left there by a truncation or a crash, and no reader follows it.
    """
    empty = np.flatnonzero(~entries.any(axis=1))
    holes = empty[empty > 0]
    used = int(holes[0]) if len(holes) else len(entries)
    return entries[:0] if used == 1 and len(empty) and empty[0] == 0 else entries[:used]


def index_bytes_max(segment_bytes: int, kind: Kind) -> int:
    """Return the most that an index of ``kind`` of a segment of ``segment_bytes`` can hold."""
    return (segment_bytes // BATCH_BYTES_MIN + 2) * ENTRY_BYTES[kind]


class IndexBuilder:
    """The indexes of a segment at ``base_offset``; an entry after more than ``interval`` bytes."""

    def __init__(self, base_offset: int, interval: int) -> None:
        self.offset_entries = self.time_entries = 0
        """How many there are; the last time entry is not among them until :meth:`finish`."""
        self._base = base_offset
        self._interval = interval
        self._state = new_index_state(base_offset)
        self._offsets = [np.empty((0, 2), np.int64)]
        self._times = [np.empty((0, 2), np.int64)]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all batches so far."""
        return int(self._state[POSITION])

    def add(self, batches: NDArray[np.int64]) -> None:
        """Take the next batches, shape (n, 3): size, last offset, maximum timestamp; contiguous."""
        count = len(batches)
        entries = np.empty((2, count, 2), np.int64)
        o, k = index_batches(
            batches, count, self._base, self._interval, self._state, entries[0], entries[1]
        )
        self.offset_entries += o
        self.time_entries += k
        if o:
            self._offsets.append(entries[0, :o].copy())
        if k:
            self._times.append(entries[1, :k].copy())

    def finish(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Close the time index; return the entries of the offset and of the time index, (n, 2)."""
        final = final_time_entry(self._state, self._base)
        if final is not None:
            self._times.append(np.array([final], np.int64))
        return np.concatenate(self._offsets), np.concatenate(self._times)


def read_index(path: Path, kind: Kind, log_bytes: int, files: FileSystem) -> bytes:
    """Return the bytes of an index of ``kind`` whose segment's log has ``log_bytes``.

    CorruptError when there are more entries than the segment can have batches.
    """
    limit = index_bytes_max(log_bytes, kind)
    with reading(files, path) as handle:
        if handle.size_bytes > limit:
            raise CorruptError(
                "index has more entries than its segment has batches",
                path=str(path), position=limit, expected=f"at most {limit} bytes",
                found=handle.size_bytes, code="K219",
            )  # fmt: skip
        return read_whole(handle, path)


def read_index_start(path: Path, kind: Kind, log_bytes: int, files: FileSystem) -> bytes:
    """Return what of an active segment's index can be entries of it.

    A running broker has it at full size. What is too much is left unread, but for the piece of an
    entry that a file of another size has at its end.
    """
    with reading(files, path) as handle:
        limit = index_bytes_max(log_bytes, kind) + handle.size_bytes % ENTRY_BYTES[kind]
        data = bytearray(min(handle.size_bytes, limit))
        return bytes(data[: handle.pread_into(memoryview(data), 0)])


Column = NDArray[np.int64]


class OffsetAnswers(Struct, frozen=True):
    """Entries of the offset index that lie among some batches, a row each.

    ``positions`` and ``offsets`` are what the entries say, offsets of the log. ``starts`` is where
    the batch begins that has the position, ``lasts`` its last offset, and ``floors`` the first
    offset above all batches before it.
    """

    numbers: Column
    offsets: Column
    positions: Column
    starts: Column
    lasts: Column
    floors: Column


class TimeAnswers(Struct, frozen=True):
    """Entries of the time index whose offsets lie among some batches, a row each.

    ``stamps`` and ``offsets`` are what the entries say, offsets of the log. ``owns`` is the
    greatest timestamp of the batch that has the offset. ``before`` is that of all batches before
    it, ``through`` that of all that end at or below the offset. Each is -1 where there is none.
    """

    numbers: Column
    stamps: Column
    offsets: Column
    owns: Column
    before: Column
    through: Column


class IndexWalk:
    """Both indexes of one segment next to its batches, which come in log order.

    ``greatest_ms`` is the greatest timestamp of the batches so far, -1 without one.
    """

    def __init__(
        self, base_offset: int, offsets: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        """Take decoded entries, shape (n, 2) each."""
        self.greatest_ms = -1
        self._at = base_offset
        self._ends = base_offset + offsets[:, 0]
        self._positions = offsets[:, 1]
        self._stamps = times[:, 0]
        self._reached = base_offset + times[:, 1]

    def add(
        self, starts: Column, end: int, lasts: Column, stamps: Column
    ) -> tuple[OffsetAnswers, TimeAnswers]:
        """Take the next batches, one or more: where each begins, its last offset, its timestamp.

        ``end``, exclusive, is where the last of them ends in the file.
        """
        floors = np.maximum.accumulate(np.concatenate([[self._at], lasts[:-1] + 1]))
        greatest = np.maximum.accumulate(np.concatenate([[self.greatest_ms], stamps]))
        here = np.flatnonzero((self._positions >= starts[0]) & (self._positions < end))
        at = np.searchsorted(starts, self._positions[here], "right") - 1
        offsets = OffsetAnswers(
            here, self._ends[here], self._positions[here], starts[at], lasts[at], floors[at]
        )
        here = np.flatnonzero((self._reached >= floors[0]) & (self._reached <= lasts[-1]))
        reached = self._reached[here]
        at = np.searchsorted(lasts, reached)
        through = greatest[np.searchsorted(lasts, reached, "right")]
        times = TimeAnswers(here, self._stamps[here], reached, stamps[at], greatest[at], through)
        self._at = max(self._at, int(lasts.max()) + 1)
        self.greatest_ms = int(greatest[-1])
        return offsets, times


PROBLEMS_MAX = 100
"""Of one segment; an index that lies more often has nothing new to say."""


class IndexProblem(Struct, frozen=True):
    """Something that an index says and the batches do not."""

    kind: Kind
    problem: str
    offset: int
    expected: object
    found: object


class IndexCheck:
    """The indexes of one segment, window by window; ``problems`` are the first ones found."""

    def __init__(
        self,
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
        *,
        base_offset: int,
        last_offset: int,
        size_bytes: int,
    ) -> None:
        """Take decoded entries. ``last_offset``, inclusive, is where the segment's range ends."""
        self.problems: list[IndexProblem] = []
        self._last = last_offset
        self._times = times
        self._walk = IndexWalk(base_offset, offsets, times)
        found: tuple[tuple[Kind, str | None], ...] = (
            (INDEX, offset_index.find_problem(offsets, size_bytes)),
            (TIME_INDEX, time_index.find_problem(times, size_bytes)),
        )
        for kind, problem in found:
            if problem is not None:
                self._report(kind, problem, base_offset, "a sound index", "another")
        ends = base_offset + times[:, 1]
        for end in ends[ends > last_offset].tolist():
            self._report(TIME_INDEX, "an entry lies after the segment's end", end, last_offset, end)

    @property
    def latest_ms(self) -> int:
        """Return the greatest timestamp of the windows so far, -1 without one."""
        return self._walk.greatest_ms

    def add(self, window: Window) -> None:
        """Compare with the next window; the first one begins at 0."""
        rows = window.table[: window.batches]
        offsets, times = self._walk.add(
            rows[:, t.POSITION] + window.position, window.position + window.length,
            rows[:, t.LAST_OFFSET], rows[:, t.MAX_TIMESTAMP],
        )  # fmt: skip
        is_inside = offsets.starts != offsets.positions
        is_other = (offsets.offsets < offsets.floors) | (offsets.offsets > self._last)
        for i in np.flatnonzero(is_inside | is_other).tolist():
            offset = int(offsets.offsets[i])
            if is_inside[i]:
                self._report(
                    INDEX, "an entry points inside a batch", offset, int(offsets.starts[i]),
                    int(offsets.positions[i]),
                )  # fmt: skip
            else:
                self._report(
                    INDEX, "an entry has the offset of other batches", offset,
                    f"[{offsets.floors[i]}, {self._last}]", offset,
                )  # fmt: skip
        # A search for a later time begins after the entry: nothing up to it may be later.
        for i in np.flatnonzero(times.stamps < times.through).tolist():
            self._report(
                TIME_INDEX, "a batch before an entry is later than it", int(times.offsets[i]),
                f">= {times.through[i]}", int(times.stamps[i]),
            )  # fmt: skip

    def finish(self) -> None:
        """Compare the greatest timestamp of all windows with the last one of the time index."""
        said = int(self._times[-1, 0]) if len(self._times) else -1
        if said != max(self.latest_ms, -1):
            self._report(
                TIME_INDEX, "the greatest timestamp is another", self._last, self.latest_ms, said
            )

    def _report(
        self, kind: Kind, problem: str, offset: int, expected: object, found: object
    ) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(IndexProblem(kind, problem, offset, expected, found))
