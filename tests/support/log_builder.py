"""Builds a partition directory append by append, with everything that a scenario has to control.

Timestamps, producers, epochs, sequences, transactions, rolls, gaps between offsets, old formats and
single bytes are the caller's. The log itself keeps the books a broker keeps: it rolls by the
broker's rules, indexes as it appends, and leaves a producer snapshot at every roll and at its end.
A closed segment is never touched again, so that it can be cleaned while the log goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from keeplast.format import producer_snapshot
from keeplast.format.batch import RecordBatch, TimestampType, encode_batch
from keeplast.format.compression import Codec
from keeplast.format.filename import LOG, SNAPSHOT, Kind, segment_file
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType, EndTransactionMarker, Record, encode_end_transaction
from keeplast.log.active_segment import ActiveSegment, ProducerState
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.partition import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from keeplast.model.topic_config import TopicConfig

START_MS = 1_700_000_000_000


class Sender(Struct, frozen=True):
    """Who sends a batch: a producer's id, epoch and sequence; none by default."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    sequence: int = NO_SEQUENCE
    is_transactional: bool = False


NO_PRODUCER = Sender()


def text(number: int) -> bytes:
    """Return a number as Kafka's tests write it into keys and values."""
    return b"%d" % number


class LogBuilder:
    """One log that is being written. ``now_ms`` is its clock; set it freely."""

    def __init__(self, directory: Path, topic: TopicConfig) -> None:
        """Start an empty log in ``directory``."""
        directory.mkdir(parents=True)
        self.directory = directory
        self.topic = topic
        self.now_ms = START_MS
        self.leader_epoch = 0
        self.log_end = 0
        self.bases = [0]
        self._producers = ProducerState()
        self._active = self._new_segment(0)

    @property
    def active_base(self) -> int:
        """Where the active segment begins; everything below can be cleaned."""
        return self.bases[-1]

    def path(self, base_offset: int, kind: Kind = LOG) -> Path:
        """Return the path of a segment's file."""
        return self.directory / segment_file(base_offset, kind)

    def append(
        self,
        *records: NewRecord,
        at: int | None = None,
        codec: Codec = Codec.NONE,
        sender: Sender = NO_PRODUCER,
        append_time_ms: int | None = None,
    ) -> int:
        """Append one batch, at offset ``at`` or the log end; return its base offset."""
        base = self.log_end if at is None else at
        is_append_time = append_time_ms is not None
        data = encode_batch(
            [
                Record(base + i, new.timestamp_ms, new.key, new.value, new.headers)
                for i, new in enumerate(records)
            ],
            codec=codec,
            timestamp_type=(
                TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
            ),
            max_timestamp=append_time_ms,
            leader_epoch=self.leader_epoch,
            producer_id=sender.producer_id,
            producer_epoch=sender.epoch,
            base_sequence=sender.sequence,
            is_transactional=sender.is_transactional,
        )
        self.add(data)
        return base

    def record(self, key: int, value: int | None, *, at: int | None = None) -> int:
        """Append a batch of one record of numbers, without timestamp and producer."""
        new = NewRecord(text(key), None if value is None else text(value))
        return self.append(new, at=at)

    def tombstone(self, key: int) -> int:
        """Append a batch of one tombstone."""
        return self.record(key, None)

    def marker(
        self, outcome: ControlType, *, producer_id: int, epoch: int = 0, rolls: bool = True
    ) -> int:
        """Append the marker that ends a transaction, dated now; return its offset."""
        key, value = encode_end_transaction(EndTransactionMarker(outcome, 0))
        offset = self.log_end
        self.add(
            encode_batch(
                [Record(offset, self.now_ms, key, value)],
                leader_epoch=self.leader_epoch,
                producer_id=producer_id,
                producer_epoch=epoch,
                is_transactional=True,
                is_control=True,
            ),
            rolls=rolls,
        )
        return offset

    def add(self, data: bytes, *, rolls: bool = True) -> None:
        """Append whole batches as they are, of any magic; the offsets are in them.

        ``rolls`` False puts them into the active segment even where a broker would roll.
        """
        for batch in read_batches(data):
            # The segment looks only at fields that batches of every magic have.
            appended = cast(RecordBatch, batch)
            if rolls and self._active.must_roll(appended, self.now_ms):
                # As a broker does it: the snapshot of a roll knows nothing of what it is for.
                self.roll(batch.base_offset)
            aborted = None
            if isinstance(batch, RecordBatch):
                aborted = self._producers.add(batch)
            self._active.append(appended, aborted)
            self.log_end = batch.last_offset + 1

    def roll(self, at: int | None = None) -> int:
        """Start a new active segment, at ``at`` or the log end; return its base offset."""
        base = self.log_end if at is None else at
        self._active.leave()
        self.set_mtime(self.active_base, self.now_ms)
        self.log_end = base
        self.bases.append(base)
        snapshot = producer_snapshot.encode(self._producers.entries())
        self.path(base, SNAPSHOT).write_bytes(snapshot)
        self._active = self._new_segment(base)
        return base

    def fill_segments(self, count: int, *, first: int | None = None, keys: int = 0) -> None:
        """Append records until there are ``count`` segments.

        Keys and values are the offsets; with ``keys`` the keys repeat after so many. The first
        record has the number ``first``, by default that of the log end.
        """
        number = self.log_end if first is None else first
        while len(self.bases) < count:
            self.record(number % keys if keys else number, number)
            number += 1

    def producer(self, producer_id: int, *, is_transactional: bool = True) -> Producer:
        """Return an appender of this producer that starts from sequence 0."""
        return Producer(self, Sender(producer_id, 0, 0, is_transactional))

    def set_mtime(self, base_offset: int, mtime_ms: int) -> None:
        """Date the files of a segment."""
        for path in self.directory.glob(f"{base_offset:020d}.*"):
            os.utime(path, ns=(mtime_ms * 10**6, mtime_ms * 10**6))

    def close(self) -> None:
        """Release the active segment's file."""
        self._active.abandon()

    def finish(self) -> Path:
        """Leave a log that nothing more is written to, its active segment empty; return where."""
        self.roll()
        self.close()
        return self.directory

    def _new_segment(self, base_offset: int) -> ActiveSegment:
        return ActiveSegment(
            self.directory, base_offset, LocalFiles(), self.topic, created_ms=self.now_ms
        )


class Producer:
    """One appender of a producer: it counts sequences, and dates records by the log's clock."""

    def __init__(self, log: LogBuilder, sender: Sender) -> None:
        """Start with the sequence of ``sender``."""
        self._log = log
        self._sender = sender

    def send(self, *keys: int) -> int:
        """Append one batch whose values equal its keys; return its base offset."""
        return self.send_records(*(NewRecord(text(k), text(k), self._log.now_ms) for k in keys))

    def send_records(self, *records: NewRecord, codec: Codec = Codec.NONE) -> int:
        """Append one batch of ``records``."""
        sender = self._sender
        self._sender = replace(sender, sequence=sender.sequence + len(records))
        return self._log.append(*records, codec=codec, sender=sender)

    def commit(self, *, epoch: int | None = None) -> int:
        """Append a commit marker; return its offset."""
        return self._end(ControlType.COMMIT, epoch)

    def abort(self, *, epoch: int | None = None, rolls: bool = True) -> int:
        """Append an abort marker; return its offset."""
        return self._end(ControlType.ABORT, epoch, rolls=rolls)

    def _end(self, outcome: ControlType, epoch: int | None, *, rolls: bool = True) -> int:
        return self._log.marker(
            outcome,
            producer_id=self._sender.producer_id,
            epoch=self._sender.epoch if epoch is None else epoch,
            rolls=rolls,
        )


def record_of(
    key: bytes | None, value: bytes | None = b"v", timestamp_ms: int = NO_TIMESTAMP
) -> NewRecord:
    """Return a record that has yet to be appended."""
    return NewRecord(key, value, timestamp_ms)


def tombstone_of(key: bytes, timestamp_ms: int = NO_TIMESTAMP) -> NewRecord:
    """Return a tombstone that has yet to be appended."""
    return NewRecord(key, None, timestamp_ms)


def records_of(keys: Sequence[bytes], timestamp_ms: int = NO_TIMESTAMP) -> tuple[NewRecord, ...]:
    """Return records whose values equal their keys."""
    return tuple(NewRecord(key, key, timestamp_ms) for key in keys)
