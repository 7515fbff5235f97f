"""P16 for long: readers that begin at offset 0 again and again while rounds and collections run.

By ``make soak-readers``, which says for how long. One broker, a topic after the other, eight rounds
each, every other one collected at once, without a grace. One reader asks for as much as librdkafka
does, the other one for little. What they get is judged by what was acknowledged; who stalls is an
error of :func:`tests.support.acknowledged.read_all`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kafka.broker import Broker, tiered_broker
from tests.kafka.test_attach import create
from tests.kafka.test_attach_rounds import WISH, wait_until_remote
from tests.support.acknowledged import Acknowledged, Watch
from tests.support.live_rounds import LiveCompactor

pytestmark = pytest.mark.kafka

VERSION = "3.9.1"
"""On which an early run stopped once."""
ROUNDS = 8
FIRST_RECORDS, MORE_RECORDS = 5000, 1500
LITTLE_BYTES = 3_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with tiered_broker(VERSION, tmp_path) as running:
        yield running


def test_readers_get_the_same_over_many_topics(broker: Broker, pytestconfig: pytest.Config) -> None:
    """P16."""
    seconds = 60 * float(pytestconfig.getoption("--soak-minutes"))
    seed, began = int(pytestconfig.getoption("--soak-seed")), time.monotonic()
    compactor = LiveCompactor(broker.address, broker.root / "meta.db", broker.root / "remote")
    counts: Counter[str] = Counter()
    longest = 0.0
    while time.monotonic() < began + seconds or not counts["topics"]:
        topic = f"read-{counts['topics']}"
        longest = max(longest, go_through(broker, compactor, topic, seed, counts))
        counts["topics"] += 1
        seed += 1
    print(f"\n{VERSION}, {time.monotonic() - began:.0f} s: {dict(counts)}")
    print(f"the longest whole read in both isolation levels took {longest:.1f} s")
    assert ROUNDS * counts["topics"] == counts["swaps"]


def go_through(
    broker: Broker, compactor: LiveCompactor, topic: str, seed: int, counts: Counter[str]
) -> float:
    """Have a topic compacted again and again; return how long the longest read took."""
    create(broker, topic, 1)
    acknowledged = Acknowledged(broker.address, topic, seed)
    little = replace(acknowledged, fetch_bytes=LITTLE_BYTES)
    longest = 0.0
    for number in range(ROUNDS):
        acknowledged.send(0, MORE_RECORDS if number else FIRST_RECORDS)
        acknowledged.send_in_transactions(0, 4)
        wait_until_remote(broker, compactor, topic)
        watches = [Watch(each, 0) for each in (acknowledged, little)]
        try:
            report = compactor.clean(topic, WISH)
            counts["swaps"] += bool(report.groups)
            if number % 2:
                compactor.collect(topic)
                counts["collections"] += 1
        finally:
            reads = [each.stop() for each in watches]
        for name, count in zip(("reads", "reads of little at a time"), reads, strict=True):
            counts[name] += count
        longest = max(longest, *(each.seconds_max for each in watches))
    return longest
