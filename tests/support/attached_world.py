"""A live cluster, its remote tier and its compactors, in memory: every step can be stopped.

Brokers are their metadata topic and the fold of it. Whatever a compactor asks of cluster, remote
tier or decision log is a numbered step, before and after which something else may happen; after
every step a consumer must find all offsets, and what serves them must be there.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace
from sqlalchemy import Engine, event

from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.rules.swap import Swap, merged_epochs
from keeplast.attach.upkeep.replaced_segments import repair
from keeplast.cluster.check import LOCAL_STORAGE, METADATA_MANAGER
from keeplast.cluster.layouts.layout import (
    AuxiliaryFile,
    FoundOwn,
    FoundSegment,
    RemoteLayout,
    SegmentReader,
)
from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    BrokerFacts,
    ClusterFacts,
    LiveCluster,
    MetadataEnd,
    MetadataValue,
    OffsetRange,
    TopicEnds,
    TopicFacts,
    encode_batch,
)
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache
from keeplast.cluster.tested_releases import SETTINGS as TESTED_SETTINGS
from keeplast.errors import CommitUnknownError, InvalidError, RefusedError
from keeplast.format import leader_epoch, offset_index, producer_snapshot, time_index
from keeplast.format.batch import decode_header
from keeplast.format.batch import encode_batch as encode_records
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.record import Record
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    TopicIdPartition,
    decode,
)
from keeplast.inspect.erasure_search import ForeignPath
from keeplast.log.indexes import IndexBuilder
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata.database import HostTime, open_database
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.holder import Holder
from tests.support.manual_clock import ManualClock

CLUSTER_ID = "a-cluster"
TOPIC_ID = bytes(range(16))
PARTITION = TopicIdPartition("orders", TOPIC_ID, 0)
START_MS = 1_700_000_000_000
BROKER = 1
TERMS = AttachTerms(frozenset({"compact"}), "localhost:9092")
SETTINGS: dict[str, str | None] = {
    "remote.storage.enable": "true", "cleanup.policy": "delete", "retention.ms": "-1",
    "retention.bytes": "-1", "segment.ms": "604800000", "local.retention.ms": "1000",
    "unclean.leader.election.enable": "false",
}  # fmt: skip
METADATA_SETTINGS: dict[str, str | None] = {
    "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1",
    "unclean.leader.election.enable": "false", "min.insync.replicas": "2",
}  # fmt: skip
BROKER_SETTINGS: dict[str, str | None] = {
    **dict.fromkeys(TESTED_SETTINGS["4.3.0"]),
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.manager.class.name": METADATA_MANAGER,
    "remote.log.storage.manager.class.name": LOCAL_STORAGE,
}


class CrashError(Exception):
    """The process is over; nothing catches it."""


@dataclass(slots=True)
class Steps:
    """Counts what a compactor does, and lets something happen at one step.

    ``happens`` is called before the effect of step ``at``; an exception of it is the step's.
    ``watched`` is called behind every step.
    """

    at: int = -1
    happens: Callable[[], None] = lambda: None
    watched: Callable[[], None] = lambda: None
    names: list[str] = field(default_factory=list)

    def run(self, name: str, effect: Callable[[], Any]) -> Any:
        """Do a step."""
        number = len(self.names)
        self.names.append(name)
        if number == self.at:
            self.happens()
        result = effect()
        self.watched()
        return result


class Stepping:
    """An object whose methods are steps."""

    def __init__(self, target: object, steps: Steps) -> None:
        self._target = target
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            def effect() -> Any:
                result = found(*arguments, **named)
                return list(result) if isinstance(result, Iterator) else result

            return self._steps.run(name, effect)

        return call


@dataclass(slots=True)
class ModelCluster:
    """A cluster with one tiered topic; its metadata topic has one partition."""

    values: list[bytes] = field(default_factory=list)
    batches: list[OffsetRange] = field(default_factory=list)
    """Where each batch of a compactor lies."""
    leader_epoch: int = 3
    settings: dict[str, str | None] = field(default_factory=lambda: dict(SETTINGS))
    topic_id: bytes = TOPIC_ID
    log: OffsetRange = field(default_factory=lambda: OffsetRange(0, 0))
    lost_answers: list[bool] = field(default_factory=list)
    """For the next batches: whether the batch arrives before its answer is lost."""
    groups: dict[str, int | Exception] = field(default_factory=dict)
    """What consumer groups have committed of the topic; an error is raised."""

    @property
    def metadata_topic(self) -> TopicFacts:
        return TopicFacts(METADATA_TOPIC, bytes(reversed(range(16))), 1, 3, METADATA_SETTINGS)

    @property
    def topic(self) -> TopicFacts:
        return TopicFacts(PARTITION.topic, self.topic_id, 1, 3, self.settings)

    def read_cluster_id(self) -> str:
        return CLUSTER_ID

    def read_facts(self, topics: Sequence[str] = ()) -> ClusterFacts:
        if topics and list(topics) != [PARTITION.topic]:
            raise InvalidError(f"no such topic in the cluster. topics={topics}")
        broker = BrokerFacts(BROKER, BROKER_SETTINGS)
        return ClusterFacts(CLUSTER_ID, (broker,), (self.topic,), self.metadata_topic)

    def read_topic_ids(self, topics: Collection[str]) -> dict[str, bytes]:
        return {PARTITION.topic: self.topic_id} if PARTITION.topic in topics else {}

    def find_ends(self, topic: str) -> TopicEnds | None:
        is_known = topic == PARTITION.topic
        return TopicEnds(self.topic_id, {0: self.log.end}) if is_known else None

    def read_group_offsets(self, group: str) -> dict[TopicPartition, int]:
        found = self.groups.get(group)
        if isinstance(found, Exception):
            raise found
        return {TopicPartition(PARTITION.topic, 0): found} if isinstance(found, int) else {}

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        is_metadata = topic.name == METADATA_TOPIC
        return [OffsetRange(0, len(self.values)) if is_metadata else self.log]

    def read_stable_ends(self, topic: TopicFacts) -> list[int]:
        return [each.end for each in self.read_ranges(topic)]

    def read_end(self, partition: int) -> MetadataEnd:
        assert 0 == partition
        return MetadataEnd(len(self.values), self.leader_epoch)

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        assert 0 == partition
        for offset in range(held.start, held.end):
            yield MetadataValue(offset, self.values[offset])

    def append(
        self, metadata_topic: TopicFacts, partition: int, events: Sequence[RemoteLogEvent]
    ) -> OffsetRange:
        values = encode_batch(metadata_topic, partition, events)
        arrives = self.lost_answers.pop(0) if self.lost_answers else None
        start = len(self.values)
        if arrives is not False:
            self.values += values
            self.batches.append(OffsetRange(start, len(self.values)))
        if arrives is not None:
            raise CommitUnknownError("the answer is lost")
        return OffsetRange(start, len(self.values))

    def announce(self, *events: RemoteLogEvent) -> None:
        """Append what a broker says."""
        self.values += encode_batch(self.metadata_topic, 0, events)

    def cache(self) -> PartitionCache:
        """Return what brokers know that have read everything."""
        known = ClusterCache()
        for each in self.values:
            known.apply(decode(each))
        return known.partitions.setdefault(PARTITION, PartitionCache())


@dataclass(slots=True)
class MemoryTier:
    """A remote tier in memory; ``ignores_conditions`` makes it a store that fences no writer."""

    segments: dict[bytes, tuple[int, bytes, dict[AuxiliaryFile, bytes]]] = field(
        default_factory=dict
    )
    own: dict[str, bytes] = field(default_factory=dict)
    own_ms: dict[str, int] = field(default_factory=dict)
    """When each own object was written last."""
    ignores_conditions: bool = False
    now_ms: Callable[[], int] = lambda: START_MS

    def put(self, segment: RemoteLogSegment, log: bytes) -> None:
        """Store a segment, whole."""
        self.segments[segment.id.segment_id] = (segment.start_offset, log, files_of(segment, log))

    def open(self, segment: RemoteLogSegment) -> _Reader:
        if segment.id.segment_id not in self.segments:
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), f"memory/{segment.id.segment_id.hex()}"
            )
        _, log, files = self.segments[segment.id.segment_id]
        return _Reader(log, files)

    def delete(self, segment: RemoteLogSegment) -> None:
        self.segments.pop(segment.id.segment_id, None)

    def delete_found(self, partition: TopicIdPartition, found: FoundSegment) -> None:
        self.segments.pop(found.segment_id, None)

    def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
        for name, (start, log, _) in sorted(self.segments.items()):
            yield FoundSegment(name, start, len(log), START_MS)

    def foreign(self) -> Iterator[ForeignPath]:
        return iter(())

    def check_conditions(self) -> None:
        if self.ignores_conditions:
            raise RefusedError("this store is not conditional")

    def put_new(self, name: str, data: bytes) -> bool:
        if name in self.own and not self.ignores_conditions:
            return False
        self.own[name], self.own_ms[name] = data, self.now_ms()
        return True

    def read_own(self, name: str) -> bytes | None:
        return self.own.get(name)

    def replace_own(self, name: str, data: bytes, expected: bytes) -> bool:
        if self.own.get(name) != expected and not self.ignores_conditions:
            return False
        self.own[name], self.own_ms[name] = data, self.now_ms()
        return True

    def delete_own(self, name: str) -> None:
        self.own.pop(name, None)

    def list_own(self, folder: str) -> Iterator[FoundOwn]:
        for name in sorted(self.own):
            if name.startswith(f"{folder}/"):
                yield FoundOwn(name, self.own_ms.get(name, START_MS))


@dataclass(frozen=True, slots=True)
class _Reader(SegmentReader):
    log: bytes
    files: Mapping[AuxiliaryFile, bytes]

    @property
    def log_bytes(self) -> int:
        return len(self.log)

    def read_into(self, start: int, buffer: memoryview) -> int:
        found = self.log[start : start + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def read_auxiliary(self, file: AuxiliaryFile) -> bytes | None:
        return self.files.get(file)


class AttachedWorld:
    """A cluster whose remote tier has ``segments`` of ten records each, and one decision log."""

    def __init__(self, root: Path, segments: int = 3, url: str | None = None) -> None:
        """``url`` is the decision log's; SQLite files below ``root`` without one."""
        self.root = root
        self._url = url
        self.clock = ManualClock(START_MS)
        self.cluster = ModelCluster()
        self.tier = MemoryTier(now_ms=self.clock.now_ms)
        self._ids = itertools.count(1)
        self._processes = itertools.count(1)
        self._engines: dict[str, Engine] = {}
        for number in range(segments):
            self.upload(10 * number, 10 * number + 9)

    def log(self, name: str = "decisions.db") -> DecisionLog:
        """Open a decision log as a new process, of which it is unknown whether it is over."""
        number = next(self._processes)
        holder = Holder(f"{number:032x}", f"host{number}", number, "", "")
        if name not in self._engines and self._url is not None:
            self._engines[name] = open_database(self._url)
        elif name not in self._engines:
            path = self.root / name
            if not path.exists():
                path.write_bytes(_empty_database())
            self._engines[name] = open_database(f"sqlite:///{path}")
            event.listen(self._engines[name], "connect", _hurry)
            self._engines[name].dispose()
        return DecisionLog(self._engines[name], self.clock, holder, HostTime(self.clock))

    def copy_log(self, source: str, target: str) -> None:
        """Keep a backup of a decision log, which no process has open."""
        shutil.copy(self.root / source, self.root / target)

    def close(self) -> None:
        """Close every decision log."""
        for each in self._engines.values():
            each.dispose()
        self._engines.clear()

    def claim(
        self, log: DecisionLog | None = None, steps: Steps | None = None, **options: Any
    ) -> Publisher:
        """Claim the partition, taking it over."""
        chosen = self.log() if log is None else log
        parts: tuple[Any, ...] = (self.cluster, chosen, self.tier)
        if steps is not None:
            parts = tuple(Stepping(each, steps) for each in parts)
        return claim(
            cast(LiveCluster, parts[0]), cast(DecisionLog, parts[1]),
            cast(RemoteLayout, parts[2]), PARTITION, CLUSTER_ID, TERMS,
            **{"takes_over": True, **options},
        )  # fmt: skip

    def fresh_id(self) -> RemoteLogSegmentId:
        return RemoteLogSegmentId(PARTITION, next(self._ids).to_bytes(16, "big"))

    def segment(
        self, start: int, end: int, log: bytes, *epochs: tuple[int, int]
    ) -> RemoteLogSegment:
        """Return a segment as a broker announces it."""
        return RemoteLogSegment(
            id=self.fresh_id(), start_offset=start, end_offset=end, broker_id=BROKER,
            max_timestamp_ms=START_MS + end, event_timestamp_ms=START_MS,
            epochs=tuple(EpochStart(*each) for each in epochs or ((0, start),)),
            size_bytes=len(log), custom_metadata=None,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )  # fmt: skip

    def upload(self, start: int, end: int, *epochs: tuple[int, int]) -> RemoteLogSegment:
        """Let a broker copy offsets ``start`` to ``end``, inclusive; return what it announced."""
        log = log_of(range(start, end + 1), end)
        made = self.segment(start, end, log, *epochs)
        self.tier.put(made, log)
        self.cluster.announce(made, moved(made, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
        self.cluster.log = OffsetRange(self.cluster.log.start, max(self.cluster.log.end, end + 1))
        return made

    def expire(self, *segments: RemoteLogSegment) -> None:
        """Let a broker delete segments, and move the log's start behind them."""
        for each in segments:
            self.cluster.announce(
                moved(each, RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
                moved(each, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED),
            )
            self.tier.delete(each)
        start = max(each.end_offset for each in segments) + 1
        self.cluster.log = OffsetRange(max(start, self.cluster.log.start), self.cluster.log.end)

    def write_output(
        self, publisher: Publisher, sources: Sequence[RemoteLogSegment]
    ) -> RemoteLogSegment:
        """Register, announce and store what takes the place of ``sources``."""
        start, end = sources[0].start_offset, sources[-1].end_offset
        log = log_of((end,), end)
        made = replace(self.segment(start, end, log), epochs=merged_epochs(sources))
        publisher.register([(made.id.segment_id, start)])
        announced = publisher.announce(made)
        # A step of its own: what is stored is stored by somebody who may be stopped, too.
        self.tier.put(announced, log)
        return announced

    def served(self) -> list[RemoteLogSegment]:
        """Return the segments that brokers serve, by start."""
        found = {each.segment.id: each.segment for each in self.cluster.cache().served()}
        return sorted(found.values(), key=lambda each: each.start_offset)

    def live_through(self, steps: Steps | None = None, grace_ms: int = 1000) -> Publisher:
        """Claim, repair, compact into one, collect, and give back, as one process."""
        from keeplast.attach.upkeep.replaced_segments import collect

        publisher = self.claim(steps=steps)
        repair(publisher)
        publisher.decide_and_publish(self.swap(publisher))
        self.clock.advance(grace_ms)
        collect(publisher, grace_ms)
        publisher.close()
        return publisher

    def swap(self, publisher: Publisher, first: int = 0, last: int = 2, outputs: int = 1) -> Swap:
        """Write one output for the served segments ``first`` to ``last``, exclusive."""
        sources = self.served()[first:last]
        cut = len(sources) // outputs
        made = [
            self.write_output(publisher, sources[at : at + cut])
            for at in range(0, len(sources), cut)
        ]
        return Swap(PARTITION, tuple(sources), tuple(made), made[-1].end_offset + 1)

    def prepared(self, first: int = 0, last: int = 2, outputs: int = 1) -> tuple[Publisher, Swap]:
        """Claim the partition, and write the outputs of a swap that is not decided."""
        publisher = self.claim()
        return publisher, self.swap(publisher, first, last, outputs)

    def swapped(self, first: int = 0, last: int = 2, outputs: int = 1) -> Publisher:
        """Claim the partition, and decide and publish a swap."""
        publisher, swap = self.prepared(first, last, outputs)
        publisher.decide_and_publish(swap)
        return publisher

    def settle(self, grace_ms: int = 1000) -> None:
        """Let a new process do what is left, and look that nothing is left over."""
        from keeplast.attach.upkeep.replaced_segments import collect

        publisher = self.claim()
        repair(publisher)
        self.clock.advance(grace_ms)
        collect(publisher, grace_ms)
        publisher.close()
        self.require_readable()
        known = self.cluster.cache()
        states = {each.state for each in known.segments}
        assert states <= {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}, known.segments
        assert {each.id.segment_id for each in known.segments} == set(self.tier.segments)
        served = {each.segment.id for each in known.served()}
        assert served == {each.id for each in known.segments}

    def require_readable(self) -> None:
        """Fail unless every offset from the log's start on is served by what is there."""
        known = self.cluster.cache()
        assert [] == known.holes(self.cluster.log.start)
        for each in known.served():
            if each.end_offset >= self.cluster.log.start:
                assert each.segment.id.segment_id in self.tier.segments, each


def _hurry(connection: sqlite3.Connection, _record: object) -> None:
    """Flush nothing: no machine is switched off here."""
    connection.execute("PRAGMA synchronous=OFF")


@cache
def _empty_database() -> bytes:
    """Return a file with all tables: making them takes longer than what is done with them."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "empty.db"
        open_database(f"sqlite:///{path}").dispose()
        return path.read_bytes()


def moved(segment: RemoteLogSegment, state: RemoteLogSegmentState) -> RemoteLogSegmentUpdate:
    """Return a broker's update."""
    return RemoteLogSegmentUpdate(
        id=segment.id, broker_id=BROKER, event_timestamp_ms=START_MS, custom_metadata=None,
        state=state,
    )  # fmt: skip


def log_of(offsets: Sequence[int] | range, last_offset: int) -> bytes:
    """Return one batch with these records that reaches to ``last_offset``."""
    records = [Record(each, START_MS + each, b"k%d" % each, b"v", ()) for each in offsets]
    return encode_records(records, base_offset=records[0].offset, last_offset=last_offset)


def files_of(segment: RemoteLogSegment, log: bytes) -> dict[AuxiliaryFile, bytes]:
    """Return what a broker stores next to a log."""
    builder = IndexBuilder(segment.start_offset, 4096)
    rows = []
    position = 0
    while position < len(log):
        header = decode_header(log, position)
        rows.append((header.size_bytes, header.last_offset, header.max_timestamp))
        position += header.size_bytes
    builder.add(np.array(rows, np.int64))
    offsets, times = builder.finish()
    epochs = [LeaderEpoch(each.epoch, each.start_offset) for each in segment.epochs]
    return {
        AuxiliaryFile.OFFSET_INDEX: offset_index.encode(offsets),
        AuxiliaryFile.TIME_INDEX: time_index.encode(times),
        AuxiliaryFile.SNAPSHOT: producer_snapshot.encode([]),
        AuxiliaryFile.LEADER_EPOCHS: leader_epoch.encode(epochs),
    }
