"""Undo in a store restores what a round replaced, and loses nothing that was copied since.

Random histories of every strategy, with transactions, rounds and undos that end with their process
between two changes of the metadata, other owners, log starts that move, collections and time that
passes. Of each round the model keeps the log that was before it. In the end readers get what was
written, and states as of earlier points are right or refused.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from keeplast.errors import RefusedError
from keeplast.model.strategy import Strategy
from keeplast.run.undo import UndoRound
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.routing import Route
from keeplast.tier.state.segment import RemoteSegment
from tests.property.test_state_as_of import PUT, SECOND, SEND, World, values
from tests.property.test_stored_state_as_of import told_of
from tests.support.broker_directory import BrokerDirectory
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.turns import examples
from tests.unit.store.test_tier_undo import Crash, crashing_at

GRACE_MS = 2 * SECOND
CRASH_AT = st.one_of(st.none(), st.none(), st.integers(0, 40))
STEPS = st.one_of(
    PUT,
    PUT,
    SEND,
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("copy")),
    st.tuples(st.just("copy")),
    st.tuples(st.just("round"), st.booleans(), CRASH_AT),
    st.tuples(st.just("round"), st.booleans(), CRASH_AT),
    st.tuples(st.just("undo"), CRASH_AT),
    st.tuples(st.just("undo"), CRASH_AT),
    st.tuples(st.just("wait"), st.sampled_from([1, 10 * SECOND])),
    st.tuples(st.just("collect")),
    st.tuples(st.just("owner")),
    st.tuples(st.just("delete"), st.integers(0, 100)),
)


def unmarked(segment: RemoteSegment) -> RemoteSegment:
    """Return a segment without the vector of how far the log is clean."""
    return replace(segment, cleaner_offsets={})


@dataclass
class Undone:
    """A log, its store, and the state that was before each round of which something is kept."""

    world: World
    broker: BrokerDirectory
    before: dict[str, PartitionState] = field(default_factory=dict)
    crashes: int = 0
    owners: int = 0

    @property
    def state(self) -> PartitionState:
        return self.broker.state

    def tick(self) -> None:
        """Let the store's clock be the log's."""
        clock = self.broker.clock
        clock.advance(self.world.log.now_ms - clock.now_ms())

    def copy(self) -> None:
        self.world.log.roll()
        self.broker.import_all()

    def kept(self) -> list[str]:
        """Return the rounds of which something is kept, the newest first."""
        return [each.round for each in self.broker.tiered.undo.rounds(PARTITION)]

    def take_over(self) -> None:
        self.owners += 1
        self.broker.tiered = self.broker.opened(f"owner {self.owners}")
        self.broker.tiered.own(PARTITION, takes_over=True)

    def round(self, is_chunked: bool, crash_at: int | None) -> None:
        before, known = self.state, self.kept()
        size = 14 if is_chunked else 1 << 20
        self.broker.topic = replace(
            self.world.topic, segment_bytes=size, tier_chunk_bytes=size if is_chunked else 1 << 20
        )
        try:
            with crashing_at(self.broker, -1 if crash_at is None else crash_at):
                self.broker.tiered.clean(PARTITION, force=True, grace_ms=GRACE_MS)
        except Crash:
            self.crashes += 1
            self.take_over()
        new = [each for each in self.kept() if each not in known]
        assert len(new) <= 1
        self.before |= dict.fromkeys(new, before)

    def undo(self, crash_at: int | None) -> None:
        rounds, now = self.kept(), self.state
        try:
            with crashing_at(self.broker, -1 if crash_at is None else crash_at):
                found = self.put_back()
        except Crash:
            self.crashes += 1
            self.take_over()
            # It has happened, or nothing of it.
            if rounds == self.kept():
                assert (now.routes, now.first_dirty()) == (
                    self.state.routes, self.state.first_dirty(),
                )  # fmt: skip
                return
        except RefusedError:
            assert (rounds, now.routes) == (self.kept(), self.state.routes)
            assert now.log_start > self.before[rounds[0]].log_start, "refused without a reason"
            return
        else:
            assert (found is None) == (not rounds)
        if rounds:
            assert rounds[1:] == self.kept()
            self.check(self.before.pop(rounds[0]), now)

    def put_back(self) -> UndoRound | None:
        return self.broker.tiered.undo.put_back(PARTITION, grace_ms=GRACE_MS)

    def check(self, before: PartitionState, tail: PartitionState) -> None:
        """Find what was before a round, and behind it what was there before the undo."""
        now = self.state
        end = before.remote_end
        expected = [each for each in before.routes if each.last_offset >= now.log_start]
        expected += [each for each in tail.routes if each.base_offset >= end]
        assert expected == [each for each in now.routes if each.last_offset >= now.log_start]
        back = [id_of(each) for each in expected if each.base_offset < end]
        assert [unmarked(before.segments[each]) for each in back] == [
            unmarked(now.segments[each]) for each in back
        ]
        # A segment that the round left alone carries the vector of the undo: never one beyond it.
        marks = [mark for each in back for mark in now.segments[each].cleaner_offsets.values()]
        assert max(marks, default=0) <= now.first_dirty()
        if now.log_start == before.log_start:
            assert (before.first_dirty(), before.cleaned_for) == (
                now.first_dirty(), now.cleaned_for,
            )  # fmt: skip

    def told(self, end: int) -> dict[bytes, bytes] | None:
        return told_of(self.state, self.broker.objects, self.world.topic, end_offset=end)

    def last_stable(self) -> int:
        end = self.state.remote_end
        known = [*self.world.running.values(), *self.world.transactions]
        return min([end, *(each.first for each in known if not 0 <= each.marker < end)])

    def replay(self, at: int) -> dict[bytes, bytes]:
        """Return the plain fold of what lies in front of an offset, of all that was written."""
        decided = at if at < self.last_stable() else self.state.remote_end
        return values(self.world.winners(self.state.log_start, at, decided))

    def must_refuse(self, at: int) -> bool:
        told_from = self.state.told_from
        if at >= self.last_stable() or told_from == self.state.log_start:
            return at < told_from
        return at < told_from or any(
            each.commits and each.first < told_from and each.marker >= at
            for each in self.world.transactions
        )


def id_of(route: Route) -> str:
    return route.segment_id


def play(
    root: Path, steps: Sequence[tuple[object, ...]], strategy: Strategy, kept_ms: int
) -> Undone:
    world = World.make(root / "data", strategy)
    world.log.now_ms = NOW_MS
    world.topic = replace(world.topic, undo_retention_ms=kept_ms)
    undone = Undone(world, BrokerDirectory(root, world.topic))
    world.put(0, deletes=False)
    undone.copy()
    for name, *arguments in steps:
        world.log.now_ms += 1
        undone.tick()
        if world.write(name, arguments):
            continue
        match name, arguments:
            case "copy", []:
                undone.copy()
            case "round", [bool(is_chunked), crash_at]:
                undone.round(is_chunked, crash_at)  # type: ignore[arg-type]
            case "undo", [crash_at]:
                undone.undo(crash_at)  # type: ignore[arg-type]
            case "wait", [int(span)]:
                world.log.now_ms += span
            case "collect", []:
                undone.broker.tiered.collect(PARTITION)
            case "owner", []:
                undone.take_over()
            case "delete", [int(percent)] if strategy is Strategy.OFFSET:
                state, stable = undone.state, undone.last_stable()
                start = state.log_start + (stable - state.log_start) * percent // 100
                undone.broker.tiered.expire(PARTITION, log_start=start, grace_ms=GRACE_MS)
        assert () == undone.broker.tiered.verify(PARTITION), name
    undone.tick()
    return undone


@settings(max_examples=examples(25, long=2000))
@given(
    st.lists(STEPS, min_size=6, max_size=30),
    st.sampled_from(Strategy),
    st.sampled_from([20 * SECOND, 10_000 * SECOND]),
)
def test_no_history_of_copies_rounds_crashes_and_undos_loses_anything(
    steps: list[tuple[object, ...]], strategy: Strategy, kept_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        undone = play(Path(root), steps, strategy, kept_ms)
        state, stable = undone.state, undone.last_stable()
        for end in range(state.log_start, state.remote_end + 1):
            at, told = min(end, stable), undone.told(end)
            if undone.must_refuse(at):
                assert told is None, f"end={end} told={told}"
            else:
                assert undone.replay(at) == told, f"end={end}"
        # What is kept comes back, round by round, as far as nothing bars it.
        for _ in undone.kept():
            undone.undo(None)
        with contextlib.suppress(RefusedError):
            undone.put_back()
        assert undone.replay(stable) == undone.told(state.remote_end)
        undone.world.log.close()
