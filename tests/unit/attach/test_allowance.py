"""What of a day's swaps and records was spent is what the decision log says, of all hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from keeplast.attach.held.publication import Publisher
from keeplast.attach.rounds.attached_place import DAY_MS, Allowance, DaySum
from keeplast.attach.upkeep.replaced_segments import collect, repair
from keeplast.errors import StoppedError
from tests.support.attached_world import CLUSTER_ID, AttachedWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AttachedWorld]:
    with closing(AttachedWorld(tmp_path, segments=6)) as made:
        yield made


def spent(world: AttachedWorld, cluster_id: str = CLUSTER_ID) -> DaySum:
    return Allowance(world.log(), cluster_id, DaySum(1, 1)).spent()


def test_a_swap_counts_once_with_all_records_that_it_will_ever_cost(
    publisher: Publisher, world: AttachedWorld
) -> None:
    assert DaySum(0, 0) == spent(world)
    publisher.decide_and_publish(world.swap(publisher, 0, 2))
    before = len(world.cluster.values)
    assert DaySum(1, 6) == spent(world)
    world.clock.advance(1000)
    collect(publisher, 1000)
    # Two sources' deletions have ended, which was counted before.
    assert 2 == len(world.cluster.values) - before
    assert DaySum(1, 6) == spent(world)
    assert DaySum(0, 0) == spent(world, "another cluster")


def test_announced_segments_that_were_taken_back_count_too(
    publisher: Publisher, world: AttachedWorld
) -> None:
    before = len(world.cluster.values)
    world.write_output(publisher, world.served()[:2])
    publisher.close()
    again = world.claim()
    repair(again)
    assert DaySum(0, 3) == spent(world)
    assert 3 == len(world.cluster.values) - before


def test_after_a_day_it_counts_no_more(world: AttachedWorld) -> None:
    publisher = world.swapped(0, 2)
    world.clock.advance(DAY_MS)
    assert DaySum(1, 6) == spent(world)
    publisher.decide_and_publish(world.swap(publisher, 1, 3))
    world.clock.advance(1)
    assert DaySum(1, 6) == spent(world)


def test_a_round_waits_that_would_not_fit_and_one_too_large_for_any_day_begins_on_a_fresh_one(
    publisher: Publisher, world: AttachedWorld
) -> None:
    log = world.log()
    Allowance(log, CLUSTER_ID, DaySum(1, 10)).begin(1000)
    with pytest.raises(StoppedError, match="asked=2"):
        Allowance(log, CLUSTER_ID, DaySum(1, 1)).begin(1000)
    swap = world.swap(publisher, 0, 2)
    with pytest.raises(StoppedError, match="--records-per-day"):
        Allowance(log, CLUSTER_ID, DaySum(1, 5)).take(swap)
    # Its output was announced already here, and is counted as one that may be taken back.
    Allowance(log, CLUSTER_ID, DaySum(1, 9)).take(swap)
    publisher.decide_and_publish(swap)
    with pytest.raises(StoppedError, match="swaps=1 of 1"):
        Allowance(log, CLUSTER_ID, DaySum(1, 100)).take(swap)
    with pytest.raises(StoppedError, match="records=6 of 10"):
        Allowance(log, CLUSTER_ID, DaySum(2, 10)).begin(3)
    Allowance(log, CLUSTER_ID, DaySum(2, 10)).begin(2)


def test_waits_are_reported_by_partition(publisher: Publisher, world: AttachedWorld) -> None:
    log, row = world.log(), publisher.held.row_id
    assert {} == log.counts.waiting(CLUSTER_ID)
    swap = world.swap(publisher, 0, 2)
    assert log.counts.waiting(CLUSTER_ID)[row].is_undone
    publisher.decide_and_publish(swap)
    published_ms = world.clock.now_ms()
    found = log.counts.waiting(CLUSTER_ID)[row]
    assert (False, ((published_ms, 0),)) == (found.is_undone, found.published)
    collect(publisher, 0)
    assert {} == log.counts.waiting(CLUSTER_ID)
