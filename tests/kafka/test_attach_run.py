"""The loop over attached topics on a live broker: what it does, leaves alone, and survives.

Only on a broker that says by what it rolls: elsewhere topics as small as these lie in the margin.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from keeplast.log.files import LocalFiles
from keeplast.survey.receipt_book import CollectionReceipt, RoundReceipt, read_entries
from keeplast.tier.state.attached import Attached, DecisionState
from tests.kafka.broker import VERSIONS, Broker
from tests.kafka.test_attach import alter, attach, create
from tests.kafka.test_attach_rounds import wait_until_remote
from tests.support.live_call import live_call
from tests.support.live_rounds import LiveCompactor, by_key_law, consume, require_nothing_left
from tests.support.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.kafka

TOPICS = ONE, TWO = "one", "two"
REFUSED = "refused"
OPEN = (DecisionState.DECIDED, DecisionState.PUBLISHED, DecisionState.COLLECTING)
REFUSED_CODE, TERMINATED = 4, 143


BROKERS = tuple(each for each in VERSIONS if each.startswith("3"))


@pytest.fixture(scope="module")
def broker(broker: Broker) -> Broker:
    for topic in (*TOPICS, REFUSED):
        create(broker, topic, 1)
    send(broker, 0, *TOPICS, REFUSED)
    return broker


@pytest.fixture(scope="module")
def compactor(broker: Broker) -> LiveCompactor:
    found = LiveCompactor(broker.address, broker.root / "meta.db", broker.root / "remote")
    for topic in (*TOPICS, REFUSED):
        wait_until_remote(broker, found, topic)
    return found


def send(broker: Broker, start: int, *topics: str, count: int = 3000) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "batch.size": 4000})
    for topic in topics:
        for number in range(start, start + count):
            value = b"%d" % number + b"v" * 100
            producer.produce(topic, key=b"k%d" % (number % 50), value=value, partition=0)
        assert 0 == producer.flush(60)


def places(broker: Broker) -> list[str]:
    return [
        "--decisions", f"sqlite:///{broker.root / 'meta.db'}",
        "--storage", f"local:{broker.root / 'remote'}", "--cores", "1", "--grace-ms", "0",
        "--receipt", str(receipt_of(broker)),
    ]  # fmt: skip


def receipt_of(broker: Broker) -> Path:
    return broker.root / "receipts"


def attached(compactor: LiveCompactor, topic: str) -> Attached:
    rows = compactor.log.partitions(compactor.client.read_cluster_id())
    (found,) = [each for each in rows if each.name.partition.topic == topic]
    return found


def test_one_pass_compacts_what_is_due_and_leaves_alone_what_refuses(
    broker: Broker, compactor: LiveCompactor
) -> None:
    alter(broker, REFUSED, "retention.bytes", "1000000000")
    before = {topic: consume(broker.address, topic) for topic in TOPICS}
    untouched = compactor.status(REFUSED)
    named = [word for topic in (*TOPICS, REFUSED) for word in ("--topic", topic)]
    document = attach(broker, "run", "--once", *named, *places(broker), expected=REFUSED_CODE)
    assert 2 == document["rounds"]
    assert {"one": "not due", "two": "not due", "refused": "refused"} == {
        each["topic"]: each["state"] for each in document["partitions"]
    }
    (reason,) = [x["reason"] for x in document["partitions"] if x["topic"] == REFUSED]
    assert "kafka-configs.sh" in reason
    assert untouched == compactor.status(REFUSED)
    for topic in TOPICS:
        expected = by_key_law(before[topic], attached(compactor, topic).cleaned_to)
        assert len(expected) < len(before[topic])
        assert expected == consume(broker.address, topic)
        assert 0 == compactor.status(topic).deleting.count
    kinds = [type(each) for each in read_entries(receipt_of(broker), LocalFiles())]
    assert (2, 2) == (kinds.count(RoundReceipt), kinds.count(CollectionReceipt))
    assert 2 == document["tier"]["swaps"]


def test_a_loop_that_is_killed_and_one_that_is_stopped_leave_what_the_key_law_leaves(
    broker: Broker, compactor: LiveCompactor
) -> None:
    send(broker, 10_000, *TOPICS)
    for topic in TOPICS:
        wait_until_remote(broker, compactor, topic)
    before = {topic: consume(broker.address, topic) for topic in TOPICS}
    cleaned = {topic: attached(compactor, topic).cleaned_to for topic in TOPICS}
    work = broker.root / "remote" / ".keeplast" / "work"

    def has_moved(topic: str) -> bool:
        return attached(compactor, topic).cleaned_to > cleaned[topic]

    killed = start_loop(broker)
    try:
        # In a round, or behind one that was too fast to be seen.
        wait_until(
            lambda: any(work.iterdir()) or any(map(has_moved, TOPICS)),
            by=lambda: killed.poll() is None,
        )
    finally:
        killed.kill()
        killed.communicate()
    stopped = start_loop(broker)
    try:
        wait_until(
            lambda: all(
                has_moved(topic)
                and not compactor.log.decisions(attached(compactor, topic), *OPEN)
                and not compactor.log.own_segments(attached(compactor, topic), only_left=True)
                for topic in TOPICS
            ),
            by=lambda: stopped.poll() is None,
        )
        stopped.send_signal(signal.SIGTERM)
        _, said = stopped.communicate(timeout=SECONDS_MAX)
    finally:
        stopped.kill()
    assert TERMINATED == stopped.returncode, said
    for topic in TOPICS:
        expected = by_key_law(before[topic], attached(compactor, topic).cleaned_to)
        assert len(expected) < len(before[topic])
        assert expected == consume(broker.address, topic)
        assert expected == consume(broker.address, topic, committed=False)
        found = compactor.status(topic)
        assert ([], 0, 0) == (list(found.holes), found.deleting.count, found.copying.count)
    require_nothing_left(broker.root / "remote")


def start_loop(broker: Broker) -> subprocess.Popen[str]:
    """Start the loop over what is attached."""
    return subprocess.Popen(
        [sys.executable, "-m", "keeplast",
         *live_call(broker.address, "run", *places(broker), "--interval", "1s")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
