"""The decision log forgets what nothing needs, and nothing else; it stays bounded."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keeplast.attach.held.publication import Publisher
from keeplast.attach.proof.published_swaps import check_swaps
from keeplast.attach.rounds.attached_place import DAY_MS, Allowance, DaySum
from keeplast.attach.upkeep import replaced_segments
from keeplast.attach.upkeep.replaced_segments import DECISIONS_KEPT_MS, collect, prune, repair
from keeplast.errors import FencedError
from keeplast.inspect.verified_log import Findings
from keeplast.tier.state.attached import DecisionState
from tests.support.attached_world import CLUSTER_ID, AttachedWorld

GRACE_MS = 1000
WORLD_SEGMENTS = 4


def swap(world: AttachedWorld, first: int = 0, last: int = 2, outputs: int = 1) -> Publisher:
    """Replace and collect, as a process that comes and goes."""
    publisher = world.swapped(first, last, outputs)
    world.clock.advance(GRACE_MS)
    assert 1 == collect(publisher, GRACE_MS).decisions
    publisher.close()
    return publisher


def rows(world: AttachedWorld) -> tuple[int, int]:
    """Return how many decisions there are, and ids."""
    log = world.log()
    (known,) = log.partitions(CLUSTER_ID)
    return len(log.decisions(known)), len(log.own_segments(known))


def problems(world: AttachedWorld) -> list[Any]:
    """Return what verify finds wrong with the swaps."""
    publisher = world.claim()
    publisher.close()
    log, (known,) = publisher.log, publisher.log.partitions(CLUSTER_ID)
    found = Findings()
    own = {each.segment_id for each in log.own_segments(known)}
    check_swaps(
        found, cast(Any, world.tier), log, publisher.look().cache, known, log.decisions(known),
        own, world.cluster.log.start,
    )  # fmt: skip
    return list(found.first)


def test_a_decision_goes_when_it_is_old_and_nothing_of_it_is_there(world: AttachedWorld) -> None:
    swap(world, last=2)
    world.clock.advance(DECISIONS_KEPT_MS + 1)
    # Old, but its output is what brokers serve.
    publisher = world.claim()
    assert 0 == prune(publisher)
    assert (1, 1) == rows(world)
    # Collecting what took its place forgets it: the one that did that is not old.
    swap(world, last=2)
    assert (1, 1) == rows(world)
    (known,) = world.log().partitions(CLUSTER_ID)
    (left,) = world.log().decisions(known)
    assert [each.id for each in world.served()[:1]] == [each.id for each in left.outputs]
    assert [] == problems(world)
    with pytest.raises(FencedError):
        publisher.log.prune(publisher.held, [left.id])


def test_a_decision_that_waits_is_never_forgotten(world: AttachedWorld) -> None:
    swap(world, last=2)
    publisher = world.claim()
    decision = publisher.decide_and_publish(world.swap(publisher))
    world.clock.advance(2 * DECISIONS_KEPT_MS)
    assert 0 == prune(publisher)
    publisher.log.prune(publisher.held, [decision.id])
    assert (2, 2) == rows(world)


def test_one_of_several_outputs_that_is_there_keeps_its_decision_and_no_later_one(
    world: AttachedWorld,
) -> None:
    """Its other output was replaced by one that is forgotten; that is no loss."""
    swap(world, last=4, outputs=2)
    for _ in range(3):
        world.upload(world.cluster.log.end, world.cluster.log.end + 9)
        world.clock.advance(DECISIONS_KEPT_MS + 1)
        swap(world, 1, 3)
    assert (2, 3) == rows(world)
    assert [] == problems(world)


def test_the_log_is_bounded_and_goes_on_as_before(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = 6
    monkeypatch.setattr(replaced_segments, "DECISIONS_KEPT_MS", days * DAY_MS)
    counts = []
    for _ in range(3 * days):
        world.upload(world.cluster.log.end, world.cluster.log.end + 9)
        world.clock.advance(DAY_MS)
        publisher = swap(world)
        counts.append(rows(world))
    assert max(counts) <= (days + 2, days + 2)
    assert counts[-1] == counts[-2]
    assert [] == problems(world)
    # A day's caps have what was decided within it.
    spent = Allowance(publisher.log, CLUSTER_ID, DaySum(9, 99)).spent()
    assert DaySum(1, 6) == spent
    assert repair(world.claim()) == repair(world.claim())
    world.settle()


def test_a_metadata_topic_that_lost_its_newest_swaps_is_mended_all_the_same(
    world: AttachedWorld,
) -> None:
    swap(world)
    world.clock.advance(DECISIONS_KEPT_MS + 1)
    before = len(world.cluster.values)
    swap(world)
    assert (1, 1) == rows(world)
    # Put back to an earlier time, which is not as long ago.
    served = [each.id for each in world.served()]
    del world.cluster.values[before:]
    world.cluster.leader_epoch += 1
    publisher = world.claim(accepts_metadata=True)
    assert 1 == repair(publisher, accepts_metadata=True).published_again
    publisher.close()
    assert served == [each.id for each in world.served()]
    states = {each.state for each in publisher.log.decisions(publisher.held)}
    assert {DecisionState.COLLECTING} == states
    world.settle()
