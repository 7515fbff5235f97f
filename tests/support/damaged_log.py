"""A cleaned log that is damaged on purpose, batch by batch, with everything else kept right.

Checksums are right after every damage, and the indexes are made again, unless they are what is
damaged: only what a test did to the log is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from keeplast.format import offset_index, time_index
from keeplast.format.batch import RecordBatch, encode_batch
from keeplast.format.filename import INDEX, LOG, TIME_INDEX, TXN_INDEX, segment_file
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import list_partition, rebuild_indexes
from keeplast.log.windows import WindowBuffers

INDEX_INTERVAL_BYTES = 100
"""Far below a broker's: so that small logs have entries to check."""


class DamagedLog:
    """The batches of a partition directory by segment; :meth:`save` writes them back."""

    def __init__(self, directory: Path) -> None:
        """Read every batch of ``directory``."""
        self.directory = directory
        self.segments: dict[int, list[bytes]] = {
            int(path.stem): [bytes(b.data) for b in read_batches(path.read_bytes())]
            for path in sorted(directory.glob(f"*{LOG}"))
        }

    def batch(self, offset: int) -> RecordBatch:
        """Return the batch that covers ``offset``."""
        base, index = self.find(offset)
        batch = next(read_batches(self.segments[base][index]))
        assert isinstance(batch, RecordBatch)
        return batch

    def find(self, offset: int) -> tuple[int, int]:
        """Return the segment and the place in it of the batch that covers ``offset``."""
        for base, batches in self.segments.items():
            for index, data in enumerate(batches):
                batch = next(read_batches(data))
                if batch.base_offset <= offset <= batch.last_offset:
                    return base, index
        raise AssertionError(f"no batch at offset {offset}")

    def drop(self, offset: int) -> None:
        """Remove the batch that covers ``offset``."""
        base, index = self.find(offset)
        del self.segments[base][index]

    def put(self, base: int, index: int, data: bytes) -> None:
        """Insert a batch into a segment."""
        self.segments[base].insert(index, data)

    def put_behind(self, offset: int, data: bytes) -> None:
        """Insert a batch behind the one that covers ``offset``."""
        base, index = self.find(offset)
        self.put(base, index + 1, data)

    def remake(
        self, offset: int, change: Callable[[Record], Record | None] | None = None, **fields: Any
    ) -> None:
        """Replace the batch that covers ``offset``: other header fields, other or fewer records."""
        base, index = self.find(offset)
        self.segments[base][index] = remade(self.batch(offset), change, **fields)

    def change(self, offset: int, **fields: Any) -> None:
        """Replace fields of the record at ``offset``."""
        self.remake(offset, lambda r: replace(r, **fields) if r.offset == offset else r)

    def lose(self, offset: int) -> None:
        """Remove the record at ``offset`` and keep its batch."""
        self.remake(offset, lambda r: None if r.offset == offset else r)

    def save(self) -> None:
        """Write all segments and indexes that are right for them."""
        for base, batches in self.segments.items():
            (self.directory / segment_file(base, LOG)).write_bytes(b"".join(batches))
        reindex(self.directory)

    def remove_segment(self, base: int) -> None:
        """Remove every file of a segment."""
        del self.segments[base]
        for kind in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
            (self.directory / segment_file(base, kind)).unlink(missing_ok=True)


def remade(
    batch: RecordBatch, change: Callable[[Record], Record | None] | None = None, **fields: Any
) -> bytes:
    """Return ``batch`` with records that ``change`` gives and header fields that are given."""
    records = list(batch.records())
    if change is not None:
        records = [new for record in records if (new := change(record)) is not None]
    kept: dict[str, Any] = {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "codec": batch.codec,
        "timestamp_type": batch.timestamp_type,
        "max_timestamp": max((r.timestamp for r in records), default=batch.max_timestamp),
        "delete_horizon_ms": batch.delete_horizon_ms,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
    }
    return encode_batch(records, **{**kept, **fields})


def reindex(directory: Path) -> None:
    """Write the indexes of every segment of ``directory``."""
    for segment in list_partition(directory, LocalFiles()).segments:
        made = rebuild_indexes(segment, LocalFiles(), INDEX_INTERVAL_BYTES, WindowBuffers())
        segment.path(INDEX).write_bytes(offset_index.encode(made.offsets))
        segment.path(TIME_INDEX).write_bytes(time_index.encode(made.times))
