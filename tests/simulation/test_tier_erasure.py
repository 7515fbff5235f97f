"""``erased_by`` of a tiered log: from then on an old value is in no object and on no disk.

A leader and a follower with random pauses between their passes, each within its pace. Values are
unique tokens in uncompressed batches, so that bytes show it. What was overwritten when the bound
was asked for is looked for in every object and every local file once the bound has passed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.host.partition_host import PartitionHost
from keeplast.log.append import NewRecord
from keeplast.store.erasure import TierPace
from keeplast.tier.metadata.collection import collect
from keeplast.tier.objects.object_store import partition_prefix
from tests.support.hosts import TOPIC, Cluster
from tests.support.partition_maker import PARTITION

MINUTE_MS = 60_000
PACE = TierPace(
    every_ms=10 * MINUTE_MS, round_ms=MINUTE_MS, grace_ms=20 * MINUTE_MS,
    garbage_age_ms=30 * MINUTE_MS,
)  # fmt: skip
LAG_MS = 60 * MINUTE_MS
KEYS = 5


@dataclass
class Erasures:
    """Two hosts, the tokens that count, and by when which are gone."""

    cluster: Cluster
    dice: random.Random
    newest: dict[bytes, bytes] = field(default_factory=dict)
    due: list[tuple[int, set[bytes]]] = field(default_factory=list)
    old: set[bytes] = field(default_factory=set)
    written: int = 0
    checked: int = 0

    def write(self, leader: PartitionHost, follower: PartitionHost) -> None:
        """Write a few records, some of which delete, and replicate them."""
        for _ in range(self.dice.randint(0, 6)):
            self.written += 1
            key = b"k%d" % self.dice.randrange(KEYS)
            token = b"<%06d>" % self.written
            value = None if self.dice.random() < 0.2 else token
            now_ms = self.cluster.clock.now_ms()
            leader.append([NewRecord(key, value, now_ms)])
            if key in self.newest:
                self.old.add(self.newest.pop(key))
            if value is not None:
                self.newest[key] = token
        leader.acknowledge(leader.log_end_offset)
        while follower.log_end_offset < leader.log_end_offset:
            found = leader.fetch(follower.log_end_offset)
            follower.replicate(found.data, high_watermark=leader.high_watermark)

    def found(self) -> bytes:
        """Return all bytes that anybody still holds."""
        state = self.cluster.store.load(PARTITION)
        parts = [
            bytes(self.cluster.objects.read_range(each.key, 0, each.size_bytes))
            for each in self.cluster.objects.list(partition_prefix(PARTITION, state.topic_id))
        ]
        parts += [
            path.read_bytes()
            for name in "ab"
            for path in (self.cluster.root / name / str(PARTITION)).iterdir()
        ]
        return b"".join(parts)

    def check(self) -> None:
        """Look for what should be gone by now."""
        now_ms = self.cluster.clock.now_ms()
        for by_ms, tokens in [each for each in self.due if each[0] <= now_ms]:
            held = self.found()
            assert not {token for token in tokens if token in held}
            self.due.remove((by_ms, tokens))
            self.checked += len(tokens)


def do_pass(world: Erasures, host: PartitionHost, *, leads: bool) -> None:
    """Do what a host does with a partition in one pass."""
    host.roll_idle()
    if leads:
        host.copy()
    host.clean(world.cluster.runner, grace_ms=PACE.grace_ms)
    if leads:
        collect(
            world.cluster.store, world.cluster.objects, PARTITION, epoch=host.epoch,
            garbage_age_ms=PACE.garbage_age_ms, clock=world.cluster.clock,
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_overwritten_values_are_gone_from_both_tiers(tmp_path: Path, seed: int) -> None:
    topic = replace(TOPIC, max_compaction_lag_ms=LAG_MS, delete_retention_ms=0, segment_bytes=700)
    cluster = Cluster(tmp_path, topic)
    dice = random.Random(seed)
    a, b = cluster.host("a"), cluster.host("b")
    a.become_leader(0)
    world = Erasures(cluster, dice)
    turns = [0, 0]
    for _ in range(90):
        cluster.clock.advance(MINUTE_MS)
        if dice.random() < 0.2:
            world.write(a, b)
        for i, host in enumerate((a, b)):
            turns[i] -= MINUTE_MS
            if turns[i] <= 0:
                do_pass(world, host, leads=host is a)
                turns[i] = dice.randint(1, PACE.every_ms // MINUTE_MS) * MINUTE_MS
        if dice.random() < 0.05 and world.old:
            found = a.erased_by(PACE)
            assert found.by_ms is not None, found.why
            world.due.append((found.by_ms, set(world.old)))
            world.old.clear()
        world.check()
    while world.due:
        cluster.clock.advance(PACE.every_ms)
        for host in (a, b):
            do_pass(world, host, leads=host is a)
        world.check()
    assert world.checked > 0
    assert {token for token in world.newest.values() if token not in world.found()} == set()
    cluster.store.close()
