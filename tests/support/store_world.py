"""A store, the data directory that it gains from, a clock that is moved by hand, and its loop.

One round at a time in this thread; time passes only in pauses and when the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keeplast.api.open_store import open_store
from keeplast.config.mapping import topic_config
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import UNLIMITED, CleanerConfig, TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.service.daemon import Daemon, RunReport
from keeplast.service.store_choice import StoreSettings
from keeplast.service.store_work import StoreWork
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.state.holder import Holder
from tests.support.daemon_world import Narrated, Published
from tests.support.log_builder import START_MS, LogBuilder, text
from tests.support.manual_clock import ManualClock

TOPIC = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1 << 20)
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
SEGMENT_RECORDS = 5


class NarratedStore(Narrated):
    """Remembers what a person would have read of a store, too."""

    def copied(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        self.lines.append(("copied", str(partition), str(segments)))

    def replaced(self, partition: TopicPartition, reason: str) -> None:
        self.lines.append(("replaced", str(partition), reason))

    def collected(self, partition: TopicPartition, objects: int, size_bytes: int) -> None:
        self.lines.append(("collected", str(partition), str(objects)))

    def left_disk(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        self.lines.append(("left disk", str(partition), str(segments)))

    def stands(self, partition: TopicPartition, words: str) -> None:
        self.lines.append(("stands", str(partition), words))

    def left_alone(self, partition: TopicPartition, reason: str) -> None:
        self.lines.append(("left alone", str(partition), reason))


class StoreWorld:
    """The store below ``root`` and the logs ``t-0``, ``t-1``, ... of a data directory."""

    def __init__(self, root: Path, url: str | None = None) -> None:
        """``url`` is the metadata store's; a SQLite file below ``root`` without one."""
        self.url = f"sqlite:///{root / 'meta.db'}" if url is None else url
        self.root = root
        self.data = root / "data"
        self.data.mkdir(parents=True)
        self.clock = ManualClock(START_MS)
        self.logs: dict[int, LogBuilder] = {}
        self.runner: Runner = LocalRunner(1, clock=self.clock)
        self.daemon: Daemon | None = None
        self.wrap: Callable[[TieredStore], TieredStore] = lambda store: store

    def open_as(self, holder: Holder, owner: str = "a") -> TieredStore:
        """Open the store as a process of one's own making."""
        return TieredStore(
            MetadataStore(open_database(self.url), self.clock, holder),
            open_objects(f"file://{self.root / 'objects'}"),
            owner=owner, topic_of=topic_config, clock=self.clock, files=LocalFiles(),
        )  # fmt: skip

    def open(self, owner: str = "a") -> TieredStore:
        return open_store(
            self.url, f"file://{self.root / 'objects'}",
            owner=owner, topic_of=topic_config, clock=self.clock,
        )  # fmt: skip

    def log(
        self, number: int, segments: int, settings: dict[str, str] | None = None
    ) -> TopicPartition:
        """Start a log of so many closed segments, all of the same keys, and import it."""
        log = self.logs[number] = LogBuilder(self.data / f"t-{number}", TOPIC)
        for _ in range(segments):
            self.fill(number)
        partition = TopicPartition("t", number)
        with self.open() as store:
            store.import_directory(
                partition, log.directory, COMPACTED | (settings or {}), progressed=lambda n: None
            )
        return partition

    def fill(self, number: int) -> None:
        """Append a segment of records, one a batch, dated now, and close it."""
        log = self.logs[number]
        log.now_ms = self.clock.now_ms()
        for key in range(SEGMENT_RECORDS):
            log.append(NewRecord(text(key), text(log.log_end), self.clock.now_ms()))
        log.roll()

    def objects(self, number: int) -> list[Path]:
        """Return the log objects of a partition that are there."""
        return sorted((self.root / "objects" / f"t-{number}").rglob("*.log"))

    def run(
        self,
        *,
        idles: int | None = None,
        on_idle: Callable[[int], None] | None = None,
        owner: str = "a",
        slots: int = 1,
        takes_over: bool = False,
        retries: bool = False,
        copies: bool = False,
        grace_ms: int = 0,
        holder: Holder | None = None,
        expired: bool = False,
        receipt: Path | None = None,
        io_bytes_per_second: float = UNLIMITED,
    ) -> tuple[RunReport, NarratedStore, Published]:
        """Run until nothing is eligible, or until it was idle ``idles`` times.

        ``holder`` is which process does it, this one without.
        """
        narrated, published = NarratedStore(), Published()
        cleaner = CleanerConfig(
            backoff_ms=15_000, has_expired_rounds=expired, io_bytes_per_second=io_bytes_per_second
        )
        settings = StoreSettings(
            "the store", owner, lambda partition: True, lambda: cleaner,
            slots=slots, data_dir=self.data if copies else None, takes_over=takes_over,
            retries=retries, memory_bytes=MEMORY_BYTES_MIN, grace_ms=grace_ms, garbage_age_ms=0,
            receipt=receipt,
        )  # fmt: skip
        store = self.open(owner) if holder is None else self.open_as(holder, owner)
        with store as opened, self.runner:
            work = StoreWork(
                self.wrap(opened), self.runner, self.clock, LocalFiles(), settings,
                narrator=narrated, events=narrated,
            )  # fmt: skip
            daemon = Daemon(
                work, self.clock, narrator=narrated, observer=published, is_once=idles is None
            )

            self.daemon = daemon

            def idle() -> None:
                if on_idle is not None:
                    on_idle(len(narrated.idle_seconds))
                if idles is not None and len(narrated.idle_seconds) >= idles:
                    daemon.stop()

            narrated.on_idle = idle
            return daemon.run(), narrated, published
