"""KIP-354's bounds, by a manual clock: when a log is eligible, and when an old value is gone.

Random writers date their records anywhere within ``D`` of the clock, stop, and go on; the daemon
works on what they write, in rounds of random durations. Whatever the seed:

* a record appended at ``t`` is eligible at the latest at ``t + D + M``, so ``D + M + D`` after its
  own timestamp (the KIP's note 1), in idle partitions too;
* what was overwritten or deleted when ``status`` said ``erased_by`` is in no file of the directory
  from then on, files that end in ``.deleted``, or that are kept for undo, included.

Values are unique tokens in uncompressed batches, so that a file's bytes show it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from keeplast.config.layers import SettingSources
from keeplast.config.selection import Selection, select_partitions
from keeplast.inspect.status import LogStatus, TombstoneReading, find_status
from keeplast.log.append import LogAppender, NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.service.daemon import Daemon
from keeplast.service.directory_work import DirectorySettings, DirectoryWork
from keeplast.service.schedule import daemon_pace
from keeplast.service.snapshot import Snapshot
from keeplast.service.status import (
    DirectoryStatus,
    State,
    find_sizes,
    find_timestamp_ahead_max,
    join_status,
)
from keeplast.survey.bounds import Checkpoints, load_checkpoints
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import survey_partition
from tests.support.daemon_world import Narrated
from tests.support.log_builder import LogBuilder, text
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import records_of
from tests.support.reader import read_partition

START_MS = 1_700_000_000_000
SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS
KEYS = 6
SLOT_BYTES = 24


class SlowRunner(LocalRunner):
    """A local runner whose rounds take a random time, ``round_ms`` at the most."""

    def __init__(self, clock: ManualClock, dice: random.Random, round_ms: int) -> None:
        super().__init__(1, files=UnsyncedFiles(), clock=clock)
        self._manual = clock
        self._dice = dice
        self._round_ms = round_ms

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        assert len(tasks) == 1
        for result in super().run(tasks, progressed):
            self._manual.advance(self._dice.randint(0, self._round_ms))
            yield result


class Appended(Struct, frozen=True):
    """A record in a log: its token, and what the bound counts from."""

    offset: int
    key: bytes
    token: bytes | None
    appended_ms: int
    timestamp_ms: int


@dataclass(slots=True)
class Log:
    """One partition and everything that was ever appended to it."""

    partition: TopicPartition
    path: Path
    records: list[Appended] = field(default_factory=list)

    def overwritten(self) -> set[bytes]:
        """Return the tokens that a later record of their key has replaced or deleted."""
        last = {each.key: each.offset for each in self.records}
        return {
            each.token
            for each in self.records
            if each.token is not None and each.offset < last[each.key]
        }

    def in_files(self, tokens: set[bytes]) -> set[bytes]:
        """Return those of ``tokens`` that any file of the partition holds."""
        data = b"".join(path.read_bytes() for path in self.path.iterdir())
        return {token for token in tokens if token in data}


class Promise(Struct, frozen=True):
    """What status said: these tokens are in no file of the log after ``by_ms``."""

    log: Log
    by_ms: int
    tokens: set[bytes]


class Simulation:
    """A directory of a few partitions, its writers and its daemon, driven by one seed."""

    def __init__(self, root: Path, seed: int, *, partitions: int = 3) -> None:
        dice = self.dice = random.Random(seed)
        self.root = root
        self.clock = ManualClock(START_MS)
        self.files = UnsyncedFiles()
        self.ahead_ms = dice.choice((0, 20, 300)) * SECOND_MS
        self.lag_ms = dice.choice((30, 120, 600)) * SECOND_MS
        self.round_ms = dice.choice((1, 10, 60)) * SECOND_MS
        slots = dice.choice((None, None, 6))
        self.key_map_bytes = None if slots is None else slots * SLOT_BYTES
        self.settings: dict[str, Any] = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": dice.choice((0.0, 0.5, 1.0)),
            "max.compaction.lag.ms": self.lag_ms,
            "min.compaction.lag.ms": dice.choice((0, 0, self.lag_ms // 4, self.lag_ms)),
            "delete.retention.ms": dice.choice((0, 60)) * SECOND_MS,
            "segment.ms": dice.choice((20, 100_000)) * SECOND_MS,
            "segment.bytes": dice.choice((400, 4000)),
            "message.timestamp.after.max.ms": self.ahead_ms,
            # Of dice of its own: what the seeds have drawn so far stays.
            "undo.retention.ms": random.Random(f"undo {seed}").choice(
                (0, 0, self.lag_ms // 4, self.lag_ms)
            ),
        }
        lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in self.settings.items()]
        self.backoff_ms = dice.choice((5, 15)) * SECOND_MS
        (root / "keeplast.toml").write_text(
            "\n".join(
                ["[cluster]", f"'log.cleaner.backoff.ms' = {self.backoff_ms}", "[topic.t]", *lines]
            )
        )
        names = [TopicPartition("t", number) for number in range(partitions)]
        self.logs = {name: Log(name, root / str(name)) for name in names}
        self.tokens = self.step = self.quiet = 0
        self.promises: list[Promise] = []
        self.kept: list[int] = []

    def select(self) -> Selection:
        return select_partitions(
            self.root,
            self.files,
            sources=SettingSources(environment={}),
            key_map_bytes=self.key_map_bytes,
        )

    def append(self, log: Log) -> None:
        """Append a batch of up to three records, some of them tombstones."""
        now_ms, dice = self.clock.now_ms(), self.dice
        topic = TopicConfig(
            frozenset({"compact"}),
            max_compaction_lag_ms=self.lag_ms,
            segment_ms=self.settings["segment.ms"],
            segment_bytes=self.settings["segment.bytes"],
        )
        records = []
        for _ in range(dice.randint(1, 3)):
            self.tokens += 1
            token = None if dice.random() < 0.2 else b"<%06d>" % self.tokens
            stamp = now_ms + dice.randint(-self.ahead_ms, self.ahead_ms)
            records.append(NewRecord(b"k%d" % dice.randrange(KEYS), token, stamp))
        with LogAppender(log.path, self.files, topic=topic, clock=self.clock) as appender:
            base = appender.append(records)
        for i, each in enumerate(records):
            assert each.key is not None
            log.records.append(Appended(base + i, each.key, each.value, now_ms, each.timestamp_ms))

    def status(self) -> DirectoryStatus:
        """Ask as ``keeplast status`` does."""
        selection, now_ms = self.select(), self.clock.now_ms()
        checkpoints = load_checkpoints(self.files, self.root)
        request = CleanRequest(selection.partitions, rolls_idle=True)
        ahead_ms = find_timestamp_ahead_max(selection.settings, "t")
        found: list[tuple[PartitionRequest, LogStatus | Exception]] = [
            (
                each,
                find_status(
                    each, request, checkpoints, self.files, now_ms,
                    timestamp_ahead_max_ms=ahead_ms, tombstones=TombstoneReading.SKIP,
                ),
            )
            for each in selection.partitions
        ]  # fmt: skip
        return join_status(
            found, (), root=self.root, files=self.files, now_ms=now_ms, is_locked=True,
            pace=daemon_pace(selection.settings.cleaner_config(), self.round_ms / SECOND_MS),
            marks={}, failures={}, last_rounds={},
            sizes=[*find_sizes(selection.directory, self.files).values()],
        )  # fmt: skip

    def promise(self) -> None:
        """Take down what status promises now."""
        for each in self.status().partitions:
            log, erased = self.logs[each.partition], each.erased_by
            assert erased is not None
            assert erased.by_ms is not None, erased.why
            tokens = log.in_files(log.overwritten())
            if erased.is_gone:
                assert tokens == set()
            self.promises.append(Promise(log, erased.by_ms, tokens))

    def keep_promises(self) -> None:
        """Let go of promises that are kept; every other one still has time."""
        now_ms, waiting = self.clock.now_ms(), []
        for promise in self.promises:
            left = promise.log.in_files(promise.tokens)
            assert left == set() or now_ms < promise.by_ms, (now_ms - promise.by_ms, left)
            if left:
                waiting.append(promise)
            elif promise.tokens:
                # What has just gone went now: not later than was said.
                assert now_ms <= promise.by_ms, now_ms - promise.by_ms
                self.kept.append(promise.by_ms - now_ms)
        self.promises = waiting

    def published(self, snapshot: Snapshot) -> None:
        """Hold both bounds against what the daemon has just found or done."""
        self.keep_promises()
        if self.settings["min.compaction.lag.ms"] or self.key_map_bytes or snapshot.cleaned:
            return
        for facts in snapshot.partitions:
            is_eligible = facts.state is State.ELIGIBLE
            figures = facts.figures
            assert figures is not None
            covered = figures.cleanable.bound if is_eligible else figures.first_dirty
            # While the daemon works it goes by what it found, for the time of a pause.
            found_ms = snapshot.looked_ms - self.backoff_ms
            self.check_eligible(self.logs[facts.partition], covered, found_ms)

    def check_eligible(self, log: Log, below: int, now_ms: int) -> None:
        """Hold the KIP's bound against every record that no round covers yet."""
        for each in reversed(log.records):
            if each.offset < below:
                return
            assert now_ms <= each.appended_ms + self.ahead_ms + self.lag_ms
            assert now_ms <= each.timestamp_ms + 2 * self.ahead_ms + self.lag_ms

    def run(self, steps: int) -> None:
        """Write in so many pauses of the daemon, then let it work until every promise is kept."""
        for log in self.logs.values():
            self.append(log)
        narrated = Narrated()
        runner = SlowRunner(self.clock, self.dice, self.round_ms)
        work = DirectoryWork(
            Coordinator(runner, self.clock, self.files, narrated),
            self.clock,
            self.files,
            DirectorySettings(
                self.root,
                self.select,
                CleanRequest((), memory_bytes=MEMORY_BYTES_MIN, rolls_idle=True),
            ),
            narrator=narrated,
        )
        daemon = Daemon(work, self.clock, narrator=narrated, observer=self)

        def on_idle() -> None:
            if self.quiet:
                self.quiet -= 1
            elif self.step < steps:
                self.step += 1
                for log in self.logs.values():
                    if self.dice.random() < 0.5:
                        self.append(log)
                if self.dice.random() < 0.4:
                    self.promise()
                self.quiet = self.dice.choice((0, 0, 0, 10))
            elif not self.promises:
                daemon.stop()

        narrated.on_idle = on_idle
        assert {} == daemon.run().failures


@pytest.mark.parametrize("seed", range(6))
def test_overwritten_values_are_gone_when_status_said(tmp_path: Path, seed: int) -> None:
    simulation = Simulation(tmp_path, seed)
    simulation.run(10)
    assert simulation.kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_overwritten_values_are_gone_when_status_said_over_many_seeds(
    tmp_path: Path, seed: int
) -> None:
    simulation = Simulation(tmp_path, seed, partitions=1 + seed % 5)
    simulation.run(20)
    assert simulation.kept


def compacted(**changes: Any) -> TopicConfig:
    return replace(
        TopicConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=1.0), **changes
    )


def is_eligible(request: PartitionRequest, now_ms: int) -> bool:
    survey = survey_partition(
        request, CleanRequest((request,), rolls_idle=True), Checkpoints({}, {}, {}),
        UnsyncedFiles(), now_ms, foresees_roll=True,
    )  # fmt: skip
    return survey.plan is not None


def test_the_kips_worst_case_is_reached_to_the_millisecond(tmp_path: Path) -> None:
    """The first record is dated ``D`` ahead, the second ``D`` back, which waits ``D + M + D``."""
    ahead_ms, lag_ms = 300 * SECOND_MS, 600 * SECOND_MS
    request = PartitionRequest(
        TopicPartition("t", 0), tmp_path / "t-0", compacted(max_compaction_lag_ms=lag_ms)
    )
    with LogAppender(request.path, UnsyncedFiles(), topic=request.topic) as appender:
        appender.append([NewRecord(b"a", b"1", START_MS + ahead_ms)])
        appender.append([NewRecord(b"a", b"2", START_MS - ahead_ms)])
    due_ms = START_MS - ahead_ms + (ahead_ms + lag_ms + ahead_ms)
    assert not is_eligible(request, due_ms)
    assert is_eligible(request, due_ms + 1)


def test_ci02_the_greatest_lag_cleans_what_the_ratio_never_would(tmp_path: Path) -> None:
    """CI02 to CI02c: nothing while the least lag protects, then as far as the greatest asks."""
    topic = compacted(
        min_compaction_lag_ms=HOUR_MS, max_compaction_lag_ms=6 * HOUR_MS, segment_bytes=512
    )
    directory = tmp_path / str(TopicPartition("t", 0))
    log = LogBuilder(directory, topic)
    request = PartitionRequest(TopicPartition("t", 0), directory, topic)
    clock = ManualClock(log.now_ms)
    cleaner = Coordinator(LocalRunner(1, clock=clock), clock, UnsyncedFiles(), NoEvents())

    def clean() -> RoundReport:
        return cleaner.clean(CleanRequest((request,))).partitions[0].rounds[-1]

    def duplicates(passes: int, value: int | None) -> None:
        log.now_ms = clock.now_ms()
        for i in range(passes * 100):
            written = i if value is None else value
            log.append(NewRecord(text(i % 100), text(written), log.now_ms))

    duplicates(3, None)
    active_then = log.active_base
    before = sum(path.stat().st_size for path in directory.glob("*.log"))
    clock.advance(3 * HOUR_MS)
    assert clean().skipped
    assert before == sum(path.stat().st_size for path in directory.glob("*.log"))

    clock.advance(3 * HOUR_MS + 1)
    duplicates(1, 0)
    log.roll()
    report = clean()
    assert report.end_offset is not None
    assert report.end_offset >= active_then
    assert read_partition(directory).final_values() == {text(k): b"0" for k in range(100)}
    assert {b"0"} != {each.value for each in records_of(directory)}

    clock.advance(6 * HOUR_MS + 1)
    assert log.active_base == clean().end_offset
    assert [(text(k), b"0") for k in range(100)] == [
        (x.key, x.value) for x in records_of(directory)
    ]
    log.close()
