"""One log in any of the places that keep it: a directory, a store, a live cluster's remote tier.

A law about states as of a point is written once, over :class:`Place`: a history is played, its
holds are kept in mind, and readers are judged by the model (:mod:`.written_log`).
"""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

from msgspec.structs import replace

import keeplast
from keeplast.api.open_log import OpenLog
from keeplast.attach.answers.shown_logs import AttachedHolds, HeldCluster, earliest_as_of
from keeplast.attach.answers.shown_logs import shown_log as shown_attached
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.cluster.live_cluster import OffsetRange, TopicFacts
from keeplast.errors import RefusedError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.log.data_directory import DataDirectory, open_data_directory
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.topic_config import CleanerConfig, Strategy
from keeplast.run.holds import add_holds, release_holds
from keeplast.store.removal import expire_remote
from keeplast.store.undo import StoreHolds
from keeplast.tier.metadata.stored_logs import shown_log
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import ROOT, round_path
from keeplast.tier.state.attached import AttachedName
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment
from tests.support.attached_world import CLUSTER_ID, PARTITION, TERMS
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.tiered_log import Tiered
from tests.support.verified_world import VerifiedWorld
from tests.support.written_log import Expected, Steps, WrittenLog, shown_state

CLEANER = CleanerConfig(producer_id_expiration_ms=10**9)
NAME = AttachedName(CLUSTER_ID, PARTITION)


@dataclass
class Promise:
    """A hold, and from which time in ms on states are shown, where it is of one."""

    hold: Hold
    time_ms: int | None


class Place(ABC):
    """Where a log lies, with what was written to it.

    One that ``follows`` has what is closed at once; else it is copied by steps.
    """

    def __init__(self, world: WrittenLog, root: Path, *, follows: bool = False) -> None:
        self.world = world
        self.root = root
        self.follows = follows
        self.promises: list[Promise] = []
        self._names = 0

    @property
    @abstractmethod
    def expected(self) -> Expected:
        """What readers must be shown now."""

    @abstractmethod
    def open(self) -> OpenLog:
        """Open what is there, as readers do."""

    @abstractmethod
    def add(self, name: str, point: HoldPoint, age_ms: int) -> Hold:
        """Add a hold."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Release a hold."""

    @abstractmethod
    def round(self, commits: int) -> None:
        """Clean what may be cleaned; a store's round is cut short behind so many ``commits``."""

    @abstractmethod
    def delete(self, percent: int) -> None:
        """Move the log start by a part of what is decided."""

    def settle(self) -> None:  # noqa: B027
        """Let the place have what was written, and know what time it is."""

    def act(self, what: str) -> None:
        """Let happen what happens in one kind of place only."""
        raise AssertionError(what)

    def close(self) -> None:
        self.world.log.close()

    def shown(self, **point: int) -> dict[bytes, bytes] | None:
        """Return the state as it is shown, None when it is refused."""
        return shown_state(self.open(), self.world.topic, **point)

    def play(self, steps: Steps) -> None:
        for name, *arguments in steps:
            self.world.log.now_ms += 1
            if not self.world.write(name, arguments):
                if self.follows:
                    self.settle()
                self.step(str(name), arguments)
        self.settle()

    def step(self, name: str, arguments: Sequence[object]) -> None:
        match name, arguments:
            case "many", [int(seed)]:
                dice = random.Random(seed)
                self.world.go_on(dice, dice.randrange(40, 90), 0.3)
            case "roll", []:
                self.world.log.roll()
            case "copy", []:
                self.settle()
            case "round", [int(commits)]:
                self.round(commits)
            case "wait", [int(span)]:
                self.world.log.now_ms += span
            case "delete", [int(percent)]:
                self.delete(percent)
            case "hold", [str(kind), int(percent), int(age_ms)]:
                self.hold(kind, percent, age_ms)
            case "release", [int(number)]:
                self.release(number)
            case _:
                self.act(name)

    def part(self, percent: int) -> int:
        """Return an offset so far from the log start to the end of what is decided."""
        now = self.expected
        return now.log_start + (now.last_stable - now.log_start) * percent // 100

    def hold(self, kind: str, percent: int, age_ms: int) -> None:
        """Hold a point, if that can still be kept; the end always can, if snapshots are there."""
        point = HoldPoint()
        if kind == "offset":
            point = HoldPoint(offset=self.part(percent))
        elif kind == "time" and self.world.written:
            chosen = self.world.written[(len(self.world.written) - 1) * percent // 100]
            point = HoldPoint(time_ms=chosen.at_ms)
        self._names += 1
        with unless_refused("no producer snapshot lies" if point.is_now else ""):
            added = self.add(f"hold{self._names}", point, age_ms)
            assert added.limit <= added.offset
            self.promises.append(Promise(added, point.time_ms))

    def release(self, number: int) -> None:
        if number < len(self.promises):
            promise = self.promises.pop(number)
            if promise.hold.is_in_force(self.world.log.now_ms):
                self.remove(promise.hold.name)

    def judge(self) -> None:
        """Ask for each state that is promised."""
        now = self.expected
        for promise in self.promises:
            hold = promise.hold
            if not hold.is_in_force(self.world.log.now_ms):
                continue
            for end in range(max(hold.offset, now.log_start), now.end + 1):
                expected = now.replay(min(end, now.last_stable))
                assert expected == self.shown(end_offset=end), f"{hold} end={end}"
            if promise.time_ms is None:
                continue
            here = [e for e in self.world.written if now.log_start <= e.offset < now.end]
            for at_ms in sorted({promise.time_ms, *(each.at_ms for each in here)}):
                if at_ms >= promise.time_ms:
                    later = [each.offset for each in here if each.at_ms > at_ms]
                    expected = now.replay(min([*later, now.last_stable]))
                    assert expected == self.shown(as_of_ms=at_ms), f"{hold} at={at_ms}"


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
    def expected(self) -> Expected:
        return self.world.expected

    def open(self) -> OpenLog:
        return keeplast.open_log(self.world.log.directory)

    @property
    def directory(self) -> DataDirectory:
        return open_data_directory(self.world.log.directory.parent, UnsyncedFiles())

    def add(self, name: str, point: HoldPoint, age_ms: int) -> Hold:
        directory, clock = self.directory, ManualClock(self.world.log.now_ms)
        (added,) = add_holds(
            directory, directory.partitions, name, point, age_ms, UnsyncedFiles(), clock
        )
        return added

    def remove(self, name: str) -> None:
        release_holds(self.directory, name, UnsyncedFiles())

    def round(self, commits: int) -> None:
        self.world.round()

    def delete(self, percent: int) -> None:
        self.world.delete(percent)


class CutShortError(Exception):
    """What ends a round between two of its commits."""


class InStore(Place):
    """A store that a directory's segments are copied into; the active one too, where it is asked.

    Before the first copy it has nothing.
    """

    tiered: Tiered | None = None
    round_end = 0

    def copy(self) -> Tiered:
        directory = self.world.log.directory
        if self.tiered is None:
            self.tiered = Tiered(self.root, directory, now_ms=self.world.log.now_ms)
        else:
            self.tiered.take_in(directory)
        return self.tiered

    @property
    def state(self) -> PartitionState:
        return (self.tiered or self.copy()).state

    @property
    def expected(self) -> Expected:
        return expected_of(self.world, self.state, self.round_end)

    def open(self) -> OpenLog:
        return stored_log(self.state, (self.tiered or self.copy()).objects)

    @property
    def holds(self) -> StoreHolds:
        tiered = self.copy()
        return StoreHolds(tiered.store, tiered.objects, tiered.clock)

    def add(self, name: str, point: HoldPoint, age_ms: int) -> Hold:
        (added,) = self.holds.add([self.state.partition], name, point, age_ms)
        return added

    def remove(self, name: str) -> None:
        self.holds.release(name)

    def round(self, commits: int) -> None:
        tiered = self.tiered
        if tiered is None or not tiered.state.routes:
            return
        left = [commits]

        def committed(_: tuple[RemoteSegment, ...], __: tuple[RemoteSegment, ...]) -> None:
            left[0] -= 1
            if not left[0]:
                raise CutShortError

        with contextlib.suppress(CutShortError):
            report = tiered.clean(self.world.topic, cleaner=CLEANER, committed=committed)
            self.round_end = max(self.round_end, report.end_offset or 0)

    def delete(self, percent: int) -> None:
        tiered = self.tiered
        # What was lost to what is deleted then, a round that was cut short may have.
        is_sure = self.world.topic.strategy is Strategy.OFFSET
        if tiered is not None and tiered.state.routes and is_sure:
            expire_remote(
                tiered.store, tiered.state, self.world.topic, tiered.clock.now_ms(), grace_ms=0,
                receipt=None, log_start=self.part(percent),
            )  # fmt: skip

    def step(self, name: str, arguments: Sequence[object]) -> None:
        self.tick()
        if name != "hold" or self.state.routes:
            super().step(name, arguments)

    def settle(self) -> None:
        """Copy what there is; one that follows copies what is active only where it is held."""
        if (
            not self.follows
            or self.tiered is None
            or self.tiered.state.remote_end < self.world.log.active_base
        ):
            self.copy()
        self.tick()

    def tick(self) -> None:
        """Let the store's clock be the log's."""
        if self.tiered is not None:
            clock = self.tiered.clock
            clock.advance(self.world.log.now_ms - clock.now_ms())


def expected_of(world: WrittenLog, state: PartitionState, round_end: int = 0) -> Expected:
    """Return what readers of a store must be shown."""
    return Expected(world, state.log_start, state.remote_end, state.earliest_as_of, round_end)


def stored_log(state: PartitionState, objects: ObjectStore) -> OpenLog:
    """Open what a store says of a partition, as readers do."""
    recipe = LogDirectoryRecipe(ROOT, (shown_log(state, objects),))
    return OpenLog(round_path(state.partition), files=recipe.open())


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

    def __init__(self, world: WrittenLog, root: Path, *, follows: bool = False) -> None:
        super().__init__(world, root, follows=follows)
        self.tier = VerifiedWorld(root, world.log.directory, [LeaderEpoch(0, 0)])
        self._copied = 0

    def close(self) -> None:
        super().close()
        self.tier.close()

    @property
    def expected(self) -> Expected:
        cache, log = self.tier.cluster.cache(), self.tier.world.log()
        start, served = self.tier.cluster.log.start, self.tier.tier.served()
        seen_to = earliest_as_of(cache, log, log.find(NAME), log_start=start)
        return Expected(self.world, start, served[-1].end_offset + 1, seen_to)

    def open(self) -> OpenLog:
        return served_log(self.tier)

    def add(self, name: str, point: HoldPoint, age_ms: int) -> Hold:
        holds = AttachedHolds(
            cast(HeldCluster, _Cluster(self)), self.tier.world.log(), self.tier.tier.layout,
            self.tier.world.clock,
        )  # fmt: skip
        (added,) = holds.add([(NAME, TERMS)], name, point, age_ms)
        return added

    def remove(self, name: str) -> None:
        self.tier.world.log().hold_rows.release_attached(CLUSTER_ID, name)

    def round(self, commits: int) -> None:
        act_in_tier(self.tier, self.world, "clean")
        act_in_tier(self.tier, self.world, "collect")

    def delete(self, percent: int) -> None:
        if percent > 40:
            self.act("expire" if percent > 50 else "cut")

    def act(self, what: str) -> None:
        act_in_tier(self.tier, self.world, what)

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


def served_log(tier: VerifiedWorld) -> OpenLog:
    """Open what brokers serve, as readers do."""
    log = tier.world.log()
    found = shown_attached(
        tier.tier.layout, PARTITION, tier.cluster.log, tier.cluster.cache(), log, log.find(NAME)
    )
    path = attached_path(PARTITION)
    return OpenLog(path, files=LogDirectoryRecipe(path.parent, (found,)).open())


def act_in_tier(tier: VerifiedWorld, world: WrittenLog, what: str) -> None:
    """Let something happen in a remote tier; what cannot is left out."""
    served = tier.tier.served()
    if what in ("cut", "expire") and world.topic.strategy is not Strategy.OFFSET:
        return  # what was lost to what is deleted then would be missed
    if what == "clean":
        tier.clean(replace(world.topic, segment_bytes=600), margin=150)
    elif what == "collect":
        tier.collect()
    elif what == "cut":
        tier.cluster.log = replace(tier.cluster.log, start=served[0].start_offset + 1)
    elif what == "expire" and len(served) > 2:
        tier.world.expire(served[0])
        tier.tier.cache = tier.cluster.cache()
    elif what == "overlay" and len(served) > 2:
        *_, last, newest = served
        batches = list(read_batches(tier.tier.log_of(last)))
        if last.broker_id >= 0 and newest.broker_id >= 0:
            first = batches[len(batches) // 2].base_offset
            tier.tier.copy_over(tier.directory, first, newest.end_offset)


PLACES: dict[str, Callable[..., Place]] = {
    "directory": InDirectory, "store": InStore, "cluster": InCluster,
}  # fmt: skip


@contextlib.contextmanager
def placed(
    kind: str, root: Path, strategy: Strategy = Strategy.OFFSET, *, follows: bool = False
) -> Iterator[Place]:
    """Begin a log in a place of this kind."""
    world = WrittenLog.make(root / "logs", strategy)
    place = PLACES[kind](world, root, follows=follows)
    try:
        yield place
    finally:
        place.close()
