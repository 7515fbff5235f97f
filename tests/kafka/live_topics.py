"""Topics of every kind that a cleaner can meet on a live broker, and clients that outlive it.

Producers stay open while the broker is stopped and started: what they send next continues their
sequences and transactions, which a broker accepts only when it still knows them from the log.
``latest`` is what a read-committed reader must end up with, kept by the sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha512
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

WAIT_SECONDS = 120.0
KEYS = 40
SEGMENT_BYTES = "16384"
TRANSACTION_MS = 600_000

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOMBSTONES, APPEND_TIME, IDEMPOTENT, TRANSACTIONS, OPEN, LAG, DELETED = (
    "tombstones",
    "append-time",
    "idempotent",
    "transactions",
    "open",
    "lag",
    "deleted",
)
OWN_SETTINGS: dict[str, dict[str, str]] = {
    TOMBSTONES: {"delete.retention.ms": "100"},
    APPEND_TIME: {"message.timestamp.type": "LogAppendTime"},
    LAG: {"min.compaction.lag.ms": "86400000"},
    DELETED: {"cleanup.policy": "delete"},
}
COMPACTED = (*CODECS, TOMBSTONES, APPEND_TIME, IDEMPOTENT, TRANSACTIONS, OPEN)
TOPICS = (*COMPACTED, LAG, DELETED)
GROUPS = ("readers", "writers", "auditors")
TRANSACTION_GROUP = "in-transactions"

Read = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""


@dataclass(slots=True)
class Deliveries:
    """Notes why records were not delivered."""

    failures: list[KafkaError] = field(default_factory=list, kw_only=True)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failures.append(error)


@dataclass(slots=True)
class LiveTopics(Deliveries):
    """All topics of one broker, their producers, and what readers must end up with."""

    address: str
    version: str
    latest: dict[str, dict[bytes, bytes]] = field(
        default_factory=lambda: {topic: {} for topic in TOPICS}
    )
    offsets: dict[str, int] = field(default_factory=dict)
    _producers: dict[str, Producer] = field(default_factory=dict)
    _pending: dict[bytes, bytes] = field(default_factory=dict)
    _round: int = 0

    def create(self) -> None:
        """Create the topics; the broker's own cleaner is not to touch them for now."""
        segment_bytes = (
            "segment.bytes" if self.version.startswith("3") else "internal.segment.bytes"
        )
        settings = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "1.0",
            segment_bytes: SEGMENT_BYTES,
        }
        topics = [
            NewTopic(name, 1, 1, config={**settings, **OWN_SETTINGS.get(name, {})})
            for name in TOPICS
        ]
        admin = AdminClient(self._client())
        for future in admin.create_topics(topics).values():
            future.result(WAIT_SECONDS)

    def send(self, count: int) -> None:
        """Send ``count`` records to every topic, in several batches and transactions."""
        self._round += 1
        for topic in TOPICS:
            if topic == TRANSACTIONS:
                self._send_transactions(count)
            elif topic == OPEN:
                self._send_open(count)
            else:
                self._send_plain(topic, count)

    def commit_groups(self) -> None:
        """Commit offsets for some groups, many times over."""
        for group in GROUPS:
            with self._consumer(group) as consumer:
                for number in range(30):
                    self.offsets[group] = self._round * 100 + number
                    position = TopicPartition("none", 0, self.offsets[group])
                    consumer.commit(offsets=[position], asynchronous=False)

    def commit_in_transactions(self) -> None:
        """Commit a group's offsets in transactions of a new producer with an old id.

        A new one, because librdkafka does not find its way back to a group's coordinator from
        within a transaction when the broker was away.
        """
        producer = Producer({**self._client(), "transactional.id": "offsets-writer"})
        producer.init_transactions(WAIT_SECONDS)
        for number in range(10):
            producer.begin_transaction()
            offset = self._round * 1000 + number
            with self._consumer(TRANSACTION_GROUP) as consumer:
                producer.send_offsets_to_transaction(
                    [TopicPartition("none", 0, offset)],
                    consumer.consumer_group_metadata(),
                    WAIT_SECONDS,
                )
            if number % 3 == 2:
                producer.abort_transaction(WAIT_SECONDS)
            else:
                producer.commit_transaction(WAIT_SECONDS)
                self.offsets[TRANSACTION_GROUP] = offset

    def join_group(self, protocol: str) -> None:
        """Take part in a group once, with the ``classic`` or the new ``consumer`` protocol."""
        group = f"members-{protocol}"
        settings = {"group.protocol": protocol, "auto.offset.reset": "earliest"}
        with self._consumer(group, **settings) as consumer:
            consumer.subscribe(["none"])
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None
            consumer.commit(
                offsets=[TopicPartition("none", 0, 1 + self._round)], asynchronous=False
            )
            self.offsets[group] = 1 + self._round

    def committed_offsets(self) -> dict[str, int]:
        """Return what the broker says each group has committed."""
        found: dict[str, int] = {}
        for group in self.offsets:
            with self._consumer(group) as consumer:
                (position,) = consumer.committed([TopicPartition("none", 0)], WAIT_SECONDS)
                found[group] = position.offset
        return found

    def commit_open(self) -> None:
        """End the transaction that was left open."""
        self._producers[OPEN].commit_transaction(WAIT_SECONDS)
        self.latest[OPEN].update(self._pending)
        self._pending.clear()

    def let_broker_clean(self) -> None:
        """Allow the broker's own cleaner to work on the compacted topics."""
        entry = ConfigEntry(
            "min.cleanable.dirty.ratio", "0.0", incremental_operation=AlterConfigOpType.SET
        )
        resources = [
            ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            for topic in COMPACTED
        ]
        admin = AdminClient(self._client())
        for future in admin.incremental_alter_configs(resources).values():
            future.result(WAIT_SECONDS)

    def read(self, topic: str, isolation: str) -> list[Read]:
        """Return what a fresh consumer reads from the start to where it may."""
        settings = {
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
        with self._consumer("fresh", **settings) as consumer:
            return read_to_end(consumer, topic)

    def __enter__(self) -> Self:
        """Return the topics."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Forget what is unsent; no broker is there to take it."""
        for producer in self._producers.values():
            producer.purge()
            producer.poll(0)
        self._producers.clear()

    def _send_plain(self, topic: str, count: int) -> None:
        producer = self._producer(topic)
        for number in range(count):
            key, value = self._record(topic, number)
            if topic == TOMBSTONES and number % 7 == self._round % 7:
                self._produce(producer, topic, key, None)
                self.latest[topic].pop(key, None)
            else:
                self._produce(producer, topic, key, value)
                self.latest[topic][key] = value
            if number % KEYS == KEYS - 1:
                producer.flush(WAIT_SECONDS)
        assert 0 == producer.flush(WAIT_SECONDS)

    def _send_transactions(self, count: int) -> None:
        """Every third transaction is aborted."""
        producer = self._producer(TRANSACTIONS)
        for number in range(0, count, KEYS):
            producer.begin_transaction()
            batch = dict(self._record(TRANSACTIONS, number + i) for i in range(KEYS))
            for key, value in batch.items():
                self._produce(producer, TRANSACTIONS, key, value)
            producer.flush(WAIT_SECONDS)
            if number // KEYS % 3 == 2:
                producer.abort_transaction(WAIT_SECONDS)
            else:
                producer.commit_transaction(WAIT_SECONDS)
                self.latest[TRANSACTIONS].update(batch)

    def _send_open(self, count: int) -> None:
        """One transaction that ends and one that does not, unless one is open already."""
        producer = self._producer(OPEN)
        for is_left_open in (False, True):
            if not self._pending:
                producer.begin_transaction()
            for number in range(count // 2):
                key, value = self._record(OPEN, number)
                self._produce(producer, OPEN, key, value)
                self._pending[key] = value
                if number % KEYS == KEYS - 1:
                    producer.flush(WAIT_SECONDS)
            producer.flush(WAIT_SECONDS)
            if not is_left_open and self._round == 1:
                self.commit_open()

    def _record(self, topic: str, number: int) -> tuple[bytes, bytes]:
        """Return a key of the changing set and a value that compresses a little."""
        key = f"key-{(number * 7 + self._round) % (KEYS + 3 * self._round)}".encode()
        name = f"{topic} {self._round} {number} "
        return key, (name + sha512(name.encode()).hexdigest() + "." * (number % 13)).encode()

    def _produce(self, producer: Producer, topic: str, key: bytes, value: bytes | None) -> None:
        producer.produce(
            topic, key=key, value=value, headers=[("round", b"%d" % self._round)],
            on_delivery=self._delivered,
        )  # fmt: skip

    def _producer(self, topic: str) -> Producer:
        if topic in self._producers:
            return self._producers[topic]
        settings: dict[str, Any] = {**self._client(), "linger.ms": 100, "acks": "all"}
        if topic in CODECS:
            settings["compression.type"] = topic
        if topic == IDEMPOTENT:
            settings["enable.idempotence"] = True
        if topic in (TRANSACTIONS, OPEN):
            settings["transactional.id"] = f"{topic}-writer"
            settings["transaction.timeout.ms"] = TRANSACTION_MS
        producer = self._producers[topic] = Producer(settings)
        if topic in (TRANSACTIONS, OPEN):
            producer.init_transactions(WAIT_SECONDS)
        return producer

    def _consumer(self, group: str, **settings: Any) -> Consumer:
        return Consumer(
            {**self._client(), "group.id": group, "enable.auto.commit": False, **settings}
        )

    def _client(self) -> dict[str, Any]:
        # A broker that is away on purpose is no news, and is to be found again at once.
        return {
            "bootstrap.servers": self.address,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
            "broker.address.family": "v4",
            "topic.metadata.refresh.fast.interval.ms": 50,
        }


def read_to_end(consumer: Consumer, topic: str, partition: int = 0) -> list[Read]:
    """Return what a consumer that sees ends reads of a partition, from its start."""
    found: list[Read] = []
    consumer.assign([TopicPartition(topic, partition, 0)])
    while True:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None, f"nothing more from {topic}"
        error = message.error()
        if error is None:
            offset = message.offset()
            assert offset is not None
            found.append((offset, message.key(), message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            return found
        else:
            raise KafkaException(error)


def final_state(reads: Sequence[Read]) -> dict[bytes, bytes]:
    """Return the last value of every key, keys without one left out."""
    state: dict[bytes, bytes] = {}
    for _, key, value in reads:
        assert key is not None
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state
