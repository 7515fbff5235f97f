"""What somebody asks of the running loop: done between two turns, and written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keeplast.cleaner.log_order import Choice
from keeplast.errors import UnavailableError
from keeplast.inspect.status import LogStatus
from keeplast.log.files import LocalFiles
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.model.partition import TopicPartition
from keeplast.run.events import NoEvents
from keeplast.service.documents import status_document
from keeplast.service.live import QUIET_SECONDS_MAX, WISHES_MAX, Control, Deed, LiveProgress
from keeplast.service.receipt_shelf import ReceiptShelf
from keeplast.service.snapshot import look_at_directory
from keeplast.service.status import State
from tests.support.daemon_world import SETTINGS, Narrated, World

NEVER = SETTINGS + '"min.cleanable.dirty.ratio" = 1.0\n'
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data")
    world.settings(NEVER)
    yield world
    for log in world.logs.values():
        log.close()


def receipts(world: World) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (world.root / RECEIPTS_NAME).read_bytes().splitlines()]


def test_a_log_that_is_not_dirty_enough_is_cleaned_on_request(world: World) -> None:
    for number in range(2):
        world.log(number, 2)
    control = Control(world.clock)

    def act(times: int) -> None:
        if times == 1:
            control.ask(Deed.CLEAN, ZERO, "a test")

    _, narrated, published = world.until_idle(2, act, control)
    assert [("chosen", "t-0", "asked for from the console")] == [
        line for line in narrated.lines if line[0] == "chosen"
    ]
    assert (10, None) == (world.checkpoint(0), world.checkpoint(1))
    assert 1 == published.facts(0).rounds
    wish, *rounds = receipts(world)
    assert ("t", 0) == (wish["topic"], wish["partition"])
    assert {"name": "clean now", "by": "a test"} == wish["action"]
    assert rounds
    # The pause is cut short: there is no wait for the back-off.
    assert narrated.idle_seconds[0] > 0


def test_a_wish_moves_no_limit_but_the_ratio(world: World) -> None:
    world.settings(NEVER + '"min.compaction.lag.ms" = 3600000\n')
    world.log(0, 2)
    control = Control(world.clock)
    control.ask(Deed.CLEAN, ZERO, "a test")
    _, narrated, _ = world.until_idle(2, control=control)
    assert [] == narrated.of("chosen")
    assert world.checkpoint(0) is None


def test_a_wish_is_over_when_nothing_could_be_done(world: World) -> None:
    world.log(0)
    control = Control(world.clock)
    control.ask(Deed.CLEAN, ZERO, "a test")

    def act(times: int) -> None:
        if times == 1:
            world.fill(0)
            world.fill(0)

    _, narrated, _ = world.until_idle(3, act, control)
    assert [] == narrated.of("chosen")


def test_a_partition_set_aside_is_tried_again_on_request(world: World) -> None:
    world.settings(SETTINGS)
    world.log(0, 2)
    path = next(world.path(0).glob("*00.log"))
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    control = Control(world.clock)

    def act(times: int) -> None:
        if times == 2:
            control.ask(Deed.RETRY, ZERO, "a test")

    _, narrated, published = world.until_idle(4, act, control)
    assert ["t-0", "t-0"] == narrated.of("set aside")
    assert State.SET_ASIDE is published.facts(0).state


def test_paused_it_looks_and_begins_nothing(world: World) -> None:
    world.settings(SETTINGS)
    world.log(0, 2)
    control = Control(world.clock)
    control.ask(Deed.PAUSE, None, "a test")

    def act(times: int) -> None:
        if times == 3:
            control.ask(Deed.RESUME, None, "a test")

    report, _, published = world.until_idle(4, act, control)
    assert 1 == report.rounds
    assert State.ELIGIBLE is published.snapshots[1].partitions[0].state
    actions = [each["action"]["name"] for each in receipts(world) if "action" in each]
    assert ["pause", "resume"] == actions
    assert not control.is_paused


def test_wishes_are_bounded_and_a_silent_loop_is_reported(world: World) -> None:
    control = Control(world.clock)
    for _ in range(WISHES_MAX):
        control.ask(Deed.RETRY, ZERO, "a test")
    with pytest.raises(UnavailableError, match="too many wishes"):
        control.ask(Deed.RETRY, ZERO, "a test")
    assert control.fault() is None
    world.clock.sleep(QUIET_SECONDS_MAX + 1)
    assert "no life" in str(control.fault())
    control.beat()
    assert control.fault() is None


def test_a_watched_loop_says_what_status_says(world: World) -> None:
    world.settings(SETTINGS + '"max.compaction.lag.ms" = 3600000\n')
    world.is_watched = True
    for number in range(3):
        world.log(number, number)
    world.log(3, 2)
    path = next(world.path(3).glob("*00.log"))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    _, _, published = world.until_idle(1)
    look = published.snapshots[-1].look
    assert look is not None
    files = LocalFiles()
    shelf = ReceiptShelf(files, world.root / RECEIPTS_NAME)
    mine = status_document(look.joined(files, shelf.refresh()))
    other = look_at_directory(world.select(), files, look.now_ms)
    expected = status_document(other.joined(files, shelf.refresh()))
    # The loop has ended, and its lock with it.
    assert expected | {"is_locked": True} == mine
    assert {each.partition for each, _ in look.found} == {TopicPartition("t", n) for n in range(4)}
    assert all(isinstance(log, LogStatus) for _, log in look.found[:3])


def test_there_is_no_look_while_no_page_is_open(world: World) -> None:
    world.log(0, 1)
    _, _, published = world.until_idle(1)
    assert {None} == {each.look for each in published.snapshots}


def test_the_queue_is_published_in_order(world: World) -> None:
    world.settings(SETTINGS)
    for number in range(3):
        world.log(number, number + 1)
    _, narrated, published = world.until_idle(1)
    queues = [[str(each.partition) for each in x.queue] for x in published.snapshots]
    looks = [each for each in queues if each]
    assert looks
    assert looks[0] == narrated.of("chosen")[: len(looks[0])]
    assert [] == queues[-1]


class Both(Narrated, NoEvents):
    """A narrator that gets everything."""


def test_progress_is_counted_and_passed_on(world: World) -> None:
    narrated, control = Both(), Control(world.clock)
    live = LiveProgress(narrated, world.clock, control)
    live.chosen((Choice(ZERO, "dirty"), Choice(ONE, "overdue")))
    live.planned(100)
    live.progressed(30)
    live.progressed(40)
    found = live.progress
    assert (2, 100, 70, None) == (
        len(found.running), found.planned_bytes, found.read_bytes, found.idle_until_ms,
    )  # fmt: skip
    assert ["t-0", "t-1"] == narrated.of("chosen")
