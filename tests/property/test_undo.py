"""Undo restores every byte and loses no later write, or says why not and changes nothing.

Random histories of every strategy, with transactions, deletions of records, rounds and undos that a
crash cuts short, and time that passes. Of each round the model keeps the log that was before it. In
the end readers get what was written, and states as of earlier points are right or refused.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from keeplast.log.files import FileSystem
from keeplast.log.recovery import recover_swap
from keeplast.log.undo_files import read_kept
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import CleanerConfig
from keeplast.read.log_reader import read_segment
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.run.undo import UndoRound, undo_newest
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.property.test_state_as_of import PUT, SECOND, SEND, World, state_of
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import Crash, ObservedFiles, UnsyncedFiles
from tests.support.partition_maker import PARTITION
from tests.support.turns import examples

FILES = UnsyncedFiles()
Content = dict[str, tuple[bytes, int]]
CRASH_AT = st.one_of(st.none(), st.none(), st.integers(0, 60))
SIZES = (14, 300, 1 << 20)
"""Every segment a group of its own, some merged, all of them."""
STEPS = st.one_of(
    PUT,
    PUT,
    SEND,
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("roll")),
    st.tuples(st.just("round"), st.sampled_from(SIZES), CRASH_AT),
    st.tuples(st.just("round"), st.sampled_from(SIZES), CRASH_AT),
    st.tuples(st.just("undo"), CRASH_AT),
    st.tuples(st.just("undo"), CRASH_AT),
    st.tuples(st.just("wait"), st.sampled_from([1, 10 * SECOND])),
    st.tuples(st.just("delete"), st.integers(0, 100)),
)


@dataclass(frozen=True)
class Before:
    """The log before a round: files, line of the checkpoint, and where its active segment began
    and itself did."""

    content: Content
    checkpoint: int | None
    end: int
    log_start: int


@dataclass
class Undone:
    """A log, its rounds, and what was before each of which something is kept."""

    world: World
    before: dict[str, Before] = field(default_factory=dict)
    crashes: int = 0

    @property
    def path(self) -> Path:
        return self.world.log.directory

    def kept(self) -> list[str]:
        """Return the rounds of which something is kept, from the oldest on."""
        return [waves[0].attempt for waves in read_kept(FILES, self.path).rounds()]

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

    def checkpoint(self) -> int | None:
        return read_checkpoint(FILES, self.path.parent, CLEANER_CHECKPOINT).get(PARTITION)

    def recover(self) -> None:
        """Do what every call begins with."""
        recover_swap(FILES, self.path)

    def round(self, segment_bytes: int, crash_at: int | None) -> None:
        self.recover()
        before = Before(
            self.content(), self.checkpoint(), self.world.log.active_base, self.world.log_start
        )
        known = set(self.kept())
        topic = replace(self.world.topic, segment_bytes=segment_bytes)
        cleaner = CleanerConfig(producer_id_expiration_ms=10**9)
        request = PartitionRequest(PARTITION, self.path, topic, cleaner)
        files = ObservedFiles(crash_at=crash_at)
        try:
            with LocalRunner(1, files=files) as runner:
                clock = ManualClock(self.world.log.now_ms)
                report = Coordinator(runner, clock, files, NoEvents()).clean(
                    CleanRequest(
                        (request,), force=True, expired=True, memory_bytes=MEMORY_BYTES_MIN
                    )
                )
            assert report.partitions[0].rounds[-1].failure is None
        except Crash:
            self.crashes += 1
            self.recover()
        new = [each for each in self.kept() if each not in known]
        assert len(new) <= 1
        self.before |= dict.fromkeys(new, before)

    def undo(self, crash_at: int | None) -> None:
        self.recover()
        rounds, now, start = self.kept(), self.content(), self.world.log_start
        checkpoint = self.checkpoint()
        files = ObservedFiles(crash_at=crash_at)
        try:
            found = self.put_back(files)
        except Crash:
            # Whatever of it has happened, the next call goes on.
            self.crashes += 1
            self.recover()
            if rounds and rounds[-1] in self.kept():
                self.undo(None)
            return
        except RefusedError:
            assert (now, checkpoint) == (self.content(), self.checkpoint())
            before = self.before[rounds[-1]]
            # A round that a crash has cut off may have kept what lies below the log start whole.
            is_below = self.crashes > 0 and min(map(base_of, before.content)) < start
            assert start > before.log_start or is_below, "refused without a reason"
            return
        if not rounds:
            assert found is None
            return
        assert found is not None
        assert rounds[:-1] == self.kept()
        self.check(self.before.pop(rounds[-1]), now)

    def put_back(self, files: FileSystem) -> UndoRound | None:
        (entry,) = open_data_directory(self.path.parent, files).partitions
        return undo_newest(
            files, entry, receipt=None, now_ms=self.world.log.now_ms, warned=pytest.fail
        )

    def check(self, before: Before, tail: Content) -> None:
        """Find what was before a round, and behind it what has been there before the undo."""
        now = self.content()
        assert before.checkpoint == self.checkpoint() or self.world.log_start > before.log_start
        assert between(tail, before.end) == between(now, before.end)
        first = min((base_of(name) for name in now), default=0)
        expected = between(before.content, 0, before.end)
        if self.crashes:
            expected = {k: each for k, each in expected.items() if not k.endswith(SNAPSHOT)}
        # Of a segment that lies below the log start whole nothing is kept: it is nobody's any more.
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


def base_of(name: str) -> int:
    return int(name[:20])


def between(found: Content, start: int, end: int = 1 << 62) -> Content:
    """Return the files of segments that begin in [start, end)."""
    return {name: each for name, each in found.items() if start <= base_of(name) < end}


def play(root: Path, steps: Sequence[tuple[object, ...]], world: World) -> Undone:
    undone = Undone(world)
    for name, *arguments in steps:
        world.log.now_ms += 1
        if world.write(name, arguments):
            continue
        match name, arguments:
            case "roll", []:
                world.log.roll()
            case "round", [int(size), crash_at]:
                undone.round(size, crash_at)  # type: ignore[arg-type]
            case "undo", [crash_at]:
                undone.undo(crash_at)  # type: ignore[arg-type]
            case "wait", [int(span)]:
                world.log.now_ms += span
            case "delete", [int(percent)] if world.topic.strategy is Strategy.OFFSET:
                # By version what was lost to a record that is deleted then would be missed.
                world.delete(percent)
    return undone


@settings(max_examples=examples(60, long=4000))
@given(
    st.lists(STEPS, min_size=6, max_size=40),
    st.sampled_from(Strategy),
    st.sampled_from([20 * SECOND, 10_000 * SECOND]),
)
def test_no_history_of_writes_rounds_crashes_and_undos_loses_anything(
    steps: list[tuple[object, ...]], strategy: Strategy, kept_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World.make(Path(root) / "data", strategy)
        world.topic = replace(world.topic, undo_retention_ms=kept_ms)
        undone = play(Path(root), steps, world)
        undone.recover()
        for end in range(world.log_start, world.log.log_end + 1):
            at = min(end, world.last_stable)
            told = state_of(world, end_offset=end)
            if world.must_refuse(at):
                assert told is None, f"end={end} told={told}"
            elif told is None:
                assert undone.crashes, f"end={end}"
            if told is not None:
                assert world.replay(at) == told, f"end={end}"
        # What is kept comes back, round by round, as far as nothing bars it.
        for _ in undone.kept():
            undone.undo(None)
        with contextlib.suppress(RefusedError):
            undone.put_back(FILES)
        assert world.replay(world.last_stable) == state_of(world, end_offset=world.log.log_end)
        world.log.close()
