"""A store that is copied from a running broker's directory ends up with what the broker serves.

The broker cleans five times a second, ``run --data-dir`` copies and cleans next to it, and what
the store has is served by another broker to a real consumer. One topic keeps tombstones for as
long as a copy needs, and nothing of it is ever replaced; the other one drops them at once.
``make beside-a-broker ARGS='--store-seconds 600'`` is the long form.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.broker import VERSIONS, Broker
from tests.kafka.live_topics import Read, final_state, read_to_end
from tests.support.waiting import SECONDS_MAX

pytestmark = [pytest.mark.kafka, pytest.mark.parametrize("version", VERSIONS)]

STEADY, HASTY = "steady", "hasty"
RETENTION_MS = {STEADY: 3_600_000, HASTY: 50}
PROPERTIES = {
    "log.cleaner.backoff.ms": "200",
    # Its rounds must not be waited for, the files it leaves must: they stay for a minute.
    "replica.high.watermark.checkpoint.interval.ms": "200",
}
KEYS = 30
CLEANED = re.compile(r"Building offset map for log (\S+)-0 ")


def keeplast(*arguments: str) -> dict[str, Any]:
    """Run a command to its end and return its document."""
    done = subprocess.run(
        [sys.executable, "-m", "keeplast", *arguments, "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def create(broker: Broker) -> None:
    segment_bytes = "segment.bytes" if broker.version.startswith("3") else "internal.segment.bytes"
    topics = [
        NewTopic(
            topic, 1, 1,
            config={
                "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
                segment_bytes: "8192", "delete.retention.ms": str(retention_ms),
            },
        )
        for topic, retention_ms in RETENTION_MS.items()
    ]  # fmt: skip
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_topics(topics).values():
        future.result(SECONDS_MAX)


class Load:
    """Transactions over few keys, half of them with deletes, a third of them aborted."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.latest: dict[str, dict[bytes, bytes]] = {topic: {} for topic in RETENTION_MS}
        self.sent = self.aborted = 0
        self._dice = random.Random(seed)
        self._producers = {}
        for topic in RETENTION_MS:
            self._producers[topic] = Producer(
                {
                    "bootstrap.servers": broker.address, "transactional.id": topic, "log_level": 0,
                }
            )  # fmt: skip
            self._producers[topic].init_transactions(SECONDS_MAX)

    def send(self) -> None:
        """Send a transaction to every topic."""
        for topic, producer in self._producers.items():
            producer.begin_transaction()
            changes: dict[bytes, bytes | None] = {}
            is_aborted = self._dice.randrange(3) == 0
            for _ in range(self._dice.randrange(1, 12)):
                # Some keys are deleted and never come back, so that only a tombstone shows it.
                key = b"%d" % (self.sent // 400 * KEYS + self._dice.randrange(KEYS))
                is_deleted = self._dice.randrange(2) == 0
                value = b"%s of %d %s" % (
                    b"ABORTED" if is_aborted else b"value", self.sent, b"." * 60,
                )  # fmt: skip
                changes[key] = None if is_deleted else value
                producer.produce(topic, key=key, value=changes[key])
                self.sent += 1
            if is_aborted:
                producer.flush(SECONDS_MAX)
                producer.abort_transaction(SECONDS_MAX)
                self.aborted += 1
                continue
            producer.commit_transaction(SECONDS_MAX)
            for key, value_or_none in changes.items():
                if value_or_none is None:
                    self.latest[topic].pop(key, None)
                else:
                    self.latest[topic][key] = value_or_none


def read(broker: Broker, topic: str) -> list[Read]:
    """Return what a fresh read-committed consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address, "group.id": "fresh", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    try:
        return read_to_end(consumer, topic)
    finally:
        consumer.close()


def rounds_of(broker: Broker) -> list[str]:
    """Return the topics of the broker's rounds."""
    return [match[1] for match in map(CLEANED.search, broker.lines("INFO")) if match]


def copies_of(output: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return how often each topic was copied, and how often replaced."""
    copied = {topic: len(re.findall(rf"{topic}-0 +copied", output)) for topic in RETENTION_MS}
    return copied, {topic: output.count(f"{topic}-0  replaced by") for topic in RETENTION_MS}


def has_happened(broker: Broker, output: str) -> bool:
    """Say whether the broker has cleaned both topics, and the store has seen both ways to go on."""
    copied, replaced = copies_of(output)
    return set(RETENTION_MS) <= set(rounds_of(broker)) and min(copied[STEADY], replaced[HASTY]) > 0


def test_a_store_has_the_records_that_its_broker_serves(
    tmp_path: Path, version: str, request: pytest.FixtureRequest
) -> None:
    seconds = float(request.config.getoption("--store-seconds") or 10)
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    store = ["--store", url]
    new = ["--new", "--objects", str(tmp_path / "objects")]
    broker = Broker(version, tmp_path / "broker", PROPERTIES)
    topics = [part for topic in RETENTION_MS for part in ("--topic", topic)]
    with broker:
        create(broker)
        load = Load(broker, 7)
        load.send()
        broker.stop()
        keeplast("copy", str(broker.data), url, *new, *topics)
        broker.start()
        err = tmp_path / "err"
        with err.open("wb") as said, (tmp_path / "out").open("wb") as out:
            running = subprocess.Popen(
                [sys.executable, "-m", "keeplast", "run", store[1], "--data-dir",
                 str(broker.data), "--cores", "1", "--grace-ms", "0", "--json",
                 "--config", "log.cleaner.backoff.ms=200"],
                stdout=out, stderr=said,
            )  # fmt: skip
        try:
            began = time.monotonic()
            # A slow machine may need longer until everything has happened once.
            while (passed := time.monotonic() - began) < seconds or not (
                passed > SECONDS_MAX or has_happened(broker, err.read_text())
            ):
                load.send()
                assert running.poll() is None, err.read_text()
            rounds = rounds_of(broker)
            running.send_signal(signal.SIGTERM)
            assert 143 == running.wait(SECONDS_MAX), err.read_text()
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()
        served = {topic: read(broker, topic) for topic in RETENTION_MS}
        broker.stop()
    keeplast("copy", str(broker.data), url, *new, *topics)
    output = err.read_text()
    copied, replaced = copies_of(output)
    print(
        f"{version}: {load.sent} records, {load.aborted} transactions aborted in {seconds:g} s; "
        f"rounds of the broker {rounds.count(STEADY)} and {rounds.count(HASTY)}, copies {copied}, "
        f"replaced {replaced}"
    )
    assert "refused" not in output, output
    assert "interrupted" not in output, output
    assert "skipped until" not in output, output
    assert 0 == replaced[STEADY], output
    assert min(rounds.count(topic) for topic in RETENTION_MS) > 0
    assert min(copied[STEADY], replaced[HASTY]) > 0, output
    keeplast("verify", url)
    keeplast("export", url, "--as", "log", "--to", str(tmp_path / "export"))
    shutil.copytree(broker.root, tmp_path / "other")
    other = Broker(version, tmp_path / "other", {**PROPERTIES, "log.cleaner.enable": "false"})
    for topic in RETENTION_MS:
        shutil.rmtree(other.data / f"{topic}-0")
        (tmp_path / "export" / f"{topic}-0").rename(other.data / f"{topic}-0")
    with other:
        for topic in RETENTION_MS:
            assert load.latest[topic] == final_state(served[topic]), topic
            found = read(other, topic)
            assert load.latest[topic] == final_state(found), topic
            values = [value for _, _, value in found if value is not None]
            assert not [value for value in values if value.startswith(b"ABORTED")], topic
