"""A round begins by removing what an earlier one wrote and never announced, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from keeplast.attach.outputs import BEGUN, work_name
from keeplast.attach.round import RoundWish, clean_attached
from keeplast.clock import SystemClock
from keeplast.errors import FencedError
from keeplast.format.remote_log_metadata import RemoteLogSegmentState
from keeplast.model.topic_config import TopicConfig
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from tests.support.attached_world import AttachedWorld, log_of

WISH = RoundWish(topic=TopicConfig(cleanup_policy=frozenset({"compact"})), margin_bytes=1 << 40)
"""A round that has nothing to clean: all lies in the margin."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AttachedWorld]:
    made = AttachedWorld(tmp_path)
    yield made
    made.close()


def clean(world: AttachedWorld) -> RoundReport:
    """Do a round as whoever comes next."""
    clock = SystemClock()
    with LocalRunner(1, clock=clock) as runner:
        return clean_attached(
            world.claim(), WISH, lambda _: nullcontext(runner), clock, progressed=lambda _: None
        )


def test_what_was_written_and_never_announced_goes_and_nothing_else(world: AttachedWorld) -> None:
    log = log_of((0,), 0)
    left, others, announced = (world.segment(0, 0, log) for _ in range(3))
    for each in (left, others, announced):
        world.tier.put(each, log)
    world.tier.put_new(work_name(left.id), BEGUN)
    # Of this one the cluster knows: a broker is copying it, whatever lies beside it.
    world.tier.put_new(work_name(announced.id), BEGUN)
    world.cluster.tell(announced)
    before = set(world.tier.segments)
    report = clean(world)
    assert report.skipped
    assert before - {left.id.segment_id} == set(world.tier.segments)
    assert work_name(left.id) not in world.tier.own
    assert work_name(announced.id) in world.tier.own
    found = world.cluster.cache().find(announced.id)
    assert found is not None
    assert RemoteLogSegmentState.COPY_SEGMENT_STARTED is found.state


def test_who_was_overtaken_removes_nothing(world: AttachedWorld) -> None:
    log = log_of((0,), 0)
    left = world.segment(0, 0, log)
    world.tier.put(left, log)
    world.tier.put_new(work_name(left.id), BEGUN)
    overtaken = world.claim()
    world.claim()
    clock = SystemClock()
    with LocalRunner(1, clock=clock) as runner, pytest.raises(FencedError):
        clean_attached(
            overtaken, WISH, lambda _: nullcontext(runner), clock, progressed=lambda _: None
        )
    assert left.id.segment_id in world.tier.segments
