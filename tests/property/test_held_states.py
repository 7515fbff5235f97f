"""A hold keeps its promise: the states as of its point and later are told, and are the replay's.

One law, in a directory, a store and a live cluster's remote tier: random histories of transactions
that overlap, of tombstones, rounds and log starts, with holds that are added and released at any
moment, as of now, of an offset and of a time. The model keeps every record that was ever written.
"""

from __future__ import annotations

import contextlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keeplast.api.open_log import OpenLog
from keeplast.attach.answers.holds import AttachedHolds, HeldCluster
from keeplast.cluster.facts import OffsetRange, TopicFacts
from keeplast.errors import RefusedError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.data_directory import open_data_directory
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.strategy import Strategy
from keeplast.run.holds import add_holds, release_holds
from keeplast.store.holds import StoreHolds
from keeplast.tier.state.attached import AttachedName
from tests.property.test_attached_state_as_of import Attached
from tests.property.test_state_as_of import SECOND, World, state_of, values
from tests.property.test_stored_state_as_of import Stored
from tests.support.attached_world import CLUSTER_ID, PARTITION, TERMS
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.turns import examples
from tests.support.verified_world import VerifiedWorld

KEYS = st.integers(0, 2)
SEND = st.tuples(st.just("send"), st.integers(1, 2), KEYS, st.booleans(), st.integers(0, 3))
ROLL, ROUND = st.tuples(st.just("roll")), st.tuples(st.just("round"))
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.booleans(), st.integers(0, 3)),
    SEND,
    SEND,
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("end"), st.integers(1, 2), st.just(True)),
    ROLL,
    ROLL,
    ROUND,
    ROUND,
    st.tuples(st.just("wait"), st.sampled_from([1, 10 * SECOND])),
    st.tuples(st.just("delete"), st.integers(0, 60)),
    st.tuples(
        st.just("hold"), st.sampled_from(["now", "now", "offset", "time"]), st.integers(0, 100),
        st.sampled_from([5 * SECOND, 1000 * SECOND]),
    ),
    st.tuples(st.just("release"), st.integers(0, 3)),
)  # fmt: skip
History = Sequence[tuple[object, ...]]
START: History = [("put", 0, False, 0), ("roll",)]
OVERLAPPING: History = [
    ("put", 1, False, 0), ("send", 1, 1, False, 0), ("put", 2, False, 0), ("roll",),
    ("send", 2, 0, False, 0), ("end", 1, True),
]  # fmt: skip
FILLED: History = [*OVERLAPPING, ("roll",), *(("put", 2, False, 0), ("roll",)) * 4]
"""What begins at the second offset has ended, what overlaps it has not, and all of it is closed."""
NOW = ("hold", "now", 0, 1000 * SECOND)
LATE_ABORT: History = [
    ("put", 0, False, 0), ("send", 1, 0, False, 0), ("wait", 10 * SECOND), ("end", 1, False),
    ("roll",), ("wait", 10 * SECOND), ("put", 1, False, 0), ("hold", "time", 70, 1000 * SECOND),
    ("roll",), *(("put", 2, False, 0), ("roll",)) * 4, ("round",), ("wait", 10 * SECOND),
]  # fmt: skip
"""The time that is held lies in front of a record that goes, the last one of what is clean."""
END: History = [
    ("end", 1, True), ("end", 2, True), ("put", 0, False, 0), ("roll",), ("put", 1, False, 0),
    ("roll",), ("round",), ("wait", 10 * SECOND), ("round",),
]  # fmt: skip


@dataclass
class Promise:
    """A hold, and from which time in ms on states are told, where it is of one."""

    hold: Hold
    time_ms: int | None


class Place(ABC):
    """Where a log lies, with what was written to it."""

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.root = root
        self.promises: list[Promise] = []
        self._names = 0

    log_start: int
    """Where it begins, and where what is there ends; what of it is decided."""
    end: int
    last_stable: int

    @abstractmethod
    def replay(self, end: int) -> dict[bytes, bytes]:
        """Return the plain fold of what lies in front of ``end``."""

    @abstractmethod
    def told(self, **point: int) -> dict[bytes, bytes] | None:
        """Return the state as it is told, None when it is refused."""

    @abstractmethod
    def add(self, name: str, point: HoldPoint, age_ms: int) -> Hold:
        """Add a hold."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Release a hold."""

    @abstractmethod
    def round(self) -> None:
        """Clean what may be cleaned."""

    @abstractmethod
    def delete(self, percent: int) -> None:
        """Move the log start by a part of what is decided."""

    def settle(self) -> None:  # noqa: B027
        """Let the place see what was written, and what time it is."""

    def play(self, steps: History) -> None:
        for name, *arguments in steps:
            self.world.log.now_ms += 1
            if not self.world.write(name, arguments):
                self.settle()
                self.step(name, arguments)
        self.settle()

    def step(self, name: object, arguments: Sequence[object]) -> None:
        match name, arguments:
            case "roll", []:
                self.world.log.roll()
            case "round", []:
                self.round()
            case "wait", [int(span)]:
                self.world.log.now_ms += span
            case "delete", [int(percent)]:
                self.delete(percent)
            case "hold", [str(kind), int(percent), int(age_ms)]:
                self.hold(kind, percent, age_ms)
            case "release", [int(number)] if number < len(self.promises):
                promise = self.promises.pop(number)
                if promise.hold.is_in_force(self.world.log.now_ms):
                    self.remove(promise.hold.name)

    def hold(self, kind: str, percent: int, age_ms: int) -> None:
        """Hold a point, if that can still be kept; the end always can, if snapshots are there."""
        point = HoldPoint()
        if kind == "offset":
            at = self.log_start + (self.last_stable - self.log_start) * percent // 100
            point = HoldPoint(offset=at)
        elif kind == "time" and self.world.written:
            chosen = self.world.written[(len(self.world.written) - 1) * percent // 100]
            point = HoldPoint(time_ms=chosen.at_ms)
        self._names += 1
        with unless_refused("no producer snapshot lies" if point.is_now else ""):
            added = self.add(f"hold{self._names}", point, age_ms)
            assert added.limit <= added.offset
            self.promises.append(Promise(added, point.time_ms))

    def judge(self) -> None:
        """Ask for each state that is promised."""
        for promise in self.promises:
            hold = promise.hold
            if not hold.is_in_force(self.world.log.now_ms):
                continue
            for end in range(max(hold.offset, self.log_start), self.end + 1):
                expected = self.replay(min(end, self.last_stable))
                assert expected == self.told(end_offset=end), f"{hold} end={end}"
            if promise.time_ms is None:
                continue
            here = [e for e in self.world.written if self.log_start <= e.offset < self.end]
            for at_ms in sorted({promise.time_ms, *(each.at_ms for each in here)}):
                if at_ms >= promise.time_ms:
                    later = [each.offset for each in here if each.at_ms > at_ms]
                    expected = self.replay(min([*later, self.last_stable]))
                    assert expected == self.told(as_of_ms=at_ms), f"{hold} at={at_ms}"


@contextlib.contextmanager
def unless_refused(said: str) -> Iterator[None]:
    """Go on where something is refused, in words with ``said``."""
    try:
        yield
    except RefusedError as error:
        if said not in str(error):
            raise


class InDirectory(Place):
    """A data directory."""

    @property
    def log_start(self) -> int:  # type: ignore[override]
        return self.world.log_start

    @property
    def end(self) -> int:  # type: ignore[override]
        return self.world.log.log_end

    @property
    def last_stable(self) -> int:  # type: ignore[override]
        return max(self.world.last_stable, self.log_start)

    def replay(self, end: int) -> dict[bytes, bytes]:
        return self.world.replay(end)

    def told(self, **point: int) -> dict[bytes, bytes] | None:
        return state_of(self.world, **point)

    def add(self, name: str, point: HoldPoint, age_ms: int) -> Hold:
        directory = open_data_directory(self.world.log.directory.parent, UnsyncedFiles())
        (added,) = add_holds(
            directory, directory.partitions, name, point, age_ms, UnsyncedFiles(),
            ManualClock(self.world.log.now_ms),
        )  # fmt: skip
        return added

    def remove(self, name: str) -> None:
        directory = open_data_directory(self.world.log.directory.parent, UnsyncedFiles())
        release_holds(directory, name, UnsyncedFiles())

    def round(self) -> None:
        self.world.round()

    def delete(self, percent: int) -> None:
        self.world.delete(percent)


class InStore(Place):
    """A store that a directory's segments are copied into."""

    def __init__(self, world: World, root: Path) -> None:
        super().__init__(world, root)
        self.stored = Stored(world, root)

    @property
    def log_start(self) -> int:  # type: ignore[override]
        return self.stored.state.log_start

    @property
    def end(self) -> int:  # type: ignore[override]
        return self.stored.state.remote_end

    @property
    def last_stable(self) -> int:  # type: ignore[override]
        return max(self.stored.last_stable, self.log_start)

    def replay(self, end: int) -> dict[bytes, bytes]:
        return self.stored.replay(end)

    def told(self, **point: int) -> dict[bytes, bytes] | None:
        return self.stored.told(**point)

    @property
    def holds(self) -> StoreHolds:
        tiered = self.stored.copy()
        return StoreHolds(tiered.store, tiered.objects, tiered.clock)

    def add(self, name: str, point: HoldPoint, age_ms: int) -> Hold:
        (added,) = self.holds.add([self.stored.state.partition], name, point, age_ms)
        return added

    def remove(self, name: str) -> None:
        self.holds.release(name)

    def round(self) -> None:
        self.stored.round(0)

    def delete(self, percent: int) -> None:
        self.stored.delete(percent)

    def settle(self) -> None:
        """Copy what is closed; what is active is copied where it is held."""
        tiered = self.stored.tiered
        if tiered is None or tiered.state.remote_end < self.world.log.active_base:
            tiered = self.stored.copy()
        tiered.clock.advance(self.world.log.now_ms - tiered.clock.now_ms())


class _Cluster:
    """The model cluster, of which open transactions are known."""

    def __init__(self, place: InCluster) -> None:
        self._place = place

    def __getattr__(self, name: str) -> object:
        return getattr(self._place.tier.cluster, name)

    def read_stable_ends(self, topic: TopicFacts) -> list[int]:
        return [self._place.world.last_stable]


class InCluster(Place):
    """The remote tier of a live cluster, which gets a segment when it is closed."""

    def __init__(self, world: World, root: Path) -> None:
        super().__init__(world, root)
        self.tier = VerifiedWorld(root, world.log.directory, [LeaderEpoch(0, 0)])
        self.attached = Attached(world, self.tier)
        self._copied = 0

    @property
    def log_start(self) -> int:  # type: ignore[override]
        return self.tier.cluster.log.start

    @property
    def end(self) -> int:  # type: ignore[override]
        return self.attached.remote_end

    @property
    def last_stable(self) -> int:  # type: ignore[override]
        running = [each.first for each in self.world.running.values()]
        return max(min([self.attached.last_stable, *running]), self.log_start)

    def replay(self, end: int) -> dict[bytes, bytes]:
        decided = end if end < self.last_stable else self.end
        return values(self.world.winners(self.log_start, end, decided))

    def told(self, **point: int) -> dict[bytes, bytes] | None:
        log: OpenLog = self.attached.open()
        try:
            state = log.state(
                self.world.topic, end_offset=point.get("end_offset"),
                as_of_ms=point.get("as_of_ms"),
            )  # fmt: skip
        except RefusedError:
            return None
        return {key: each.value for key, each in state.items() if each.value is not None}

    def add(self, name: str, point: HoldPoint, age_ms: int) -> Hold:
        holds = AttachedHolds(
            cast(HeldCluster, _Cluster(self)), self.tier.world.log(), self.tier.tier.layout,
            self.tier.world.clock,
        )  # fmt: skip
        (added,) = holds.add([(AttachedName(CLUSTER_ID, PARTITION), TERMS)], name, point, age_ms)
        return added

    def remove(self, name: str) -> None:
        self.tier.world.log().hold_rows.release_attached(CLUSTER_ID, name)

    def round(self) -> None:
        self.attached.act("clean")
        self.attached.act("collect")

    def delete(self, percent: int) -> None:
        if percent > 40:
            self.attached.act("expire" if percent > 50 else "cut")

    def settle(self) -> None:
        """Let the leader copy what is closed."""
        tier, bases = self.tier, self.world.log.bases
        tier.cluster.log = OffsetRange(tier.cluster.log.start, self.world.log.log_end)
        for base, following in pairwise(bases[self._copied :]):
            if base < following:
                tier.tier.copy_one(tier.directory, base, following - 1)
            self._copied += 1
        behind = self.world.log.now_ms - tier.world.clock.now_ms()
        if behind > 0:
            tier.world.clock.advance(behind)
        self.world.log.now_ms = max(self.world.log.now_ms, tier.world.clock.now_ms())


PLACES: dict[str, Callable[[World, Path], Place]] = {
    "directory": InDirectory, "store": InStore, "cluster": InCluster,
}  # fmt: skip
EXAMPLES = {"directory": (40, 4000), "store": (25, 2000), "cluster": (15, 1000)}


def keeps_its_promises(kind: str, steps: History, strategy: Strategy) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World.make(Path(root) / "logs", strategy)
        place = PLACES[kind](world, Path(root))
        try:
            place.play(START)
            place.play(steps)
            place.judge()
            place.play(END)
            place.judge()
        finally:
            world.log.close()
            if isinstance(place, InCluster):
                place.tier.close()


@pytest.mark.parametrize("kind", PLACES)
def test_every_state_that_a_hold_promises_is_told_and_right(kind: str) -> None:
    count, long = EXAMPLES[kind]

    @settings(max_examples=examples(count, long=long))
    @given(st.lists(STEPS, min_size=8, max_size=30), st.sampled_from(Strategy))
    @example([*OVERLAPPING, NOW], Strategy.OFFSET)
    @example([*OVERLAPPING, ("round",), NOW], Strategy.OFFSET)
    @example([*FILLED, NOW], Strategy.OFFSET)
    @example([*FILLED, ("round",), NOW], Strategy.OFFSET)
    @example(LATE_ABORT, Strategy.OFFSET)
    def law(steps: History, strategy: Strategy) -> None:
        keeps_its_promises(kind, steps, strategy)

    law()
