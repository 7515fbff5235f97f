"""A host with a lease dies at every operation on its disk and around every change of the store.

Whatever is left, the next host leads once the lease has ended, and a reader gets every record that
was acknowledged; the one that died comes back, and its log is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keeplast.model.topic_config import HostRole
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from tests.support.crashing_files import CrashingFiles, Image, Mode
from tests.support.durations import HOUR_MS
from tests.support.host_process import CHANGES
from tests.support.leased_hosts import Entry, LeaseWorld, read, state_of, write
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import Crash
from tests.support.turns import Turn

POINTS, POINTS_ALL = 4, 32
"""How many points at which it dies a run takes of each, and a run of everything."""
SETTINGS = {"local.retention.ms": str(HOUR_MS)}


class DyingStore(MetadataStore):
    """A metadata store whose user dies before or after the change number ``crash_at``."""

    def __init__(self, url: str, clock: ManualClock, crash_at: int | None) -> None:
        super().__init__(open_database(url), clock)
        self._crash_at, self.is_dead, self.moments = crash_at, False, 0
        for name in CHANGES:
            setattr(self, name, self._around(getattr(self, name)))

    def _around(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **named: Any) -> Any:
            self._count()
            made = change(*args, **named)
            self._count()
            return made

        return act

    def _count(self) -> None:
        if self.is_dead or self.moments == self._crash_at:
            self.is_dead = True
            raise Crash
        self.moments += 1


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Callable[[], LeaseWorld]]:
    made: list[LeaseWorld] = []

    def world() -> LeaseWorld:
        root = tmp_path / str(len(made))
        root.mkdir()
        made.append(LeaseWorld(root, SETTINGS))
        return made[-1]

    yield world
    for each in made:
        each.close()


def disk(world: LeaseWorld, name: str) -> CrashingFiles:
    return CrashingFiles({world.root: {}, world.root / name: {}})


def play(
    world: LeaseWorld,
    files: CrashingFiles,
    *,
    operation: int | None = None,
    metadata: MetadataStore | None = None,
    is_follower: bool = False,
) -> tuple[list[Entry], int, bool]:
    """Let ``a`` lead and the host of ``files`` have turns until it dies, at most to the end.

    Returns what was written, up to where it was acknowledged, and whether it died.
    """
    written: list[Entry] = []
    acknowledged = 0
    leader = world.host("a", files=None if is_follower else files, metadata=metadata)
    follower = world.host("b", files=files) if is_follower else None
    files.operations.clear()
    files.crash_at = operation
    try:
        for start in (0, 30):
            leader.step()
            for number in range(start, start + 30):
                written += write(leader, 1, start=number)
            leader.turn(grace_ms=0)
            acknowledged = leader.host.high_watermark
            if follower is not None:
                follower.turn(grace_ms=0)
            world.clock.advance(2 * HOUR_MS)
            leader.renew()
            leader.turn(grace_ms=0)
            acknowledged = leader.host.high_watermark
            if follower is not None:
                follower.turn(grace_ms=0)
    except Crash:
        return written, acknowledged, True
    return written, acknowledged, False


def check(world: LeaseWorld, name: str, left: Image, expected: list[Entry], end: int) -> None:
    """Let another host lead, and the one that died, with ``left`` on its disk, come back."""
    other = world.host("c")
    world.silence(other)
    assert other.step().leads
    assert other.host.log_end_offset >= end
    got = read(other)
    assert state_of(got) == state_of(
        [each for each in expected if each[0] < other.host.log_end_offset]
    )
    back = world.host(name, HostRole.FOLLOWER, files=CrashingFiles(left))
    assert back.step().words == f"follows c at epoch {other.host.epoch}"
    back.host.retain_local()
    assert state_of(got) == state_of(read(back))
    assert world.store("v").verify(back.partition) == ()


def is_taken(turn: Turn, position: int, count: int) -> bool:
    """Say whether a run dies at this one of ``count`` points; a turn has points of its own."""
    if turn.number is None:
        return position % max(count // POINTS_ALL, 1) == 0
    return turn.takes(position, count // POINTS)


@pytest.mark.parametrize("is_follower", [False, True], ids=["leader", "follower"])
def test_a_host_that_dies_at_an_operation_on_its_disk_loses_nothing_acknowledged(
    worlds: Callable[[], LeaseWorld], turn: Turn, is_follower: bool
) -> None:
    name, dice = "b" if is_follower else "a", random.Random(25)
    world = worlds()
    files = disk(world, name)
    assert not play(world, files, is_follower=is_follower)[2]
    steps = len(files.operations)
    assert steps > 50
    for operation in range(steps):
        if not is_taken(turn, operation, steps):
            continue
        world = worlds()
        files = disk(world, name)
        written, acknowledged, died = play(
            world, files, operation=operation, is_follower=is_follower
        )
        assert died, operation
        (left, *_) = files.survivors(dice, mode=dice.choice(list(Mode)), limit=1)
        check(world, name, left, written, acknowledged)


def test_a_leader_that_dies_around_a_change_of_the_store_loses_nothing_acknowledged(
    worlds: Callable[[], LeaseWorld], turn: Turn
) -> None:
    world = worlds()
    metadata = DyingStore(world.url, world.clock, None)
    assert not play(world, disk(world, "a"), metadata=metadata)[2]
    moments = metadata.moments
    assert moments > 50
    for moment in range(moments):
        if not is_taken(turn, moment, moments):
            continue
        world = worlds()
        files = disk(world, "a")
        metadata = DyingStore(world.url, world.clock, moment)
        written, acknowledged, died = play(world, files, metadata=metadata)
        assert died, moment
        check(world, "a", files.image(), written, acknowledged)
