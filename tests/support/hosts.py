"""Hosts of one partition over one store: what tests of leaders and followers share."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from keeplast.format.message_set import read_batches
from keeplast.host.partition_host import PartitionHost
from keeplast.log.append import NewRecord
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.run.local_runner import LocalRunner
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.stores import open_objects
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import COMPACT, NOW_MS, PARTITION
from tests.support.tiered_log import clean_in_store

TOPIC = replace(COMPACT, segment_bytes=400)


class Cluster:
    """One store, and a host for each name."""

    def __init__(
        self, root: Path, topic: TopicConfig = TOPIC, settings: dict[str, str] | None = None
    ) -> None:
        self.root = root
        self.topic = topic
        self.clock = ManualClock(NOW_MS)
        self.objects: ObjectStore = open_objects("memory://")
        self.store = MetadataStore(open_database(f"sqlite:///{root / 'meta.db'}"), self.clock)
        self.store.create(PARTITION, "0" * 32, log_start=0, settings=settings or {})

    def host(
        self, name: str, files: FileSystem | None = None, *, recovers: bool = False
    ) -> PartitionHost:
        return PartitionHost(
            self.store, self.objects, PARTITION, self.root / name, topic=self.topic, owner=name,
            files=LocalFiles() if files is None else files, clock=self.clock, recovers=recovers,
        )  # fmt: skip

    def led(self, count: int, *, keys: int = 4) -> PartitionHost:
        """Return the host ``a``, which leads at epoch 0 and has written ``count`` records."""
        host = self.host("a")
        host.become_leader(0)
        write(host, count, keys=keys)
        return host

    def leader_and_follower(self) -> tuple[PartitionHost, PartitionHost]:
        """Return ``a``, which leads at epoch 0, and ``b``, which follows; nothing is written."""
        a, b = self.host("a"), self.host("b")
        a.become_leader(0)
        b.become_follower(0)
        return a, b

    def pair(self, count: int) -> tuple[PartitionHost, PartitionHost]:
        """Return ``a``, which leads and has written ``count`` records, and its replica ``b``."""
        leader, follower = self.led(count), self.host("b")
        replicate(leader, follower)
        return leader, follower

    def runner(self, files: FileSystem) -> Runner:
        return LocalRunner(1, files=files, clock=self.clock)

    def clean(self) -> None:
        clean_in_store(
            self.store, self.objects, self.store.load(PARTITION), self.topic, self.runner,
            self.clock,
        )  # fmt: skip


def write(host: PartitionHost, count: int, *, keys: int = 4, start: int = 0) -> None:
    for i in range(start, start + count):
        host.append([NewRecord(b"k%d" % (i % keys), b"v%d" % i, NOW_MS + i)])
    host.acknowledge(host.log_end_offset)


def replicate(leader: PartitionHost, follower: PartitionHost) -> None:
    while follower.log_end_offset < leader.log_end_offset:
        found = leader.fetch(follower.log_end_offset)
        follower.replicate(found.data, high_watermark=leader.high_watermark)


def read_all(host: PartitionHost, start: int = 0) -> dict[bytes | None, bytes | None]:
    state: dict[bytes | None, bytes | None] = {}
    offset = start
    seen = -1
    while offset < host.log_end_offset:
        found = host.fetch(offset, bytes_max=200)
        for batch in read_batches(found.data):
            for record in batch.records():
                assert record.offset > seen
                seen = record.offset
                state[record.key] = record.value
        offset = found.next_offset
    return state
