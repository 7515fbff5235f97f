"""A store that is copied from a directory which a broker's cleaner goes on cleaning, in one time.

The cleaner is this package's own, which leaves a broker's bytes; the clock is moved by the test.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.log.append import NewRecord
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.topic_config import TopicConfig
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.copy.moving_directory import directory_id
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.state.continuity import Doubt, ReplacedRange
from keeplast.tier.state.partition_state import PartitionState
from tests.support.log_builder import NO_PRODUCER, LogBuilder, Sender
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import COMPACT, NOW_MS, PARTITION, clean, clean_request
from tests.support.reader import Readable, read_partition

SECOND_MS = 1000


class CleanedDirectory:
    """A partition of a broker and what a store has of it; ``topic`` is both's unless given."""

    def __init__(
        self, root: Path, topic: TopicConfig = COMPACT, *, files: FileSystem | None = None,
        objects: ObjectStore | None = None, stored_as: TopicConfig | None = None,
    ) -> None:  # fmt: skip
        self.root = root
        self.topic = topic
        self.clock = ManualClock(NOW_MS)
        self.log = LogBuilder(root / "data" / str(PARTITION), topic)
        self.directory = self.log.directory
        self.objects = open_objects("memory://") if objects is None else objects
        self.store = MetadataStore(open_database(f"sqlite:///{root / 'meta.db'}"), self.clock)
        self.replaced: list[ReplacedRange] = []
        self.tiered = TieredStore(
            self.store, self.objects, owner="a", topic_of=lambda settings: stored_as or topic,
            clock=self.clock, files=LocalFiles() if files is None else files,
        )  # fmt: skip
        self.tiered.create(PARTITION, {})
        self._exports = 0

    @property
    def state(self) -> PartitionState:
        return self.store.load(PARTITION)

    def put(self, key: bytes, value: bytes | None, producer_id: int | None = None) -> int:
        """Append a record, in a transaction with ``producer_id``; a tombstone without a value."""
        sender = NO_PRODUCER if producer_id is None else Sender(producer_id, 0, 0, True)
        self.log.now_ms = self.clock.now_ms()
        return self.log.append(NewRecord(key, value, self.clock.now_ms()), sender=sender)

    def put_segment(self, *pairs: tuple[bytes, bytes | None]) -> None:
        """Append keys with their values, a tombstone without one, and leave the segment."""
        for key, value in pairs:
            self.put(key, value)
        self.roll()

    @property
    def doubts(self) -> list[Doubt]:
        """Why what the store had was replaced, each time."""
        return [each.hazard.doubt for each in self.replaced]

    def roll(self) -> None:
        """Leave the active segment."""
        self.log.now_ms = self.clock.now_ms()
        self.log.roll()

    def clean(self) -> None:
        """Do a round of the broker over all closed segments, as of now."""
        request = clean_request(self.directory, topic=self.topic)
        clean(replace(request, now_ms=self.clock.now_ms(), first_dirty_offset=0))
        # A merge takes the snapshots of the segments with it that are no more.
        bases = {int(path.stem) for path in self.directory.glob("*.log")}
        for path in self.directory.glob("*.snapshot"):
            if int(path.stem) not in bases:
                path.unlink()

    def lose_checkpoint(self) -> None:
        """Forget how far the broker's cleaner has come."""
        update_checkpoint(LocalFiles(), self.directory.parent, CLEANER_CHECKPOINT, {PARTITION: 0})

    def copy(self, *, retention_ms: int | None = None) -> PartitionState:
        """Copy what the directory has gained, next to a broker of this ``delete.retention.ms``."""
        return self.tiered.copy_directory(
            PARTITION, self.directory, retention_ms=retention_ms, replaced=self.replaced.append,
            grace_ms=0,
        )  # fmt: skip

    def forget_visits(self) -> None:
        """Be a store of a version that remembered none."""
        from sqlalchemy import delete

        from keeplast.tier.metadata import schema

        with self.store._transactions.writing() as connection:
            connection.execute(delete(schema.VISITS))

    def visits_id(self) -> str:
        """Return the digest by which the directory is known."""
        return directory_id(self.directory, LocalFiles())

    def exported(self) -> Readable:
        """Return what a read-committed consumer gets from a broker that serves an export."""
        self._exports += 1
        target = self.root / f"export-{self._exports}" / str(PARTITION)
        self.tiered.export(PARTITION, target)
        return read_partition(target)

    def served(self) -> Readable:
        """Return what a read-committed consumer gets from the broker itself."""
        return read_partition(self.directory)


__all__ = ["SECOND_MS", "CleanedDirectory"]
