"""A tiered topic of a live cluster that is compacted by this process, and what readers get of it.

What a consumer reads is judged by the key law alone; nothing here asks keeplast what it did but up
to where.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.rounds.round import RoundWish, clean_attached
from keeplast.attach.upkeep.replaced_segments import CollectedSources, collect
from keeplast.clock import Clock, SystemClock
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.layouts.local_storage import LocalStorage
from keeplast.cluster.metadata_cache import RemotePartitionStatus, name_of, partition_status
from keeplast.cluster.metadata_log import fold_metadata
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.decisions import DecisionLog

WAITS_MAX = 240
WAIT_SECONDS = 0.5
ID_CHARS = 22


class Got(Struct, frozen=True):
    """A record as a consumer is given it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def consume(
    address: str, topic: str, *, start: int = 0, committed: bool = True, limit: int | None = None
) -> list[Got]:
    """Return what a consumer reads from ``start`` to the end, or the first ``limit`` records."""
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False,
            "auto.offset.reset": "error", "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )  # fmt: skip
    found: list[Got] = []
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        silent = 0
        while silent < WAITS_MAX:
            messages = consumer.consume(1000, timeout=WAIT_SECONDS)
            silent = 0 if messages else silent + 1
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return found
                    raise KafkaException(error)
                headers = tuple(message.headers() or ())
                found.append(
                    Got(
                        message.offset() or 0, message.key(), message.value(),
                        message.timestamp()[1], headers,  # type: ignore[arg-type]
                    )
                )  # fmt: skip
                if limit is not None and len(found) >= limit:
                    return found
    finally:
        consumer.close()
    raise AssertionError(f"a reader stalled. topic={topic} start={start} records={len(found)}")


def find_by_time(address: str, topic: str, times: Sequence[int]) -> list[int]:
    """Return the first offset from each of ``times`` on, as the broker gives it; -1 for the end."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader"})
    try:
        return [
            consumer.offsets_for_times([TopicPartition(topic, 0, each)], timeout=60)[0].offset
            for each in times
        ]
    finally:
        consumer.close()


def by_key_law(before: Sequence[Got], end: int) -> list[Got]:
    """Return what stays of what a read-committed reader saw: below ``end`` one record a key."""
    last = {each.key: each.offset for each in before if each.offset < end}
    return [each for each in before if each.offset >= end or last[each.key] == each.offset]


def require_nothing_left(storage: Path) -> None:
    """Look that of keeplast's objects there are owners, and filters of segments that are there."""
    there = {each.stem[-ID_CHARS:] for each in storage.rglob("*.log")}
    own = [each for each in (storage / ".keeplast").rglob("*") if each.is_file()]
    left = [each for each in own if not each.name.startswith("owner-")]
    assert [] == [each for each in left if each.parent.parent.name != "filters"]
    assert {each.name for each in left} <= there


class LiveCompactor:
    """Compacts partition 0 of topics of one cluster, with a decision log of its own."""

    def __init__(
        self, address: str, store: Path, storage: Path, clock: Clock | None = None
    ) -> None:
        """``storage`` is the plugin's folder, ``store`` where the decision log is kept."""
        self.clock = SystemClock() if clock is None else clock
        self.address = address
        self.client = ClusterClient(address)
        self.log = DecisionLog(open_database(f"sqlite:///{store}"), self.clock)
        self.layout = LocalStorage(storage)

    def claim(self, topic: str) -> Publisher:
        """Hold a topic."""
        facts = self.client.read_facts([topic])
        return claim(
            self.client, self.log, self.layout, name_of(facts.topics[0], 0), facts.cluster_id,
            AttachTerms(address=self.address),
        )  # fmt: skip

    def clean(self, topic: str, wish: RoundWish) -> RoundReport:
        """Do one round, on one thread."""
        publisher, clock = self.claim(topic), self.clock
        try:
            with LocalRunner(1, clock=clock) as runner:
                return clean_attached(
                    publisher, wish, lambda _: nullcontext(runner), clock,
                    progressed=lambda _: None,
                )  # fmt: skip
        finally:
            publisher.close()

    def collect(self, topic: str) -> CollectedSources:
        """Collect what was replaced, at once."""
        publisher = self.claim(topic)
        try:
            return collect(publisher, 0)
        finally:
            publisher.close()

    def status(self, topic: str) -> RemotePartitionStatus:
        """Return what brokers serve."""
        facts = self.client.read_facts([topic])
        (found,), metadata = facts.topics, facts.metadata_topic
        assert metadata is not None
        folded = fold_metadata(self.client, metadata, range(metadata.partition_count))
        log = self.client.read_ranges(found)[0]
        return partition_status(found, 0, log, folded.cache.partitions.get(name_of(found, 0)))


MEMORY = MEMORY_BYTES_MIN
