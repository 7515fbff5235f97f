"""The circle of the page on rolling cleans, with three live brokers and producers that go on.

Each line of the page is typed as it stands; only ``systemctl`` is the test's own hand on a broker.
While a broker is away records are sent, so that it has something to catch up with.
"""

from __future__ import annotations

from hashlib import sha512
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.broker import HEAP, QUICK_START, Broker, broker_libs
from tests.kafka.cluster import Cluster
from tests.kafka.live_topics import (
    SEGMENT_BYTES,
    WAIT_SECONDS,
    Deliveries,
    final_state,
    read_to_end,
)
from tests.support.page_steps import ROOT, PageShell, read_section, read_steps

pytestmark = pytest.mark.kafka

VERSION = "4.3.0"
PAGE = ROOT / "docs" / "how-to" / "rolling-clean.md"
STOP, START = "sudo systemctl stop kafka", "sudo systemctl start kafka"
TOPIC = "orders"
PARTITIONS = 2
KEYS = 60
SEND = 1200
PROPERTIES = {
    # Else the brokers would do in the background what the circle is to do.
    "log.cleaner.enable": "false",
    # Leaders go back when the page says so.
    "auto.leader.rebalance.enable": "false",
    "log.cleaner.min.cleanable.ratio": "0.2",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
}
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-leader-election.sh": "org.apache.kafka.tools.LeaderElectionCommand",
}


class Load(Deliveries):
    """Sends to a topic, a third of it deletes of a few keys, and knows what must be left."""

    def __init__(self, bootstrap: str) -> None:
        self.latest: dict[bytes, bytes] = {}
        super().__init__()
        self._sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True,
                "linger.ms": 20, "batch.size": 4000, "broker.address.family": "v4",
                "log_level": 0, "reconnect.backoff.max.ms": 500,
            }
        )  # fmt: skip

    def send(self, count: int) -> None:
        """Send, and return when all replicas in sync have it."""
        for _ in range(count):
            self._sent += 1
            key = b"key-%d" % (self._sent * 7 % KEYS)
            text = f"{self._sent} {sha512(key + b'%d' % self._sent).hexdigest()}"
            value = None if self._sent % 11 == 0 else text.encode()
            self._producer.produce(TOPIC, key=key, value=value, on_delivery=self._delivered)
            if value is None:
                self.latest.pop(key, None)
            else:
                self.latest[key] = value
        assert 0 == self._producer.flush(WAIT_SECONDS)
        assert [] == self.failures


def create_topic(admin: AdminClient) -> None:
    """Make the topic, with leaders on more than one broker."""
    config = {"cleanup.policy": "compact", "internal.segment.bytes": SEGMENT_BYTES}
    (made,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=config)]).values()
    made.result(WAIT_SECONDS)


def log_bytes(broker: Broker) -> int:
    return sum(path.stat().st_size for path in broker.data.glob(f"{TOPIC}-*/*.log"))


def host_of(broker: Broker, cluster: Cluster, root: Path) -> PageShell:
    """Return the shell of an operator at this broker's host."""
    java = " ".join(("java", HEAP, *QUICK_START, "-cp", f'"{broker_libs(VERSION)}/*"'))
    programs = {
        name: f'#!/usr/bin/env bash\nexec {java} {tool} "$@"\n' for name, tool in TOOLS.items()
    }
    waits = (ROOT / "deploy" / "systemd" / "full-isr.sh").read_text("utf-8")
    shell = PageShell(root, programs={**programs, "full-isr": waits})
    (root / "spool").mkdir()
    shell.variables = {
        "DATA": str(broker.data), "CONFIG": str(broker.root / "server.properties"),
        "WORK": str(root / "spool"), "BROKERS": cluster.addresses, "TOPIC": TOPIC,
        "FULL_ISR_PAUSE": "1",
    }  # fmt: skip
    return shell


def walk(broker: Broker, shell: PageShell, load: Load) -> None:
    """Follow the page at one broker."""
    commands = [step.command for step in read_steps(read_section(PAGE, "circle:"))]
    assert {STOP, START} <= set(commands)
    for command in commands:
        if command == STOP:
            broker.stop()
        elif command == START:
            load.send(SEND // 3)
            broker.start()
        else:
            done = shell.run(command)
            assert 0 == done.code, f"{command}\n{done.out}{done.err}"


def test_three_brokers_are_cleaned_one_after_another(tmp_path: Path) -> None:
    with Cluster(VERSION, tmp_path / "cluster", PROPERTIES) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.addresses, "log_level": 0})
        create_topic(admin)
        load = Load(cluster.addresses)
        load.send(SEND)
        sizes = []
        for node, broker in cluster.brokers.items():
            walk(broker, host_of(broker, cluster, tmp_path / f"host-{node}"), load)
            sizes.append({each: log_bytes(other) for each, other in cluster.brokers.items()})
        # Replicas differ until the circle has ended.
        assert sizes[0][1] < min(sizes[0][2], sizes[0][3])
        assert max(sizes[1][1], sizes[1][2]) < sizes[1][3]
        topic = admin.list_topics(TOPIC, timeout=WAIT_SECONDS).topics[TOPIC]
        for partition in topic.partitions.values():
            assert partition.replicas[0] == partition.leader
            assert set(partition.replicas) == set(partition.isrs)
        assert load.latest == read_state(cluster.addresses)
        cluster.stop()
        one, *others = (broker.data for broker in cluster.brokers.values())
        judge = PageShell(tmp_path / "judge")
        for other in others:
            for number in range(PARTITIONS):
                name = f"{TOPIC}-{number}"
                done = judge.run(f"keeplast verify {one / name} {other / name} --replicas")
                assert 0 == done.code, done.out + done.err


def read_state(bootstrap: str) -> dict[bytes, bytes]:
    """Return what a new consumer ends up with."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": "fresh", "enable.auto.commit": False,
        "enable.partition.eof": True, "broker.address.family": "v4", "log_level": 0,
    }  # fmt: skip
    state: dict[bytes, bytes] = {}
    for partition in range(PARTITIONS):
        with Consumer(settings) as consumer:
            state |= final_state(read_to_end(consumer, TOPIC, partition))
    return state
