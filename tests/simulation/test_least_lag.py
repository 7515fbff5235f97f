"""What ``min.compaction.lag.ms`` is for: the three motives of KIP-58, through real rounds.

Records are dated truthfully, by the clock of the log: with dates that lie the promise is about the
dates. Each test has its opposite, the same history without the lag, which must fail: a promise that
cleaning never puts to the test is worth nothing.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format.record import Record
from keeplast.model.topic_config import TopicConfig
from tests.support.durations import HOUR_MS
from tests.support.log_builder import record_of
from tests.support.reader import read_partition
from tests.support.scenario_log import SMALL, ScenarioLog

LAG_MS = HOUR_MS
EAGER = replace(SMALL, min_cleanable_dirty_ratio=0.0, delete_retention_ms=0)
"""Cleans whenever anything is dirty, and lets a tombstone go with the round after its first."""
LAGGING = replace(EAGER, min_compaction_lag_ms=LAG_MS)


def write(log: ScenarioLog, key: str, value: str | None) -> int:
    """Append one record, dated now; return its offset."""
    return log.append(
        record_of(key.encode(), None if value is None else value.encode(), log.now_ms)
    )


def unread(log: ScenarioLog, position: int, end: int | None = None) -> list[Record]:
    """Return what a reader at ``position`` gets below ``end``, by default up to the log end."""
    records = read_partition(log.directory).records(position)
    return [record for record in records if end is None or record.offset < end]


def state_of(log: ScenarioLog, end: int) -> dict[str, str]:
    """Return the table that a reader from the start has when it comes to offset ``end``."""
    state: dict[str, str] = {}
    for record in unread(log, 0, end):
        assert record.key is not None
        state.pop(record.key.decode(), None)
        if record.value is not None:
            state[record.key.decode()] = record.value.decode()
    return state


def clean(log: ScenarioLog) -> int:
    """Clean once if there is anything to clean; return how many records went."""
    report = log.judge()
    if report.failure is not None:
        raise report.failure
    if report.stats is None:
        return 0
    return report.stats.messages_read - report.stats.messages_written


@dataclass
class Feed:
    """A log under random appends, rolls and rounds, and a reader that never lags by the lag."""

    log: ScenarioLog
    dice: random.Random
    written: dict[int, int] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)
    gone: int = 0

    @property
    def position(self) -> int:
        """The offset from which the reader goes on."""
        return self.read[-1] + 1 if self.read else 0

    def step(self) -> None:
        """Let time pass, and then one thing happen."""
        passed = self.dice.choice((1, 60_000, HOUR_MS // 4, HOUR_MS - 1))
        self.read_up_to(self.log.now_ms + passed - LAG_MS)
        self.log.now_ms += passed
        match self.dice.randrange(8):
            case 0:
                self.log.roll()
            case 1 | 2 | 3:
                self.gone += clean(self.log)
            case _:
                for _ in range(self.dice.randrange(1, 20)):
                    key = f"key {self.dice.randrange(5)}"
                    self.written[write(self.log, key, "x" * 20)] = self.log.now_ms

    def read_up_to(self, oldest_ms: int) -> None:
        """Read what must not wait until ``oldest_ms`` is the lag, and perhaps some more."""
        due = sum(stamp <= oldest_ms for stamp in self.written.values())
        upto = max(due, self.dice.randrange(len(self.read), len(self.written) + 1))
        self.read += [r.offset for r in unread(self.log, self.position) if r.offset < upto]


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_that_lags_by_less_reads_every_record(tmp_path: Path, seed: int) -> None:
    feed = Feed(ScenarioLog(tmp_path, LAGGING), random.Random(seed))
    for _ in range(50):
        feed.step()
    feed.read_up_to(feed.log.now_ms)
    assert sorted(feed.written) == feed.read
    assert feed.gone > 0
    assert len(unread(feed.log, 0)) < len(feed.written)
    feed.log.close()


def test_without_the_lag_such_a_reader_misses_records(tmp_path: Path) -> None:
    feed = Feed(ScenarioLog(tmp_path, EAGER), random.Random(0))
    for _ in range(50):
        feed.step()
    feed.read_up_to(feed.log.now_ms)
    assert len(feed.read) < len(feed.written)
    feed.log.close()


@dataclass
class Database:
    """Two tables, each a topic, and a topic that says where both were at each commit.

    The offsets of a commit are the ends of the tables' logs; ``history`` is what the tables held
    then, and when that was.
    """

    tables: tuple[ScenarioLog, ScenarioLog]
    commits: ScenarioLog
    dice: random.Random
    rows: tuple[dict[str, str], dict[str, str]] = field(default_factory=lambda: ({}, {}))
    history: list[tuple[int, tuple[dict[str, str], dict[str, str]]]] = field(default_factory=list)

    def commit(self) -> None:
        """Change some rows of both tables and commit."""
        for log, rows in zip(self.tables, self.rows, strict=True):
            for _ in range(self.dice.randrange(4)):
                key = f"row {self.dice.randrange(6)}"
                if key in rows and self.dice.random() < 0.3:
                    del rows[key]
                    write(log, key, None)
                else:
                    rows[key] = f"{len(self.history)}"
                    write(log, key, rows[key])
        ends = [log.log_end for log in self.tables]
        write(self.commits, "checkpoint", json.dumps(ends))
        copies = (dict(self.rows[0]), dict(self.rows[1]))
        self.history.append((self.commits.now_ms, copies))

    def pass_time(self, milliseconds: int) -> None:
        """Move every clock."""
        for log in (*self.tables, self.commits):
            log.now_ms += milliseconds

    def clean_some(self) -> int:
        """Roll and clean the topics, each or not, as their brokers would, independently."""
        gone = 0
        for log in (*self.tables, self.commits):
            if self.dice.random() < 0.3:
                log.roll()
            if self.dice.random() < 0.5:
                gone += clean(log)
        return gone

    def wrong_checkpoints(self) -> list[int]:
        """Return the commits younger than the lag whose tables cannot be had again exactly."""
        wrong = []
        found = {record.offset: record for record in unread(self.commits, 0)}
        for number, (committed_ms, tables) in enumerate(self.history):
            if committed_ms <= self.commits.now_ms - LAG_MS:
                continue
            record = found.get(number)
            ends = json.loads(record.value or b"") if record is not None else None
            restored = ends and [
                state_of(log, end) for log, end in zip(self.tables, ends, strict=True)
            ]
            if restored != list(tables):
                wrong.append(number)
        return wrong

    def close(self) -> None:
        """Release the files."""
        for log in (*self.tables, self.commits):
            log.close()


def database(root: Path, seed: int, topic: TopicConfig) -> Database:
    first, second, commits = (
        ScenarioLog(root / name, topic) for name in ("customers", "orders", "commits")
    )
    return Database((first, second), commits, random.Random(seed))


@pytest.mark.parametrize("seed", range(2))
def test_every_checkpoint_within_the_lag_restores_both_tables(tmp_path: Path, seed: int) -> None:
    source = database(tmp_path, seed, LAGGING)
    gone = 0
    for _ in range(25):
        source.pass_time(source.dice.choice((60_000, HOUR_MS // 6, HOUR_MS // 3)))
        source.commit()
        gone += source.clean_some()
        assert [] == source.wrong_checkpoints()
    assert gone > 0
    source.close()


def test_without_the_lag_some_checkpoint_restores_nothing(tmp_path: Path) -> None:
    source = database(tmp_path, 0, EAGER)
    wrong = 0
    for _ in range(20):
        source.pass_time(HOUR_MS // 6)
        source.commit()
        source.clean_some()
        wrong += len(source.wrong_checkpoints())
    assert wrong > 0
    source.close()


@pytest.mark.parametrize(("topic", "is_kept"), [(LAGGING, True), (EAGER, False)])
def test_a_bad_write_is_undone_from_the_value_before_it(
    tmp_path: Path, topic: TopicConfig, is_kept: bool
) -> None:
    log = ScenarioLog(tmp_path, topic)
    write(log, "price", "10")
    write(log, "name", "tea")
    log.roll()
    log.now_ms += HOUR_MS // 2
    bad = write(log, "price", "-1")
    log.roll()
    # Somebody notices half an hour later, after rounds that did what they could.
    log.now_ms += HOUR_MS // 2 - 1
    for _ in range(3):
        clean(log)
    before = [r.value for r in unread(log, 0, bad) if r.key == b"price"]
    assert ([b"10"] if is_kept else []) == before
    assert b"-1" == state_of(log, log.log_end)["price"].encode()
    if is_kept:
        (value,) = before
        write(log, "price", (value or b"").decode())
    log.roll()
    log.now_ms += 2 * HOUR_MS
    clean(log)
    assert {"price": "10" if is_kept else "-1", "name": "tea"} == state_of(log, log.log_end)
    assert 2 == len(unread(log, 0))
    log.close()
