"""A partition as a reader sees it: where it begins and ends, and what of it is decided.

Looking takes no lock and changes nothing, so the log may be written, rolled and cleaned meanwhile.
The rule that follows: a directory in which segments are being swapped is not looked at, since some
are missing from it for a moment; :mod:`keeplast.log.settled` waits until that is over.

Answers to ``UnifiedLog.fetchOffsetSnapshot`` and ``LocalLog.read``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keeplast.clock import Clock
from keeplast.errors import CorruptError
from keeplast.format.filename import (
    INDEX,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TIME_INDEX,
)
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.log_end import require_replicated, sound_tail
from keeplast.log.log_start import read_leader_epochs
from keeplast.log.partition_log import (
    SegmentFiles,
    SegmentIndexes,
    Tail,
    load_entries,
)
from keeplast.log.settled import settled_partition
from keeplast.log.topic_id import read_topic_id
from keeplast.log.windows import WindowBuffers
from keeplast.model.partition import TopicPartition
from keeplast.survey.file_notes import torn_tail
from keeplast.survey.notes import TornTail
from keeplast.survey.producer_replay import find_undecided, replay_producers
from keeplast.survey.wording import note_words

TRIES_MAX = 5
"""A directory that changes under every one of so many looks is not a log that is being read."""


@dataclass(frozen=True, slots=True)
class SeenSegment:
    """A segment: offsets [base, end), the bytes that can be read, and its indexes."""

    files: SegmentFiles
    end_offset: int
    valid_bytes: int
    indexes: SegmentIndexes
    is_active: bool

    @property
    def base_offset(self) -> int:
        """Return the segment's base offset."""
        return self.files.base_offset


@dataclass(frozen=True, slots=True)
class LogView:
    """What readers may see of a partition.

    ``log_start`` is inclusive. ``log_end``, ``high_watermark`` (None: no checkpoint has one) and
    ``last_stable`` (where the first open transaction begins, else the log end) are exclusive.
    ``topic_id`` tells the topic from one of the same name that was made later; None: not known.
    ``torn`` says which unfinished batch the log ends in front of; None where it ends with a whole
    one.
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


@dataclass(frozen=True, slots=True)
class ReaderCheckpoints:
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
) -> LogView:
    """Return what readers may see of a partition now.

    Raises CorruptError and RefusedError as the survey of a round does, and where the log does not
    end where its files do (:mod:`keeplast.log.log_end`), UnavailableError when the directory does
    not hold still. Who ``accepts_loss`` reads a log that ends below its high watermark, too.
    """
    for _ in range(TRIES_MAX - 1):
        try:
            return _look(partition, path, checkpoints, files, clock, accepts_loss)
        except FileNotFoundError:
            continue
    return _look(partition, path, checkpoints, files, clock, accepts_loss)


def _look(
    partition: TopicPartition,
    path: Path,
    checkpoints: ReaderCheckpoints,
    files: FileSystem,
    clock: Clock,
    accepts_loss: bool,
) -> LogView:
    # Before the segments are listed: those of a topic that is made anew meanwhile then count as a
    # change, and never as the old topic's.
    topic_id = read_topic_id(path, files)
    known_start = checkpoints.log_start.get(partition, 0)
    listing = settled_partition(path, files, clock, if_empty=known_start)
    watermark = checkpoints.high_watermark.get(partition)
    tail = sound_tail(listing, None if accepts_loss else watermark, files, clock)
    log_start = max(known_start, listing.segments[0].base_offset)
    log_end = max(tail.log_end, log_start)
    segments = tuple(
        see_segment(segment, end, segment.size_bytes, files, is_active=False)
        for segment, end in zip(
            listing.segments[:-1], (s.base_offset for s in listing.segments[1:]), strict=True
        )
    )
    active = see_segment(listing.active, tail.log_end, tail.valid_bytes, files, is_active=True)
    indexes = {segment.base_offset: segment.indexes for segment in segments}
    buffers = WindowBuffers()
    producers = replay_producers(listing, tail, log_start, indexes, files, buffers)
    open_from = find_undecided(
        producers, log_end if watermark is None else watermark, listing, tail, log_start, indexes,
        files, buffers,
    )  # fmt: skip
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


def was_made_anew(topic_id: bytes | None, path: Path, files: FileSystem) -> bool:
    """Say whether a directory is of another topic by now than the one of ``topic_id``."""
    now = read_topic_id(path, files)
    return topic_id is not None and now is not None and now != topic_id


def see_segment(
    segment: SegmentFiles, end_offset: int, valid_bytes: int, files: FileSystem, *, is_active: bool
) -> SeenSegment:
    """Return a segment with such indexes as can be used; a missing one costs time only."""
    indexes = _indexes(segment, valid_bytes, files, is_active=is_active)
    return SeenSegment(segment, end_offset, valid_bytes, indexes, is_active)


_NOTHING = np.empty((0, 2), np.int64)


def _indexes(
    segment: SegmentFiles, valid_bytes: int, files: FileSystem, *, is_active: bool
) -> SegmentIndexes:
    """Return the indexes if they are good for finding a place, else empty ones."""
    valid = valid_bytes if is_active else None
    try:
        offsets, times = (
            load_entries(segment, kind, files, valid_bytes=valid) for kind in (INDEX, TIME_INDEX)
        )
    except (CorruptError, FileNotFoundError):
        return SegmentIndexes(_NOTHING, _NOTHING, True)
    return SegmentIndexes(offsets, times, False)
