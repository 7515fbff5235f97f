"""A host's process in the simulation, and a reader that takes its time."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine

from keeplast.format import txn_index
from keeplast.format.filename import TXN_INDEX
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.host.leased_host import open_host
from keeplast.host.partition_host import PartitionHost
from keeplast.host.replica import Role
from keeplast.log.partition_log import load_aborted
from keeplast.model.topic_config import TopicConfig
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.database import StoreTime
from keeplast.tier.objects.object_store import object_key
from tests.support.crashing_files import Image
from tests.support.manual_clock import ManualClock, SkewedClock
from tests.support.partition_maker import PARTITION
from tests.support.reader import Readable, ReadBatch
from tests.support.tier_world_model import Model, Reading
from tests.support.tier_world_stores import (
    TOPIC_ID,
    HostFiles,
    SimulatedObjects,
    SimulatedStore,
)
from tests.support.tier_world_tasks import Life, Tasks

LOCKS = tempfile.TemporaryDirectory(prefix="keeplast-simulation-")
"""Disks are in memory, but for the lock of each: the operating system's."""


@dataclass(slots=True)
class Surroundings:
    """What all processes share."""

    tasks: Tasks
    clock: ManualClock
    dice: random.Random
    objects: SimulatedObjects
    engine: Engine
    topic: TopicConfig
    model: Model
    ahead_ms: dict[str, int] = field(default_factory=dict)
    """By how much the clocks of hosts are wrong."""
    time: StoreTime | None = None
    """The clock of a database that all hosts share, None when each one's own counts."""


@dataclass(eq=False)
class Process(Life):
    """One life of a host. ``heard_epoch`` is the newest leader epoch that it has heard of."""

    disk: Path = field(kw_only=True)
    files: HostFiles = field(kw_only=True)
    store: SimulatedStore = field(kw_only=True)
    tiered: TieredStore = field(kw_only=True)
    around: Surroundings = field(kw_only=True)
    opened: PartitionHost | None = None
    heard_epoch: int = -1
    follows: str = ""
    leads_from: int = 0
    in_sync: set[str] = field(default_factory=set)
    fetched: dict[str, int] = field(default_factory=dict)

    @property
    def host(self) -> PartitionHost:
        """Return the partition's host; it must be open."""
        assert self.opened is not None
        return self.opened

    @property
    def leads_at(self) -> int:
        """Return the epoch at which it believes that it leads, -1 when it does not."""
        host = self.opened
        return host.epoch if host is not None and host.role is Role.LEADER else -1

    def open(self) -> None:
        """Open the partition, and recover what a crash left."""
        self.opened = open_host(self.tiered, PARTITION, self.disk, self.around.topic, recovers=True)

    def advance_high_watermark(self) -> None:
        """Acknowledge what every replica has that counts, as this leader knows them."""
        ends = [self.fetched.get(name, 0) for name in self.in_sync if name != self.name]
        offset = min([self.host.log_end_offset, *ends])
        if offset > self.host.high_watermark:
            self.host.acknowledge(offset)
        self.around.model.acknowledge(self.host.lineage, self.host.high_watermark)

    def aborted(self) -> set[AbortedTransaction]:
        """Return the aborted transactions that the indexes of both tiers name.

        Those of the active segment are in memory only, and are the model's.
        """
        around = self.around
        listing = self.host.listing()
        active = listing.active.base_offset
        found = {entry for entry in around.model.aborted() if entry.last_offset >= active}
        for segment in listing.segments[:-1]:
            found |= set(load_aborted(segment, self.files))
        state = self.host.state()
        for route in state.routes:
            remote = state.segments[route.segment_id]
            if TXN_INDEX in remote.files:
                key = object_key(
                    PARTITION, TOPIC_ID, remote.segment_id, remote.base_offset, TXN_INDEX
                )
                found |= set(txn_index.decode(around.objects.found[key][0]))
        return found


def start_process(name: str, image: Image, around: Surroundings, heard: object) -> Process:
    """Return a new life of a host on what is on its disk; nothing is open yet."""
    assert callable(heard)
    clock = SkewedClock(around.clock, around.ahead_ms, name)
    files = HostFiles(image, around.tasks, clock)
    disk = Path(LOCKS.name) / name
    disk.mkdir(exist_ok=True)
    files.make_directory(disk)
    store = SimulatedStore(around.engine, clock, around.tasks, around.dice, heard, around.time)
    tiered = TieredStore(
        store, around.objects, owner=name, topic_of=lambda settings: around.topic,
        clock=clock, files=files,
    )  # fmt: skip
    return Process(name, disk=disk, files=files, store=store, tiered=tiered, around=around)


@dataclass(slots=True)
class SlowReader:
    """A read-committed consumer that fetches now and then, from whichever replica."""

    start: int
    began_ms: int
    position: int
    batches: list[Batch] = field(default_factory=list)
    aborted: set[AbortedTransaction] = field(default_factory=set)

    def fetch(self, process: Process, *, bytes_max: int) -> bool:
        """Read on below the last stable offset; False when there is nothing."""
        end = process.host.last_stable_offset
        if self.position >= end:
            return False
        self.aborted |= process.aborted()
        found = process.host.fetch(self.position, bytes_max, end=end)
        self.batches += read_batches(found.data)
        self.position = found.next_offset
        return True

    def reading(self) -> Reading:
        """Return what it has got."""
        readable = Readable(tuple(self.batches), tuple(self.aborted))
        return Reading(self.start, self.position, readable.records(self.start))


def by_markers(batches: Iterable[ReadBatch], start: int) -> list[Record]:
    """Return what a reader gets that knows of aborted transactions by their markers alone."""
    from keeplast.format.record import ControlType, decode_control_type

    waiting: dict[int, list[Record]] = {}
    given: list[Record] = []
    for batch in batches:
        records = [record for record in batch.records() if record.offset >= start]
        if batch.is_control:
            for record in batch.records():
                pending = waiting.pop(batch.producer_id, [])
                if decode_control_type(record.key) == ControlType.COMMIT:
                    given += pending
        elif batch.is_transactional:
            waiting.setdefault(batch.producer_id, []).extend(records)
        else:
            given += records
    return sorted(given, key=lambda record: record.offset)
