"""A partition as a reader sees it: where it begins and ends, and what of it is decided.

Looking takes no lock and changes nothing, so the log may be written, rolled and cleaned meanwhile.
The rule that follows: a directory in which segments are being swapped is not looked at, since some
are missing from it for a moment. The reader waits until that is over: :mod:`keeplast.log.readers`.

Answers to ``UnifiedLog.fetchOffsetSnapshot`` and ``LocalLog.read``.

A look may also choose which parts of a log have to be read for some offsets and times, and share
them out. That may only leave out what cannot match: a range is never narrower than what is wanted.

* Offsets: the offset index says from which byte on to read, and at which to stop.
* Times from below: records up to the last entry of the time index that is too early are left out.
  After the last entry of all a closed segment has nothing later, when the index is whole. One that
  has lost its end says the same, so the batches there are looked at, as far as TAIL_BYTES_MAX.
* Times from above prune nothing. Producers set timestamps, so any batch may hold an early one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.clock import Clock
from keeplast.columns import arrow_columns as a
from keeplast.columns import batches as t
from keeplast.errors import CorruptError
from keeplast.format import offset_index
from keeplast.format.filename import (
    INDEX,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TIME_INDEX,
    Kind,
)
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.data_directory import read_topic_id
from keeplast.log.files import FileSystem, reading
from keeplast.log.log_end import require_replicated
from keeplast.log.partition_log import (
    SegmentFiles,
    Tail,
    load_entries,
    sample_entries,
)
from keeplast.log.readers import settled_partition
from keeplast.log.truncation import read_leader_epochs
from keeplast.log.windows import WindowBuffers, read_from
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.survey.notes import TornTail
from keeplast.survey.rolling import FollowedLog
from keeplast.survey.survey import torn_tail
from keeplast.survey.wording import note_words

TRIES_MAX = 5
"""A directory that changes under every one of so many looks is not a log that is being read."""


class SeenSegment(Struct, frozen=True):
    """A segment: offsets [base, end), and the bytes that can be read."""

    files: SegmentFiles
    end_offset: int
    valid_bytes: int
    is_active: bool

    @property
    def base_offset(self) -> int:
        """Return the segment's base offset."""
        return self.files.base_offset


class LogView(Struct, frozen=True):
    """What readers may see of a partition.

    ``log_start`` is inclusive. ``log_end``, ``high_watermark`` (None: no checkpoint has one) and
    ``last_stable`` (where the first open transaction begins, else the log end) are exclusive.
    ``topic_id`` distinguishes the topic from one of the same name that was made later; None: not
    known. ``torn`` says which unfinished batch the log ends in front of; None where it ends with a
    whole one.
    """

    partition: TopicPartition
    path: Path
    log_start: int
    log_end: int
    high_watermark: int | None
    last_stable: int
    segments: tuple[SeenSegment, ...]
    topic_id: bytes | None = None
    torn: TornTail | None = None

    @property
    def size_bytes(self) -> int:
        """Return the bytes that can be read."""
        return sum(segment.valid_bytes for segment in self.segments)

    def end_for(self, *, committed: bool, replicated: bool) -> int:
        """Return the exclusive end for a reader: of what is committed, of what is replicated."""
        end = self.last_stable if committed else self.log_end
        if replicated and self.high_watermark is not None:
            end = min(end, self.high_watermark)
        return max(end, self.log_start)

    def torn_words(self) -> str | None:
        """Return what is to be said of an end in front of an unfinished batch; None without one."""
        if self.torn is None:
            return None
        return f"{self.partition}: {note_words(self.torn)}"

    def require_replicated(self, high_watermark: int) -> None:
        """Raise CorruptError where the log ends below ``high_watermark``."""
        active = self.segments[-1]
        problem = None if self.torn is None else self.torn.problem
        tail = Tail(self.log_end, active.valid_bytes, problem=problem)
        require_replicated(active.files, tail, high_watermark)


class ReaderCheckpoints(Struct, frozen=True):
    """What the data directory's checkpoint files say to readers."""

    log_start: Mapping[TopicPartition, int]
    high_watermark: Mapping[TopicPartition, int]


def load_reader_checkpoints(files: FileSystem, root: Path) -> ReaderCheckpoints:
    """Read both; CorruptError when one is malformed."""
    return ReaderCheckpoints(
        read_checkpoint(files, root, LOG_START_CHECKPOINT),
        read_checkpoint(files, root, REPLICATION_CHECKPOINT),
    )


def look_at_log(
    partition: TopicPartition,
    path: Path,
    checkpoints: ReaderCheckpoints,
    files: FileSystem,
    clock: Clock,
    *,
    accepts_loss: bool = False,
    followed: FollowedLog | None = None,
) -> LogView:
    """Return what readers may see of a partition now; ``followed`` has what a reader knows of it.

    Raises CorruptError and RefusedError as the survey of a round does, and where the log does not
    end where its files do (:mod:`keeplast.log.log_end`). UnavailableError when the directory does
    not hold still. With ``accepts_loss`` a log that ends below its high watermark is read, too.
    """
    followed = followed or FollowedLog()
    for _ in range(TRIES_MAX - 1):
        try:
            return _look(partition, path, checkpoints, files, clock, accepts_loss, followed)
        except FileNotFoundError:
            continue
    return _look(partition, path, checkpoints, files, clock, accepts_loss, followed)


def _look(
    partition: TopicPartition,
    path: Path,
    checkpoints: ReaderCheckpoints,
    files: FileSystem,
    clock: Clock,
    accepts_loss: bool,
    followed: FollowedLog,
) -> LogView:
    # Before the segments are listed: those of a topic that is made again meanwhile then count as a
    # change, and never as the old topic's.
    topic_id = read_topic_id(path, files)
    known_start = checkpoints.log_start.get(partition, 0)
    listing = settled_partition(path, files, clock, if_empty=known_start)
    watermark = checkpoints.high_watermark.get(partition)
    log_start = max(known_start, listing.segments[0].base_offset)
    tail, open_from = followed.find_end(
        listing, watermark, log_start, files, clock, accepts_loss=accepts_loss
    )
    log_end = max(tail.log_end, log_start)
    segments = tuple(
        SeenSegment(segment, following.base_offset, segment.size_bytes, is_active=False)
        for segment, following in itertools.pairwise(listing.segments)
    )
    active = SeenSegment(listing.active, tail.log_end, tail.valid_bytes, is_active=True)
    return LogView(
        partition,
        path,
        log_start,
        log_end,
        None if watermark is None else min(max(watermark, log_start), log_end),
        # A transaction that the log start has cut into begins there.
        log_end if open_from is None else min(max(open_from, log_start), log_end),
        (*segments, active),
        topic_id,
        torn_tail(listing, tail),
    )


def last_epoch(view: LogView, files: FileSystem, before: int | None = None) -> int | None:
    """Return the leader epoch of the last record below offset ``before``, by default the log end.

    None where ``leader-epoch-checkpoint`` does not say; CorruptError where it cannot be read.
    """
    end = view.log_end if before is None else before
    below = [e.epoch for e in read_leader_epochs(files, view.path) if e.start_offset < end]
    return below[-1] if below else None


def was_recreated(topic_id: bytes | None, path: Path, files: FileSystem) -> bool:
    """Say whether a directory is of another topic by now than the one of ``topic_id``."""
    now = read_topic_id(path, files)
    return topic_id is not None and now is not None and now != topic_id


_NOTHING = np.empty((0, 2), np.int64)
ENTRIES_MAX = 64
PLACES_MIN = 4
"""So many entries of its offset index say where a segment is cut, if each part has so many of them.

All entries of a log of 1 TiB are 2 GiB, and 4 in memory: no more than a segment's are ever there.
"""


def _entries(segment: SeenSegment, kind: Kind, files: FileSystem) -> NDArray[np.int64]:
    """Return the entries of an index if they are good for finding a place, else none.

    Those of the time index only next to an offset index that is good.
    """
    valid = segment.valid_bytes if segment.is_active else None
    found = _NOTHING
    try:
        for each in dict.fromkeys((INDEX, kind)):
            found = load_entries(segment.files, each, files, valid_bytes=valid)
    except (CorruptError, FileNotFoundError):
        return _NOTHING
    return found


TAIL_BYTES_MAX = 1 << 20
"""So much of a segment is looked at after the last entry of its time index. More is not left out:
the reader of the rest reads it.
"""
TAIL_WINDOW_BYTES = 64 << 10


class Wanted(Struct, frozen=True):
    """Records that are asked for: offsets [first, end), timestamps in ms [first, last]."""

    first_offset: int = 0
    end_offset: int = INT64_MAX
    first_ms: int = -INT64_MAX - 1
    last_ms: int = INT64_MAX

    def between(self, first_offset: int, end_offset: int) -> Wanted:
        """Return what of it lies in [first, end)."""
        first = max(self.first_offset, first_offset)
        return Wanted(
            first, max(first, min(self.end_offset, end_offset)), self.first_ms, self.last_ms
        )

    def bounds(self) -> NDArray[np.int64]:
        """Return the bounds as the kernel takes them."""
        bounds = np.empty(a.BOUNDS, np.int64)
        bounds[a.FIRST_OFFSET] = self.first_offset
        bounds[a.END_OFFSET] = self.end_offset
        bounds[a.FIRST_MS] = self.first_ms
        bounds[a.LAST_MS] = self.last_ms
        return bounds


ALL = Wanted()
"""Every record."""


class SegmentsSeen(Struct, frozen=True):
    """The segments that a state is read of: the closed ones, and where the active one begins."""

    closed: tuple[SegmentFiles, ...]
    active_base: int


class Split(Struct, frozen=True):
    """One task's part of a partition.

    Offsets, not bytes: segments may be rolled and replaced until it is read. With ``must_be_whole``
    the log must still reach over all of ``wanted`` by then: what retention or a truncation took
    meanwhile is an error and not a shorter result. With ``segments`` it is of a state, and an error
    as well when a cleaner has gone past its end (:mod:`keeplast.read.state_end`). ``hides_aborted``
    leaves out the data of aborted transactions; with ``decided_before`` no marker at or above that
    offset counts, and data that is undecided then is left out too. A log that must be whole must
    also still be of the topic ``topic_id``.
    """

    partition: TopicPartition
    path: Path
    wanted: Wanted
    size_bytes: int
    must_be_whole: bool = False
    segments: SegmentsSeen | None = None
    hides_aborted: bool = True
    topic_id: bytes | None = None
    decided_before: int | None = None


class _Piece(Struct, frozen=True):
    first_offset: int
    end_offset: int
    size_bytes: int


def plan_splits(
    view: LogView,
    wanted: Wanted,
    files: FileSystem,
    *,
    split_bytes: int,
    must_be_whole: bool = False,
    hides_aborted: bool = True,
    decided_before: int | None = None,
) -> Iterator[Split]:
    """Yield splits of about ``split_bytes`` that hold everything that is wanted, in log order."""
    pieces = [piece for s in view.segments for piece in _pieces(s, wanted, files, split_bytes)]
    at = 0
    while at < len(pieces):
        first, size = at, 0
        while at < len(pieces):
            piece = pieces[at]
            has_gap = at > first and piece.first_offset != pieces[at - 1].end_offset
            if at > first and (has_gap or size + piece.size_bytes > split_bytes):
                break
            size += piece.size_bytes
            at += 1
        part = wanted.between(pieces[first].first_offset, pieces[at - 1].end_offset)
        yield Split(
            view.partition, view.path, part, size, must_be_whole,
            hides_aborted=hides_aborted, topic_id=view.topic_id, decided_before=decided_before,
        )  # fmt: skip


def segments_below(view: LogView, end_offset: int) -> SegmentsSeen:
    """Return which segments a state that ends at ``end_offset`` is read of."""
    closed = (segment.files for segment in view.segments if not segment.is_active)
    return SegmentsSeen(
        tuple(each for each in closed if each.base_offset < end_offset),
        view.segments[-1].base_offset,
    )


def _pieces(
    segment: SeenSegment, wanted: Wanted, files: FileSystem, split_bytes: int
) -> Iterator[_Piece]:
    """Cut what is wanted of a segment where its offset index allows it."""
    base = segment.base_offset
    first = max(wanted.first_offset, base, _offset_of_time(segment, wanted.first_ms, files))
    end = min(wanted.end_offset, segment.end_offset)
    if first >= end:
        return
    start, stop = byte_range(segment, first, end, files)
    if stop - start > split_bytes:
        places, gap = _places(segment, split_bytes, files)
        while True:
            # The batch at a position ends with the entry's offset, so the next one begins a piece.
            at = max(
                np.searchsorted(places[:, 1], start + split_bytes - gap // 2),
                np.searchsorted(places[:, 0], first - base),
            )
            if at >= len(places) or places[at, 1] >= stop or places[at, 0] + base + 1 >= end:
                break
            cut, position = (places[at] + (base + 1, 0)).tolist()
            yield _Piece(first, cut, position - start)
            first, start = cut, position
    yield _Piece(first, end, stop - start)


def _places(
    segment: SeenSegment, split_bytes: int, files: FileSystem
) -> tuple[NDArray[np.int64], int]:
    """Return entries of a segment's offset index, and the bytes between two of them.

    All entries, and 0 bytes, unless a few are near enough to each other for parts of such a size.
    """
    if not segment.is_active:
        with contextlib.suppress(CorruptError, FileNotFoundError):
            found = sample_entries(segment.files, ENTRIES_MAX, files)
            gaps = np.diff(found[:, 1], prepend=0, append=segment.valid_bytes)
            if gaps.max() <= split_bytes // PLACES_MIN:
                return found, int(gaps.max())
    return _entries(segment, INDEX, files), 0


def byte_range(
    segment: SeenSegment, first_offset: int, end_offset: int, files: FileSystem
) -> tuple[int, int]:
    """Return [start, end) of the bytes that hold all batches with offsets in [first, end).

    Both are where a batch begins, or the end of what can be read.
    """
    base = segment.base_offset
    if first_offset <= base and end_offset >= segment.end_offset:
        return 0, segment.valid_bytes
    entries = _entries(segment, INDEX, files)
    start = offset_index.find_position(entries, max(0, first_offset - base))
    # The batch of this entry ends at or above the last wanted offset; the entry after it is the
    # next place known to begin a batch.
    after = int(np.searchsorted(entries[:, 0], end_offset - 1 - base, side="left")) + 1
    stop = int(entries[after, 1]) if after < len(entries) else segment.valid_bytes
    return min(start, stop), stop


def _offset_of_time(segment: SeenSegment, first_ms: int, files: FileSystem) -> int:
    """Return the offset below which every record of the segment is older than ``first_ms``."""
    if first_ms <= ALL.first_ms:
        return segment.base_offset
    times = _entries(segment, TIME_INDEX, files)
    older = int(np.searchsorted(times[:, 0], first_ms, side="left"))
    if not older:
        return segment.base_offset
    first = segment.base_offset + int(times[older - 1, 1]) + 1
    is_last = older == len(times) and not segment.is_active
    if is_last and not _has_later(segment, first, first_ms, files):
        return segment.end_offset
    return first


def _has_later(segment: SeenSegment, first: int, first_ms: int, files: FileSystem) -> bool:
    """Say whether a closed segment may have a record from offset ``first`` and ``first_ms`` on.

    Of one that was replaced or cannot be read it is not known: its reader will see.
    """
    start, stop = byte_range(segment, first, segment.end_offset, files)
    if stop - start > TAIL_BYTES_MAX:
        return True
    path = segment.files.log_path
    buffers = WindowBuffers(TAIL_WINDOW_BYTES)
    try:
        with reading(files, path) as handle:
            for window in read_from(
                handle, path, buffers, position=start, offset=first, end=stop, checks_crc=False
            ):
                if window.position < start:
                    return True  # The offset index is not this segment's: nothing is known.
                if int(window.table[: window.batches, t.MAX_TIMESTAMP].max()) >= first_ms:
                    return True
        status = files.stat(path)
    except (FileNotFoundError, CorruptError):
        return True
    found = (status.inode, status.size_bytes, status.mtime_ns)
    return found != (segment.files.inode, segment.files.size_bytes, segment.files.mtime_ns)
