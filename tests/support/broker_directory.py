"""A broker's data directory with one partition and a store next to it: written, truncated, deleted
from, copied. Time stands still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from sqlalchemy import event

from keeplast.format.filename import LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT
from keeplast.format.record import ControlType
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.log.truncation import raise_log_start, retire_below, truncate_log
from keeplast.model.topic_config import TopicConfig
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.state.partition_state import PartitionState
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import Crash
from tests.support.partition_maker import COMPACT, NOW_MS, PARTITION
from tests.support.reader import read_partition

FILES = LocalFiles()


class BrokerDirectory:
    """The partition of ``root/data``, and the store of ``root/meta.db`` that takes it in."""

    def __init__(self, root: Path, topic: TopicConfig | None = None) -> None:
        self.topic = replace(COMPACT, segment_bytes=1 << 20) if topic is None else topic
        self.root = root
        self.path = root / "data" / str(PARTITION)
        self.clock = ManualClock(NOW_MS)
        self.objects = open_objects("memory://")
        self.store = MetadataStore(open_database(f"sqlite:///{root / 'meta.db'}"), self.clock)
        self.tiered = self.opened("a")
        self._exports = 0

    def opened(self, owner: str) -> TieredStore:
        """Return the store, opened as somebody."""
        return TieredStore(
            self.store, self.objects, owner=owner, topic_of=lambda settings: self.topic,
            clock=self.clock, files=FILES,
        )  # fmt: skip

    def take_over(self, owner: str) -> None:
        """Go on as another process, which remembers nothing."""
        self.tiered = self.opened(owner)
        self.tiered.own(PARTITION, takes_over=True)

    @property
    def state(self) -> PartitionState:
        return self.store.load(PARTITION)

    # The broker.

    def append(self, *values: str, epoch: int = 0, rolls: bool = True) -> int:
        """Append a batch a value, ``kN=value`` at offset N, and roll; returns the log end."""
        log = LogAppender(self.path, FILES, topic=self.topic, clock=self.clock, leader_epoch=epoch)
        for value in values:
            key = b"k%d" % log.log_end_offset
            log.append([NewRecord(key, value.encode(), NOW_MS)])
        if rolls:
            log.roll()
        log.close()
        return log.log_end_offset

    def append_key(self, key: str, value: str) -> None:
        """Append a batch of one record, and roll."""
        log = LogAppender(self.path, FILES, topic=self.topic, clock=self.clock)
        log.append([NewRecord(key.encode(), value.encode(), NOW_MS)])
        log.roll()
        log.close()

    def append_transaction(self, value: str, outcome: ControlType) -> None:
        """Append a record of a transaction, and its marker."""
        log = LogAppender(self.path, FILES, topic=self.topic, clock=self.clock)
        log.append(
            [NewRecord(b"k%d" % log.log_end_offset, value.encode(), NOW_MS)], producer_id=7,
            producer_epoch=0, base_sequence=0, is_transactional=True,
        )  # fmt: skip
        log.append_marker(outcome, producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS)
        log.close()

    def truncate(self, offset: int) -> None:
        truncate_log(FILES, self.path, offset)

    def delete_before(self, offset: int, *, removes_below: int = 0) -> None:
        """Move the log start, and remove the segments below ``removes_below``."""
        raise_log_start(FILES, self.path, PARTITION, offset, is_compacted=self.topic.is_compacted)
        for path in retire_below(FILES, self.path, removes_below):
            path.unlink()

    def note(self, *, log_start: int | None = None, high_watermark: int | None = None) -> None:
        """Write checkpoints of the data directory."""
        for name, offset in (
            (LOG_START_CHECKPOINT, log_start), (REPLICATION_CHECKPOINT, high_watermark),
        ):  # fmt: skip
            if offset is not None:
                update_checkpoint(FILES, self.path.parent, name, {PARTITION: offset})

    # The store.

    def import_all(self) -> PartitionState:
        return self.tiered.import_directory(PARTITION, self.path, {})

    def import_with(self, *values: str, epoch: int = 0, rolls: bool = True) -> PartitionState:
        """Append as :meth:`append` does, and import the log."""
        self.append(*values, epoch=epoch, rolls=rolls)
        return self.import_all()

    def copy(self) -> PartitionState:
        return self.tiered.copy_directory(PARTITION, self.path)

    def export(self) -> Path:
        """Return a new directory that a broker would serve."""
        self._exports += 1
        directory = self.root / f"export-{self._exports}" / str(PARTITION)
        self.tiered.export(PARTITION, directory)
        return directory

    def values(self) -> dict[int, str]:
        """Return what a read-committed reader of an export is given, by offset."""
        directory = self.export()
        start = read_checkpoint(FILES, directory.parent, LOG_START_CHECKPOINT).get(PARTITION, 0)
        found = read_partition(directory).records(start)
        return {record.offset: (record.value or b"").decode() for record in found}


@contextmanager
def crashing_at(world: BrokerDirectory, number: int) -> Iterator[list[str]]:
    """End the process before the change of the metadata with this number; yields those done."""
    done: list[str] = []

    def step(*arguments: Any) -> None:
        if not str(arguments[2]).startswith(("SELECT", "BEGIN", "PRAGMA")):
            if len(done) == number:
                raise Crash
            done.append(str(arguments[2]))

    engine = world.store._transactions._engine
    event.listen(engine, "before_cursor_execute", step)
    try:
        yield done
    finally:
        event.remove(engine, "before_cursor_execute", step)
