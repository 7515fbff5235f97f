"""Histories of writes, rounds and undos in which each swap is killed at each of its steps.

In front of any recovery every reader is asked. It says what it says of the log that a broker's
start leaves, or it refuses, and names what ends the swap. What is killed are rounds, undos with
rounds in between, and the recovery that ends either of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.api.explain import explain_keys
from keeplast.api.export import export
from keeplast.api.exported_state import exported_state
from keeplast.api.open_log import open_log
from keeplast.cli.show.log import view_partition
from keeplast.errors import InterruptedSwapError, RefusedError
from keeplast.inspect.log_scan import RowSample
from keeplast.inspect.status import LogStatus, TombstoneReading, find_statuses
from keeplast.inspect.verified_log import VerifiedLog
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FileSystem
from keeplast.log.recovery import recover_swap
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import CleanerConfig, Strategy
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.run.undo import find_undo
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.interrupted_swap import (
    Act,
    copied,
    crash_at,
    crash_points,
    is_open,
    undo,
)
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import PARTITION
from tests.support.source_reading import read_log, read_log_state
from tests.support.written_log import WrittenLog

FILES = UnsyncedFiles()
KEPT_MS = 10**12
SIZES = (14, 300, 1 << 20)
"""Each segment a group of its own, some merged, all of them."""
Reader = Callable[[Path], object]


@dataclass
class History:
    """One log; ``seen`` are the directories that were looked at, by names and sizes.

    One step in ``every`` is killed.
    """

    world: WrittenLog
    scratch: Path
    every: int
    points: int = 0
    refused: int = 0
    answered: int = 0
    seen: set[object] = field(default_factory=set)

    @property
    def directory(self) -> Path:
        return self.world.log.directory

    def round(self, segment_bytes: int) -> Act:
        """Return what does a round that keeps what it replaces."""
        topic = replace(self.world.topic, segment_bytes=segment_bytes)
        cleaner = CleanerConfig(producer_id_expiration_ms=10**9)

        def act(files: FileSystem, directory: Path) -> None:
            request = PartitionRequest(PARTITION, directory, topic, cleaner)
            asked = CleanRequest(
                (request,), force=True, expired=True, memory_bytes=MEMORY_BYTES_MIN
            )
            with LocalRunner(1, files=files) as runner:
                clock = ManualClock(self.world.log.now_ms)
                Coordinator(runner, clock, files, NoEvents()).clean(asked)

        return act

    def kill_everywhere(self, act: Act) -> None:
        """Kill ``act`` at its swaps' steps; of what is there then kill the recovery, too."""
        for point in crash_points(act, self.directory, self.scratch / "whole"):
            if point % self.every:
                continue
            killed = copied(self.directory, self.scratch / "killed")
            crash_at(point, act, killed)
            self.look(killed)
            if point % (4 * self.every) == 0:
                for step in crash_points(recover, killed, self.scratch / "whole"):
                    recovering = copied(killed, self.scratch / "recovering")
                    crash_at(step, recover, recovering)
                    self.look(recovering)

    def look(self, directory: Path) -> None:
        """Ask every reader, and compare with the directory as a broker's start leaves it."""
        key = frozenset((each.name, each.stat().st_size) for each in directory.iterdir())
        if key in self.seen:
            return
        self.seen.add(key)
        self.points += 1
        started = copied(directory, self.scratch / "started")
        recover_swap(FILES, started)
        for name, reader in self.readers():
            expected = reader(started)
            found = answer(reader, directory)
            if isinstance(found, RefusedError):
                assert "keeplast clean" in str(found), name
                is_swap = isinstance(found, InterruptedSwapError)
                # Files of a round that is not over bar an earlier point alone.
                assert is_swap is is_open(directory), name
                assert is_swap or name == "as of", f"{name}: {found}"
                self.refused += 1
            else:
                assert not is_open(directory), f"{name} took a part for the log"
                assert expected == found, name
                self.answered += 1
        assert self.world.expected.replay(self.world.last_stable) == self.state(started)

    def state(self, directory: Path) -> dict[bytes, bytes | None]:
        found = open_log(directory).state(self.world.topic)
        return {key: each.value for key, each in found.items()}

    def readers(self) -> Iterator[tuple[str, Reader]]:
        """Yield every way to read a directory, as what it answers."""
        topic, now_ms, end = self.world.topic, self.world.log.now_ms, self.world.last_stable
        request = PartitionRequest(PARTITION, self.directory, topic)

        def status(directory: Path) -> object:
            asked = CleanRequest((replace(request, path=directory),))
            ((_, found),) = find_statuses(
                asked, directory.parent, FILES, now_ms,
                timestamp_ahead_max_ms=lambda _: INT64_MAX,
                tombstones=TombstoneReading.RECORDS, progressed=lambda _: None,
            )  # fmt: skip
            if isinstance(found, Exception):
                raise found
            assert isinstance(found, LogStatus)
            return found.log_start, found.log_end, found.segments, found.figures, found.stages

        def verified(directory: Path) -> object:
            log = VerifiedLog(directory, FILES)
            return log.start, log.end, [(s.base_offset, s.size_bytes) for s in log.segments]

        def explained(directory: Path) -> object:
            found = explain_keys(open_log(directory), topic, [b"k0", b"k1"], now_ms=now_ms)
            return {
                key: (each.log_start, each.log_end, each.winners) for key, each in found.items()
            }

        def inspected(directory: Path) -> object:
            page = view_partition(directory, FILES, RowSample(False, 0, 0))
            return [replace(each, path=Path()) for each in page.segments]

        def exported(directory: Path) -> object:
            to = self.scratch / "exported"
            export(directory, to, overwrite=to.exists(), cores=1)
            return exported_state(to, PARTITION.topic, topic)

        yield "state", self.state
        yield "as of", lambda directory: open_log(directory).state(topic, end_offset=end)
        yield "records", lambda directory: list(open_log(directory).records())
        yield "segments", lambda directory: [s.size_bytes for s in open_log(directory).segments()]
        yield "log start", lambda directory: open_log(directory).log_start_offset()
        yield "status", status
        yield "verify", verified
        yield "explain", explained
        yield "inspect", inspected
        yield "kafka-log", read_log
        yield "kafka-log, state", lambda directory: read_log_state(directory, topic=topic)
        yield (
            "undo list",
            lambda directory: [
                replace(each, refusal=None)
                for entry in open_data_directory(directory.parent, FILES).partitions
                for each in find_undo(FILES, entry)
            ],
        )
        if self.points % 8 == 1:
            yield "export", exported


def answer(reader: Reader, directory: Path) -> object:
    """Return what a reader answers, or that it refuses."""
    try:
        return reader(directory)
    except RefusedError as error:
        return error


def recover(files: FileSystem, directory: Path) -> None:
    """Do what a start of a broker does."""
    recover_swap(files, directory)


def play(root: Path, seed: int, turns: int, *, every: int) -> History:
    dice = random.Random(seed)
    world = WrittenLog.make(root / "data", Strategy.OFFSET)
    world.topic = replace(world.topic, undo_retention_ms=KEPT_MS)
    history = History(world, root, every)
    for turn in range(turns):
        world.go_on(dice, dice.randint(6, 10), 0.3)
        for producer in (1, 2):
            # One that stays open would keep all behind it from being cleaned.
            world.end(producer, dice.random() < 0.7)
        world.log.roll()
        act: Act = history.round(dice.choice(SIZES)) if turn % 2 == 0 else undo
        history.kill_everywhere(act)
        # What goes on from here is whole, or was killed and recovered.
        points = crash_points(act, history.directory, root / "whole")
        if points and dice.random() < 0.5:
            crash_at(dice.choice(points), act, history.directory)
            recover(FILES, history.directory)
        else:
            act(FILES, history.directory)
    world.log.close()
    return history


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.repeats)])
def test_no_reader_takes_a_part_for_the_log(tmp_path: Path, seed: int) -> None:
    history = play(tmp_path, seed, turns=4, every=3)
    assert history.points > 20
    assert history.refused > 100
    assert history.answered > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_no_reader_takes_a_part_for_the_log_in_many_more(tmp_path: Path, seed: int) -> None:
    history = play(tmp_path, seed, turns=6, every=1)
    assert history.refused > history.points
