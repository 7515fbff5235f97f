"""Tombstones and transaction markers leave a live topic when their time has come, and not before.

Rounds go by a clock that the test moves on. What consumers read is judged by what a consumer read
before the round; nothing here asks keeplast which tombstones went.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.format.message_set import read_batches
from tests.kafka.broker import VERSIONS, Broker, tiered_broker
from tests.kafka.test_attach import alter, attach, create
from tests.kafka.test_attach_rounds import (
    TRANSACTIONS,
    WISH,
    fill_transactions,
    read_both,
    wait_until_remote,
)
from tests.support.live_rounds import Got, LiveCompactor, by_key_law, consume
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

RETENTION_MS = 3_600_000
LOCAL_MS = 1_000
DELETED = 40
STARTS = 6
TRANSACTIONS_EACH = 40


class MovedClock(SystemClock):
    """The machine's clock, which is moved on."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return super().now_ms() + self.ahead_ms


@pytest.fixture(params=VERSIONS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with tiered_broker(request.param, tmp_path) as running:
        create(running, TRANSACTIONS, 1)
        alter(running, TRANSACTIONS, "local.retention.ms", str(LOCAL_MS))
        yield running


def delete_keys(broker: Broker) -> None:
    """Write values of keys that are not there after it, each twice, and delete them."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "batch.size": 3000})
    for value in (b"first", b"second", None):
        for number in range(DELETED):
            producer.produce(TRANSACTIONS, key=b"gone%d" % number, value=value, partition=0)
        assert 0 == producer.flush(60)


def markers(broker: Broker) -> int:
    """Return how many control records lie in the remote tier."""
    return sum(
        sum(1 for _ in batch.records())
        for path in (broker.root / "remote").rglob("*.log")
        for batch in read_batches(path.read_bytes())
        if batch.is_control
    )


def state_of(records: list[Got]) -> dict[bytes | None, bytes]:
    """Return the value that a reader of ``records`` has of each key in the end."""
    found: dict[bytes | None, bytes] = {}
    for each in records:
        if each.value is None:
            found.pop(each.key, None)
        else:
            found[each.key] = each.value
    return found


def check(broker: Broker, expected: list[Got], raw: list[Got], end: int) -> None:
    """Check readers of both isolation levels."""
    kept = {each.offset for each in expected}
    uncommitted = [each for each in raw if each.offset >= end or each.offset in kept]
    assert (expected, uncommitted) == read_both(broker, TRANSACTIONS)


def check_places(broker: Broker, expected: list[Got], end: int) -> None:
    """Check readers that begin anywhere."""
    last = expected[-1].offset
    for start in {0, 1, end - 1, end, *range(0, last, last // STARTS)}:
        found = consume(broker.address, TRANSACTIONS, start=start, limit=1)
        assert next(each for each in expected if each.offset >= start) == found[0]


def test_tombstones_and_markers_go_when_their_time_has_come(broker: Broker) -> None:
    clock = MovedClock()
    compactor = LiveCompactor(
        broker.address, broker.root / "meta.db", broker.root / "remote", clock
    )  # fmt: skip
    wish = replace(WISH, topic=replace(WISH.topic, delete_retention_ms=RETENTION_MS))
    ends, left = [0], []
    fill_transactions(broker, seed=1, rounds=TRANSACTIONS_EACH)
    delete_keys(broker)
    for number in range(4):
        fill_transactions(broker, seed=2 + number, rounds=TRANSACTIONS_EACH)
        wait_until_remote(broker, compactor, TRANSACTIONS)
        before, raw = read_both(broker, TRANSACTIONS)
        report = compactor.clean(TRANSACTIONS, wish)
        ends.append(report.end_offset or 0)
        assert ends[-2] < ends[-1], report.reason
        # The first round finds none whose horizon was set before; the second came too early.
        gone_below = ends[-2] if number > 1 else 0
        expected = [
            each
            for each in by_key_law(before, ends[-1])
            if each.value is not None or each.offset >= gone_below
        ]
        check(broker, expected, raw, ends[-1])
        assert state_of(before) == state_of(expected)
        if number == 2:
            check_places(broker, expected, ends[-1])
            assert len(expected) + DELETED <= len(by_key_law(before, ends[-1]))
            places = (
                "--topic", TRANSACTIONS, "--decisions", f"sqlite:///{broker.root / 'meta.db'}",
                "--storage", f"local:{broker.root / 'remote'}",
            )  # fmt: skip
            (found,) = attach(broker, "verify", *places)["partitions"]
            assert "holds" == found["verdict"]
        compactor.collect(TRANSACTIONS)
        left.append(markers(broker))
        clock.ahead_ms += RETENTION_MS // 4 if number == 0 else 3 * RETENTION_MS
    written = [TRANSACTIONS_EACH * each for each in (2, 3, 4, 5)]
    assert written[:2] == left[:2]
    assert left[3] - written[3] < left[2] - written[2] <= 0
    before_restart = read_both(broker, TRANSACTIONS)
    broker.stop()
    for path in (broker.data / "remote-log-index-cache").glob("*"):
        path.unlink()
    broker.start()

    def is_ready() -> bool:
        # A broker that starts serves nothing until it has read its metadata topic.
        try:
            return bool(consume(broker.address, TRANSACTIONS, limit=1))
        except KafkaException:
            return False

    wait_until(is_ready, words=lambda: "\n".join(broker.lines("ERROR", "WARN")))
    assert before_restart == read_both(broker, TRANSACTIONS)
    middle = ends[1] // 2
    admin = AdminClient({"bootstrap.servers": broker.address})
    for answer in admin.delete_records([TopicPartition(TRANSACTIONS, 0, middle)]).values():
        answer.result(60)
    for committed, whole in zip((True, False), before_restart, strict=True):
        found_after = consume(broker.address, TRANSACTIONS, start=middle, committed=committed)
        assert [each for each in whole if each.offset >= middle] == found_after
