"""The decision log of attached partitions on a real PostgreSQL: fences, one decision at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from keeplast.attach.held.publication import Publisher
from keeplast.clock import SystemClock
from keeplast.errors import CompactionError, ConflictError, FencedError
from keeplast.tier.metadata.database import ServerTime, open_database
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import DecisionState
from tests.support.attached_world import AttachedWorld, CrashError, Steps
from tests.support.waiting import SECONDS_MAX, run_at_once

pytestmark = pytest.mark.services

GRACE_MS = 1000


def crash() -> None:
    raise CrashError


@pytest.mark.parametrize("name", ["decide", "mark_published", "mark_collecting", "mark_discarded"])
def test_a_transaction_after_a_crash_is_ended_by_the_next_process(
    new_database: Callable[[], str], tmp_path: Path, name: str
) -> None:
    world = AttachedWorld(tmp_path, url=new_database())
    left = world.claim()
    world.write_output(left, world.served()[:1])
    steps = Steps()
    world.live_through(steps)
    world.close()
    world = AttachedWorld(tmp_path, url=new_database())
    left = world.claim()
    world.write_output(left, world.served()[:1])
    with pytest.raises(CrashError):
        world.live_through(Steps(steps.names.index(name), crash, world.require_readable))
    world.settle()
    world.close()


def test_of_two_processes_that_decide_at_once_one_is_refused(database: str, tmp_path: Path) -> None:
    world = AttachedWorld(tmp_path, url=database)
    publisher = world.claim()
    swaps = [world.swap(publisher, 0, 2), world.swap(publisher, 0, 2)]
    outcomes: list[str] = []
    gate = threading.Barrier(2, timeout=SECONDS_MAX)

    def decide(each: Publisher, number: int) -> None:
        gate.wait()
        try:
            each.decide_and_publish(swaps[number])
            outcomes.append("done")
        except CompactionError as error:
            outcomes.append(type(error).__name__)

    run_at_once(partial(decide, publisher, each) for each in (0, 1))
    assert 1 == outcomes.count("done")
    assert {"done", ConflictError.__name__} == set(outcomes)
    states = [each.state for each in publisher.log.decisions(publisher.held)]
    assert [DecisionState.PUBLISHED] == states
    with pytest.raises(FencedError):
        world.log().check(publisher.held)
    world.settle()
    world.close()


def test_graces_are_counted_by_the_server(database: str) -> None:
    log = DecisionLog(open_database(database), SystemClock(), time=ServerTime())
    assert log.store_id() == log.store_id()
    assert abs(log.clock.now_ms() - SystemClock().now_ms()) < 60_000
    log.close()


def test_a_kept_fold_is_replaced_and_emptied(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    world = AttachedWorld(tmp_path, url=new_database())
    folds = world.log().folds
    assert folds.read("c", 0) is None
    for data in (b"\0first", b"second", None):
        folds.write("c", 0, data)
        assert data == folds.read("c", 0)
    world.close()
