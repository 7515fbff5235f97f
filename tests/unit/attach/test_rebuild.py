"""A decision log that is lost, or older than the cluster, is made again from what brokers read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from keeplast.attach.held.publication import Publisher
from keeplast.attach.rules.swap import batch_of
from keeplast.attach.upkeep.rebuild import Rebuilt, is_compacted, rebuild
from keeplast.attach.upkeep.replaced_segments import collect, repair
from keeplast.errors import (
    CompactionError,
    ConflictError,
    FencedError,
    RefusedError,
)
from keeplast.format.remote_log_metadata import RemoteLogSegmentState
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName, Decision, DecisionState, mark_of
from tests.support.attached_world import (
    BROKER,
    CLUSTER_ID,
    PARTITION,
    TERMS,
    AttachedWorld,
    CrashError,
    Stepping,
    Steps,
    log_of,
    moved,
)
from tests.support.existing import existing
from tests.support.turns import Turn

GRACE_MS = 1000
NAME = AttachedName(CLUSTER_ID, PARTITION)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AttachedWorld]:
    with closing(AttachedWorld(tmp_path, segments=7)) as made:
        yield made


def worked(world: AttachedWorld, name: str = "decisions.db") -> Publisher:
    """Swap and collect, swap the output again, swap elsewhere, and leave an output undecided."""
    publisher = world.claim(world.log(name))
    publisher.decide_and_publish(world.swap(publisher))
    world.clock.advance(GRACE_MS)
    collect(publisher, GRACE_MS)
    publisher.decide_and_publish(world.swap(publisher, 0, 2))
    world.clock.advance(10)
    publisher.decide_and_publish(world.swap(publisher, 1, 3, outputs=2))
    world.write_output(publisher, world.served()[3:4])
    publisher.close()
    return publisher


def rebuilt(
    world: AttachedWorld, name: str = "new.db", steps: Steps | None = None, **options: Any
) -> tuple[Publisher, Rebuilt]:
    parts: tuple[Any, ...] = (world.cluster, world.log(name), world.tier)
    if steps is not None:
        parts = tuple(Stepping(each, steps) for each in parts)
    return rebuild(
        parts[0], cast(DecisionLog, parts[1]), parts[2], PARTITION, CLUSTER_ID, TERMS,
        **{"grace_ms": GRACE_MS, "takes_over": True, **options},
    )  # fmt: skip


def contents(decisions: tuple[Decision, ...]) -> list[object]:
    """Return what does not depend on which log has it."""
    return [
        (
            batch_of(each).values, each.epoch, each.state, each.first_offset, each.last_offset,
            each.decided_ms, [source.id for source in each.sources],
            [(output.id, output.start_offset, output.size_bytes) for output in each.outputs],
        )
        for each in decisions
    ]  # fmt: skip


def test_a_lost_log_is_written_again_and_goes_on(world: AttachedWorld) -> None:
    old = worked(world)
    with pytest.raises(RefusedError, match="--rebuild"):
        world.claim(world.log("new.db"))
    world.clock.advance(GRACE_MS)
    publisher, found = rebuilt(world)
    assert Rebuilt(3, 2) == found
    assert contents(old.log.decisions(old.held)) == contents(
        publisher.log.decisions(publisher.held)
    )
    assert publisher.epoch > old.epoch
    assert 1 == repair(publisher).discarded
    objects = set(world.tier.segments)
    assert (0, 2) == ((done := collect(publisher, GRACE_MS)).decisions, done.waiting)
    assert objects == set(world.tier.segments)
    world.clock.advance(GRACE_MS)
    assert (2, 0) == ((done := collect(publisher, GRACE_MS)).decisions, done.waiting)
    publisher.decide_and_publish(world.swap(publisher))
    world.clock.advance(GRACE_MS)
    collect(publisher, GRACE_MS)
    publisher.close()
    world.require_readable()
    with pytest.raises(RefusedError, match="--rebuild"):
        world.claim()


def test_a_process_with_the_lost_log_is_fenced_at_its_next_step(world: AttachedWorld) -> None:
    old = world.swapped()
    swap = world.swap(old, 1, 3)
    world.clock.advance(GRACE_MS)
    publisher, _ = rebuilt(world)
    with pytest.raises(RefusedError, match="another decision log owns"):
        old.decide_and_publish(swap)
    objects = set(world.tier.segments)
    with pytest.raises(RefusedError, match="another decision log owns"):
        collect(old, 0)
    assert objects == set(world.tier.segments)
    assert 1 == repair(publisher).discarded
    world.require_readable()


def test_an_older_log_is_refused_and_goes_on_from_what_it_lacks(world: AttachedWorld) -> None:
    world.swapped().close()
    world.close()
    world.copy_log("decisions.db", "backup.db")
    later = world.swapped(0, 2)
    world.clock.advance(GRACE_MS)
    collect(later, GRACE_MS)
    later.close()
    world.clock.advance(GRACE_MS)
    with pytest.raises(RefusedError, match="--rebuild"):
        world.claim(world.log("backup.db"))
    publisher, found = rebuilt(world, "backup.db")
    assert Rebuilt(1, 0) == found
    repair(publisher)
    collect(publisher, GRACE_MS)
    states = [each.state for each in publisher.log.decisions(publisher.held)]
    assert [DecisionState.COLLECTED] * 2 == states
    publisher.close()
    world.require_readable()


def test_an_output_that_is_live_without_a_decision_is_an_older_logs(world: AttachedWorld) -> None:
    publisher, swap = world.prepared()
    publisher.close()
    world.close()
    world.copy_log("decisions.db", "backup.db")
    # All of it under one epoch: the owner object cannot show it.
    log = world.log()
    log._transactions.holder = publisher.log.holder  # the very process
    publisher.log = log
    publisher.decide_and_publish(swap)
    backup = world.log("backup.db")
    with pytest.raises(RefusedError, match="does not know"):
        world.claim(backup)
    world.clock.advance(GRACE_MS)
    again, found = rebuilt(world, "backup.db")
    assert Rebuilt(1, 1) == found
    assert 0 == repair(again).discarded
    world.clock.advance(GRACE_MS)
    assert 1 == collect(again, GRACE_MS).decisions
    again.close()
    world.require_readable()


def test_a_crash_at_every_step_of_it_is_ended_by_doing_it_again(tmp_path: Path, turn: Turn) -> None:
    def story(world: AttachedWorld, steps: Steps | None = None) -> None:
        publisher, _ = rebuilt(world, steps=steps)
        repair(publisher)
        publisher.close()

    def new(name: str) -> AttachedWorld:
        root = tmp_path / name
        root.mkdir()
        world = AttachedWorld(root, segments=7)
        worked(world)
        world.clock.advance(GRACE_MS)
        return world

    counted = Steps()
    world = new("count")
    story(world, counted)
    world.close()
    names = counted.names
    assert {"claim", "replace_own", "restore"} <= set(names)
    looks = ("read", "find", "list", "decisions", "own_segments", "store_id", "check")
    changes = [at for at, name in enumerate(names) if not name.startswith(looks)]
    for number in (each for position, each in enumerate(changes) if turn.takes(position, 5)):
        world = new(str(number))
        with pytest.raises(CrashError):
            story(world, Steps(number, Mock(side_effect=CrashError), world.require_readable))
        world.clock.advance(GRACE_MS)
        story(world)
        world.clock.advance(GRACE_MS)
        publisher = world.claim(world.log("new.db"))
        collect(publisher, GRACE_MS)
        publisher.close()
        world.require_readable()
        known = world.cluster.cache()
        assert {RemoteLogSegmentState.COPY_SEGMENT_FINISHED} == {e.state for e in known.segments}
        assert {each.id.segment_id for each in known.segments} == set(world.tier.segments)
        world.close()


def test_two_that_rebuild_at_once_leave_one_owner(tmp_path: Path, turn: Turn) -> None:
    ends = set()
    counted = Steps()
    for number in (each for each in range(-1, 40) if each < 0 or turn.takes(each, 3)):
        root = tmp_path / str(number)
        root.mkdir()
        world = AttachedWorld(root, segments=7)
        worked(world)
        world.clock.advance(GRACE_MS)
        if number >= len(counted.names) and counted.names:
            world.close()
            break

        def rival(world: AttachedWorld = world) -> None:
            rebuilt(world, "other.db")

        steps = counted if number < 0 else Steps(number, rival)
        try:
            publisher, _ = rebuilt(world, steps=steps)
            repair(publisher)
            ends.add("done")
        except (ConflictError, FencedError, RefusedError) as error:
            ends.add(type(error).__name__)
        world.require_readable()
        owner = publisher.owner.find() if number < 0 else None
        assert number >= 0 or (owner is not None and owner.epoch == publisher.epoch)
        world.close()
    assert {"done", "ConflictError"} <= ends


def test_nothing_is_taken_from_a_process_that_was_at_work_a_moment_ago(
    world: AttachedWorld,
) -> None:
    worked(world)
    before = dict(world.tier.own)
    world.clock.advance(GRACE_MS - 1)
    with pytest.raises(RefusedError, match="a moment ago"):
        rebuilt(world)
    assert before == world.tier.own
    assert () == world.log("new.db").partitions(CLUSTER_ID)
    world.clock.advance(1)
    assert Rebuilt(3, 2) == rebuilt(world)[1]


def test_a_remote_tier_of_another_cluster_is_not_taken_over(world: AttachedWorld) -> None:
    """A clone that shares the bucket: what the other wrote, and what it removed, shows it."""
    worked(world)
    world.clock.advance(GRACE_MS)
    before = dict(world.tier.own)
    log = log_of((70,), 79)
    strange = world.segment(70, 79, log)
    world.tier.put(strange, log)
    with pytest.raises(RefusedError, match="never heard of"):
        rebuilt(world)
    (served, *_) = world.served()
    stored = world.tier.segments.pop(served.id.segment_id)
    with pytest.raises(RefusedError, match="remote tier lacks"):
        rebuilt(world, accepts_metadata=True)
    assert before == world.tier.own
    world.tier.segments[served.id.segment_id] = stored
    rebuilt(world, accepts_metadata=True)
    assert strange.id.segment_id in world.tier.segments


def test_segments_of_an_unannounced_round_are_no_other_clusters(world: AttachedWorld) -> None:
    from keeplast.attach.held.outputs import BEGUN, work_name

    worked(world)
    world.clock.advance(GRACE_MS)
    log = log_of((70,), 79)
    begun = world.segment(70, 79, log)
    world.tier.put(begun, log)
    world.tier.put_new(work_name(begun.id), BEGUN)
    assert 3 == rebuilt(world)[1].decisions


def test_a_mark_that_no_swap_explains_is_refused(world: AttachedWorld) -> None:
    """Somebody published by hand, in two batches."""
    worked(world)
    log = log_of((60,), 69)
    made = replace(world.segment(60, 69, log), broker_id=mark_of(1), event_timestamp_ms=5)
    world.tier.put(made, log)
    world.cluster.announce(made)
    finished = moved(made, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    world.cluster.announce(replace(finished, broker_id=mark_of(1)))
    world.clock.advance(GRACE_MS)
    before = dict(world.tier.own)
    with pytest.raises(RefusedError, match="explains"):
        rebuilt(world)
    assert before == world.tier.own


def test_a_bucket_without_an_owner_is_taken_too(world: AttachedWorld) -> None:
    worked(world)
    world.tier.own.clear()
    world.clock.advance(GRACE_MS)
    publisher, _ = rebuilt(world)
    owner = existing(publisher.owner.read())
    assert publisher.epoch == owner.epoch > 1


def test_a_log_that_lacks_nothing_only_claims(world: AttachedWorld) -> None:
    old = worked(world)
    world.clock.advance(GRACE_MS)
    before = contents(old.log.decisions(old.held))
    publisher, found = rebuilt(world, "decisions.db")
    assert Rebuilt(0, 0) == found
    assert before == contents(publisher.log.decisions(publisher.held))
    assert 1 == repair(publisher).discarded


def test_a_partition_that_was_given_up_can_be_had_again_without_its_log(
    world: AttachedWorld,
) -> None:
    old = worked(world)
    again = world.claim()
    repair(again)
    world.clock.advance(GRACE_MS)
    collect(again, GRACE_MS)
    again.detach()
    with pytest.raises(RefusedError, match="does not know"):
        world.claim(world.log("new.db"))
    world.clock.advance(GRACE_MS)
    publisher, found = rebuilt(world)
    assert Rebuilt(3, 0) == found
    assert publisher.epoch > old.epoch
    publisher.decide_and_publish(world.swap(publisher))
    world.require_readable()


def test_swaps_that_brokers_copied_over_or_that_expired_are_found_too(
    world: AttachedWorld,
) -> None:
    publisher = world.claim()
    decision = publisher.decide_and_publish(world.swap(publisher, 0, 3))
    world.upload(20, 39)
    world.expire(*world.served()[:1])
    world.cluster.append(world.cluster.metadata_topic, 0, batch_of(decision).events)
    publisher.close()
    world.clock.advance(GRACE_MS)
    again, found = rebuilt(world)
    assert Rebuilt(1, 1) == found
    (written,) = again.log.decisions(again.held)
    assert batch_of(decision).values == batch_of(written).values
    assert BROKER not in {each.broker_id for each in written.outputs}
    repair(again)
    world.require_readable()


def test_a_partition_that_was_never_compacted_has_nothing_to_rebuild(world: AttachedWorld) -> None:
    def asked() -> bool:
        return is_compacted(world.cluster, cast(Any, world.tier), NAME, TERMS, "id")

    assert not asked()
    world.claim().close()
    assert asked()
    world.tier.own.clear()
    assert not asked()


def test_a_cut_metadata_topic_is_not_rebuilt_from_unasked(world: AttachedWorld) -> None:
    publisher = worked(world)
    world.close()
    world.copy_log("decisions.db", "backup.db")
    del world.cluster.values[-6:]
    world.clock.advance(GRACE_MS)
    with pytest.raises(CompactionError, match="--accept-metadata"):
        rebuilt(world, "backup.db")
    assert publisher.epoch == 1
