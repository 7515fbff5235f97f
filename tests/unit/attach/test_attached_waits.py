"""Tombstones of an attached topic wait for groups by the answers of brokers, and not for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.errors import RefusedError
from keeplast.log.append import NewRecord
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from tests.support.attached_tier import PARTITION
from tests.support.group_cluster import GroupCluster
from tests.support.log_builder import LogBuilder
from tests.unit.attach.test_attached_rounds import MERGING, TOPIC, World

NAME = TopicPartition(PARTITION.topic, PARTITION.partition)
RETENTION_MS, WAIT_MS = 1_000, 10_000
DELETED, REST = 10, 180
WAITS = replace(
    MERGING, delete_retention_ms=RETENTION_MS, tombstones_wait_for_groups=("g",),
    tombstones_wait_max_ms=WAIT_MS,
)  # fmt: skip


def write_deletes(root: Path) -> Path:
    """Write keys that are deleted, a batch each, and after them others that are not deleted."""
    log = LogBuilder(root / "t-0", TOPIC)
    for number in range(2 * DELETED + REST):
        log.now_ms += 1000
        is_delete = DELETED <= number < 2 * DELETED
        key = b"k%d" % (number - DELETED if is_delete else number)
        log.append(NewRecord(key, None if is_delete else b"v" * 100, log.now_ms))
    return log.finish()


class Waiting:
    """A log whose first round has dated its tombstones, and whose horizons have passed."""

    def __init__(self, root: Path) -> None:
        self.world = World(root, write_deletes)
        self.world.clean(WAITS, margin=12_000, expires_below=0)
        self.world.publisher.collect()
        self.dated = self.deletes()
        self.end = self.world.publisher.cleaned_to
        assert set(range(DELETED, 2 * DELETED)) == self.dated
        self.middle = DELETED + DELETED // 2
        self.lower = {each for each in self.dated if each < self.middle}
        self.world.clock.advance(RETENTION_MS)

    def deletes(self) -> set[int]:
        """Return the offsets of tombstones that have a horizon."""
        batches = self.world.tier.read().batches
        return {
            record.offset
            for batch in batches
            if batch.delete_horizon_ms is not None
            for record in batch.records()
            if record.value is None
        }

    def left(self, brokers: GroupReader | None, *, below: int | None = None) -> set[int]:
        """Do a round; return which of those that had passed are left."""
        below = self.end if below is None else below
        self.report = self.world.clean(WAITS, margin=4000, expires_below=below, brokers=brokers)
        return self.deletes() & self.dated


def committed(offset: int | Exception, *, topic_id: bytes = PARTITION.topic_id) -> BrokerGroups:
    """Return a cluster whose group has committed ``offset``, or of which that is the error."""
    groups: dict[str, Mapping[TopicPartition, int] | Exception]
    groups = {"g": offset if isinstance(offset, Exception) else {NAME: offset}}
    return BrokerGroups(GroupCluster({NAME.topic: TopicEnds(topic_id, {0: 1 << 20})}, groups))


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    return Waiting(tmp_path)


def test_tombstones_that_the_group_has_read_go_and_others_stay(waiting: Waiting) -> None:
    assert waiting.dated - waiting.lower == waiting.left(committed(waiting.middle))


@pytest.mark.parametrize(
    ("brokers", "words"),
    [
        (None, "no broker was asked"),
        (committed(RefusedError("it needs Describe on the consumer group g")), "needs Describe"),
        (committed(1 << 21), "beyond the log end"),
        (committed(1 << 19, topic_id=bytes(16)), "another topic of this name"),
    ],
    ids=["no broker", "refused", "beyond", "another"],
)
def test_a_group_without_an_answer_has_read_nothing_and_is_named(
    waiting: Waiting, brokers: GroupReader | None, words: str
) -> None:
    assert waiting.dated == waiting.left(brokers)
    (said,) = [each for each in waiting.report.notes if "wait for readers" in each]
    assert words in said


def test_the_longest_wait_ends_it_but_not_for_what_may_come_back(waiting: Waiting) -> None:
    waiting.world.clock.advance(WAIT_MS)
    assert waiting.dated - waiting.lower == waiting.left(committed(0), below=waiting.middle)


def test_just_before_the_longest_wait_is_over_all_stay(waiting: Waiting) -> None:
    waiting.world.clock.advance(WAIT_MS - 1)
    assert waiting.dated == waiting.left(committed(0))


def test_a_group_that_has_read_all_lets_go_no_more_than_may(waiting: Waiting) -> None:
    assert waiting.dated - waiting.lower == waiting.left(committed(1 << 20), below=waiting.middle)


def test_the_receipt_names_the_groups_that_the_round_waited_for(tmp_path: Path) -> None:
    lines: list[bytes] = []
    World(tmp_path, write_deletes).clean(WAITS, receipt=lines, brokers=committed(7))
    (document,) = map(json.loads, lines)
    assert [("g", 7)] == [(e["group"], e["offset"]) for e in document["readers"]["groups"]]
