"""What producers of a topic got acknowledged, and whether a consumer gets what that allows.

Shares no code with keeplast. Every record carries a number of its own in the header ``n``; a key is
written by one producer alone, so its records lie in the order in which they were sent. The law, for
a reader of a compacted topic from its start: offsets ascend, every record is one that was sent,
as it was sent and where it was acknowledged; no read-committed reader sees an aborted one; and the
last committed record of each key is there, a deletion too, with nothing of that key behind it.
Where deletions may go, one may be missing, but then with everything else of its key.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from msgspec import Struct

from tests.support.waiting import wait_until

FLUSH_SECONDS = 240.0
POLLS_MAX = 300
"""Half seconds without a record or an end, before a reader counts as stalled."""
BATCH_BYTES = 4_000
_LOST = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


@dataclass(slots=True)
class Sent:
    """A record that was sent; ``offset`` is None until it is known, ``is_aborted`` as it ended."""

    key: bytes
    value: bytes | None
    offset: int | None = None
    is_aborted: bool = False


class Got(Struct, frozen=True):
    """A record as a consumer is given it."""

    offset: int
    number: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Acknowledged:
    """Everything that was sent to one topic, by partition and number."""

    address: str
    topic: str
    seed: int = 1
    value_bytes: int = 70
    deletions_may_go: bool = False
    """For readers who come to the end within ``delete.retention.ms``: those of this module."""
    fetch_bytes: int | None = None
    """How much readers ask for at a time; None for as much as librdkafka does."""
    sent: dict[int, dict[int, Sent]] = field(default_factory=dict)
    _dice: random.Random = field(init=False)
    _lasting: dict[int, Producer] = field(default_factory=dict)
    _number: int = 0
    _producers: int = 0

    def __post_init__(self) -> None:
        """Begin with the seed."""
        self._dice = random.Random(self.seed)

    def send(self, partition: int, count: int, *, keys: int = 60, codec: str = "lz4") -> None:
        """Send from an idempotent producer of its own keys, a tenth of it deletions."""
        producer = self._producer({"enable.idempotence": True, "compression.type": codec})
        owner = self._producers
        for _ in range(count):
            self._produce(producer, partition, b"p%d-%d" % (owner, self._dice.randrange(keys)))
        self._flush(producer)

    def go_on(self, partition: int, count: int) -> None:
        """Send from the idempotent producer of the partition that stays open, with any leader."""
        if partition not in self._lasting:
            self._lasting[partition] = self._producer({"enable.idempotence": True})
        producer = self._lasting[partition]
        for _ in range(count):
            self._produce(producer, partition, b"lasting-%d" % self._dice.randrange(60))
        self._flush(producer)

    def send_in_transactions(
        self, partition: int, transactions: int, *, size: int = 25, owner: str | None = None
    ) -> None:
        """Send from a transactional producer; a third of the transactions is aborted.

        Without an ``owner`` it has keys of its own; with one it goes on with those, and the
        transactional id, of who was that before.
        """
        owner = owner or str(self._producers)
        producer = self._producer({"transactional.id": f"{self.topic}-{partition}-{owner}"})
        producer.init_transactions(FLUSH_SECONDS)
        for _ in range(transactions):
            producer.begin_transaction()
            mine = [
                self._produce(producer, partition, f"t{owner}-{self._dice.randrange(40)}".encode())
                for _ in range(size)
            ]
            self._flush(producer)
            if self._dice.random() < 0.35:
                for each in mine:
                    each.is_aborted = True
                producer.abort_transaction(FLUSH_SECONDS)
            else:
                producer.commit_transaction(FLUSH_SECONDS)

    def count(self, partition: int) -> int:
        """Return how many records were sent to a partition."""
        return len(self.sent.get(partition, {}))

    def last_offset(self, partition: int) -> int:
        """Return the last offset that was acknowledged, -1 for none."""
        return max((each.offset or 0 for each in self.sent.get(partition, {}).values()), default=-1)

    def deleted_keys(self, partition: int) -> set[bytes]:
        """Return the keys whose last committed record is a deletion."""
        last = self._last(partition)
        return {key for key, number in last.items() if self.sent[partition][number].value is None}

    def keys_read(self, partition: int) -> set[bytes]:
        """Return the keys of which a committed read has a record."""
        found = self._read(partition, "read_committed", 0, is_starting=True)
        return {each.key for each in found if each.key is not None}

    def judge(self, partition: int, *, is_starting: bool = False, start: int = 0) -> int:
        """Read a partition in both isolation levels; return how many records a committed read has.

        ``start`` is the log start where DeleteRecords has moved it: what lay below may be gone.

        Brokers that are starting, or change leaders, answer with errors until they have read their
        metadata topic: with ``is_starting`` the read is begun again then. So is one that ends
        before what was acknowledged: a commit is acknowledged before its marker is written, and a
        leader that was just elected learns only later how far its log is committed. AssertionError
        for whatever the law forbids, and when that lasts.
        """
        counts = []
        for level in ("read_committed", "read_uncommitted"):
            found = self._read(partition, level, start, is_starting=is_starting)
            self.check(partition, found, level, start)
            counts.append(len(found))
        return counts[0]

    def judge_from(self, partition: int, rack: str) -> tuple[int, set[int]]:
        """Read a partition as somebody in ``rack``; return how many records, and which brokers gave
        them, as far as the client says.

        Read again until it has all that was acknowledged, as :meth:`judge`: a follower learns last
        how far the log is committed.
        """
        brokers: set[int] = set()
        found = self._read(
            partition, "read_committed", 0, is_starting=True, rack=rack, note_broker=brokers.add
        )
        self.check(partition, found, f"read_committed, {rack}")
        return len(found), brokers

    def _producer(self, settings: dict[str, Any]) -> Producer:
        self._producers += 1
        return Producer(
            {
                "bootstrap.servers": self.address, "acks": "all", "batch.size": BATCH_BYTES,
                "linger.ms": 5, "log_level": 0, "broker.address.family": "v4",
                "message.timeout.ms": int(FLUSH_SECONDS * 1000),
                "transaction.timeout.ms": int(FLUSH_SECONDS * 1000), **settings,
            }
        )  # fmt: skip

    def _produce(self, producer: Producer, partition: int, key: bytes) -> Sent:
        self._number += 1
        number = self._number
        is_deletion = self._dice.random() < 0.1
        value = None if is_deletion else b"%d-" % number + self._dice.randbytes(self.value_bytes)
        sent = self.sent.setdefault(partition, {})[number] = Sent(key, value)

        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            offset = message.offset()
            # A batch that was sent twice may come back without its place.
            sent.offset = offset if offset is not None and offset >= 0 else None

        headers: dict[str, str | bytes | None] = {"n": b"%d" % number}
        producer.produce(
            self.topic, key=key, value=value, partition=partition, headers=headers,
            on_delivery=delivered,
        )  # fmt: skip
        producer.poll(0)
        return sent

    def _flush(self, producer: Producer) -> None:
        assert 0 == producer.flush(FLUSH_SECONDS)

    def _read(
        self, partition: int, level: str, start: int, *, is_starting: bool, rack: str = "",
        note_broker: Callable[[int], object] = lambda node: None,
    ) -> list[Got]:  # fmt: skip
        found: list[Got] = []

        def is_read() -> bool:
            found.clear()
            try:
                read, end = read_all(
                    self.address, self.topic, partition, level, start, rack=rack,
                    note_broker=note_broker, fetch_bytes=self.fetch_bytes,
                )  # fmt: skip
                found.extend(read)
            except KafkaException as error:
                # What is lost is an error of its own: a reset, which no reader here may meet.
                if not is_starting or error.args[0].name() in _LOST:
                    raise
                return False
            return end > last

        last = self.last_offset(partition)
        wait_until(is_read, words=lambda: f"{self.topic}-{partition} {level}, {last} was sent")
        return found

    def check(self, partition: int, found: list[Got], level: str, start: int = 0) -> None:
        """Raise AssertionError for whatever the law forbids in a whole read of a partition."""
        where, sent = f"{self.topic}-{partition} {level}", self.sent.get(partition, {})
        last: dict[bytes, int] = {}
        before = -1
        for got in found:
            assert got.offset > before, f"{where}: offsets do not ascend at {got}"
            before = got.offset
            record = sent.get(got.number)
            assert record is not None, f"{where}: no producer sent {got}"
            assert (record.key, record.value) == (got.key, got.value), f"{where}: {got} {record}"
            assert record.offset in (None, got.offset), f"{where}: {got} {record}"
            if level.startswith("read_committed"):
                assert not record.is_aborted, f"{where}: an aborted record is read: {got}"
            if not record.is_aborted:
                assert got.number > last.get(record.key, -1), f"{where}: out of order: {got}"
                last[record.key] = got.number
        wrong = {
            key: (number, last.get(key))
            for key, number in self._last(partition, start).items()
            if last.get(key) != number
            and not (self.deletions_may_go and key not in last and sent[number].value is None)
        }
        assert not wrong, f"{where}: last records of keys, sent and read: {wrong}"

    def _last(self, partition: int, start: int = 0) -> dict[bytes, int]:
        """Return the number of each key's last committed record, of those from ``start`` on."""
        return {
            each.key: number
            for number, each in self.sent.get(partition, {}).items()
            if not each.is_aborted and (start == 0 or (each.offset or 0) >= start)
        }


def read_all(
    address: str, topic: str, partition: int, level: str, start: int, *, rack: str = "",
    note_broker: Callable[[int], object] = lambda node: None, fetch_bytes: int | None = None,
) -> tuple[list[Got], int]:  # fmt: skip
    """Return what a consumer reads from ``start``, and where it ends; any reset is an error.

    One that is in a ``rack`` reads little at a time, and notes from whom it fetches.
    """
    more = _in_rack(rack, topic, partition, note_broker) if rack else {}
    if fetch_bytes is not None:
        more["max.partition.fetch.bytes"] = fetch_bytes
    consumer = _consumer(address, level, more)
    found: list[Got] = []
    silent = 0
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        while silent < POLLS_MAX:
            messages = consumer.consume(1000, timeout=0.5)
            silent = 0 if messages else silent + 1
            for message in messages:
                error = message.error()
                if error is None:
                    found.append(_got(message))
                elif error.name() == "_PARTITION_EOF":
                    return found, message.offset() or 0
                elif error.fatal() or error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
                    raise KafkaException(error)
    finally:
        consumer.close()
    raise AssertionError(f"a reader stalled. topic={topic}-{partition} records={len(found)}")


def _in_rack(
    rack: str, topic: str, partition: int, note_broker: Callable[[int], object]
) -> dict[str, Any]:
    def note_statistics(statistics: str) -> None:
        topics = json.loads(statistics)["topics"]
        found = topics.get(topic, {}).get("partitions", {}).get(str(partition), {})
        if found.get("rxmsgs"):
            note_broker(int(found["broker"]))

    return {
        "client.rack": rack, "statistics.interval.ms": 20, "stats_cb": note_statistics,
        "max.partition.fetch.bytes": 8_000,
    }  # fmt: skip


def _consumer(address: str, level: str, more: Mapping[str, Any] | None = None) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address, "group.id": "judge", "enable.auto.commit": False,
            "auto.offset.reset": "error", "enable.partition.eof": True, "isolation.level": level,
            "log_level": 0, "broker.address.family": "v4", "reconnect.backoff.max.ms": 500,
            **(more or {}),
        }
    )  # fmt: skip


def _got(message: Message) -> Got:
    number = int(dict(message.headers() or ())["n"] or b"-1")
    return Got(message.offset() or 0, number, message.key(), message.value())


def end_of(address: str, topic: str, partition: int) -> int:
    """Return where a partition ends, once its leader says so."""
    found: list[int] = []

    def has_answered() -> bool:
        consumer = _consumer(address, "read_uncommitted")
        try:
            found.append(
                consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=5)[1]
            )
        except KafkaException:
            return False
        finally:
            consumer.close()
        return True

    wait_until(has_answered)
    return found[0]


class Follower:
    """A consumer that reads on while a partition is written to and compacted below it.

    What it has read by the end is judged as one read: a record may be gone when it comes there, the
    last of a key may not. Errors of brokers that start are waited out; a reset never is.
    """

    def __init__(self, acknowledged: Acknowledged, partition: int, level: str) -> None:
        """Begin at the start of the log."""
        self._acknowledged = acknowledged
        self._partition = partition
        self._level = level
        self._found: list[Got] = []
        self._lost: KafkaException | None = None
        self._end = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Wait until it is where the log ends now, and judge; return how many records it read.

        Nothing may be sent any more, and no transaction be open.
        """
        end = max(
            end_of(self._acknowledged.address, self._acknowledged.topic, self._partition),
            self._acknowledged.last_offset(self._partition) + 1,
        )
        wait_until(
            lambda: self._end >= end or self._lost is not None,
            words=lambda: f"a follower is at {self._end} of {end}",
        )
        self._stopping.set()
        self._thread.join()
        if self._lost is not None:
            raise self._lost
        self._acknowledged.check(self._partition, self._found, self._level)
        return len(self._found)

    def _run(self) -> None:
        consumer = _consumer(self._acknowledged.address, self._level)
        try:
            consumer.assign([TopicPartition(self._acknowledged.topic, self._partition, 0)])
            while not self._stopping.is_set() and self._lost is None:
                for message in consumer.consume(1000, timeout=0.2):
                    error = message.error()
                    if error is None:
                        self._found.append(_got(message))
                    elif error.name() == "_PARTITION_EOF":
                        self._end = message.offset() or 0
                    elif error.name() in _LOST:
                        self._lost = KafkaException(error)
        finally:
            consumer.close()


class Watch:
    """A reader that reads a partition again and again while something else happens."""

    def __init__(self, acknowledged: Acknowledged, partition: int) -> None:
        """Begin to read; nothing may be sent to the partition meanwhile."""
        self.seconds_max = 0.0
        self._stopping = threading.Event()
        self._acknowledged = acknowledged
        self._partition = partition
        self._pool = ThreadPoolExecutor(1)
        self._reads = self._pool.submit(self._run)

    def stop(self) -> int:
        """End behind a whole read; return how many there were, raise what one of them met."""
        self._stopping.set()
        try:
            return self._reads.result()
        finally:
            self._pool.shutdown()

    def _run(self) -> int:
        reads = 0
        while True:
            is_last = self._stopping.is_set()
            began = time.monotonic()
            self._acknowledged.judge(self._partition, is_starting=True)
            self.seconds_max = max(self.seconds_max, time.monotonic() - began)
            reads += 1
            if is_last:
                return reads
            self._stopping.wait(0.2)
