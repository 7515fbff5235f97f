"""What an appended log knows next to its files: the active segment's indexes, and its producers.

*Producers* have a last batch, an epoch and perhaps an open transaction. They are fed with every
batch in offset order, and only so: the answer to "which transactions are open" is a fold over the
log. An end-transaction marker with a newer epoch clears the producer's data history. Answers to
``ProducerStateManager``, ``ProducerAppendInfo`` and ``ProducerStateEntry``.

*Indexes* of the segment that is appended to reach the disk when it is left. A batch is indexed
before it is written, by the rule that recovery and the cleaner use too (F3). So a segment has the
same indexes however it came about. When to roll is what a broker would do: cleaning.md section 1.7.
Answers to Kafka's ``LogSegment``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.batch import RecordBatch
from keeplast.format.filename import INDEX, LOG, TIME_INDEX, TXN_INDEX, Kind, segment_file
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType, decode_control_type, decode_end_transaction
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import SegmentFiles, load_indexes, read_first_batch_timestamp
from keeplast.log.windows import WindowBuffers
from keeplast.model.partition import NO_TIMESTAMP, RELATIVE_OFFSET_MAX, decrement_sequence
from keeplast.model.topic_config import TopicConfig

NOTHING_SEEN = ProducerEntry(
    producer_id=-1,
    epoch=-1,
    last_sequence=-1,
    last_offset=-1,
    offset_delta=0,
    timestamp=-1,
    coordinator_epoch=-1,
    current_txn_first_offset=-1,
)


BATCHES_KEPT = 5
"""So many requests may a producer have on their way. Kafka:
``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``; a snapshot keeps the last one alone."""


class ProducerState:
    """The table of producers of one log, up to some offset."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        """Start from a snapshot's entries; of a repeated producer the last one counts."""
        self._entries = {entry.producer_id: entry for entry in entries}
        self._ended: list[tuple[int, int]] = []
        self._batches: dict[int, deque[tuple[int, int, int]]] = {}
        for entry in self._entries.values():
            if entry.last_sequence >= 0:
                self._remember(entry)

    def add(self, batch: RecordBatch) -> AbortedTransaction | None:
        """Account for a batch; return the aborted transaction that it ends, if any.

        CorruptError when it is a control batch whose record cannot be read. An empty control
        batch is no event: the whole transaction has been cleaned away.
        """
        if batch.producer_id < 0:
            return None
        if not batch.is_control:
            self.add_data(
                batch.producer_id,
                batch.producer_epoch,
                base_offset=batch.base_offset,
                last_offset=batch.last_offset,
                last_sequence=batch.last_sequence,
                timestamp=batch.max_timestamp,
                is_transactional=batch.is_transactional,
            )
            return None
        for record in batch.records():
            if decode_control_type(record.key) not in (ControlType.ABORT, ControlType.COMMIT):
                continue
            marker = decode_end_transaction(record.key, record.value)
            return self.end_transaction(
                batch.producer_id,
                batch.producer_epoch,
                outcome=marker.control_type,
                offset=record.offset,
                timestamp=record.timestamp,
                coordinator_epoch=marker.coordinator_epoch,
            )
        return None

    def first_open_transaction(self) -> int | None:
        """Return the first offset of the earliest open transaction, None when all are decided."""
        opened = [entry.current_txn_first_offset for entry in self._entries.values()]
        return min((offset for offset in opened if offset >= 0), default=None)

    def first_undecided(self, high_watermark: int) -> int | None:
        """Return the first offset of the earliest transaction that is not decided for good.

        It is open, or not every replica has its end: another leader may end it otherwise. None
        without one.

        Transactions that ended below ``high_watermark`` are forgotten: it never falls below what
        was decided. Kafka: ``ProducerStateManager.firstUnstableOffset``, ``unreplicatedTxns``.
        """
        self._ended = [each for each in self._ended if each[1] >= high_watermark]
        opened = self.first_open_transaction()
        firsts = [first for first, _ in self._ended] + ([] if opened is None else [opened])
        return min(firsts, default=None)

    def find(self, producer_id: int) -> ProducerEntry | None:
        """Return what is known of a producer, None when nothing is."""
        return self._entries.get(producer_id)

    def find_batch(self, producer_id: int, first: int, last: int) -> int | None:
        """Return the base offset of the batch with these sequence numbers, both inclusive.

        None when it is not among the producer's last :data:`BATCHES_KEPT` of its newest epoch.
        """
        for first_known, last_known, base_offset in self._batches.get(producer_id, ()):
            if (first_known, last_known) == (first, last):
                return base_offset
        return None

    def _remember(self, entry: ProducerEntry) -> None:
        first = decrement_sequence(entry.last_sequence, entry.offset_delta)
        kept = self._batches.setdefault(entry.producer_id, deque(maxlen=BATCHES_KEPT))
        kept.append((first, entry.last_sequence, entry.last_offset - entry.offset_delta))

    def entries(self) -> tuple[ProducerEntry, ...]:
        """Return what a snapshot holds, by ascending producer id."""
        return tuple(self._entries[producer_id] for producer_id in sorted(self._entries))

    def add_data(
        self,
        producer_id: int,
        epoch: int,
        *,
        base_offset: int,
        last_offset: int,
        last_sequence: int,
        timestamp: int,
        is_transactional: bool,
    ) -> None:
        """Account for a data batch of a producer (id >= 0); offsets are inclusive."""
        entry = self._entries.get(producer_id, NOTHING_SEEN)
        first_offset = entry.current_txn_first_offset
        if is_transactional and first_offset < 0:
            first_offset = base_offset
        made = ProducerEntry(
            producer_id=producer_id,
            epoch=epoch,
            last_sequence=last_sequence,
            last_offset=last_offset,
            offset_delta=last_offset - base_offset,
            timestamp=timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_first_offset=first_offset,
        )
        self._entries[producer_id] = made
        if entry.epoch != epoch:
            # Sequences begin again with an epoch: an older one's batch is no duplicate.
            self._batches.pop(producer_id, None)
        if last_sequence >= 0:
            self._remember(made)

    def end_transaction(
        self,
        producer_id: int,
        epoch: int,
        *,
        outcome: ControlType,
        offset: int,
        timestamp: int,
        coordinator_epoch: int,
    ) -> AbortedTransaction | None:
        """Account for a marker; return what the transaction index gets, None when nothing.

        Only an aborted transaction with data is worth an entry.
        """
        entry = self._entries.get(producer_id, NOTHING_SEEN)
        first_offset = entry.current_txn_first_offset
        if entry.epoch != epoch:
            entry = NOTHING_SEEN
            self._batches.pop(producer_id, None)
        self._entries[producer_id] = replace(
            entry,
            producer_id=producer_id,
            epoch=epoch,
            timestamp=timestamp,
            coordinator_epoch=coordinator_epoch,
            current_txn_first_offset=-1,
        )
        if first_offset < 0:
            return None
        self._ended.append((first_offset, offset))
        if outcome is not ControlType.ABORT:
            return None
        still_open = [
            other.current_txn_first_offset
            for other in self._entries.values()
            if other.current_txn_first_offset >= 0
        ]
        return AbortedTransaction(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=offset,
            last_stable_offset=min(still_open, default=offset + 1),
        )


class ActiveSegment:
    """One open ``.log`` file and what is known of its content."""

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        files: FileSystem,
        topic: TopicConfig,
        *,
        created_ms: int,
        template: Path | None = None,
    ) -> None:
        """Start an empty segment; ``created_ms`` dates it while no record has a timestamp.

        Its files get the owner and mode of ``template``, a file of the same log.
        """
        self.base_offset = base_offset
        self._directory = directory
        self._files = files
        self._topic = topic
        self._created_ms = created_ms
        self._size_bytes = 0
        self._first_timestamp_ms: int | None = None
        self._offsets: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._aborted: list[AbortedTransaction] = []
        self._max_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._unindexed_bytes = 0
        # Appending never truncates, so this is right for a segment that is taken up again, too.
        self._handle = files.open_write(self.log_path, append=True)
        if template is not None:
            files.copy_owner_and_mode(template, self.log_path)

    @classmethod
    def resume(
        cls,
        segment: SegmentFiles,
        files: FileSystem,
        topic: TopicConfig,
        *,
        created_ms: int,
        aborted: Sequence[AbortedTransaction],
    ) -> ActiveSegment:
        """Take up a sound segment where it ends, with its indexes from disk or rebuilt.

        ``aborted`` are the transactions whose abort marker lies in it.
        """
        active = cls(segment.directory, segment.base_offset, files, topic, created_ms=created_ms)
        indexes = load_indexes(segment, files, topic.index_interval_bytes, WindowBuffers())
        active._size_bytes = segment.size_bytes
        active._first_timestamp_ms = read_first_batch_timestamp(segment, files)
        active._offsets = [(int(relative), int(at)) for relative, at in indexes.offsets]
        active._times = [(int(timestamp), int(relative)) for timestamp, relative in indexes.times]
        active._aborted = list(aborted)
        if active._times:
            active._max_timestamp_ms, relative = active._times[-1]
            active._max_timestamp_offset = segment.base_offset + relative
        indexed_bytes = active._offsets[-1][1] if active._offsets else 0
        active._unindexed_bytes = segment.size_bytes - indexed_bytes
        return active

    @property
    def log_path(self) -> Path:
        """Return the path of the ``.log`` file; the indexes lie next to it."""
        return self._path(LOG)

    @property
    def is_empty(self) -> bool:
        """True while no batch was appended."""
        return self._size_bytes == 0

    def must_roll(self, batch: RecordBatch, now_ms: int) -> bool:
        """Say whether a broker would start a new segment before it appends ``batch``."""
        topic = self._topic
        offset_entries_max = topic.segment_index_bytes // offset_index.ENTRY_BYTES
        # A slot of the time index is kept for the entry that closes the segment.
        time_entries_max = topic.segment_index_bytes // time_index.ENTRY_BYTES - 1
        return (
            self._size_bytes > topic.segment_bytes - batch.size_bytes
            or (not self.is_empty and self._age_ms(batch, now_ms) > topic.segment_age_max_ms)
            or len(self._offsets) >= offset_entries_max
            or len(self._times) >= time_entries_max
            or batch.last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        )

    def append(self, batch: RecordBatch, aborted: AbortedTransaction | None) -> None:
        """Index and write a batch; ``aborted`` is the transaction that it ends, if it does."""
        if self.is_empty:
            self._first_timestamp_ms = batch.max_timestamp
        if batch.max_timestamp > self._max_timestamp_ms:
            self._max_timestamp_ms = batch.max_timestamp
            self._max_timestamp_offset = batch.last_offset
        if self._unindexed_bytes > self._topic.index_interval_bytes:
            self._offsets.append((batch.last_offset - self.base_offset, self._size_bytes))
            self._add_time_entry()
            self._unindexed_bytes = 0
        self._unindexed_bytes += batch.size_bytes
        if aborted is not None:
            self._aborted.append(aborted)
        self._handle.write(batch.data)
        self._size_bytes += batch.size_bytes

    def flush(self) -> None:
        """Put the records on stable storage; the indexes follow when the segment is left."""
        self._handle.fsync()

    def leave(self) -> None:
        """Put everything on stable storage, the log first; the directory is the caller's."""
        self._add_time_entry()
        self._handle.fsync()
        self._handle.close()
        self._write(INDEX, offset_index.encode(self._offsets))
        self._write(TIME_INDEX, time_index.encode(self._times))
        # An index that says more than the markers do is not left as it is.
        if self._aborted or self._files.exists(self._path(TXN_INDEX)):
            self._write(TXN_INDEX, txn_index.encode(self._aborted))

    def abandon(self) -> None:
        """Release the file and write nothing more, as a crash would."""
        self._handle.close()

    def _age_ms(self, batch: RecordBatch, now_ms: int) -> int:
        first = self._first_timestamp_ms
        if first is not None and first >= 0:
            return batch.max_timestamp - first
        return now_ms - self._created_ms

    def _add_time_entry(self) -> None:
        if self._max_timestamp_ms > (self._times[-1][0] if self._times else NO_TIMESTAMP):
            relative = self._max_timestamp_offset - self.base_offset
            self._times.append((self._max_timestamp_ms, relative))

    def _path(self, kind: Kind) -> Path:
        return self._directory / segment_file(self.base_offset, kind)

    def _write(self, kind: Kind, data: bytes) -> None:
        # Atomically: the segment may be a broker's, whose indexes are good as they are.
        write_like(self._path(kind), data, self.log_path, self._files)


def write_like(path: Path, data: bytes, template: Path, files: FileSystem) -> None:
    """Replace a small file durably, with the owner and mode of ``template``.

    Otherwise a broker with another user's rights could not write to what we made for it.
    """
    files.write_durable(path, data)
    files.copy_owner_and_mode(template, path)
