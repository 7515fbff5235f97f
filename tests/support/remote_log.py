"""A partition in object storage of this process: taken in, cleaned, looked into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from keeplast.format.filename import LOG
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import Record
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import RoundReport
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore, object_key
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.reader import Readable, read_partition


class Stored(Struct, frozen=True):
    """A data record with what its batch says of it."""

    record: Record
    timestamp_type: object
    leader_epoch: int
    producer: tuple[int, int]


class RemoteLog:
    """The log of a directory as objects, owned by ``a``; time stands still."""

    def __init__(
        self, root: Path, directory: Path, topic: TopicConfig, objects: ObjectStore | None = None
    ) -> None:
        """Take the directory in, whole."""
        self.topic = topic
        self.root = root
        self.clock = ManualClock(NOW_MS)
        self.objects = open_objects("memory://") if objects is None else objects
        self.store = MetadataStore(open_database(f"sqlite:///{root / 'meta.db'}"), self.clock)
        self.tiered = TieredStore(
            self.store, self.objects, owner="a", topic_of=lambda settings: topic,
            clock=self.clock, files=LocalFiles(),
        )  # fmt: skip
        self.tiered.import_directory(PARTITION, directory, {}, progressed=lambda count: None)
        self._exports = 0

    @property
    def state(self) -> PartitionState:
        """What the metadata store says now."""
        return self.store.load(PARTITION)

    @property
    def live(self) -> list[RemoteSegment]:
        """The segments that are read, ascending."""
        state = self.state
        return [state.segments[route.segment_id] for route in state.routes]

    def clean(self, *, grace_ms: int = 0) -> RoundReport:
        """Do a round, whatever the dirty ratio is."""

        def runner_for(files: FileSystem) -> Runner:
            return LocalRunner(1, files=files, clock=self.clock)

        return self.tiered.clean(
            PARTITION, runner_for, cleaner=CleanerConfig(), memory_bytes=MEMORY_BYTES_MIN,
            progressed=lambda count: None, force=True, grace_ms=grace_ms,
        )  # fmt: skip

    def file(self, segment: RemoteSegment, suffix: str) -> bytes:
        """Return one object of a segment."""
        key = object_key(
            PARTITION, self.state.topic_id, segment.segment_id, segment.base_offset, suffix
        )
        return bytes(self.objects.read_range(key, 0, self.objects.stat(key).size_bytes))

    def batches(self, segment: RemoteSegment) -> list[Batch]:
        """Return the batches of a segment."""
        return list(read_batches(self.file(segment, LOG)))

    def records(self) -> dict[int, Stored]:
        """Return every data record that is read, by offset."""
        return {
            record.offset: Stored(
                record, batch.timestamp_type, batch.leader_epoch,
                (batch.producer_id, batch.producer_epoch),
            )
            for segment in self.live
            for batch in self.batches(segment)
            if not batch.is_control
            for record in batch.records()
        }  # fmt: skip

    def read(self) -> Readable:
        """Return the log as a consumer would read it from a broker that serves an export."""
        self._exports += 1
        directory = self.root / f"export-{self._exports}" / str(PARTITION)
        self.tiered.export(PARTITION, directory, lambda count: None)
        return read_partition(directory)


def newest_offsets(records: Mapping[int, Stored], end: int) -> dict[bytes, int]:
    """Return the offset of each key's newest record below ``end``."""
    return {
        stored.record.key: offset
        for offset, stored in sorted(records.items())
        if offset < end and stored.record.key is not None
    }
