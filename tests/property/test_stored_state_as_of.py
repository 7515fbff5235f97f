"""A state as of a point of a store is that of a plain replay, or it is refused where it must be.

Random histories with transactions and tombstones, copied piece by piece, with rounds in the store,
some of which are cut short between two commits, and log starts that move. The model keeps every
record that was ever written.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keeplast.api.open_log import OpenLog
from keeplast.errors import RefusedError
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.store.expiry import expire_remote
from keeplast.tier.metadata.stored_logs import shown_log
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import ROOT, round_path
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment
from tests.property.test_state_as_of import PUT, SECOND, SEND, World, values
from tests.support.tiered_log import Tiered
from tests.support.turns import examples

STEPS = st.one_of(
    PUT,
    PUT,
    SEND,
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("copy")),
    st.tuples(st.just("round"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([1, 10 * SECOND])),
    st.tuples(st.just("delete"), st.integers(0, 100)),
)
CLEANER = CleanerConfig(producer_id_expiration_ms=10**9)
SUPERSEDED: list[tuple[object, ...]] = [
    ("put", 0, False, 0), ("put", 1, False, 0), ("copy",), ("round", 0),
    ("put", 2, False, 0), ("put", 3, False, 0), ("put", 0, False, 0), ("copy",), ("round", 1),
]  # fmt: skip
"""What was clean loses a record to what is dirty, of which nothing goes, and the round is cut."""


class CutShortError(Exception):
    """What ends a round between two of its commits."""


@dataclass
class Stored:
    """A log, its copy in a store, and where the store's rounds have ended."""

    world: World
    root: Path
    tiered: Tiered | None = None
    ends: list[int] = field(default_factory=list)

    def copy(self) -> Tiered:
        directory = self.world.log.directory
        if self.tiered is None:
            self.tiered = Tiered(self.root, directory, now_ms=self.world.log.now_ms)
        else:
            self.tiered.take_in(directory)
        return self.tiered

    def round(self, commits: int) -> None:
        """Do a round; with ``commits`` it is cut short behind so many."""
        tiered = self.tiered
        if tiered is None or not tiered.state.routes:
            return
        left = [commits]

        def committed(_: tuple[RemoteSegment, ...], __: tuple[RemoteSegment, ...]) -> None:
            left[0] -= 1
            if not left[0]:
                raise CutShortError

        tiered.clock.advance(self.world.log.now_ms - tiered.clock.now_ms())
        with contextlib.suppress(CutShortError):
            report = tiered.clean(self.world.topic, cleaner=CLEANER, committed=committed)
            self.ends.append(report.end_offset or 0)

    def delete(self, percent: int) -> None:
        tiered = self.tiered
        if tiered is None or not tiered.state.routes:
            return
        if self.world.topic.strategy is not Strategy.OFFSET:
            return  # what was lost to what is deleted then, a round that was cut short may have
        state = tiered.state
        log_start = state.log_start + (self.last_stable - state.log_start) * percent // 100
        expire_remote(
            tiered.store, state, self.world.topic, tiered.clock.now_ms(), grace_ms=0, receipt=None,
            log_start=log_start,
        )  # fmt: skip

    @property
    def state(self) -> PartitionState:
        assert self.tiered is not None
        return self.tiered.state

    @property
    def last_stable(self) -> int:
        """Where the first transaction begins that is not decided in what was copied."""
        end = self.state.remote_end
        known = [*self.world.running.values(), *self.world.transactions]
        return min([end, *(each.first for each in known if not 0 <= each.marker < end)])

    def replay(self, end: int) -> dict[bytes, bytes]:
        """Return the plain fold of what lies in front of ``end``; see ``World.replay``."""
        state = self.state
        decided = end if end < self.last_stable else state.remote_end
        return values(self.world.winners(state.log_start, end, decided))

    def must_refuse(self, end: int) -> bool:
        """Say whether a round in the store has seen what an observer at ``end`` has not."""
        told_from = self.state.told_from
        if end >= self.last_stable or told_from == self.state.log_start:
            return end < told_from
        return end < told_from or any(
            each.commits and each.first < told_from and each.marker >= end
            for each in self.world.transactions
        )

    def told(self, **point: int) -> dict[bytes, bytes] | None:
        """Return the state as it is told, None when it is refused."""
        assert self.tiered is not None
        return told_of(self.state, self.tiered.objects, self.world.topic, **point)


def told_of(
    state: PartitionState, objects: ObjectStore, topic: TopicConfig, **point: int
) -> dict[bytes, bytes] | None:
    """Return the state of a stored log as it is told, None when it is refused."""
    recipe = LogDirectoryRecipe(ROOT, (shown_log(state, objects),))
    log = OpenLog(round_path(state.partition), files=recipe.open())
    try:
        found = log.state(topic, end_offset=point.get("end_offset"), as_of_ms=point.get("as_of_ms"))
    except RefusedError:
        return None
    return {key: each.value for key, each in found.items() if each.value is not None}


def play(
    root: Path, steps: Sequence[tuple[object, ...]], strategy: Strategy = Strategy.OFFSET
) -> Stored:
    world = World.make(root / "data", strategy)
    stored = Stored(world, root)
    for name, *arguments in steps:
        world.log.now_ms += 1
        if world.write(name, arguments):
            continue
        match name, arguments:
            case "roll", []:
                world.log.roll()
            case "copy", []:
                stored.copy()
            case "round", [int(commits)]:
                stored.round(commits)
            case "wait", [int(span)]:
                world.log.now_ms += span
            case "delete", [int(percent)]:
                stored.delete(percent)
    stored.copy()
    return stored


@settings(max_examples=examples(40, long=3000))
@given(st.lists(STEPS, min_size=8, max_size=30), st.sampled_from(Strategy))
@example(SUPERSEDED, Strategy.OFFSET)
def test_a_state_as_of_an_offset_is_the_replay_or_refused(
    steps: list[tuple[object, ...]], strategy: Strategy
) -> None:
    with tempfile.TemporaryDirectory() as root:
        stored = play(Path(root), steps, strategy)
        state, stable = stored.state, stored.last_stable
        for end in range(state.log_start, state.remote_end + 1):
            at = min(end, stable)
            told = stored.told(end_offset=end)
            if stored.must_refuse(at):
                assert told is None, f"end={end}"
            else:
                assert stored.replay(at) == told, f"end={end}"
            if told is not None:
                assert at >= max(stored.ends, default=0), f"end={end}"
        stored.world.log.close()


def test_a_round_that_was_cut_short_is_told_of_by_its_end(tmp_path: Path) -> None:
    stored = play(tmp_path, SUPERSEDED)
    state = stored.state
    assert (2, 5) == (state.first_dirty(), state.told_from)
    assert [None] * 2 == [stored.told(end_offset=end) for end in (2, 4)]
    assert stored.replay(5) == stored.told(end_offset=5) == stored.told()
    stored.world.log.close()


@settings(max_examples=examples(20, long=1500))
@given(
    st.lists(STEPS, min_size=8, max_size=30), st.sampled_from([Strategy.OFFSET, Strategy.HEADER])
)
def test_a_state_as_of_a_time_is_that_of_its_first_later_record_or_refused(
    steps: list[tuple[object, ...]], strategy: Strategy
) -> None:
    with tempfile.TemporaryDirectory() as root:
        stored = play(Path(root), steps, strategy)
        log_start, written = stored.state.log_start, stored.world.written
        for at_ms in sorted({each.at_ms for each in written}):
            later = [e.offset for e in written if e.at_ms > at_ms and e.offset >= log_start]
            end = min([*later, stored.last_stable])
            told = stored.told(as_of_ms=at_ms)
            if told is None:
                # Nothing but a record behind what was cleaned says that the time lies there.
                is_behind = end > stored.state.told_from
                assert not is_behind or stored.must_refuse(end), f"at={at_ms} end={end}"
            else:
                assert stored.replay(end) == told, f"at={at_ms} end={end}"
        stored.world.log.close()
