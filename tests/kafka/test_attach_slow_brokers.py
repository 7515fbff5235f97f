"""Brokers whose own requests to the remote tier are slow: a tenth of a second before each.

Their plugin is Kafka's LocalTieredStorage behind a wait (``slow_storage/SlowStorage.java``), which
keeplast is to take for it. A slow compactor is in :mod:`tests.kafka.test_attach_cluster`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from keeplast.cluster import check
from tests.kafka.broker import VERSIONS, Broker, broker_libs, tiered_broker
from tests.kafka.test_attach import create
from tests.kafka.test_attach_rounds import WISH, wait_until_remote
from tests.support.acknowledged import Acknowledged, Watch
from tests.support.live_rounds import LiveCompactor
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

PLUGIN = "SlowStorage"
SOURCE = Path(__file__).resolve().parent / "slow_storage" / f"{PLUGIN}.java"
WAIT_MS = 100
TOPIC = "slow"
RECORDS = 3000


class Slow(Struct, frozen=True):
    """A broker that waits before each request, and the file that grows with each."""

    broker: Broker
    requests: Path

    def count(self) -> int:
        """Return how many requests the broker has sent."""
        return self.requests.stat().st_size


@pytest.fixture(params=VERSIONS)
def slow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Slow]:
    classes, requests = tmp_path / "classes", tmp_path / "requests"
    subprocess.run(
        ["javac", "-cp", f"{broker_libs(request.param)}/*", "-d", str(classes), str(SOURCE)],
        check=True, capture_output=True,
    )  # fmt: skip
    root = tmp_path / "broker"
    settings = {
        "remote.log.storage.manager.class.name": PLUGIN,
        "rsm.config.slow.ms": str(WAIT_MS),
        "rsm.config.slow.requests": str(requests),
    }
    with tiered_broker(request.param, root, settings, classes=classes) as running:
        create(running, TOPIC, 1)
        yield Slow(running, requests)


def test_readers_get_the_same_from_brokers_whose_storage_is_slow(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P16: during a round, and while objects without a reader are collected."""
    monkeypatch.setattr(check, "STORAGE_MANAGERS", (*check.STORAGE_MANAGERS, PLUGIN))
    broker, acknowledged = slow.broker, Acknowledged(slow.broker.address, TOPIC)
    compactor = LiveCompactor(broker.address, broker.root / "meta.db", broker.root / "remote")
    for _ in range(2):
        acknowledged.send(0, RECORDS)
        acknowledged.send_in_transactions(0, 6)
        wait_until_remote(broker, compactor, TOPIC)
        sent, before, watch = acknowledged.count(0), slow.count(), Watch(acknowledged, 0)
        compactor.clean(TOPIC, WISH)
        # The grace is for reads that began before, and for brokers that hear of a swap late.
        wait_until(lambda sent=sent: acknowledged.judge(0) < 0.7 * sent)  # type: ignore[misc]
        assert 0 < watch.stop()
        watch = Watch(acknowledged, 0)
        compactor.collect(TOPIC)
        assert 0 < watch.stop()
        assert before + 20 < slow.count()
    found = compactor.status(TOPIC)
    assert ((), 0, 0) == (found.holes, found.copying.count, found.deleting.count)
