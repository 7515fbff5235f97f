"""What consumers read of a live cluster's tiered topic after rounds is what the key law leaves.

Scenarios P1 to P10 of the protocol as it was tried: codecs, tombstones, headers, transactions,
readers at any offset and time, a second round over the first, a clean restart and a crash.
"""

from __future__ import annotations

import random

import pytest
from confluent_kafka import KafkaException, Producer
from msgspec.structs import replace

from keeplast.attach.rounds.round import RoundWish
from keeplast.errors import RefusedError
from keeplast.model.topic_config import Keyless, Strategy, TopicConfig
from tests.kafka.broker import Broker
from tests.kafka.java_consumer import as_shown, read_with_java
from tests.kafka.test_attach import alter, attach, create
from tests.support.live_rounds import (
    MEMORY,
    Got,
    LiveCompactor,
    by_key_law,
    consume,
    find_by_time,
    require_nothing_left,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

STATES, TRANSACTIONS = "states", "transactions"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000
NO_VERSION = -(1 << 63)
STARTS = 21
TOPIC = TopicConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=40_000, min_cleanable_dirty_ratio=0.0
)
WISH = RoundWish(topic=TOPIC, margin_bytes=80_000, force=True, memory_bytes=MEMORY)


@pytest.fixture(scope="module")
def broker(broker: Broker) -> Broker:
    for topic in (STATES, TRANSACTIONS):
        create(broker, topic, 1)
    fill_states(broker, seed=1, count=3000)
    fill_transactions(broker, seed=1, rounds=130)
    return broker


@pytest.fixture(scope="module")
def compactor(broker: Broker) -> LiveCompactor:
    found = LiveCompactor(broker.address, broker.root / "meta.db", broker.root / "remote")
    for topic in (STATES, TRANSACTIONS):
        wait_until_remote(broker, found, topic)
    return found


def fill_states(broker: Broker, *, seed: int, count: int) -> None:
    """Send keyed records of every codec, each a millisecond later than the one before."""
    dice = random.Random(seed)
    sent = (seed - 1) * 10_000_000
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 5,
                "batch.size": 3000, "enable.idempotence": True,
            }
        )  # fmt: skip
        for _ in range(count // len(CODECS)):
            sent += 1
            value = None if dice.random() < 0.1 else b"%d-" % sent + dice.randbytes(60)
            headers: dict[str, str | bytes | None] = {"h": b"%d" % sent} if sent % 7 == 0 else {}
            producer.produce(
                STATES, key=b"k%d" % dice.randrange(150), value=value, partition=0,
                headers=headers, timestamp=START_MS + sent,
            )  # fmt: skip
        assert 0 == producer.flush(60)


def fill_transactions(broker: Broker, *, seed: int, rounds: int) -> None:
    """Let three transactional producers and a plain one send; a third aborts."""
    dice = random.Random(seed)
    plain = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    producers = []
    for number, codec in enumerate(("lz4", "zstd", "none")):
        each = Producer(
            {
                "bootstrap.servers": broker.address, "transactional.id": f"tx-{number}",
                "compression.type": codec, "batch.size": 3000,
            }
        )  # fmt: skip
        each.init_transactions(60)
        producers.append(each)
    for number in range(rounds):
        producer = producers[number % 3]
        producer.begin_transaction()
        aborts = dice.random() < 0.35
        for _ in range(25):
            value = b"%d-%s-" % (number, b"aborted" if aborts else b"ok") + dice.randbytes(60)
            producer.produce(
                TRANSACTIONS, key=b"k%d" % dice.randrange(120), partition=0,
                value=None if dice.random() < 0.08 else value,
            )  # fmt: skip
        plain.produce(
            TRANSACTIONS, key=b"plain%d" % (number % 9), value=b"%d" % number, partition=0
        )
        assert 0 == producer.flush(60)
        (producer.abort_transaction if aborts else producer.commit_transaction)(60)
    assert 0 == plain.flush(60)


def wait_until_remote(broker: Broker, compactor: LiveCompactor, topic: str) -> None:
    """Wait until all but the active segment is remote, and nothing else is local."""

    def is_remote() -> bool:
        found = compactor.status(topic)
        local = list((broker.data / f"{topic}-0").glob("*.log"))
        is_ended = not found.copying.count and found.served.count > 1
        active = max(int(each.name[:20]) for each in local)
        return len(local) == 1 and is_ended and found.remote_end == active - 1

    wait_until(is_remote, words=lambda: "\n".join(broker.lines("ERROR", "WARN")))


def wait_until_ready(broker: Broker) -> None:
    """Wait until a broker that starts has read its metadata topic: before, it serves nothing."""

    def is_ready() -> bool:
        try:
            return all(consume(broker.address, topic, limit=1) for topic in (STATES, TRANSACTIONS))
        except KafkaException:
            return False

    wait_until(is_ready, words=lambda: "\n".join(broker.lines("ERROR", "WARN")))


def check_readers(
    broker: Broker, topic: str, expected: list[Got], raw: list[Got], end: int
) -> None:
    """Check both isolation levels: below ``end`` aborted records went with the superseded ones."""
    assert expected == consume(broker.address, topic)
    kept = {each.offset for each in expected}
    uncommitted = [each for each in raw if each.offset >= end or each.offset in kept]
    assert uncommitted == consume(broker.address, topic, committed=False)


def read_both(broker: Broker, topic: str) -> tuple[list[Got], list[Got]]:
    return consume(broker.address, topic), consume(broker.address, topic, committed=False)


@pytest.mark.parametrize("topic", [STATES, TRANSACTIONS])
def test_readers_get_what_the_key_law_leaves(
    broker: Broker, compactor: LiveCompactor, topic: str
) -> None:
    """P1, P3, P4, P7, AT-15, AT-17, AT-18."""
    before, raw = read_both(broker, topic)
    served = compactor.status(topic).served
    report = compactor.clean(topic, WISH)
    end = report.end_offset or 0
    after = compactor.status(topic)
    assert 0 < end, report.reason
    assert served.bytes > 1.5 * after.served.bytes
    assert [] == list(after.holes)
    assert after.compacted.count
    expected = by_key_law(before, end)
    assert len(expected) < len(before)
    check_readers(broker, topic, expected, raw, end)
    if topic == STATES:
        check_places(broker, expected, report.end_offset or 0)


def check_places(broker: Broker, expected: list[Got], end: int) -> None:
    """Check readers that begin anywhere, and look for times."""
    last = expected[-1].offset
    starts = sorted({0, 1, end - 1, end, *range(0, last, max(last // (STARTS - 4), 1))})
    for start in starts:
        found = consume(broker.address, STATES, start=start, limit=1)
        assert next(each for each in expected if each.offset >= start) == found[0]
    times = [each.timestamp + add for each in expected[:: len(expected) // 20] for add in (0, 1)]
    wanted = [
        next((each.offset for each in expected if each.timestamp >= time), -1) for time in times
    ]
    # A broker of 4.x was seen to find nothing in a segment of its own, and to find it when asked
    # again: an answer counts once it stays.
    wait_until(
        lambda: wanted == find_by_time(broker.address, STATES, times),
        words=lambda: f"{wanted} {find_by_time(broker.address, STATES, times)}",
    )


@pytest.mark.parametrize("topic", [STATES, TRANSACTIONS])
def test_a_second_round_takes_in_the_first(
    broker: Broker, compactor: LiveCompactor, topic: str
) -> None:
    """P6, P9: its producers have the same transactional ids."""
    if topic == STATES:
        fill_states(broker, seed=2, count=1500)
    else:
        fill_transactions(broker, seed=2, rounds=60)
    wait_until_remote(broker, compactor, topic)
    before, raw = read_both(broker, topic)
    report = compactor.clean(topic, WISH)
    end = report.end_offset or 0
    assert (report.first_dirty or 0) < end
    expected = by_key_law(before, end)
    check_readers(broker, topic, expected, raw, end)


@pytest.mark.parametrize("topic", [STATES, TRANSACTIONS])
def test_readers_get_the_same_when_the_sources_are_gone(
    broker: Broker, compactor: LiveCompactor, topic: str
) -> None:
    """P5."""
    before = read_both(broker, topic)
    stored = list((broker.root / "remote").rglob("*.log"))
    assert compactor.collect(topic).segments
    assert len(list((broker.root / "remote").rglob("*.log"))) < len(stored)
    assert before == read_both(broker, topic)
    assert 0 == compactor.status(topic).deleting.count


@pytest.mark.parametrize("topic", [STATES, TRANSACTIONS])
def test_the_java_consumer_is_given_what_librdkafka_is_given(broker: Broker, topic: str) -> None:
    """P10: in both isolation levels, behind two rounds and their collection."""
    for level, found in zip(
        ("read_committed", "read_uncommitted"), read_both(broker, topic), strict=True
    ):
        read = read_with_java(broker.version, broker.address, topic, len(found), level)
        assert [as_shown(each) for each in found] == read


def test_a_restart_and_a_crash_of_the_broker_change_nothing(
    broker: Broker, compactor: LiveCompactor
) -> None:
    """P8, AT-20."""
    before = {topic: read_both(broker, topic) for topic in (STATES, TRANSACTIONS)}
    for end in (broker.stop, broker.kill):
        end()
        broker.start()
        wait_until_ready(broker)
        for topic in (STATES, TRANSACTIONS):
            assert before[topic] == read_both(broker, topic)
    errors = [each for each in broker.lines("ERROR") if "can not be transitioned" in each]
    assert [] == errors


def rank(record: Got, strategy: Strategy) -> tuple[int, int]:
    """Return by what a record of :func:`fill_ranked` stays."""
    if strategy is Strategy.TIMESTAMP:
        return record.timestamp, record.offset
    found = [value for name, value in record.headers if name == "ver" and value is not None]
    return int.from_bytes(found[-1], "big", signed=True) if found else NO_VERSION, record.offset


def fill_ranked(broker: Broker, topic: str) -> None:
    """Send records whose versions and timestamps go other ways than their offsets."""
    dice = random.Random(5)
    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": broker.address, "compression.type": codec, "batch.size": 3000}
        )
        for _ in range(400):
            version = dice.randrange(-50, 5000).to_bytes(8, "big", signed=True)
            producer.produce(
                topic, key=b"k%d" % dice.randrange(60), partition=0,
                value=None if dice.random() < 0.1 else dice.randbytes(80),
                headers=[("ver", version)] if dice.random() < 0.8 else [],
                timestamp=START_MS + dice.randrange(1_000_000),
            )  # fmt: skip
        assert 0 == producer.flush(60)


@pytest.mark.parametrize("strategy", [Strategy.TIMESTAMP, Strategy.HEADER])
def test_a_live_topic_is_compacted_by_timestamp_and_by_header(
    broker: Broker, compactor: LiveCompactor, strategy: Strategy
) -> None:
    """KIP-280, which no broker has: what is read is the greatest rank of each key, twice over."""
    topic = f"by-{strategy}"
    create(broker, topic, 1)
    name = "ver" if strategy is Strategy.HEADER else None
    ranked = replace(WISH, topic=replace(TOPIC, strategy=strategy, strategy_header=name))
    for _ in range(2):
        fill_ranked(broker, topic)
        wait_until_remote(broker, compactor, topic)
        before = consume(broker.address, topic)
        end = compactor.clean(topic, ranked).end_offset or 0
        best: dict[bytes | None, tuple[int, int]] = {}
        for each in before:
            if each.offset < end:
                best[each.key] = max(rank(each, strategy), best.get(each.key, (NO_VERSION, -1)))
        expected = [
            each for each in before if each.offset >= end or best[each.key] == rank(each, strategy)
        ]
        assert len(expected) < len(before)
        assert expected != by_key_law(before, end)
        assert expected == consume(broker.address, topic)
        assert compactor.collect(topic).segments
        assert expected == consume(broker.address, topic)


@pytest.mark.parametrize("is_detached", [False, True])
def test_brokers_alone_expire_what_was_compacted(
    broker: Broker, compactor: LiveCompactor, is_detached: bool
) -> None:
    """R2: with its sources where those wait; of a topic that was given up they go on copying."""
    topic = f"expiring-{is_detached}".lower()
    create(broker, topic, 1)
    fill_ranked(broker, topic)
    wait_until_remote(broker, compactor, topic)
    end = compactor.clean(topic, WISH).end_offset or 0
    assert compactor.status(topic).compacted.count
    if is_detached:
        places = (
            "--decisions", f"sqlite:///{broker.root / 'meta.db'}",
            "--storage", f"local:{broker.root / 'remote'}",
        )  # fmt: skip
        (row,) = attach(broker, "detach", "--topic", topic, *places, "--grace-ms", "0")[
            "partitions"
        ]
        assert row["is_detached"]
        assert 0 == compactor.status(topic).deleting.count
    else:
        assert compactor.status(topic).deleting.count
    before = consume(broker.address, topic)
    producer = Producer({"bootstrap.servers": broker.address, "batch.size": 3000})
    for number in range(1000):
        producer.produce(topic, key=b"k%d" % (number % 60), value=b"new" * 30, partition=0)
    assert 0 == producer.flush(60)
    wait_until_remote(broker, compactor, topic)
    read = consume(broker.address, topic)
    assert before == read[: len(before)]
    fresh = read[len(before) :]
    assert 1000 == len(fresh)
    # What was produced first has timestamps of years ago, what came later those of now.
    alter(broker, topic, "retention.ms", "604800000")

    def is_expired() -> bool:
        found = compactor.status(topic)
        left = found.compacted.count + found.deleting.count + found.hidden.count
        return found.log.start >= end and not left

    wait_until(is_expired, words=lambda: str(compactor.status(topic)))
    start = compactor.status(topic).log.start
    kept = consume(broker.address, topic, start=start)
    assert [each for each in read if each.offset >= start] == kept
    assert fresh == kept[-len(fresh) :]
    served = compactor.status(topic).served.count
    folders = [each for each in (broker.root / "remote").rglob(f"{topic}-0-*") if each.is_dir()]
    assert served == sum(len(list(each.glob("*.log"))) for each in folders)
    errors = [each for each in broker.lines("ERROR") if topic in each]
    assert [] == errors
    if not is_detached:
        # Who goes on finds that its swap is settled, and what it kept next to it goes.
        alter(broker, topic, "retention.ms", "-1")
        compactor.clean(topic, WISH)
        compactor.collect(topic)
        assert fresh[-1] == consume(broker.address, topic, start=start)[-1]


def test_a_topic_that_the_check_refuses_gets_no_round(
    broker: Broker, compactor: LiveCompactor
) -> None:
    before = compactor.status(STATES)
    alter(broker, STATES, "retention.bytes", "1000000000")
    try:
        with pytest.raises(RefusedError, match="retention-bytes"):
            compactor.clean(STATES, WISH)
    finally:
        alter(broker, STATES, "retention.bytes", "-1")
    assert before == compactor.status(STATES)


def test_records_without_a_key_are_refused_unless_said(
    broker: Broker, compactor: LiveCompactor
) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(STATES, value=b"no key", partition=0)
    assert 0 == producer.flush(60)
    fill_states(broker, seed=3, count=2500)
    wait_until_remote(broker, compactor, STATES)
    before, raw = read_both(broker, STATES)
    with pytest.raises(RefusedError, match="--keyless drop"):
        compactor.clean(STATES, WISH)
    assert (before, raw) == read_both(broker, STATES)
    report = compactor.clean(STATES, replace(WISH, keyless=Keyless.RETAIN))
    end = report.end_offset or 0
    kept = by_key_law([each for each in before if each.key is not None], end)
    kept += [each for each in before if each.key is None]
    check_readers(broker, STATES, sorted(kept, key=lambda each: each.offset), raw, end)


def test_the_commands_say_what_they_do_and_do_it(broker: Broker, compactor: LiveCompactor) -> None:
    fill_transactions(broker, seed=3, rounds=40)
    wait_until_remote(broker, compactor, TRANSACTIONS)
    before, raw = read_both(broker, TRANSACTIONS)
    places = (
        "--topic", TRANSACTIONS, "--decisions", f"sqlite:///{broker.root / 'meta.db'}",
        "--storage", f"local:{broker.root / 'remote'}", "--despite", "dirty-ratio",
    )  # fmt: skip
    (planned,) = attach(broker, "plan", *places)["partitions"]
    (done,) = attach(broker, "clean", *places, "--cores", "1")["partitions"]
    (first,), (last,) = planned["rounds"], done["rounds"]
    if broker.version.startswith("4"):
        # A 4.x broker does not say here by what it rolls: the margin is larger than all of it.
        assert "the newest segments stay" in first["reason"] == last["reason"]
        return
    assert first["bound"] == last["end_offset"]
    check_readers(broker, TRANSACTIONS, by_key_law(before, last["end_offset"]), raw,
                  last["end_offset"])  # fmt: skip


def test_nothing_of_ours_is_left_in_the_storage(broker: Broker, compactor: LiveCompactor) -> None:
    require_nothing_left(broker.root / "remote")
