"""The segment that is appended to, and its indexes, which reach the disk when it is left.

A batch is indexed before it is written, by the rule that recovery and the cleaner use too (F3), so
that a segment has the same indexes however it came about. When to roll is what a broker would do:
cleaning.md section 1.7. Answers to Kafka's ``LogSegment``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.batch import RecordBatch
from keeplast.format.filename import INDEX, LOG, TIME_INDEX, TXN_INDEX, Kind, segment_file
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import (
    SegmentFiles,
    load_indexes,
    read_first_batch_timestamp,
)
from keeplast.log.windows import WindowBuffers
from keeplast.model.offsets import NO_TIMESTAMP, RELATIVE_OFFSET_MAX
from keeplast.model.topic_config import TopicConfig


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
        """Return the path of the ``.log`` file; the indexes lie beside it."""
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
