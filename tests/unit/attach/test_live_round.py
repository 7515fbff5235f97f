"""How a round begins: what an earlier one never announced goes, and a hole is found or closed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.attach.held.outputs import BEGUN, SWEPT, work_name
from keeplast.attach.held.words import KEPT_MS
from keeplast.attach.rounds.round import RoundWish, clean_attached
from keeplast.attach.upkeep.replaced_segments import collect
from keeplast.cleaner.reasons import NothingBelow, SourcesEnd, SourcesLimit
from keeplast.clock import SystemClock
from keeplast.errors import CorruptError, FencedError
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentState
from keeplast.model.topic_config import TopicConfig
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from tests.support.attached_world import AttachedWorld, MemoryTier, log_of, moved
from tests.support.existing import existing
from tests.support.heard_calls import hear

WISH = RoundWish(topic=TopicConfig(cleanup_policy=frozenset({"compact"})), margin_bytes=1 << 40)
"""A round that has nothing to clean: all lies in the margin."""


def clean(world: AttachedWorld, wish: RoundWish = WISH) -> RoundReport:
    """Do a round as the process that comes next."""
    clock = SystemClock()
    with LocalRunner(1, clock=clock) as runner:
        return clean_attached(
            world.claim(), wish, lambda _: nullcontext(runner), clock, progressed=lambda _: None
        )


@pytest.fixture
def left(world: AttachedWorld) -> RemoteLogSegment:
    """An output that was begun and written, which nothing was announced of."""
    log = log_of((0,), 0)
    written = world.segment(0, 0, log)
    world.tier.put(written, log)
    world.tier.put_new(work_name(written.id), BEGUN)
    return written


def test_unannounced_outputs_go_and_nothing_else(world: AttachedWorld) -> None:
    log = log_of((0,), 0)
    left, others, announced = (world.segment(0, 0, log) for _ in range(3))
    for each in (left, others, announced):
        world.tier.put(each, log)
    world.tier.put_new(work_name(left.id), BEGUN)
    # Of this one the cluster knows: a broker is copying it, whatever lies next to it.
    world.tier.put_new(work_name(announced.id), BEGUN)
    world.cluster.announce(announced)
    before = set(world.tier.segments)
    report = clean(world)
    assert report.skipped
    assert before - {left.id.segment_id} == set(world.tier.segments)
    assert SWEPT == world.tier.own[work_name(left.id)]
    assert work_name(announced.id) in world.tier.own
    found = existing(world.cluster.cache().find(announced.id))
    assert RemoteLogSegmentState.COPY_SEGMENT_STARTED is found.state


def test_later_outputs_of_an_overtaken_process_go_with_the_next_round(
    world: AttachedWorld, left: RemoteLogSegment
) -> None:
    clean(world)
    assert left.id.segment_id not in world.tier.segments
    # It completes nothing, and where it ends before it takes that back, there is still word of it.
    assert not world.tier.replace_own(work_name(left.id), b"complete", BEGUN)
    world.tier.put(left, log_of((0,), 0))
    world.clock.advance(KEPT_MS)
    clean(world)
    assert left.id.segment_id not in world.tier.segments
    # It lived a moment ago: the word stays for as long again.
    world.clock.advance(KEPT_MS - 1)
    clean(world)
    assert SWEPT == world.tier.own[work_name(left.id)]
    world.clock.advance(1)
    clean(world)
    assert work_name(left.id) not in world.tier.own


def test_a_round_makes_no_request_for_segments_without_a_word(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of((0,), 0)
    unknown = [world.segment(0, 0, log) for _ in range(3)]
    for each in unknown:
        world.tier.put(each, log)
    asked: list[str] = []
    hear(monkeypatch, MemoryTier, "read_own", lambda tier, name: asked.append(name))
    clean(world)
    assert [] == [each for each in asked if each.startswith("work/")]
    assert {each.id.segment_id for each in unknown} < set(world.tier.segments)


def test_a_word_that_changes_while_it_is_swept_leaves_its_output_to_the_next_round(
    world: AttachedWorld, left: RemoteLogSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_own = MemoryTier.read_own

    def completed_behind_it(tier: MemoryTier, name: str) -> bytes | None:
        found = read_own(tier, name)
        if name == work_name(left.id):
            tier.own[name] = b"complete"
        return found

    with monkeypatch.context() as patched:
        patched.setattr(MemoryTier, "read_own", completed_behind_it)
        clean(world)
    assert left.id.segment_id in world.tier.segments
    clean(world)
    assert left.id.segment_id not in world.tier.segments


def test_a_process_that_was_overtaken_removes_nothing(
    world: AttachedWorld, left: RemoteLogSegment
) -> None:
    overtaken = world.claim()
    world.claim()
    clock = SystemClock()
    with LocalRunner(1, clock=clock) as runner, pytest.raises(FencedError):
        clean_attached(
            overtaken, WISH, lambda _: nullcontext(runner), clock, progressed=lambda _: None
        )
    assert left.id.segment_id in world.tier.segments


GRACE_MS = 1000
NO_MARGIN = replace(WISH, margin_bytes=0, force=True)


def test_past_a_hole_nothing_is_decided_and_nothing_of_it_deleted(tmp_path: Path) -> None:
    """AT-10: somebody has brokers let go of an output, and its sources are on their way out."""
    world = AttachedWorld(tmp_path, segments=6)
    publisher = world.swapped(0, 2)
    behind = publisher.decide_and_publish(world.swap(publisher, 1, 3))
    publisher.close()
    (output,) = behind.outputs
    world.cluster.announce(moved(output, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
    assert [(20, 39)] == world.cluster.cache().holes(0)
    objects, announced = set(world.tier.segments), len(world.cluster.values)
    decisions = world.log().decisions(publisher.held)
    report = clean(world, NO_MARGIN)
    # Only [0, 19], which is clean, lies before the hole: [40, 59] behind it is left alone.
    assert report.skipped, report
    assert (decisions, announced) == (
        world.log().decisions(publisher.held), len(world.cluster.values),
    )  # fmt: skip
    world.clock.advance(GRACE_MS)
    with pytest.raises(CorruptError, match="brokers serve nothing for offsets"):
        collect(world.claim(), GRACE_MS)
    assert {each.id.segment_id for each in behind.sources} <= set(world.tier.segments)
    assert objects - set(world.tier.segments) == {
        each.id.segment_id for each in decisions[0].sources
    }
    world.close()


def test_at_a_hole_at_the_log_start_nothing_begins(tmp_path: Path) -> None:
    """AT-10: nothing is deleted either."""
    world = AttachedWorld(tmp_path, segments=4)
    publisher = world.claim()
    (output,) = publisher.decide_and_publish(world.swap(publisher, 0, 2)).outputs
    publisher.close()
    world.cluster.announce(moved(output, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
    objects, announced = set(world.tier.segments), len(world.cluster.values)
    report = clean(world, NO_MARGIN)
    assert NothingBelow(SourcesLimit(0, SourcesEnd.HOLE)) == report.cause
    world.clock.advance(GRACE_MS)
    with pytest.raises(CorruptError, match="brokers serve nothing for offsets"):
        collect(world.claim(), GRACE_MS)
    assert (objects, announced) == (set(world.tier.segments), len(world.cluster.values))
    world.close()


def test_a_copy_that_comes_late_over_an_output_hides_nothing_for_good(tmp_path: Path) -> None:
    """AT-10: brokers hear again of the output that they had in its place.

    It was begun behind the last look; who sees it decides on no such output.
    """
    world = AttachedWorld(tmp_path, segments=4)
    late = world.segment(0, 9, log := log_of(range(10), 9))
    world.tier.put(late, log)
    publisher = world.claim()
    (output,) = publisher.decide_and_publish(world.swap(publisher, 0, 2)).outputs
    publisher.close()
    world.cluster.announce(late)
    world.cluster.announce(moved(late, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
    assert [(10, 19)] == world.cluster.cache().holes(0)
    clean(world)
    world.require_readable()
    assert output.id in {each.id for each in world.served()}
    world.clock.advance(GRACE_MS)
    assert 1 == collect(world.claim(), GRACE_MS).decisions
    world.require_readable()
    world.close()
