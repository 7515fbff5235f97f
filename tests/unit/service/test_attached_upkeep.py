"""Upkeep of attached partitions: one that fails, or whose topic is gone, leaves the others be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from keeplast.attach.held.outputs import BEGUN, SWEPT, work_name
from keeplast.attach.held.publication import Publisher
from keeplast.attach.held.words import KEPT_MS
from keeplast.config.layers import ALL_PARTITIONS
from keeplast.config.mapping import topic_config
from keeplast.errors import CompactionError, FencedError, RefusedError
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.service.attached_upkeep import AttachedUpkeep, collect_one, detach_one
from keeplast.service.upkeep import Orphans, PartitionOutcome, UpkeepTerms
from tests.support.attached_world import (
    CLUSTER_ID,
    PARTITION,
    AttachedWorld,
    CrashError,
    Steps,
    log_of,
)


class Client:
    """The cluster of a world, with what commands ask as well."""

    def __init__(self, world: AttachedWorld) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.cluster, name)

    def read_cluster_id(self) -> str:
        return CLUSTER_ID

    def find_topic_id(self, topic: str) -> bytes | None:
        return self.read_topic_ids({topic}).get(topic)

    def read_topic_ids(self, topics: set[str]) -> dict[str, bytes]:
        topic = self._world.cluster.topic
        return {topic.name: topic.topic_id} if topic.name in topics else {}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AttachedWorld]:
    made = AttachedWorld(tmp_path)
    made.claim().close()
    yield made
    made.close()


TAKING_OVER = UpkeepTerms(takes_over=True)
DETACHING = partial(detach_one, collects=partial(collect_one, grace_ms=0))


def upkeep_of(world: AttachedWorld, client: Client | None = None) -> AttachedUpkeep:
    settings = SimpleNamespace(
        topic_config=lambda topic: topic_config({"cleanup.policy": "compact"})
    )
    made: Any = AttachedUpkeep  # The world stands in for its parts.
    upkeep: AttachedUpkeep = made(
        client or Client(world), world.log(), world.tier, lambda topics: settings, "localhost", 0
    )
    return upkeep


def each(world: AttachedWorld, step: Callable[[Publisher], Mapping[str, Any]]) -> PartitionOutcome:
    """Return what ``step`` makes of the partition."""
    (found,) = upkeep_of(world)._each(ALL_PARTITIONS, TAKING_OVER, step).outcomes
    return found


def collected(world: AttachedWorld, wish: Orphans) -> Mapping[str, Any]:
    (found,) = upkeep_of(world).collect(ALL_PARTITIONS, TAKING_OVER, wish, None).outcomes
    assert found.failure is None
    return found.facts


def detached(world: AttachedWorld, client: Client | None = None) -> PartitionOutcome:
    (found,) = upkeep_of(world, client).detach(ALL_PARTITIONS, TAKING_OVER, None).outcomes
    return found


def test_a_topic_that_was_created_again_ends_no_command(world: AttachedWorld) -> None:
    world.cluster.topic_id = bytes(range(1, 17))
    found = each(world, Mock(side_effect=AssertionError("nothing is done to a topic that is gone")))
    assert (None, True) == (found.failure, found.facts["is_gone"])
    assert [None] == [held.detached_ms for held in world.log().partitions(CLUSTER_ID)]
    assert detached(world).failure is None
    (row,) = world.log().partitions(CLUSTER_ID)
    assert row.detached_ms is not None


def test_a_disk_that_fails_is_an_error_of_its_partition(world: AttachedWorld) -> None:
    found = each(world, Mock(side_effect=OSError(28, "No space left on device", "/mnt/tier/x")))
    at = found.partition
    assert (PARTITION.topic, PARTITION.partition) == (at.topic, at.partition)
    assert isinstance(found.failure, OSError)
    assert found.facts["epoch"] > 0  # What was done before counts.


def test_a_topic_that_is_hidden_is_not_forgotten(world: AttachedWorld) -> None:
    """The list of topics leaves it out; asked by name, brokers say why."""

    class Blind(Client):
        def read_topic_ids(self, topics: set[str]) -> dict[str, bytes]:
            return {}

        def find_topic_id(self, topic: str) -> bytes | None:
            raise RefusedError("the principal may not do that; it needs Describe")

    assert "Describe" in str(detached(world, Blind(world)).failure)
    (row,) = world.log().partitions(CLUSTER_ID)
    assert row.detached_ms is None


def begun_by_a_round_that_ended(world: AttachedWorld) -> tuple[RemoteLogSegment, ...]:
    """Return an output that was written, one of which there is but the word, and a stranger's."""
    log = log_of((0,), 0)
    written, nothing, unknown = made = tuple(world.segment(0, 0, log) for _ in range(3))
    for each in (written, nothing):
        world.tier.put_new(work_name(each.id), BEGUN)
    for each in (written, unknown):
        world.tier.put(each, log)
    return made


def test_a_detach_leaves_nothing_of_what_rounds_have_begun(world: AttachedWorld) -> None:
    served = set(world.tier.segments)
    _, _, unknown = begun_by_a_round_that_ended(world)
    assert detached(world).facts["is_detached"]
    assert served | {unknown.id.segment_id} == set(world.tier.segments)
    assert {} == world.tier.own


def test_a_process_that_was_overtaken_removes_nothing_before_it_detaches(
    world: AttachedWorld,
) -> None:
    begun_by_a_round_that_ended(world)
    overtaken = world.claim()
    world.claim()
    segments, own = set(world.tier.segments), dict(world.tier.own)
    with pytest.raises(FencedError):
        DETACHING(overtaken)
    assert (segments, own) == (set(world.tier.segments), world.tier.own)


def test_a_crash_or_a_rival_at_every_step_of_a_detach_leaves_what_is_served(tmp_path: Path) -> None:
    crash = Mock(side_effect=CrashError)
    counted = Steps()
    for number in range(-1, 200):
        if number >= len(counted.names) > 0:
            break
        root = tmp_path / str(number)
        root.mkdir()
        world = AttachedWorld(root)
        world.claim().close()
        served = set(world.tier.segments)
        _, _, unknown = begun_by_a_round_that_ended(world)

        def rival(world: AttachedWorld = world) -> None:
            world.claim()

        steps = counted if number < 0 else Steps(number, rival if number % 2 else crash)
        try:
            DETACHING(world.claim(steps=steps))
        except (CrashError, CompactionError):
            (row,) = world.log().partitions(CLUSTER_ID)
            if row.detached_ms is None:
                assert DETACHING(world.claim())["is_detached"]
        assert served | {unknown.id.segment_id} == set(world.tier.segments)
        assert not [each for each in world.tier.own if each.startswith("work/")]
        world.close()
    assert len(counted.names) > 30


def test_what_a_round_has_begun_goes_by_collection_too_and_a_list_removes_nothing(
    world: AttachedWorld,
) -> None:
    served = set(world.tier.segments)
    written, nothing, unknown = begun_by_a_round_that_ended(world)
    found = {}
    for wish in (Orphans.LIST, Orphans.COLLECT):
        before = set(world.tier.segments)
        found[wish] = collected(world, wish)
        assert 1 == found[wish]["unknown_segments"]
        if wish is Orphans.LIST:
            assert before == set(world.tier.segments)
    assert served | {unknown.id.segment_id} == set(world.tier.segments)
    assert SWEPT == world.tier.own[work_name(written.id)]
    assert BEGUN == world.tier.own[work_name(nothing.id)]
    assert (1, 2) == tuple(found[wish]["unwritten_waiting"] for wish in found)


def test_words_that_are_due_are_reported_when_they_go(world: AttachedWorld) -> None:
    _, nothing, _ = begun_by_a_round_that_ended(world)
    world.clock.advance(KEPT_MS)
    row = collected(world, Orphans.COLLECT)
    assert (1, 1) == (row["unwritten_removed"], row["unwritten_waiting"])
    assert work_name(nothing.id) not in world.tier.own
