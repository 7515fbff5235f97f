"""Sources stay as long as their decision says, with any collector."""

from __future__ import annotations

from msgspec.structs import replace

from keeplast.attach.upkeep.replaced_segments import CollectedSources, collect
from tests.support.attached_world import AttachedWorld

GRACE_MS, KEEP_MS = 1000, 60_000


def swap_kept(world: AttachedWorld, keep_ms: int) -> None:
    """Publish a swap on terms that keep its sources."""
    publisher = world.claim()
    publisher.terms = replace(publisher.terms, keep_sources_ms=keep_ms)
    decision = publisher.decide_and_publish(world.swap(publisher))
    assert keep_ms == decision.keep_ms
    publisher.close()


def collect_after(world: AttachedWorld, passed_ms: int, grace_ms: int) -> CollectedSources:
    """Collect as another host would, which knows nothing but the decision log."""
    world.clock.advance(passed_ms)
    publisher = world.claim(world.log())
    found = collect(publisher, grace_ms)
    publisher.close()
    return found


def test_another_host_with_a_shorter_grace_waits(world: AttachedWorld) -> None:
    swap_kept(world, KEEP_MS)
    found = collect_after(world, GRACE_MS, GRACE_MS)
    assert (0, 1) == (found.decisions, found.waiting)
    found = collect_after(world, KEEP_MS - GRACE_MS - 1, 0)
    assert (0, 1) == (found.decisions, found.waiting)
    found = collect_after(world, 1, GRACE_MS)
    assert (1, 0) == (found.decisions, found.waiting)


def test_keeping_for_less_than_the_grace_shortens_nothing(world: AttachedWorld) -> None:
    swap_kept(world, GRACE_MS // 2)
    found = collect_after(world, GRACE_MS - 1, GRACE_MS)
    assert (0, 1) == (found.decisions, found.waiting)
    assert 1 == collect_after(world, 1, GRACE_MS).decisions


def test_brokers_that_may_be_behind_are_asked_when_something_is_due_and_hold_it_back(
    world: AttachedWorld,
) -> None:
    swap_kept(world, 0)
    asked: list[tuple[int, int]] = []
    answers = ["a broker lacks 4 records", None]

    def why_wait(partition: int, replicas: int) -> str | None:
        asked.append((partition, replicas))
        return answers[len(asked) - 1]

    before = set(world.tier.segments)
    for passed_ms, held_back in ((1, None), (GRACE_MS, answers[0])):
        world.clock.advance(passed_ms)
        publisher = world.claim(world.log())
        found = collect(publisher, GRACE_MS, why_wait=why_wait)
        publisher.close()
        assert (0, 1, held_back) == (found.decisions, found.waiting, found.held_back)
        assert before == set(world.tier.segments)
    assert [(0, 3)] == asked
    publisher = world.claim(world.log())
    found = collect(publisher, GRACE_MS, why_wait=why_wait)
    assert (1, 0, None) == (found.decisions, found.waiting, found.held_back)
    assert 2 == len(asked)


def test_a_partition_is_not_given_up_while_sources_are_kept(world: AttachedWorld) -> None:
    from functools import partial

    from keeplast.cli.show.upkeep import upkeep_lines
    from keeplast.clock import time_text
    from keeplast.model.partition import TopicPartition
    from keeplast.service.attached_upkeep import collect_one, detach_one
    from keeplast.service.upkeep import PartitionOutcome, UpkeepReport

    swap_kept(world, KEEP_MS)
    world.clock.advance(GRACE_MS)
    publisher = world.claim()
    found = detach_one(publisher, partial(collect_one, grace_ms=GRACE_MS))
    assert (1, False) == (found["waiting"], found["is_detached"])
    left_ms = KEEP_MS - GRACE_MS
    assert world.clock.now_ms() + left_ms == found["waiting_until_ms"]
    report = UpkeepReport((PartitionOutcome(TopicPartition("t", 0), found),))
    (words,) = upkeep_lines(report)
    date = time_text(world.clock.now_ms() + left_ms)[:19]
    assert f"t-0: 1 waiting for the grace, the first until {date}, still attached" == words
