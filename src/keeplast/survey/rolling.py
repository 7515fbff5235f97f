"""Leaves the active segment of a log before a round, or says that a round would.

A segment with a torn tail stays: where it ends is recovery's business. Answers to
:mod:`keeplast.cleaner.cleanable_range`, which decides when.

A log's producers are followed from the newest snapshot to its end, with what they aborted. Only
records above the snapshot are read for them, and headers alone. Answers to ``ProducerStateManager``
and the recovery of ``LogSegment``.

A reader that looks at a log again reads what has come since, once. The rule: **what was read before
counts as long as the log still has it**. The last batch lies where it lay, with the same header.
That has its offset, its leader epoch and its CRC: logs that have such a batch in common have all
below it in common (KIP-101). A log that was cut and written again is read as for the first time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from keeplast.cleaner.cleanable_range import IdleRoll, find_idle_roll
from keeplast.cleaner.plan import AbortedBySegment
from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.errors import CorruptError
from keeplast.format import offset_index, producer_snapshot, time_index, txn_index
from keeplast.format.batch import decode_batch
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, Kind, segment_file
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.active_segment import ProducerState, write_like
from keeplast.log.append import LogAppender
from keeplast.log.files import FileSystem, reading
from keeplast.log.log_end import sound_tail
from keeplast.log.partition_log import (
    SNAPSHOT_BYTES_MAX,
    PartitionFiles,
    SegmentFiles,
    SegmentIndexes,
    Tail,
    find_tail,
    list_partition,
    load_aborted,
    read_first_timestamp,
    rebuild_indexes,
    scan_tail,
)
from keeplast.log.paths import child_path
from keeplast.log.transactions import aborted_by_segment
from keeplast.log.windows import Window, WindowBuffers, read_from, read_windows
from keeplast.model.partition import INT64_MAX, NO_PRODUCER_ID
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.notes import RollNote, RollStage


def replay_producers(
    listing: PartitionFiles,
    tail: Tail,
    log_start: int,
    indexes: Mapping[int, SegmentIndexes],
    files: FileSystem,
    buffers: WindowBuffers,
) -> ProducerState:
    """Return the producers at the log end."""
    state, start = _newest_snapshot(listing, tail.log_end, log_start, files)
    _fold(state, listing, tail, start, indexes, files, buffers)
    return state


def indexed_aborted(
    listing: PartitionFiles, tail: Tail, files: FileSystem, buffers: WindowBuffers
) -> AbortedBySegment:
    """Return each segment's aborted transactions by its base, as the transaction indexes have them.

    Good where something vouches for those, or for an estimate. A segment without an offset index
    counts as having lost its transaction index too. One whose transaction index is another's has
    none. There, as in Kafka's recovery, the markers say.
    """
    aborted: dict[int, tuple[AbortedTransaction, ...]] = {}
    stripped: list[int] = []
    for segment in listing.segments:
        try:
            aborted[segment.base_offset] = (
                load_aborted(segment, files) if listing.may_have_aborted(segment) else ()
            )
        except CorruptError:
            stripped.append(segment.base_offset)
        else:
            if segment.size_bytes and not listing.has_index(segment, files):
                stripped.append(segment.base_offset)
    if stripped:
        start = stripped[0] if stripped[0] > listing.segments[0].base_offset else 0
        derived = aborted_by_segment(listing, tail, files, buffers, start=start)
        for segment, entries in derived:
            if segment.base_offset in stripped:
                aborted[segment.base_offset] = entries
    return tuple(sorted(aborted.items()))


def derived_aborted(
    listing: PartitionFiles, tail: Tail, files: FileSystem, buffers: WindowBuffers
) -> AbortedBySegment:
    """Return each segment's aborted transactions by its base, as the markers have them."""
    derived = aborted_by_segment(listing, tail, files, buffers)
    return tuple((segment.base_offset, entries) for segment, entries in derived)


def find_undecided(
    producers: ProducerState,
    high_watermark: int,
    listing: PartitionFiles,
    tail: Tail,
    log_start: int,
    indexes: Mapping[int, SegmentIndexes],
    files: FileSystem,
    buffers: WindowBuffers,
) -> int | None:
    """Return the first offset of the earliest transaction that is open at the log end, or whose
    marker lies at or above ``high_watermark``, None without one.

    ``producers`` are those at the log end. Where a snapshot above the high watermark says only that
    a transaction has ended, it is followed from a snapshot below. Its marker may be truncated yet,
    and another leader may end it otherwise. A broker that is restarted forgets such a transaction,
    one that runs does not. Kafka: ``ProducerStateManager.unreplicatedTxns``.
    """
    found = producers.first_undecided(high_watermark)
    if not any(high_watermark < offset <= tail.log_end for offset in listing.snapshots):
        return found
    earlier, start = _newest_snapshot(listing, high_watermark, log_start, files)
    # A transaction that began before damage is known, and open as long as no marker is seen. One
    # that begins in or above a damaged segment is for a round that gets so far, and that refuses
    # it.
    with contextlib.suppress(CorruptError):
        _fold(earlier, listing, tail, start, indexes, files, buffers)
    known = (found, earlier.first_undecided(high_watermark))
    return min((offset for offset in known if offset is not None), default=None)


def _newest_snapshot(
    listing: PartitionFiles, at_most: int, log_start: int, files: FileSystem
) -> tuple[ProducerState, int]:
    """Return the producers of the newest readable snapshot and the offset it stands for.

    Snapshots above ``at_most`` or at or below the log start are not used, unreadable ones are
    passed over, as a broker does. Without any the fold starts at the log start.
    """
    for offset in reversed(listing.snapshots):
        if log_start < offset <= at_most:
            path = child_path(listing.path, segment_file(offset, SNAPSHOT))
            try:
                entries = producer_snapshot.decode(files.read_bytes(path, SNAPSHOT_BYTES_MAX))
            except CorruptError:
                continue
            return ProducerState(entries), offset
    return ProducerState(), log_start


def _fold(
    state: ProducerState,
    listing: PartitionFiles,
    tail: Tail,
    start: int,
    indexes: Mapping[int, SegmentIndexes],
    files: FileSystem,
    buffers: WindowBuffers,
) -> None:
    """Fold every batch that ends at or above ``start``."""
    for i, segment in enumerate(listing.segments):
        is_active = i == len(listing.segments) - 1
        end_offset = tail.log_end if is_active else listing.segments[i + 1].base_offset
        if end_offset <= start:
            continue
        end = tail.valid_bytes if is_active else segment.size_bytes
        position = 0
        if segment.base_offset < start and segment.base_offset in indexes:
            position = indexes[segment.base_offset].position_before(start - segment.base_offset)
        if position >= end:
            continue
        path = segment.log_path
        with reading(files, path) as handle:
            for window in read_from(
                handle, path, buffers, position=position, offset=start, end=end
            ):
                _fold_window(state, window, start)


def _fold_window(state: ProducerState, window: Window, start: int) -> None:
    rows = window.table[: window.batches]
    chosen = (rows[:, t.PRODUCER_ID] != NO_PRODUCER_ID) & (rows[:, t.LAST_OFFSET] >= start)
    for i in np.flatnonzero(chosen & (rows[:, t.MAGIC] == 2)).tolist():
        position = int(rows[i, t.POSITION])
        raw = window.data[position : position + int(rows[i, t.SIZE])].tobytes()
        try:
            state.add(decode_batch(raw))
        except CorruptError as error:
            raise window.corrupt(i, error.problem, error.expected, error.found).placed(
                code=error.code
            ) from error


NEVER = INT64_MAX + 1


class FollowedLog(Struct):
    """What is known of a log: its producers, and its last batch. Not shared between threads.

    ``position`` in ``segment`` is after that batch, ``header`` at ``header_at`` is how it begins.
    The producers are known from offset ``first`` on, but for transactions that ended below
    ``bound``.
    """

    producers: ProducerState = field(default_factory=ProducerState)
    first: int = 0
    bound: int = 0
    segment: SegmentFiles | None = None
    position: int = 0
    log_end: int = 0
    header_at: int = 0
    header: bytes = b""

    def find_end(
        self,
        listing: PartitionFiles,
        high_watermark: int | None,
        log_start: int,
        files: FileSystem,
        clock: Clock,
        *,
        accepts_loss: bool,
    ) -> tuple[Tail, int | None]:
        """Return where the log ends, and the first offset of what is undecided there, if any.

        That is as :func:`find_undecided` says. Errors as for
        :func:`keeplast.log.log_end.sound_tail`, and CorruptError for damage in what is read.
        """
        replicated, buffers = None if accepts_loss else high_watermark, WindowBuffers()
        if self._goes_on(listing, high_watermark, files):
            tail = sound_tail(listing, replicated, files, clock, self._follow)
        else:
            self.bound = NEVER  # until the producers are those of the last batch
            tail = sound_tail(listing, replicated, files, clock, self._begin)
            self.producers, self.first = _newest_snapshot(listing, tail.log_end, log_start, files)
            _fold(self.producers, listing, tail, self.first, {}, files, buffers)
        self.bound = tail.log_end if high_watermark is None else high_watermark
        if self.first <= self.bound:
            return tail, self.producers.first_undecided(self.bound)
        return tail, find_undecided(
            self.producers, self.bound, listing, tail, log_start, {}, files, buffers
        )

    def _goes_on(
        self, listing: PartitionFiles, high_watermark: int | None, files: FileSystem
    ) -> bool:
        """Say whether the log has what was read of it, and goes on after it.

        A later active segment begins with a snapshot, so that it is begun with. Not where that says
        nothing of what is not replicated yet.
        """
        at, bound = self.segment, INT64_MAX if high_watermark is None else high_watermark
        is_later = at is not None and listing.active.base_offset != at.base_offset
        if at is None or bound < self.bound or (is_later and listing.active.base_offset <= bound):
            return False
        for now in listing.segments:
            if (now.base_offset, now.inode) == (at.base_offset, at.inode):
                if now == at and now.size_bytes == self.position:
                    return True  # nothing was written
                found = bytearray(len(self.header))
                with reading(files, now.log_path) as handle:
                    handle.pread_into(memoryview(found), self.header_at)
                return now.size_bytes >= self.position and found == self.header
        return False

    def _begin(self, listing: PartitionFiles, files: FileSystem) -> Tail:
        self.segment = None
        return find_tail(listing, files, heard=self._note)

    def _follow(self, listing: PartitionFiles, files: FileSystem) -> Tail:
        """Read what has come, also of segments that were closed since."""
        for segment in listing.segments:
            if self.segment is None or segment.base_offset < self.segment.base_offset:
                continue
            is_same = segment.base_offset == self.segment.base_offset
            start = self.position if is_same else 0
            if segment is listing.active:
                log_end = self.log_end if is_same else segment.base_offset
                return scan_tail(segment, files, start, log_end, self._take)
            with reading(files, segment.log_path) as handle:
                for window in read_windows(
                    handle, segment.log_path, WindowBuffers(), start=start, end=segment.size_bytes
                ):
                    self._take(segment, window)
        return find_tail(listing, files)

    def _take(self, segment: SegmentFiles, window: Window) -> None:
        _fold_window(self.producers, window, 0)
        self._note(segment, window)

    def _note(self, segment: SegmentFiles, window: Window) -> None:
        last = window.table[window.batches - 1]
        at = int(last[t.POSITION])
        self.segment, self.position = segment, window.position + window.length
        self.log_end = int(last[t.LAST_OFFSET]) + 1
        self.header_at = window.position + at
        self.header = window.data[at : at + min(int(last[t.SIZE]), t.HEADER_BYTES)].tobytes()


def roll_active(files: FileSystem, path: Path, topic: TopicConfig) -> None:
    """Start a new active segment at the log end; CorruptError when the present one is torn."""
    with LogAppender(path, files, topic=topic) as appender:
        appender.roll()


def roll_idle(files: FileSystem, path: Path, topic: TopicConfig, now_ms: int) -> RollNote | None:
    """Leave an idle active segment if its age asks for it; return the note of that."""
    listing = list_partition(path, files)
    idle = idle_reason(listing, find_tail(listing, files), topic, files, now_ms)
    if idle is None:
        return None
    roll_active(files, path, topic)
    return RollNote(RollStage.DONE, idle)


def idle_reason(
    listing: PartitionFiles, tail: Tail, topic: TopicConfig, files: FileSystem, now_ms: int
) -> IdleRoll | None:
    """Return why the active segment is too old to stay, None when it may."""
    if tail.torn_at is not None:
        return None
    return find_idle_roll(
        topic,
        size_bytes=listing.active.size_bytes,
        first_timestamp_ms=read_first_timestamp(listing.active, files),
        now_ms=now_ms,
    )


class ForeseenRoll(Struct, frozen=True):
    """A roll that a listing has and the directory has not: ``snapshot`` are the producers there."""

    snapshot: bytes


def roll_at_target(
    files: FileSystem,
    target: Path,
    surveyed: PartitionFiles,
    roll: ForeseenRoll,
    topic: TopicConfig,
    *,
    is_replaced: bool,
) -> None:
    """Close what was the active segment of ``surveyed`` in its copy, and begin the next one.

    The copy has the records up to the log end, rewritten if ``is_replaced``. Otherwise its indexes
    are an active segment's, which may lack what was appended since they were written. A closed
    segment's index is believed, and the segment would be taken for older than it is. Needs a file
    system that only puts whole files, as a store's.
    """
    closed, active = surveyed.segments[-2:]
    made: dict[Kind, bytes] = {LOG: b"", INDEX: b"", TIME_INDEX: b""}
    if not is_replaced:
        buffers = WindowBuffers()
        found = rebuild_indexes(closed, files, topic.index_interval_bytes, buffers)
        write_like(
            target / closed.path(INDEX).name, offset_index.encode(found.offsets.tolist()),
            closed.log_path, files,
        )  # fmt: skip
        write_like(
            target / closed.path(TIME_INDEX).name, time_index.encode(found.times.tolist()),
            closed.log_path, files,
        )  # fmt: skip
        tail = Tail(active.base_offset, 0)
        aborted = dict(derived_aborted(surveyed, tail, files, buffers)).get(closed.base_offset, ())
        if aborted:
            path = target / closed.path(TXN_INDEX).name
            write_like(path, txn_index.encode(aborted), closed.log_path, files)
    if not files.exists(target / active.path(SNAPSHOT).name):
        made[SNAPSHOT] = roll.snapshot
    for kind, data in made.items():
        path = target / active.path(kind).name
        write_like(path, data, closed.log_path, files)
        files.set_mtime(path, closed.mtime_ns)
    files.fsync_directory(target)


def foreseen(listing: PartitionFiles, tail: Tail) -> tuple[PartitionFiles, Tail]:
    """Return the log as it will be when its active segment is left: one more, empty segment.

    That one has no file yet; nothing reads an empty segment.
    """
    if listing.active.size_bytes == 0 or tail.torn_at is not None:
        return listing, tail
    active = SegmentFiles(listing.path, tail.log_end, 0, listing.active.mtime_ns)
    return replace(listing, segments=(*listing.segments, active)), Tail(tail.log_end, 0)
