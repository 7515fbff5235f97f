"""Undo restores what a round replaced and loses no later write, or is refused and changes nothing.

One law, in a directory and a store: random histories of every strategy, with transactions, log
starts that move, rounds and undos that a crash cuts short, other owners, collections, and time that
passes. Of each round the model keeps the log that was before it. In the end readers get what was
written, and states as of earlier points are right or refused.
"""

from __future__ import annotations

import contextlib
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

import keeplast
from keeplast.api.open_log import OpenLog
from keeplast.errors import RefusedError
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LOG,
    SNAPSHOT,
    TXN_INDEX,
    parse_segment_file,
)
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.data_directory import open_data_directory
from keeplast.log.recovery import recover_swap
from keeplast.log.undo_files import read_kept
from keeplast.model.topic_config import Strategy
from keeplast.read.log_reader import read_segment
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.run.undo import UndoRound, undo_newest
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment, Route
from tests.support.broker_directory import BrokerDirectory, crashing_at
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import Crash, ObservedFiles, UnsyncedFiles
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.placed_log import CLEANER, expected_of, stored_log
from tests.support.turns import examples
from tests.support.written_log import (
    DELETE,
    END,
    PUT,
    ROLL,
    SECOND,
    SEND,
    Expected,
    Steps,
    WrittenLog,
    shown_state,
)

FILES = UnsyncedFiles()
GRACE_MS = 2 * SECOND
Content = dict[str, tuple[bytes, int]]
SIZES = (14, 300, 1 << 20)
"""Every segment a group of its own, some merged, all of them."""


def steps_of(crash_last: int, *own: st.SearchStrategy[tuple[object, ...]]) -> Any:
    """Return the steps of a place; a crash is before a change up to ``crash_last``, or none."""
    crash_at = st.one_of(st.none(), st.none(), st.integers(0, crash_last))
    round_ = st.tuples(st.just("round"), st.sampled_from(SIZES), crash_at)
    undo = st.tuples(st.just("undo"), crash_at)
    wait = st.tuples(st.just("wait"), st.sampled_from([1, 10 * SECOND]))
    return st.one_of(
        PUT, PUT, SEND, END, ROLL, ROLL, round_, round_, undo, undo, wait, DELETE, *own
    )


class Undone(ABC):
    """A log, its rounds, and what was before each of which something is kept."""

    def __init__(self, world: WrittenLog, root: Path) -> None:
        self.world = world
        self.root = root
        self.before: dict[str, Any] = {}
        self.crashes = 0

    may_refuse = False
    """Whether states may be refused that could be shown."""

    @property
    @abstractmethod
    def expected(self) -> Expected: ...

    @abstractmethod
    def open(self) -> OpenLog: ...

    @abstractmethod
    def look(self) -> Any:
        """Return all that an undo restores or leaves as it is."""

    @abstractmethod
    def kept(self) -> list[str]:
        """Return the rounds of which something is kept, the newest first."""

    @abstractmethod
    def clean(self, segment_bytes: int, crash_at: int | None) -> None: ...

    @abstractmethod
    def put_back(self, crash_at: int | None) -> UndoRound | None: ...

    @abstractmethod
    def restart(self) -> None:
        """Do what every process begins with."""

    @abstractmethod
    def goes_on(self, newest: str, seen: Any) -> bool:
        """Say whether an undo of ``newest`` that a crash has ended has happened, and is judged."""

    @abstractmethod
    def has_reason(self, before: Any) -> bool:
        """Say whether there is a reason to refuse the undo of a round."""

    @abstractmethod
    def check(self, before: Any, tail: Any) -> None:
        """Find what was before a round, and behind it what has been there before the undo."""

    @abstractmethod
    def delete(self, percent: int) -> None: ...

    @abstractmethod
    def act(self, what: str) -> None: ...

    @abstractmethod
    def settle(self) -> None:
        """Do what every call begins with."""

    def round(self, segment_bytes: int, crash_at: int | None) -> None:
        before, known = self.look(), self.kept()
        try:
            self.clean(segment_bytes, crash_at)
        except Crash:
            self.crashes += 1
            self.restart()
        new = [each for each in self.kept() if each not in known]
        assert len(new) <= 1
        self.before |= dict.fromkeys(new, before)

    def undo(self, crash_at: int | None) -> None:
        self.settle()
        rounds, seen = self.kept(), self.look()
        newest = next(iter(rounds), "")
        try:
            found = self.put_back(crash_at)
        except Crash:
            self.crashes += 1
            self.restart()
            if not self.goes_on(newest, seen):
                return
        except RefusedError:
            assert (rounds, seen) == (self.kept(), self.look())
            assert self.has_reason(self.before[newest]), "refused without a reason"
            return
        else:
            assert (found is None) == (not rounds)
        if rounds:
            assert rounds[1:] == self.kept()
            self.check(self.before.pop(newest), seen)

    def play(self, steps: Steps) -> None:
        for name, *arguments in steps:
            self.world.log.now_ms += 1
            if not self.world.write(name, arguments):
                self.settle()
                match name, arguments:
                    case "roll", []:
                        self.world.log.roll()
                    case "round", [int(size), crash_at]:
                        self.round(size, crash_at)  # type: ignore[arg-type]
                    case "undo", [crash_at]:
                        self.undo(crash_at)  # type: ignore[arg-type]
                    case "wait", [int(span)]:
                        self.world.log.now_ms += span
                    case "delete", [int(percent)]:
                        # By version what was lost to a record that is deleted then would be missed.
                        if self.world.topic.strategy is Strategy.OFFSET:
                            self.delete(percent)
                    case _:
                        self.act(str(name))
        self.settle()


class Before(Struct, frozen=True):
    """The log before a round: files, line of the checkpoint, and where its active segment began
    and itself did."""

    content: Content
    checkpoint: int | None
    end: int
    log_start: int


class InDirectory(Undone):
    """A log of a data directory."""

    @property
    def path(self) -> Path:
        return self.world.log.directory

    @property
    def expected(self) -> Expected:
        return self.world.expected

    @property
    def may_refuse(self) -> bool:  # type: ignore[override]
        return self.crashes > 0

    def open(self) -> OpenLog:
        return keeplast.open_log(self.path)

    def kept(self) -> list[str]:
        return [waves[0].attempt for waves in reversed(read_kept(FILES, self.path).rounds())]

    def look(self) -> Before:
        checkpoint = read_checkpoint(FILES, self.path.parent, CLEANER_CHECKPOINT).get(PARTITION)
        return Before(self.content(), checkpoint, self.world.log.active_base, self.world.log_start)

    def content(self) -> Content:
        """Return bytes and times of the log's files; an empty transaction index is as good as none,
        and brokers write a snapshot again that a start-up behind a crash has taken away."""
        found = {}
        for path in self.path.iterdir():
            parsed = parse_segment_file(path.name)
            if parsed is not None and not (self.crashes and parsed.kind == SNAPSHOT):
                data = path.read_bytes()
                if data or not path.name.endswith(TXN_INDEX):
                    found[path.name] = data, path.stat().st_mtime_ns
        return found

    def settle(self) -> None:
        self.restart()

    def restart(self) -> None:
        recover_swap(FILES, self.path)

    def clean(self, segment_bytes: int, crash_at: int | None) -> None:
        topic = replace(self.world.topic, segment_bytes=segment_bytes)
        request = CleanRequest(
            (PartitionRequest(PARTITION, self.path, topic, CLEANER),),
            force=True, expired=True, memory_bytes=MEMORY_BYTES_MIN,
        )  # fmt: skip
        files, clock = ObservedFiles(crash_at=crash_at), ManualClock(self.world.log.now_ms)
        with LocalRunner(1, files=files) as runner:
            report = Coordinator(runner, clock, files, NoEvents()).clean(request)
        assert report.partitions[0].rounds[-1].failure is None

    def put_back(self, crash_at: int | None) -> UndoRound | None:
        files = ObservedFiles(crash_at=crash_at)
        (entry,) = open_data_directory(self.path.parent, files).partitions
        return undo_newest(
            files, entry, receipt=None, now_ms=self.world.log.now_ms, warned=pytest.fail
        )

    def goes_on(self, newest: str, seen: Before) -> bool:
        """Whatever of it has happened, the next call goes on."""
        if newest in self.kept():
            self.undo(None)
        return False

    def has_reason(self, before: Before) -> bool:
        start = self.world.log_start
        # A round that a crash has cut off may have kept what lies below the log start whole.
        is_below = self.crashes > 0 and min(map(base_of, before.content)) < start
        return start > before.log_start or is_below

    def check(self, before: Before, tail: Before) -> None:
        looked = self.look()
        now = looked.content
        assert before.checkpoint == looked.checkpoint or self.world.log_start > before.log_start
        assert between(tail.content, before.end) == between(now, before.end)
        first = min((base_of(name) for name in now), default=0)
        expected = between(before.content, 0, before.end)
        if self.crashes:
            expected = {k: each for k, each in expected.items() if not k.endswith(SNAPSHOT)}
        # Of a segment that lies below the log start whole nothing is kept: it is read no more.
        bases = sorted({base_of(name) for name in expected} | {before.end})
        alive = next((n for n, end in pairwise(bases) if end > self.world.log_start), before.end)
        if self.world.log_start == before.log_start:
            assert between(expected, alive) == between(now, alive, before.end)
        else:
            # A segment that holds the log start may have stayed as what the round made of it.
            above = {name: each for name, each in expected.items() if base_of(name) >= first}
            assert self.records(above) <= self.records(now)

    def records(self, content: Content) -> set[tuple[int, bytes | None, bytes | None]]:
        """Return the records of a log that readers see."""
        with tempfile.TemporaryDirectory() as folder:
            found = set()
            for name, (data, _) in content.items():
                if name.endswith(LOG):
                    (Path(folder) / name).write_bytes(data)
                    for batch in read_segment(FILES, Path(folder) / name):
                        found |= {
                            (each.offset, each.key, each.value)
                            for each in batch.records()
                            if each.offset >= self.world.log_start
                        }
            return found

    def delete(self, percent: int) -> None:
        self.world.delete(percent)

    def act(self, what: str) -> None:
        raise AssertionError(what)


def base_of(name: str) -> int:
    return int(name[:20])


def between(found: Content, start: int, end: int = 1 << 62) -> Content:
    """Return the files of segments that begin in [start, end)."""
    return {name: each for name, each in found.items() if start <= base_of(name) < end}


@dataclass(frozen=True)
class Routed:
    """What readers of a store are routed to, and how far it is clean."""

    routes: tuple[Route, ...]
    first_dirty: int
    state: PartitionState = field(compare=False)


class InStore(Undone):
    """A log's copy in a store: what is closed is copied at once."""

    def __init__(self, world: WrittenLog, root: Path) -> None:
        super().__init__(world, root)
        world.log.now_ms = NOW_MS
        self.broker = BrokerDirectory(root, world.topic)
        self.owners = 0
        world.put(0, deletes=False)
        self.act("copy")

    @property
    def state(self) -> PartitionState:
        return self.broker.state

    @property
    def expected(self) -> Expected:
        return expected_of(self.world, self.state)

    def open(self) -> OpenLog:
        return stored_log(self.state, self.broker.objects)

    def look(self) -> Routed:
        state = self.state
        return Routed(state.routes, state.first_dirty(), state)

    def kept(self) -> list[str]:
        return [each.round for each in self.broker.tiered.undo.rounds(PARTITION)]

    def settle(self) -> None:
        """Let the store's clock be the log's; whatever was done to it, it is sound."""
        clock = self.broker.clock
        clock.advance(self.world.log.now_ms - clock.now_ms())
        assert () == self.broker.tiered.verify(PARTITION)

    def restart(self) -> None:
        self.owners += 1
        self.broker.take_over(f"owner {self.owners}")

    def clean(self, segment_bytes: int, crash_at: int | None) -> None:
        self.broker.topic = replace(
            self.world.topic, segment_bytes=segment_bytes, tier_chunk_bytes=segment_bytes
        )
        if self.state.routes:  # else all was deleted, and there is no round
            with crashing_at(self.broker, -1 if crash_at is None else crash_at):
                self.broker.tiered.clean(PARTITION, force=True, grace_ms=GRACE_MS)

    def put_back(self, crash_at: int | None) -> UndoRound | None:
        with crashing_at(self.broker, -1 if crash_at is None else crash_at):
            return self.broker.tiered.undo.put_back(PARTITION, grace_ms=GRACE_MS)

    def goes_on(self, newest: str, seen: Routed) -> bool:
        """It has happened, or nothing of it."""
        if newest in self.kept() or not newest:
            assert seen == self.look()
            return False
        return True

    def has_reason(self, before: Routed) -> bool:
        return self.state.log_start > before.state.log_start

    def check(self, before: Routed, tail: Routed) -> None:
        then, now, end = before.state, self.state, before.state.remote_end
        expected = [each for each in then.routes if each.last_offset >= now.log_start]
        expected += [each for each in tail.state.routes if each.base_offset >= end]
        assert expected == [each for each in now.routes if each.last_offset >= now.log_start]
        back = [each.segment_id for each in expected if each.base_offset < end]
        assert [unmarked(then.segments[each]) for each in back] == [
            unmarked(now.segments[each]) for each in back
        ]
        # A segment that the round left alone carries the vector of the undo: never one beyond it.
        marks = [mark for each in back for mark in now.segments[each].cleaner_offsets.values()]
        assert max(marks, default=0) <= now.first_dirty()
        if now.log_start == then.log_start:
            assert (then.first_dirty(), then.cleaned_for) == (now.first_dirty(), now.cleaned_for)

    def delete(self, percent: int) -> None:
        now = self.expected
        start = now.log_start + (now.last_stable - now.log_start) * percent // 100
        self.broker.tiered.removals.delete_records(PARTITION, start, grace_ms=GRACE_MS)

    def act(self, what: str) -> None:
        match what:
            case "copy":
                self.world.log.roll()
                self.broker.import_all()
            case "collect":
                self.broker.tiered.collect(PARTITION)
            case "owner":
                self.restart()


def unmarked(segment: RemoteSegment) -> RemoteSegment:
    """Return a segment without the vector of how far the log is clean."""
    return replace(segment, cleaner_offsets={})


ACTS = st.tuples(st.sampled_from(["copy", "copy", "collect", "owner"]))
PLACES: dict[str, tuple[type[Undone], Any, int, int]] = {
    "directory": (InDirectory, st.lists(steps_of(60), min_size=6, max_size=40), 60, 4000),
    "store": (InStore, st.lists(steps_of(40, ACTS, ACTS), min_size=6, max_size=30), 25, 2000),
}
"""A place, its histories, and how many are drawn, in the short form and in the long one."""


@pytest.mark.parametrize("kind", PLACES)
def test_no_history_of_writes_rounds_crashes_and_undos_loses_anything(kind: str) -> None:
    place, histories, count, long = PLACES[kind]

    @settings(max_examples=examples(count, long=long))
    @given(histories, st.sampled_from(Strategy), st.sampled_from([20 * SECOND, 10_000 * SECOND]))
    def law(steps: Steps, strategy: Strategy, kept_ms: int) -> None:
        with tempfile.TemporaryDirectory() as root:
            world = WrittenLog.make(Path(root) / "data", strategy)
            world.topic = replace(world.topic, undo_retention_ms=kept_ms)
            undone = place(world, Path(root))
            undone.play(steps)
            show = partial(shown_state, undone.open(), world.topic)
            undone.expected.check_offsets(show, may_refuse=undone.may_refuse)
            # What is kept comes back, round by round, as far as nothing bars it.
            for _ in undone.kept():
                undone.undo(None)
            with contextlib.suppress(RefusedError):
                undone.put_back(None)
            now = undone.expected
            show = partial(shown_state, undone.open(), world.topic)
            assert now.replay(now.last_stable) == show(end_offset=now.end)
            world.log.close()

    law()
