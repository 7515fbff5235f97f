"""Finds what has expired in the clean part of a log: batches whose delete horizon has passed.

A round stamps the horizon into the header of every batch with a tombstone, or with a marker that
nothing needs. So headers alone show when there is something to remove. They are read once: a
segment that is the same file as before is remembered. Old formats have no horizon, and their
tombstones are left to rounds for new data.

A whole round may leave a batch although its horizon had passed (the last batch of a producer, say).
No further round would remove it either. Only a horizon that passed *since* is a reason for one, or
that the round has set itself. With ``delete.retention.ms`` 0 such a horizon has passed by then, and
the records below it are not judged yet. Without that rule a daemon would rewrite such a log without
end. Where readers are waited for, the batches of a segment with one horizon are a reason once the
readers have read all of them. A round for every commit would rewrite the log without end too. A
round for another reason removes what they have read by then.

That holds for the segments that the round has left, and for no others. No round of this process has
judged segments that an undo has put back, or that another process has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.cleaner.plan import RoundPlan
from keeplast.cleaner.reasons import ExpiredDue
from keeplast.columns import batches as t
from keeplast.log.files import FileSystem, ReadHandle, reading
from keeplast.log.partition_log import SegmentFiles
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.hold import ReaderWait
from keeplast.model.topic_config import Strategy

PARTITIONS_MAX = 100_000
"""More than a data directory holds: partitions that come and go are forgotten some time."""
HOP_BYTES = 16 << 10
"""Where batches are larger than this on average, reading their headers one by one is cheaper."""


class Expired(Struct, frozen=True):
    """How many batches hold tombstones, and how many markers, that a round could remove now."""

    tombstone_batches: int = 0
    marker_batches: int = 0

    def __add__(self, other: Expired) -> Expired:
        return Expired(
            self.tombstone_batches + other.tombstone_batches,
            self.marker_batches + other.marker_batches,
        )

    def __bool__(self) -> bool:
        return self.tombstone_batches + self.marker_batches > 0

    def due_reason(self) -> ExpiredDue:
        """Return it as the reason for a round."""
        return ExpiredDue(self.tombstone_batches, self.marker_batches)


NOTHING = Expired()


class SegmentHorizons(Struct, frozen=True):
    """The delete horizons of one segment: batches by horizon, of tombstones and of markers.

    ``unstamped_markers`` are control batches that have none yet. No header shows whether a batch of
    data without one holds tombstones. ``ends`` has the last offset of the batches of a horizon, of
    both kinds.
    """

    tombstones: Mapping[int, int]
    markers: Mapping[int, int]
    unstamped_markers: int
    ends: Mapping[int, int] = field(default_factory=dict)

    def passed(self, before: Examination, now: Examination) -> Expired:
        """Return how many batches a round could remove ``now`` that one ``before`` could not.

        One before by a later clock was of a clock that was ahead: all that may go now count.
        """
        if before.at_ms > now.at_ms:
            before = Examination()
        due = {
            horizon_ms
            for horizon_ms in self.tombstones.keys() | self.markers.keys()
            if self._may_go(horizon_ms, now)
            and (
                not self._may_go(horizon_ms, before)
                # A clock that stands still would ask without end.
                or (horizon_ms == before.stamped_ms and before.at_ms < now.at_ms)
            )
        }
        return Expired(_count(self.tombstones, due), _count(self.markers, due))

    def _may_go(self, horizon_ms: int, at: Examination) -> bool:
        if at.readers is not None:
            horizon_ms = at.readers.ends_at(horizon_ms, self.ends[horizon_ms])
        return horizon_ms <= at.at_ms


class Examination(Struct, frozen=True):
    """When a round removes all that can be removed, and who is waited for then; -1 is never.

    ``stamped_ms`` is the horizon that it gives to what it retains, -1 for none.
    """

    at_ms: int = -1
    readers: ReaderWait | None = None
    stamped_ms: int = -1


def examination_of(plan: RoundPlan) -> Examination:
    """Return what is remembered of a round that has done all of ``plan``.

    Where versions rank, a round for new records leaves each tombstone that has a dirty record of
    its key, itself too (:func:`keeplast.columns.retained.may_expire`). So it has judged none.
    """
    topic = plan.topic
    is_ranked = topic.strategy is not Strategy.OFFSET and not topic.keep_versioned_tombstones
    if is_ranked and not plan.is_expired_round:
        return Examination()
    return Examination(plan.now_ms, plan.readers, plan.horizon_ms)


class ExpiredBook(Protocol):
    """Knows what has expired in closed, clean segments of a partition."""

    def expired(self, path: Path, segments: Sequence[SegmentFiles], now: Examination) -> Expired:
        """Return what a round could remove from ``segments`` now."""


_File = tuple[int, int, int, int]


def _file_of(segment: SegmentFiles) -> _File:
    """Return what makes a segment's file differ from another in its place."""
    return segment.base_offset, segment.size_bytes, segment.mtime_ns, segment.inode


class _Known(Struct):
    """What is remembered of a partition: segments by file, and when ``left`` were examined."""

    segments: dict[_File, SegmentHorizons] = field(default_factory=dict)
    examined: Examination = Examination()
    left: frozenset[_File] = frozenset()


class HorizonBook:
    """The horizons of every partition that was asked about."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._known: dict[Path, _Known] = {}

    def expired(self, path: Path, segments: Sequence[SegmentFiles], now: Examination) -> Expired:
        """Return what a round could remove now from the closed, clean ``segments``.

        CorruptError when a batch's size cannot be right; CRCs are left to the round.
        """
        if path not in self._known and len(self._known) >= PARTITIONS_MAX:
            self._known.clear()
        known = self._known.setdefault(path, _Known())
        found, expired = {}, Expired()
        for segment in segments:
            name = _file_of(segment)
            horizons = known.segments.get(name)
            if horizons is None:
                horizons = read_horizons(segment, self._files)
            found[name] = horizons
            since = known.examined if name in known.left else Examination()
            expired += horizons.passed(since, now)
        known.segments = found
        return expired

    def examined(self, path: Path, at: Examination, left: Iterable[SegmentFiles]) -> None:
        """Note that a round has removed all that could be removed ``at`` its time.

        ``left`` are the segments below its end, as listed after it.
        """
        known = self._known.setdefault(path, _Known())
        known.examined, known.left = at, frozenset(map(_file_of, left))


def find_expired(
    path: Path,
    closed: Sequence[SegmentFiles],
    bound: int,
    now: Examination,
    files: FileSystem,
    book: ExpiredBook | None,
) -> Expired:
    """Return what may go of the ``closed`` segments that begin below ``bound``."""
    book = HorizonBook(files) if book is None else book
    return book.expired(path, [each for each in closed if each.base_offset < bound], now)


def _count(horizons: Mapping[int, int], due: Set[int]) -> int:
    return sum(count for horizon, count in horizons.items() if horizon in due)


def read_horizons(
    segment: SegmentFiles, files: FileSystem, buffers: WindowBuffers | None = None
) -> SegmentHorizons:
    """Return the horizons in the headers of a segment; batches without records have none.

    A caller that reads many has one ``buffers`` for all of them.
    """
    found = FoundHorizons()
    buffers = WindowBuffers() if buffers is None else buffers
    with reading(files, segment.log_path) as handle:
        for window in read_windows(
            handle, segment.log_path, buffers, end=segment.size_bytes, checks_crc=False
        ):
            found.take(window.table[: window.batches])
            if window.length > window.batches * HOP_BYTES:
                _hop(handle, window.position + window.length, segment.size_bytes, found)
                break
    return SegmentHorizons(found.tombstones, found.markers, found.unstamped_markers, found.ends)


class FoundHorizons(Struct):
    """The horizons of batches that are being read, and how many batches have each."""

    tombstones: dict[int, int] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)
    unstamped_markers: int = 0
    ends: dict[int, int] = field(default_factory=dict)

    def take(self, rows: NDArray[np.int64]) -> None:
        """Count batches, which are rows of a batch table."""
        marks = rows[:, t.ATTRIBUTES] & (t.DELETE_HORIZON | t.CONTROL)
        if not np.count_nonzero(marks):
            return
        found = rows[(marks != 0) & (rows[:, t.COUNT] > 0)]
        for attributes, horizon, last_offset in found[
            :, [t.ATTRIBUTES, t.BASE_TIMESTAMP, t.LAST_OFFSET]
        ].tolist():
            self.add(attributes, horizon, last_offset)

    def add(self, attributes: int, horizon: int, last_offset: int) -> None:
        """Count a batch of magic 2 that has records, by its attributes."""
        if attributes & t.DELETE_HORIZON == 0:
            self.unstamped_markers += attributes & t.CONTROL != 0
            return
        horizons = self.markers if attributes & t.CONTROL else self.tombstones
        horizons[horizon] = horizons.get(horizon, 0) + 1
        self.ends[horizon] = max(self.ends.get(horizon, last_offset), last_offset)


def _hop(handle: ReadHandle, start: int, end: int, found: FoundHorizons) -> None:
    """Read the headers of ``[start, end)`` one by one; a damaged one is left to the round."""
    header = bytearray(t.HEADER_BYTES)
    position = start
    while end - position >= t.HEADER_BYTES:
        handle.pread_into(memoryview(header), position)
        size = int.from_bytes(header[8:12], "big", signed=True) + t.PREFIX_BYTES
        if size < t.SCAN_BYTES_MIN:
            return
        if header[16] == 2 and header[57:61] != bytes(4):
            base, delta = (int.from_bytes(header[a:b], "big") for a, b in ((0, 8), (23, 27)))
            found.add(header[22], int.from_bytes(header[27:35], "big", signed=True), base + delta)
        position += size
