"""The state of a live topic's partition from Python; no cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import keeplast
from keeplast.api import attached_state as api
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.errors import InvalidError, RefusedError
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import asked_world, end_of, state_up_to
from tests.support.group_cluster import GroupCluster
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import MERGING

ORDERS = keeplast.TopicPartition(PARTITION.topic, PARTITION.partition)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedWorld]:
    """A partition that was compacted once."""
    with asked_world(tmp_path_factory.mktemp("world"), api) as made:
        yield made


def state(world: VerifiedWorld, **point: object) -> dict[bytes, object]:
    given: dict[str, object] = {
        "storage": "local:/x", "store": f"sqlite:///{world.world.root / 'decisions.db'}", **point,
    }  # fmt: skip
    found = keeplast.attached_state("127.0.0.1:1", ORDERS, MERGING, **given)  # type: ignore[arg-type]
    return {key: each.value for key, each in found.items()}


def test_the_state_is_that_of_the_log_up_to_where_brokers_have_copied_it(
    world: VerifiedWorld,
) -> None:
    end = end_of(world)
    assert state_up_to(world, end) == state(world) == state(world, end_offset=end)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"end_offset": 5}, "cleaned_to="),
        ({"end_offset": 10**6}, "with the brokers alone"),
        ({"as_of_ms": 10**15}, "with the brokers alone"),
    ],
)
def test_points_whose_state_cannot_be_shown_are_refused(
    world: VerifiedWorld, point: dict[str, object], words: str
) -> None:
    with pytest.raises(RefusedError, match=words):
        state(world, **point)


def test_a_group_is_asked_of_the_brokers(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = end_of(world)
    topic = TopicEnds(PARTITION.topic_id, {0: world.cluster.log.end})
    groups = GroupCluster({ORDERS.topic: topic}, {"readers": {ORDERS: end}})
    for name in ("find_ends", "read_group_offsets"):
        monkeypatch.setattr(
            type(world.consumers), name, staticmethod(getattr(groups, name)), raising=False
        )
    assert state_up_to(world, end) == state(world, end_group="readers")
    with pytest.raises(InvalidError, match="end_group='others'"):
        state(world, end_group="others")
    with pytest.raises(InvalidError, match="one point at a time"):
        state(world, end_group="readers", end_offset=end)


def test_a_missing_place_or_partition_is_named(world: VerifiedWorld, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no such decision log"):
        state(world, store=f"sqlite:///{tmp_path / 'none.db'}")
    missing = keeplast.TopicPartition(ORDERS.topic, 7)
    with pytest.raises(InvalidError, match="no such partition in the cluster"):
        keeplast.attached_state("127.0.0.1:1", missing, storage="local:/x")
