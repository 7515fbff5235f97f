"""Appends record batches to one partition, and rolls its segments when a broker would.

The batch is written first. Indexes, producer snapshot and the rest of a segment's files follow when
the segment is rolled or the log closed: each of them flushed, then the directory. What a crash
leaves is a log without them, from which they can be derived again. One writer per directory: the
caller holds the lock of the data directory.

The checkpoint files next to the partition are the caller's. Answers to Kafka's
``UnifiedLog.append`` and ``LogSegment.shouldRoll`` (cleaning.md section 1.7); batches are magic 2
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from keeplast.clock import Clock, SystemClock
from keeplast.errors import CorruptError, InvalidError
from keeplast.format import leader_epoch as leader_epochs
from keeplast.format import partition_metadata, producer_snapshot
from keeplast.format.batch import RecordBatch, TimestampType, decode_batch, encode_batch
from keeplast.format.compression import Codec
from keeplast.format.filename import (
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    parse_segment_file,
    segment_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.format.record import (
    ControlType,
    EndTransactionMarker,
    Record,
    encode_end_transaction,
)
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.active_segment import ActiveSegment, ProducerState, write_like
from keeplast.log.checkpoints import BYTES_MAX as CHECKPOINT_BYTES_MAX
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import (
    SNAPSHOT_BYTES_MAX,
    PartitionFiles,
    SegmentFiles,
    Tail,
    find_tail,
    list_partition,
)
from keeplast.log.transactions import aborted_between
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.partition import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    increment_sequence,
)
from keeplast.model.topic_config import TopicConfig


class NewRecord(Struct, frozen=True):
    """A record that has no offset yet; ``value`` None is a tombstone."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = NO_TIMESTAMP
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class LogAppender:
    """The end of one partition's log. Use as a context manager, or call :meth:`close`."""

    def __init__(
        self,
        directory: Path,
        files: FileSystem,
        *,
        topic: TopicConfig,
        leader_epoch: int | None = None,
        topic_id: bytes | None = None,
        clock: Clock | None = None,
        decided_to: int | None = None,
    ) -> None:
        """Open a partition directory at its end, or start one at offset 0.

        ``decided_to`` is the high watermark of a replica: transactions that end at or above it are
        read again. None takes every marker of the log as final.

        ``leader_epoch`` None goes on with the newest one in the log. ``topic_id`` (16 bytes) is
        written to ``partition.metadata`` when that is missing. ``clock`` dates segments whose
        first record has no timestamp. InvalidError when the epoch is older than the log's,
        CorruptError when the active segment is torn: cutting it is recovery's business.
        """
        self._directory = directory
        self._files = files
        self._topic = topic
        self._clock = SystemClock() if clock is None else clock
        self._decided_to = decided_to
        files.make_directory(directory)
        if topic_id is not None and not files.exists(directory / PARTITION_METADATA):
            metadata = PartitionMetadata(topic_id)
            files.write_durable(directory / PARTITION_METADATA, partition_metadata.encode(metadata))
        self._epochs = self._load_epochs()
        newest = self._epochs[-1].epoch if self._epochs else 0
        self._leader_epoch = newest if leader_epoch is None else leader_epoch
        if self._leader_epoch < newest:
            raise InvalidError(
                "a newer leader has written to the log; use its epoch or a later one. "
                f"leader_epoch={leader_epoch} found={newest}",
                code="K161",
            )
        parsed = map(parse_segment_file, files.listdir(directory))
        if any(file is not None and file.kind == LOG and not file.stage for file in parsed):
            self._resume(list_partition(directory, files))
        else:
            self._log_end = 0
            self._producers = ProducerState()
            self._active = self._new_segment(0)

    @property
    def log_end_offset(self) -> int:
        """Return the offset that the next record gets."""
        return self._log_end

    def append(
        self,
        records: Sequence[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        append_time_ms: int | None = None,
        base_offset: int | None = None,
    ) -> int:
        """Append one batch and return its base offset.

        ``append_time_ms`` makes the batch LogAppendTime. ``base_offset`` leaves a gap before the
        batch, as a log has that was cleaned; it is at least the log end. InvalidError when there
        is no record, a record of a compacted topic has no key, or the batch is larger than
        ``max.message.bytes`` or ``segment.bytes``.
        """
        base = self._log_end if base_offset is None else base_offset
        if base < self._log_end or not records:
            raise InvalidError(
                "a batch needs a record, and an offset not below the log end. "
                f"base_offset={base} log_end_offset={self._log_end} records={len(records)}",
                code="K161",
            )
        keyless = next((i for i, record in enumerate(records) if record.key is None), None)
        if self._topic.is_compacted and keyless is not None:
            raise InvalidError(
                f"a record of a compacted topic needs a key. record={keyless} base_offset={base}",
                code="K161",
            )
        is_append_time = append_time_ms is not None
        data = encode_batch(
            [
                Record(base + i, record.timestamp_ms, record.key, record.value, record.headers)
                for i, record in enumerate(records)
            ],
            codec=codec,
            timestamp_type=(
                TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
            ),
            max_timestamp=append_time_ms,
            leader_epoch=self._leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
        limit = min(self._topic.max_message_bytes, self._topic.segment_bytes)
        if len(data) > limit:
            raise InvalidError(
                "batch is larger than max.message.bytes or segment.bytes; split it. "
                f"size_bytes={len(data)} limit={limit}",
                code="K161",
            )
        self._append_batch(data)
        return base

    def append_marker(
        self,
        outcome: ControlType,
        *,
        producer_id: int,
        producer_epoch: int,
        timestamp_ms: int,
    ) -> int:
        """Append the marker that ends a producer's transaction and return its offset.

        ``outcome`` is COMMIT or ABORT. An aborted transaction with data enters the index.
        """
        offset = self._log_end
        key, value = encode_end_transaction(EndTransactionMarker(outcome, 0))
        data = encode_batch(
            [Record(offset, timestamp_ms, key, value)],
            leader_epoch=self._leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=True,
            is_control=True,
        )
        self._append_batch(data)
        return offset

    def append_stored(self, batch: RecordBatch) -> int:
        """Append a batch as another replica has stored it and return its base offset.

        InvalidError when it begins below the log end. Its leader epoch becomes the log's.
        """
        if batch.base_offset < self._log_end:
            raise InvalidError(
                "a stored batch does not continue the log. "
                f"base_offset={batch.base_offset} log_end_offset={self._log_end}",
                code="K161",
            )
        # Not the epoch at which this replica led and wrote nothing: the record is another leader's.
        written = [e.epoch for e in self._epochs if e.start_offset < batch.base_offset]
        self._leader_epoch = max([batch.leader_epoch, *written])
        self._append_batch(bytes(batch.data))
        return batch.base_offset

    def set_leader_epoch(self, epoch: int) -> None:
        """Give what is appended from here on this epoch; InvalidError for an older one."""
        if epoch < self._leader_epoch:
            raise InvalidError(
                "a newer leader has written to the log; use its epoch or a later one. "
                f"leader_epoch={epoch} found={self._leader_epoch}",
                code="K161",
            )
        self._leader_epoch = epoch

    def restore_epochs(self, epochs: Sequence[LeaderEpoch]) -> None:
        """Replace the leader epochs by what is known of them elsewhere, durably.

        Of a log that was cleaned before it was replicated, the first record of an epoch may be
        missing: the batches alone show too late a start.
        """
        if tuple(epochs) == tuple(self._epochs):
            return
        self._epochs = list(epochs)
        self._files.write_durable(
            self._directory / LEADER_EPOCH_CHECKPOINT, leader_epochs.encode(self._epochs)
        )

    def first_undecided(self, high_watermark: int) -> int | None:
        """Return where the earliest transaction begins that is open, or ends at or above
        ``high_watermark``; None when all are decided."""
        return self._producers.first_undecided(high_watermark)

    def first_open(self) -> int | None:
        """Return where the earliest open transaction begins, None when there is none."""
        return self._producers.first_open_transaction()

    def find_duplicate(
        self, producer_id: int, epoch: int, base_sequence: int, count: int
    ) -> int | None:
        """Return the base offset of the producer's batch when this is one of its last again.

        InvalidError when the epoch is older than the producer's, or the batch does not follow its
        last one. Kafka: ``ProducerStateEntry.findDuplicateBatch``,
        ``ProducerAppendInfo.checkSequence``.
        """
        known = self._producers.find(producer_id)
        if known is None:
            return None
        if epoch < known.epoch:
            raise InvalidError(
                f"a newer epoch of the producer has written. producer_id={producer_id} "
                f"epoch={epoch} found={known.epoch}",
                code="K161",
            )
        if epoch > known.epoch or known.last_sequence < 0:
            return None
        last = increment_sequence(base_sequence, count - 1)
        duplicate = self._producers.find_batch(producer_id, base_sequence, last)
        if duplicate is None and base_sequence != increment_sequence(known.last_sequence, 1):
            raise InvalidError(
                "the batch does not follow the producer's last one; send what is missing first. "
                f"producer_id={producer_id} sequence={base_sequence} last={known.last_sequence}",
                code="K161",
            )
        return duplicate

    def flush(self) -> None:
        """Put what was appended to the active segment on stable storage."""
        self._active.flush()

    def roll(self, base_offset: int | None = None) -> None:
        """Leave the active segment and start one at ``base_offset``, at least the log end.

        Nothing happens when the active segment is empty and begins there already.
        """
        base = self._log_end if base_offset is None else max(base_offset, self._log_end)
        if base == self._active.base_offset:
            return
        self._log_end = base
        self._leave_segment()
        self._active = self._new_segment(base, self._active.log_path)

    def close(self) -> None:
        """Write what belongs next to the log, all of it on stable storage."""
        self._leave_segment()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error only release the file, as a crash would."""
        if kind is None:
            self.close()
        else:
            self._active.abandon()

    def _append_batch(self, data: bytes) -> None:
        batch = decode_batch(data)
        if self._active.must_roll(batch, self._clock.now_ms()):
            self.roll(batch.base_offset)
        self._assign_epoch(batch.base_offset)
        self._active.append(batch, self._producers.add(batch))
        self._log_end = batch.last_offset + 1

    def _assign_epoch(self, offset: int) -> None:
        if self._epochs and self._epochs[-1].epoch == self._leader_epoch:
            return
        # An older leader that was about to write here has not, or it would not be free.
        self._epochs = [entry for entry in self._epochs if entry.start_offset < offset]
        self._epochs.append(LeaderEpoch(self._leader_epoch, offset))
        self._files.write_durable(
            self._directory / LEADER_EPOCH_CHECKPOINT, leader_epochs.encode(self._epochs)
        )

    def _load_epochs(self) -> list[LeaderEpoch]:
        path = self._directory / LEADER_EPOCH_CHECKPOINT
        if not self._files.exists(path):
            return []
        try:
            return list(leader_epochs.decode(self._files.read_bytes(path, CHECKPOINT_BYTES_MAX)))
        except CorruptError as error:
            raise error.located(str(path)) from error

    def _new_segment(self, base_offset: int, template: Path | None = None) -> ActiveSegment:
        return ActiveSegment(
            self._directory,
            base_offset,
            self._files,
            self._topic,
            created_ms=self._clock.now_ms(),
            template=template,
        )

    def _leave_segment(self) -> None:
        self._active.leave()
        if self._decided_to is None:
            self._producers.first_undecided(self._log_end)  # forgets what has ended
        snapshot = producer_snapshot.encode(self._producers.entries())
        path = self._snapshot_path(self._log_end)
        write_like(path, snapshot, self._active.log_path, self._files)
        self._files.fsync_directory(self._directory)

    def _snapshot_path(self, offset: int) -> Path:
        return self._directory / segment_file(offset, SNAPSHOT)

    def _resume(self, partition: PartitionFiles) -> None:
        """Take up a log where it ends: in the active segment, with the state at its end."""
        files, segment = self._files, partition.active
        tail = find_tail(partition, files)
        if tail.torn_at is not None:
            raise CorruptError(
                f"active segment is torn; a broker's recovery cuts it. problem={tail.problem}",
                path=str(segment.log_path),
                position=tail.torn_at,
                code="K212",
            )
        self._log_end = tail.log_end
        self._producers, aborted = self._load_producers(partition, tail)
        self._active = ActiveSegment.resume(
            segment, files, self._topic, created_ms=self._clock.now_ms(), aborted=aborted
        )

    def _load_producers(
        self, partition: PartitionFiles, tail: Tail
    ) -> tuple[ProducerState, tuple[AbortedTransaction, ...]]:
        """Return the state at the log end, and what the active segment's index has to name.

        The state is the newest snapshot's and what was appended since. What was aborted the markers
        say: after a crash the index on disk lacks what ended since it was last written.
        """
        usable = [offset for offset in partition.snapshots if offset <= self._log_end]
        if self._decided_to is not None:
            # What ended at or above the high watermark is read again; what lies below the log's
            # own start is known from nowhere else than a snapshot.
            first = partition.segments[0].base_offset
            decided = [o for o in usable if o <= max(self._decided_to, first)]
            usable = decided if decided or not first else usable[:1]
        since = max(usable, default=0)
        state = ProducerState()
        if usable:
            path = self._snapshot_path(since)
            try:
                state = ProducerState(
                    producer_snapshot.decode(self._files.read_bytes(path, SNAPSHOT_BYTES_MAX))
                )
            except CorruptError as error:
                raise error.located(str(path)) from error
        buffers = WindowBuffers()
        ends = [segment.base_offset for segment in partition.segments[1:]] + [self._log_end]
        for segment, end in zip(partition.segments, ends, strict=True):
            if end > since:
                self._replay(segment, since, state, buffers)
        aborted = aborted_between(
            partition, tail, self._files, buffers, start=partition.active.base_offset
        )
        return state, aborted

    def _replay(
        self, segment: SegmentFiles, since: int, state: ProducerState, buffers: WindowBuffers
    ) -> None:
        """Add a segment's batches to ``state``."""
        with reading(self._files, segment.log_path) as handle:
            for window in read_windows(handle, segment.log_path, buffers):
                for batch in read_batches(window.data[: window.length].data):
                    if isinstance(batch, RecordBatch) and batch.base_offset >= since:
                        state.add(batch)
