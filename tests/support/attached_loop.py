"""A live cluster with several topics, a remote tier of files, and the loop that looks after them.

One round at a time in this thread; time passes only in pauses, and when the test says so. Each
segment has the same ten keys, so that of all but the newest nothing needs to stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from keeplast.attach.rounds.attached_place import DaySum
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.cluster.layouts.local_storage import SEGMENTS, LocalStorage
from keeplast.cluster.layouts.paced import PacedLayout, PaceLimits, RequestPace
from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    BrokerFacts,
    ClusterFacts,
    OffsetRange,
    TopicFacts,
)
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache
from keeplast.config.layers import Layer
from keeplast.config.mapping import wanted_settings
from keeplast.format import leader_epoch
from keeplast.format.batch import encode_batch as encode_records
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    TopicIdPartition,
    decode,
)
from keeplast.log.files import LocalFiles
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.service.attached_sight import AttachedSettings
from keeplast.service.attached_work import AttachedWork
from keeplast.service.daemon import Daemon, RunReport
from keeplast.service.live import Control
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName
from tests.support.attached_world import (
    BROKER,
    BROKER_SETTINGS,
    CLUSTER_ID,
    SETTINGS,
    AttachedWorld,
    ModelCluster,
    files_of,
    moved,
)
from tests.support.daemon_world import Published
from tests.support.store_world import NarratedStore

KEYS = 10
SEGMENTS_FILLED = 8
INTERVAL_MS = 60_000
SEGMENT_BYTES = 300
WANTED = {"segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.3"}
FAST = PaceLimits(requests_per_second=1e9, bytes_per_second=1e12, pause_ms=1)


@dataclass(slots=True)
class LoopTopic:
    """A topic of one partition."""

    name: str
    topic_id: bytes
    settings: dict[str, str | None] = field(default_factory=lambda: dict(SETTINGS))
    log: OffsetRange = field(default_factory=lambda: OffsetRange(0, 0))
    partitions: int = 1

    @property
    def facts(self) -> TopicFacts:
        return TopicFacts(self.name, self.topic_id, self.partitions, 3, self.settings)

    @property
    def partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.name, self.topic_id, 0)


@dataclass(slots=True)
class LoopCluster(ModelCluster):
    """A cluster with the topics of a test; ``fails`` is what it answers to every question."""

    topics: dict[str, LoopTopic] = field(default_factory=dict)
    fails: Exception | None = None

    def read_cluster_id(self) -> str:
        if self.fails is not None:
            raise self.fails
        return CLUSTER_ID

    def read_topic_ids(self, topics: Collection[str]) -> dict[str, bytes]:
        return {name: each.topic_id for name, each in self.topics.items() if name in topics}

    def read_facts(self, topics: Sequence[str] = ()) -> ClusterFacts:
        if self.fails is not None:
            raise self.fails
        found = tuple(self.topics[name].facts for name in topics)
        broker = BrokerFacts(BROKER, BROKER_SETTINGS)
        return ClusterFacts(CLUSTER_ID, (broker,), found, self.metadata_topic)

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        if topic.name == METADATA_TOPIC:
            return [OffsetRange(0, len(self.values))]
        empty = [OffsetRange(0, 0)] * (topic.partition_count - 1)
        return [self.topics[topic.name].log, *empty]

    def cache_of(self, topic: str) -> PartitionCache:
        """Return what brokers know of a topic that have read everything."""
        known = ClusterCache()
        for each in self.values:
            known.apply(decode(each))
        return known.partitions.setdefault(self.topics[topic].partition, PartitionCache())


class LoopWorld:
    """A cluster, its remote tier below ``root``, and one decision log."""

    def __init__(self, root: Path) -> None:
        self._decisions = AttachedWorld(root, segments=0)
        self.clock = self._decisions.clock
        self.cluster = LoopCluster()
        self.storage = root / "tier"
        (self.storage / SEGMENTS).mkdir(parents=True)
        self.layout = LocalStorage(self.storage)
        self.root = root
        self.control = Control(self.clock)
        self.daemon: Daemon | None = None
        self.wrap: Callable[[object], Any] = lambda part: part
        self.pace = RequestPace(FAST, self.clock)
        self.wanted = dict(WANTED)
        self._uploaded = 0

    def close(self) -> None:
        """Close the decision log."""
        self._decisions.close()

    def log(self) -> DecisionLog:
        """Open the decision log as another process, of which it is unknown whether it is over."""
        return self._decisions.log()

    def topic(self, name: str, segments: int = SEGMENTS_FILLED) -> LoopTopic:
        """Make a topic, and fill it."""
        topic_id = hashlib.sha256(name.encode()).digest()[:16]
        made = self.cluster.topics[name] = LoopTopic(name, topic_id)
        self.fill(name, segments)
        return made

    def topics(self, *names: str) -> None:
        """Make topics, and fill them."""
        for each in names:
            self.topic(each)

    def name_of(self, topic: str) -> AttachedName:
        """Return the name of a topic's partition."""
        return AttachedName(CLUSTER_ID, self.cluster.topics[topic].partition)

    def fill(self, topic: str, segments: int = 1) -> None:
        """Let a broker copy more segments."""
        for _ in range(segments):
            self._upload(self.cluster.topics[topic])

    def _upload(self, topic: LoopTopic) -> None:
        start = topic.log.end
        self.finish(self.begin(topic.name, start, start + KEYS - 1))
        topic.log = OffsetRange(topic.log.start, start + KEYS)

    def begin(self, name: str, start: int, end: int) -> RemoteLogSegment:
        """Let a broker announce and store offsets ``start`` to ``end``, inclusive, as written."""
        topic = self.cluster.topics[name]
        self._uploaded += 1
        offsets = range(start, end + 1)
        records = [
            Record(each, self.clock.now_ms(), b"k%d" % (each % KEYS), b"%d" % each, ())
            for each in offsets
        ]
        log = encode_records(records, base_offset=start, last_offset=offsets[-1])
        segment = RemoteLogSegment(
            id=RemoteLogSegmentId(topic.partition, self._uploaded.to_bytes(16, "big")),
            start_offset=start, end_offset=offsets[-1], broker_id=BROKER,
            max_timestamp_ms=self.clock.now_ms(), event_timestamp_ms=self.clock.now_ms(),
            epochs=(EpochStart(0, start),), size_bytes=len(log), custom_metadata=None,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )  # fmt: skip
        writer = self.layout.create_log(segment.id, start, segment)
        writer.write(log)
        self.layout.complete(segment, writer.close(), _whole_files(segment, log), segment)
        self.cluster.announce(segment)
        return segment

    def finish(self, segment: RemoteLogSegment) -> None:
        """Let the broker say that its copy is whole."""
        self.cluster.announce(moved(segment, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))

    def served(self, topic: str) -> list[RemoteLogSegment]:
        """Return the segments that brokers serve, by start."""
        found = {each.segment.id: each.segment for each in self.cluster.cache_of(topic).served()}
        return sorted(found.values(), key=lambda each: each.start_offset)

    def read(self, topic: str) -> list[tuple[int, bytes | None]]:
        """Return offset and key of all records that readers get."""
        return [
            (record.offset, record.key)
            for segment in self.served(topic)
            for batch in read_batches(
                bytes(self.layout.open(segment).read_log(0, segment.size_bytes))
            )
            for record in batch.records()
        ]

    def stored(self, topic: str) -> int:
        """Return how many segments lie in the remote tier."""
        return len(list(self.layout.list(self.cluster.topics[topic].partition)))

    def require_compacted(self, topic: str) -> None:
        """Fail unless something went, nothing that should stay did, and no offset is missing."""
        kept, end = self.read(topic), self.cluster.topics[topic].log.end
        assert len(kept) < end
        assert [] == self.cluster.cache_of(topic).holes(0)
        last = {each % KEYS: each for each in range(end)}
        assert set(last.values()) <= {offset for offset, _ in kept}
        assert all(key == b"k%d" % (offset % KEYS) for offset, key in kept)

    def run(
        self,
        *topics: str,
        idles: int | None = None,
        on_idle: Callable[[int], None] | None = None,
        log: DecisionLog | None = None,
        **settings: Any,
    ) -> tuple[RunReport, NarratedStore, Published]:
        """Run until nothing is due, or until it was idle ``idles`` times."""
        narrated, published = NarratedStore(), Published()
        asked = AttachedSettings(
            address="localhost:9092", topics=topics, memory_bytes=MEMORY_BYTES_MIN,
            settings_of=lambda found: wanted_settings(
                [Layer("the test", topics={each.name: self.wanted for each in found})], found
            ),
            **{"interval_ms": INTERVAL_MS, "grace_ms": 1000, **settings},
        )  # fmt: skip
        opened = self.log() if log is None else log
        with LocalRunner(1, clock=self.clock) as runner:
            work = AttachedWork(
                cast(Any, self.wrap(self.cluster)), cast(DecisionLog, self.wrap(opened)),
                PacedLayout(cast(Any, self.wrap(self.layout)), self.pace), runner, self.clock,
                LocalFiles(), asked, narrator=narrated, events=narrated,
            )  # fmt: skip
            daemon = self.daemon = Daemon(
                work, self.clock, narrator=narrated, observer=published, is_once=idles is None,
                control=self.control,
            )  # fmt: skip

            def idle() -> None:
                count = len(narrated.idle_seconds)
                if on_idle is not None:
                    on_idle(count)
                if idles is not None and count >= idles:
                    daemon.stop()

            narrated.on_idle = idle
            return daemon.run(), narrated, published


def caps(swaps: int = 1000, records: int = 100_000) -> DaySum:
    """Return what may be spent a day."""
    return DaySum(swaps, records)


def _whole_files(segment: RemoteLogSegment, log: bytes) -> dict[AuxiliaryFile, bytes]:
    """Return what a broker stores next to a log; its epochs are all of the log's."""
    epochs = {AuxiliaryFile.LEADER_EPOCHS: leader_epoch.encode([LeaderEpoch(0, 0)])}
    return {**files_of(segment, log), **epochs}
