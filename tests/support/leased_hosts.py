"""Hosts of one partition that lead by a lease, over one SQLite store, and a clock moved by hand."""

from __future__ import annotations

from pathlib import Path

from keeplast.config.mapping import topic_config
from keeplast.format.message_set import read_batches
from keeplast.host.leased_host import LeasedHost
from keeplast.log.append import NewRecord
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.topic_config import HostRole
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.stores import open_objects
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import NOW_MS, PARTITION

SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "400",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
    "segment.ms": "1000000000000",
}
LEASE_MS = 9_000
Entry = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


class LeaseWorld:
    """One store below ``root``, and a directory and an opened store for each host."""

    def __init__(self, root: Path, settings: dict[str, str] | None = None) -> None:
        """Make the store with an empty partition without an owner."""
        self.root = root
        self.clock = ManualClock(NOW_MS)
        self.url = f"sqlite:///{root / 'meta.db'}"
        self.objects: ObjectStore = open_objects("memory://")
        self.opened: list[MetadataStore] = []
        with self.store("maker") as store:
            store.create(PARTITION, SETTINGS | (settings or {}))

    def store(
        self, owner: str, files: FileSystem | None = None, metadata: MetadataStore | None = None
    ) -> TieredStore:
        """Open the store as ``owner``."""
        if metadata is None:
            metadata = MetadataStore(open_database(self.url), self.clock)
        self.opened.append(metadata)
        return TieredStore(
            metadata, self.objects, owner=owner, topic_of=topic_config, clock=self.clock,
            files=LocalFiles() if files is None else files,
        )  # fmt: skip

    def host(
        self,
        name: str,
        role: HostRole = HostRole.AUTO,
        *,
        files: FileSystem | None = None,
        metadata: MetadataStore | None = None,
    ) -> LeasedHost:
        """Open the host ``name`` in a directory of its own."""
        root = self.root / name
        if files is None:
            root.mkdir(exist_ok=True)
        return LeasedHost(
            self.store(name, files, metadata), PARTITION, root, role=role, lease_ms=LEASE_MS
        )

    def led(self) -> LeasedHost:
        """Open the host ``a``, and have it lead."""
        host = self.host("a")
        host.step()
        return host

    def close(self) -> None:
        """Close every connection."""
        for each in self.opened:
            each.close()

    def silence(self, watcher: LeasedHost) -> None:
        """Let a lease end that is not renewed, under the eyes of ``watcher``."""
        watcher.step()
        self.clock.advance(LEASE_MS)


def write(hosted: LeasedHost, count: int, *, start: int = 0, keys: int = 4) -> list[Entry]:
    """Append records, a batch each; returns them."""
    made: list[Entry] = []
    for i in range(start, start + count):
        key, value = b"k%d" % (i % keys), b"v%d" % i
        made.append((hosted.host.append([NewRecord(key, value, NOW_MS + i)]), key, value))
    return made


def read(hosted: LeasedHost) -> list[Entry]:
    """Return every record that a reader of this host gets, from the log start to its log end."""
    host, found = hosted.host, list[Entry]()
    offset = host.state().log_start
    while offset < host.log_end_offset:
        fetched = host.fetch(offset)
        for batch in read_batches(fetched.data):
            found += [(r.offset, r.key, r.value) for r in batch.records() if r.offset >= offset]
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    return found


def state_of(entries: list[Entry]) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key."""
    return {key: value for _, key, value in sorted(entries)}


def local_names(hosted: LeasedHost) -> list[str]:
    """Return the names of what this host has of the log on its disk."""
    return sorted(path.name for path in hosted.host.directory.iterdir())
