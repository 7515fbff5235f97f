"""The local log of a partition on one host: a leader appends to it and a follower replicates it.

Bounds that a restart must not overstate are kept next to the log. The high watermark is written
when a segment is left, and a lower one is safe. A process that opens a log after a crash asks for
recovery. An interrupted swap is finished or undone, a batch that was half written is cut off, and a
log that ends below its start begins there empty. Nothing is cut without being asked to. Segments
leave the front one by one, each durably: a hole would look like what cleaning leaves.

The leader epochs show whether a local log and the log in object storage are the same. The rule that
a reader must not break: an offset alone says nothing. Two leaders may have written different
records at one, and only their epochs distinguish those (KIP-101, KIP-279). A log that was cleaned
before it was replicated may lack the first record of an epoch, or all of them. So where the leader
epochs of the two differ, the batches decide, which carry the epoch of their writer.

KIP-101, KIP-279 and KIP-405; ``UnifiedLog``, ``LogLoader``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.errors import FencedError, InvalidError, RefusedError
from keeplast.format import leader_epoch
from keeplast.format.batch import RecordBatch
from keeplast.format.compression import Codec
from keeplast.format.filename import (
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    SNAPSHOT,
    SWAP,
    segment_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentFiles,
    find_tail,
    list_partition,
    load_indexes,
    summarize,
)
from keeplast.log.recovery import recover_swap
from keeplast.log.truncation import (
    begin_log,
    clear_log,
    cut_torn_tail,
    find_divergence,
    restart_log,
    retire_segments,
    truncate_log,
)
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.partition import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    SegmentSummary,
    TopicPartition,
)
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.copy.importing import read_lineage

EPOCH_AT = 12
"""Where a batch of format 2 has the epoch of the leader that wrote it."""
EPOCH_MAGIC_MIN = 2


class Divergence(Struct, frozen=True):
    """The first batch of a log that another leader wrote: it begins at ``offset``."""

    offset: int
    epoch: int
    expected: int


def find_divergent_batch(
    files: FileSystem,
    listing: PartitionFiles,
    own: Sequence[LeaderEpoch],
    known: Sequence[LeaderEpoch],
    end: int,
) -> Divergence | None:
    """Return the first batch below ``end``, exclusive, that is not of the leaders in ``known``.

    ``own`` are the leader epochs of the log that ``listing`` lists. Nothing is read where both say
    the same. What lies below the first epoch of ``known``, and batches of a format that names no
    leader, cannot be compared.
    """
    start = _first_difference(own, known, listing.segments[0].base_offset, end)
    if start is None:
        return None
    for base, last, epoch in _batches(files, listing, start):
        if base >= end:
            return None
        # By its end: an empty batch after what cleaning has left begins where that ended, which may
        # have been an earlier leader's.
        expected = _epoch_at(known, min(last, end - 1))
        if expected is not None and epoch != expected:
            return Divergence(base, epoch, expected)
    return None


def _first_difference(
    own: Sequence[LeaderEpoch], known: Sequence[LeaderEpoch], start: int, end: int
) -> int | None:
    """Return the first offset of ``[start, end)`` that belongs to another leader in each."""
    if not known:
        return None
    start = max(start, known[0].start_offset)
    bounds = {start, *(entry.start_offset for entry in (*own, *known))}
    return next(
        (
            offset
            for offset in sorted(bounds)
            if start <= offset < end and _epoch_at(own, offset) != _epoch_at(known, offset)
        ),
        None,
    )


def _epoch_at(lineage: Sequence[LeaderEpoch], offset: int) -> int | None:
    found = [entry.epoch for entry in lineage if entry.start_offset <= offset]
    return found[-1] if found else None


def _batches(
    files: FileSystem, listing: PartitionFiles, start: int
) -> Iterator[tuple[int, int, int]]:
    """Yield first offset, last offset and leader epoch of each batch that ends at ``start`` or
    later.
    """
    segments = listing.segments
    first = max(i for i, each in enumerate(segments) if i == 0 or each.base_offset <= start)
    buffers = WindowBuffers()
    for segment in segments[first:]:
        with reading(files, segment.log_path) as handle:
            for window in read_windows(
                handle, segment.log_path, buffers, end=segment.size_bytes, checks_crc=False
            ):
                for row in window.table[: window.batches]:
                    if row[t.LAST_OFFSET] < start or row[t.MAGIC] < EPOCH_MAGIC_MIN:
                        continue
                    at = int(row[t.POSITION]) + EPOCH_AT
                    epoch = int.from_bytes(window.data[at : at + 4].tobytes(), "big", signed=True)
                    yield int(row[t.BASE_OFFSET]), int(row[t.LAST_OFFSET]), epoch


class Role(StrEnum):
    """What a host is for a partition."""

    LEADER = "leader"
    FOLLOWER = "follower"


class Recovered(Struct, frozen=True):
    """What recovery did: bytes it cut, and an offset at which it began the log empty."""

    cut_bytes: int = 0
    restarted_at: int | None = None


class Replica:
    """One partition's log on this disk. Not safe for concurrent calls; one a directory."""

    def __init__(
        self,
        partition: TopicPartition,
        root: Path,
        *,
        topic: TopicConfig,
        files: FileSystem,
        clock: Clock,
        recovers: bool = False,
    ) -> None:
        """Open the log below ``root``, or start an empty one; a follower until it becomes the
        leader.

        ``recovers`` deals with what a crash left; without it CorruptError says that the end is
        torn, and RefusedError that a swap was interrupted.
        """
        self.partition = partition
        self.directory = root / str(partition)
        self.topic = topic
        self.role = Role.FOLLOWER
        self.epoch = -1
        self.recovered = Recovered()
        self._files = files
        self._clock = clock
        if files.exists(self.directory):
            if recovers:
                self.recovered = self._recover()
            else:
                self._check_whole()
        known = read_checkpoint(files, root, REPLICATION_CHECKPOINT).get(partition, 0)
        self._high_watermark = known
        self._log = self._open()
        self._high_watermark = min(max(known, self.local_start), self.log_end_offset)

    def close(self) -> None:
        """Write what belongs next to the log, and the high watermark."""
        self._log.close()
        self.save_watermark()

    # What is known.

    @property
    def log_end_offset(self) -> int:
        """Return the offset that the next record gets."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Return the offset below which every replica that counts has the log."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Return the offset below which every transaction is decided, on every replica."""
        undecided = self._log.first_undecided(self._high_watermark)
        return self._high_watermark if undecided is None else min(self._high_watermark, undecided)

    @property
    def decided_end(self) -> int:
        """Return the offset below which every transaction is decided, replicated or not."""
        open_from = self._log.first_open()
        return self.log_end_offset if open_from is None else open_from

    @property
    def local_start(self) -> int:
        """Return the first offset that the local log may hold."""
        return self.listing().segments[0].base_offset

    @property
    def local_log_start(self) -> int:
        """Return the first readable offset that this host was given; 0 when it never was."""
        root = self.directory.parent
        return read_checkpoint(self._files, root, LOG_START_CHECKPOINT).get(self.partition, 0)

    @property
    def lineage(self) -> tuple[LeaderEpoch, ...]:
        """Return the leader epochs of the local log."""
        return read_lineage(self._files, self.directory)

    def listing(self) -> PartitionFiles:
        """Return the segments on this disk."""
        return list_partition(self.directory, self._files)

    def closed_segments(self) -> list[tuple[SegmentFiles, int]]:
        """Return the closed segments, each with its exclusive end, ascending."""
        segments = self.listing().segments
        ends = [segment.base_offset for segment in segments[1:]]
        return list(zip(segments[:-1], ends, strict=True))

    def summaries(self) -> list[SegmentSummary]:
        """Return what decisions need of the segments on this disk, the active one last."""
        interval, buffers = self.topic.index_interval_bytes, WindowBuffers()
        listing = self.listing()
        active = listing.active
        return [
            *(
                summarize(segment, load_indexes(segment, self._files, interval, buffers), None)
                for segment in listing.segments[:-1]
            ),
            SegmentSummary(active.base_offset, active.size_bytes, active.mtime_ms, -1, 0, 0),
        ]

    # The leader's.

    def append(
        self,
        records: Sequence[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
    ) -> int:
        """Append a batch as the leader and return its base offset.

        A batch that a producer sends again is not appended twice. RefusedError for a follower,
        InvalidError when a sequence number or an epoch does not follow.
        """
        self.check_leader()
        if producer_id != NO_PRODUCER_ID:
            duplicate = self._log.find_duplicate(
                producer_id, producer_epoch, base_sequence, len(records)
            )
            if duplicate is not None:
                return duplicate
        return self._log.append(
            records, codec=codec, producer_id=producer_id, producer_epoch=producer_epoch,
            base_sequence=base_sequence, is_transactional=is_transactional,
        )  # fmt: skip

    def end_transaction(
        self, outcome: ControlType, *, producer_id: int, producer_epoch: int
    ) -> int:
        """Append the marker that ends a producer's transaction and return its offset."""
        self.check_leader()
        return self._log.append_marker(
            outcome, producer_id=producer_id, producer_epoch=producer_epoch,
            timestamp_ms=self._clock.now_ms(),
        )  # fmt: skip

    def acknowledge(self, offset: int) -> None:
        """Say that every replica that counts has the log below ``offset``."""
        if not self._high_watermark <= offset <= self.log_end_offset:
            raise InvalidError(
                "the high watermark only grows, up to the log end. "
                f"from={self._high_watermark} to={offset} log_end={self.log_end_offset}",
                code="K355",
            )
        self._high_watermark = offset

    def roll(self) -> None:
        """Close the active segment and start one at the log end."""
        self._log.roll()
        self.save_watermark()

    def flush(self) -> None:
        """Put what was appended on stable storage."""
        self._log.flush()

    def check_leader(self) -> None:
        """RefusedError for a follower."""
        if self.role is not Role.LEADER:
            raise RefusedError(
                f"only the leader does this. partition={self.partition}", code="K354"
            )

    # The follower's.

    def become_follower(self, epoch: int) -> None:
        """Step down: appends are refused from here on."""
        if epoch < self.epoch:
            raise FencedError(
                f"an older epoch. partition={self.partition} epoch={epoch}", code="K332"
            )
        self.role, self.epoch = Role.FOLLOWER, epoch

    def replicate(self, data: bytes, *, high_watermark: int, log_start: int | None = None) -> int:
        """Append what a leader's fetch gave, as it is; returns the log end offset.

        Batches below the log end are there already and passed over; gaps and empty batches of a
        cleaned log are taken as they are. A log that begins at the leader's log start, and has
        nothing yet, begins with the batch that holds it. ``log_start`` is the leader's, and taken
        over. InvalidError for a batch that begins below the log end and ends above it. FencedError
        for a batch of a later leader than the followed one, if this host knows the followed one:
        nothing from it on is taken.
        """
        self._check_follower()
        self._append_stored(data, newest=self.epoch)
        if log_start is not None:
            self.follow_log_start(log_start)
        self._high_watermark = min(max(high_watermark, 0), self.log_end_offset)
        return self.log_end_offset

    def _append_stored(self, data: bytes, *, newest: int) -> None:
        """Append the batches of ``data`` that are not there; ``newest`` is the last leader epoch
        that is taken, and -1 takes all.

        An overtaken leader serves what is in object storage, and there the log is its successor's.
        Appended here it would hide from the next truncation, which goes by the last epoch, that
        what lies below is another leader's. Kafka: ``UnifiedLog.appendAsFollower``, KAFKA-18723.
        """
        for batch in read_batches(data):
            if not isinstance(batch, RecordBatch):
                raise InvalidError("only batches of format 2 are replicated", code="K161")
            if batch.last_offset < self.log_end_offset:
                continue
            if NO_LEADER_EPOCH < newest < batch.leader_epoch:
                raise FencedError(
                    "the leader that is followed was replaced; follow the new one, truncate to "
                    f"it, then replicate. partition={self.partition} epoch={newest} "
                    f"batch_epoch={batch.leader_epoch} base_offset={batch.base_offset}",
                    code="K354",
                )
            if batch.base_offset < self.log_end_offset:
                self._begin_with(batch)
            self._log.append_stored(batch)

    def _begin_with(self, batch: RecordBatch) -> None:
        """Begin empty where ``batch`` does: the log start may lie inside of a batch.

        Kafka: ``Partition.appendRecordsToFollowerOrFutureReplica``.
        """
        if self.listing().segments[0].base_offset != self.log_end_offset:
            raise InvalidError(
                "a batch reaches into the local log without being in it; truncate to the leader. "
                f"partition={self.partition} base_offset={batch.base_offset} "
                f"last_offset={batch.last_offset} log_end={self.log_end_offset}",
                code="K161",
            )
        self.restart(batch.base_offset)

    def truncate(self, offset: int) -> None:
        """Cut the local log at ``offset``, as a follower whose end is not its leader's."""
        self._check_follower()
        self._log.close()
        truncate_log(self._files, self.directory, offset)
        self._reopen()

    def truncate_to(self, lineage: Sequence[LeaderEpoch], log_end: int) -> int:
        """Cut what the leader does not have; returns the log end offset.

        ``lineage`` and ``log_end`` are the leader's. High watermarks are not looked at: only leader
        epochs show which records are the same (KIP-101, KIP-279).
        """
        self._check_follower()
        same_to = find_divergence(self.lineage, self.log_end_offset, lineage, log_end)
        if same_to < self.log_end_offset:
            self.truncate(same_to)
        return self.log_end_offset

    def restart(self, offset: int) -> None:
        """Give the local log up and begin empty at ``offset``, as when a leader starts above it."""
        self._check_follower()
        self._log.close()
        restart_log(self._files, self.directory, offset)
        self._reopen()

    def begin_at(self, offset: int, lineage: Sequence[LeaderEpoch], producers: bytes) -> None:
        """Give the local log up and begin empty at ``offset`` with what is known of the log below.

        ``lineage`` are the leader epochs up to there, ``producers`` the snapshot of a segment that
        ends there. They are on the disk before the log is.
        """
        self._check_follower()
        self._log.close()
        clear_log(self._files, self.directory)
        self._files.write_durable(self.directory / segment_file(offset, SNAPSHOT), producers)
        epochs = [entry for entry in lineage if entry.start_offset < offset]
        self._files.write_durable(
            self.directory / LEADER_EPOCH_CHECKPOINT, leader_epoch.encode(epochs)
        )
        begin_log(self._files, self.directory, offset)
        self._reopen()

    def _check_follower(self) -> None:
        if self.role is Role.LEADER:
            raise RefusedError(
                f"a leader's log is the one that counts; step down first. {self.partition}",
                code="K354",
            )

    # What both do.

    def follow_log_start(self, offset: int) -> None:
        """Take a log start over: durably, then segments below it go. Never back.

        A follower that ends below it begins empty there.
        """
        if offset > self.local_log_start:
            root = self.directory.parent
            update_checkpoint(self._files, root, LOG_START_CHECKPOINT, {self.partition: offset})
        if self.log_end_offset < offset and self.role is Role.FOLLOWER:
            self.restart(offset)
        self.drop_below(offset)

    def drop_below(self, offset: int) -> list[SegmentFiles]:
        """Remove closed segments that end at or below ``offset``, the oldest first, each durably.

        A crash leaves the rest of them, never a hole.
        """
        gone = [segment for segment, end in self.closed_segments() if end <= offset]
        for segment in gone:
            for path in retire_segments(self._files, self.directory, [segment.base_offset]):
                self._files.unlink(path)
        return gone

    def save_watermark(self) -> None:
        """Write the high watermark down: from here on a restart does not forget it."""
        change = {self.partition: self._high_watermark}
        update_checkpoint(self._files, self.directory.parent, REPLICATION_CHECKPOINT, change)

    def _open(self) -> LogAppender:
        return LogAppender(
            self.directory, self._files, topic=self.topic, clock=self._clock,
            decided_to=self._high_watermark,
        )  # fmt: skip

    def _reopen(self) -> None:
        self._log = self._open()
        self._high_watermark = min(self._high_watermark, self.log_end_offset)

    def _check_whole(self) -> None:
        leftovers = [name for name in self._files.listdir(self.directory) if name.endswith(SWAP)]
        if leftovers:
            raise RefusedError(
                "a swap was interrupted; open the log with recovery. "
                f"path={self.directory} files={len(leftovers)}",
                code="K204",
            )

    def _recover(self) -> Recovered:
        files, directory = self._files, self.directory
        recover_swap(files, directory)
        log_start = self.local_log_start
        if not any(name.endswith(LOG) for name in files.listdir(directory)):
            begin_log(files, directory, log_start)
            return Recovered(restarted_at=log_start)
        cut = cut_torn_tail(files, directory)
        if find_tail(self.listing(), files).log_end < log_start:
            restart_log(files, directory, log_start)
            return Recovered(cut, log_start)
        return Recovered(cut)
