"""What a consumer of a live topic folds is what the broker's own files say, by every strategy.

Two partitions with plain records, transactions that commit, abort and stay open, tombstones,
timestamps and versions in no order; nothing of it is cleaned, as in a broker's tail.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

import keeplast
from keeplast.model.topic_config import Strategy, TopicConfig
from tests.kafka.broker import VERSIONS, Broker
from tests.kafka.live_topics import SEGMENT_BYTES, WAIT_SECONDS, Deliveries
from tests.support import called

pytestmark = [pytest.mark.kafka, pytest.mark.parametrize("version", VERSIONS)]

TOPIC = "ranked"
PARTITIONS = 2
KEYS = 30
START_MS = 1_700_000_000_000
STRATEGIES = {
    each: TopicConfig(
        cleanup_policy=frozenset({"compact"}), strategy=each,
        strategy_header="ver" if each is Strategy.HEADER else None,
    )
    for each in Strategy
}  # fmt: skip
Held = dict[tuple[int, bytes], tuple[int, bytes | None]]


@dataclass(slots=True)
class Writers(Deliveries):
    """Producers of a topic: a plain one, one that ends its transactions, one that does not."""

    address: str
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    _producers: list[Producer] = field(default_factory=list)
    _sent: int = 0

    def start(self) -> None:
        """Know the broker, and have two transactional ids."""
        for transactional_id in (None, "ended", "open"):
            settings: dict[str, Any] = {"bootstrap.servers": self.address, "linger.ms": 50}
            if transactional_id is not None:
                settings |= {"transactional.id": transactional_id}
            producer = Producer(settings)
            if transactional_id is not None:
                producer.init_transactions(WAIT_SECONDS)
            self._producers.append(producer)

    def send(self) -> None:
        """Send plain records, transactions of which one is aborted, and begin one more."""
        plain, ended, left_open = self._producers
        for commits in (True, False, True):
            self._some(plain, 60)
            ended.begin_transaction()
            self._some(ended, 40)
            if commits:
                ended.commit_transaction(WAIT_SECONDS)
            else:
                ended.abort_transaction(WAIT_SECONDS)
        left_open.begin_transaction()
        self._some(left_open, 20)
        self._some(plain, 60)

    def end_open(self) -> None:
        """Commit the transaction that was left open."""
        self._producers[2].commit_transaction(WAIT_SECONDS)

    def purge(self) -> None:
        """Forget what is unsent."""
        for producer in self._producers:
            producer.purge()
            producer.poll(0)

    def _some(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            version = self.dice.choice([None, self.dice.randrange(1000)])
            producer.produce(
                TOPIC,
                key=b"key-%d" % self.dice.randrange(KEYS),
                value=None if self.dice.random() < 0.3 else b"value %d" % self._sent,
                partition=self.dice.randrange(PARTITIONS),
                timestamp=START_MS + self.dice.randrange(100_000),
                headers=[] if version is None else [("ver", version.to_bytes(8, "big"))],
                on_delivery=self._delivered,
            )
        assert 0 == producer.flush(WAIT_SECONDS)


def read_on(address: str, state: keeplast.LiveState) -> None:
    """Give a state what a consumer of committed records gets, from where it goes on to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "fold", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True,
        }
    )  # fmt: skip
    positions = state.positions
    consumer.assign([TopicPartition(TOPIC, n, positions.get(n, 0)) for n in range(PARTITIONS)])
    ended: set[int | None] = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, "nothing more comes"
            error = message.error()
            if error is None:
                take(state, message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


def take(state: keeplast.LiveState, message: Message) -> None:
    """Apply a message as the page about data sources says."""
    kind, at_ms = message.timestamp()
    partition, offset, headers = message.partition(), message.offset(), message.headers()
    assert partition is not None
    assert offset is not None
    # The client's types allow for more than it gives.
    named = (
        [(name, each) for name, each in headers if not isinstance(each, str)]
        if isinstance(headers, list)
        else None
    )
    state.apply(
        partition=partition, offset=offset, key=message.key(), value=message.value(),
        timestamp_ms=-1 if kind == TIMESTAMP_NOT_AVAILABLE else at_ms,
        headers=named,
    )  # fmt: skip


def held(state: keeplast.LiveState) -> Held:
    return {place: (record.offset, record.value) for place, record in state.items()}


def said(data: Path, topic: TopicConfig) -> Held:
    """Return the state that files say."""
    return {
        (number, key): (record.offset, record.value)
        for number in range(PARTITIONS)
        for key, record in keeplast.open_log(data / f"{TOPIC}-{number}").state(topic).items()
    }


def copied(broker: Broker, to: Path) -> Path:
    """Copy what a broker without producers has on its disk."""
    shutil.copytree(broker.data, to)
    return to


def exported(data: Path, to: Path, topic: TopicConfig) -> keeplast.LiveState:
    """Begin with an export of a copy."""
    arguments = ["export", data, "--to", to, "--topic", TOPIC, "--tombstones", "--runner", "local"]
    arguments += ["--config", f"compaction.strategy={topic.strategy.value}"]
    if topic.strategy_header is not None:
        arguments += ["--config", f"compaction.strategy.header={topic.strategy_header}"]
    called.run(*arguments, code=0)
    return keeplast.exported_state(to, TOPIC, topic)


def test_a_live_consumer_holds_what_the_brokers_files_say(version: str, tmp_path: Path) -> None:
    with Broker(version, tmp_path / "live", {"log.cleaner.min.cleanable.ratio": "1.0"}) as broker:
        segment_bytes = "segment.bytes" if version.startswith("3") else "internal.segment.bytes"
        settings = {"cleanup.policy": "compact", segment_bytes: SEGMENT_BYTES}
        admin = AdminClient({"bootstrap.servers": broker.address})
        created = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=settings)])
        created[TOPIC].result(WAIT_SECONDS)
        writers = Writers(broker.address)
        writers.start()
        live = {each: keeplast.LiveState(topic) for each, topic in STRATEGIES.items()}

        writers.send()
        first = copied(broker, tmp_path / "first")
        begun = {
            each: exported(first, tmp_path / f"export {each.value}", topic)
            for each, topic in STRATEGIES.items()
        }
        for each, topic in STRATEGIES.items():
            read_on(broker.address, live[each])
            assert said(first, topic) == held(live[each]) == held(begun[each]), each

        writers.end_open()
        writers.send()
        assert [] == writers.failures
        second = copied(broker, tmp_path / "second")
        states = []
        for each, topic in STRATEGIES.items():
            expected = said(second, topic)
            for state in (live[each], begun[each]):
                read_on(broker.address, state)
                assert expected == held(state), each
            for number in range(PARTITIONS):
                log = keeplast.open_log(second / f"{TOPIC}-{number}")
                report = log.clean(topic, force=True, is_unsafe=True)
                assert [None] == [done.error for done in report.rounds]
            assert expected == said(second, topic), each
            shutil.rmtree(second)
            copied(broker, second)
            states.append(expected)
        # Else the strategies made no difference.
        assert all(a != b for a, b in zip(states, [*states[1:], states[0]], strict=True))
        writers.purge()
