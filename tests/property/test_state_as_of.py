"""A state as of an offset or a time is that of a plain replay, or it is refused where it must be.

Random histories of every strategy, with transactions, tombstones, rounds that expire them, and
DeleteRecords. The model keeps every record that was ever written, and knows what rounds there were.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keeplast
from keeplast.errors import InvalidError, RefusedError
from keeplast.format.record import Record
from keeplast.log.append import NewRecord
from keeplast.log.data_directory import open_data_directory
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.holds import add_holds
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.log_builder import LogBuilder, Producer
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import PARTITION
from tests.support.record_rank import Rank, rank_of
from tests.support.turns import examples
from tests.support.versioned_log import version_bytes

SECOND = 1000
TOPIC = TopicConfig(
    cleanup_policy=frozenset({"compact", "delete"}),
    delete_retention_ms=3 * SECOND,
    segment_bytes=1 << 20,
)
TOPICS = {
    each: replace(
        TOPIC, strategy=each, strategy_header="ver",
        # One that expired would let in what it outranks and comes late.
        keep_versioned_tombstones=each is not Strategy.OFFSET,
    )
    for each in Strategy
}  # fmt: skip
KEYS = 4
DELETES = st.booleans()
LATE = st.integers(0, 3)
"""How far behind others a record comes: by its timestamp, or by its version; 0 has no version."""
PUT = st.tuples(st.just("put"), st.integers(0, KEYS - 1), DELETES, LATE)
SEND = st.tuples(st.just("send"), st.integers(1, 2), st.integers(0, KEYS - 1), DELETES, LATE)
STEPS = st.one_of(
    PUT,
    PUT,
    SEND,
    SEND,
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("round")),
    st.tuples(st.just("wait"), st.sampled_from([1, 2 * SECOND, 10 * SECOND])),
    st.tuples(st.just("delete"), st.integers(0, 100)),
    st.tuples(st.just("hold"), st.integers(0, 100), st.sampled_from([SECOND, 5 * SECOND])),
)


@dataclass
class Transaction:
    """One of the model: where it begins, and its marker, which is -1 before it is written."""

    first: int
    marker: int = -1
    commits: bool = False


@dataclass
class Written:
    """A record of the model; a marker has no key."""

    offset: int
    at_ms: int
    key: bytes | None = None
    value: bytes | None = None
    transaction: Transaction | None = None
    rank: Rank = (False, 0, 0)
    is_lost: bool = False
    """A round took it for one that ranks higher, and that may be deleted later."""


@dataclass
class World:
    """A log on disk, and everything that was ever written to it."""

    log: LogBuilder
    producers: dict[int, Producer]
    written: list[Written] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    running: dict[int, Transaction] = field(default_factory=dict)
    holds: list[tuple[int, Hold]] = field(default_factory=list)
    """The offset that was asked for, and the hold."""
    topic: TopicConfig = TOPIC

    @classmethod
    def make(cls, root: Path, strategy: Strategy = Strategy.OFFSET) -> World:
        topic = TOPICS[strategy]
        log = LogBuilder(root / str(PARTITION), topic)
        return cls(log, {number: log.producer(number) for number in (1, 2)}, topic=topic)

    def write(self, name: object, arguments: Sequence[object]) -> bool:
        """Do a step that writes, by its name; False for one of another kind."""
        match name, arguments:
            case "put", [int(key), bool(deletes), int(late)]:
                self.put(key, deletes, late)
            case "send", [int(producer), int(key), bool(deletes), int(late)]:
                self.put(key, deletes, late, producer)
            case "end", [int(producer), bool(commits)]:
                self.end(producer, commits)
            case _:
                return False
        return True

    def put(self, key: int, deletes: bool, late: int = 0, producer: int | None = None) -> None:
        name, value = b"k%d" % key, None if deletes else b"%d" % self.log.log_end
        strategy = self.topic.strategy
        at_ms = self.log.now_ms
        if strategy is Strategy.TIMESTAMP:
            at_ms -= late * 4 * SECOND
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if strategy is Strategy.HEADER and late:
            headers = ((b"ver", version_bytes(self.log.log_end - late * 4)),)
        new = NewRecord(name, value, at_ms, headers)
        transaction = None
        if producer is None:
            offset = self.log.append(new)
        else:
            offset = self.producers[producer].send_records(new)
            transaction = self.running.setdefault(producer, Transaction(offset))
        written = Record(offset, at_ms, name, value, headers)
        rank = rank_of(written, strategy, b"ver")
        self.written.append(Written(offset, at_ms, name, value, transaction, rank))

    def end(self, producer: int, commits: bool) -> None:
        transaction = self.running.pop(producer, None)
        if transaction is None:
            return
        sender = self.producers[producer]
        transaction.marker = sender.commit() if commits else sender.abort()
        transaction.commits = commits
        self.transactions.append(transaction)
        self.written.append(Written(transaction.marker, self.log.now_ms))

    def go_on(self, dice: random.Random, steps: int, deletes: float) -> None:
        """Write at random, a second a step; of records the share ``deletes`` are tombstones."""
        for _ in range(steps):
            self.log.now_ms += SECOND
            key, is_deleted, late = dice.randrange(KEYS), dice.random() < deletes, dice.randrange(4)
            what = dice.random()
            if what < 0.6:
                self.put(key, is_deleted, late)
            elif what < 0.75:
                self.put(key, is_deleted, late, dice.choice([1, 2]))
            elif what < 0.88:
                self.end(dice.choice([1, 2]), dice.random() < 0.7)
            else:
                self.log.roll()

    def round(self) -> None:
        cleaner = CleanerConfig(producer_id_expiration_ms=10**9)
        request = PartitionRequest(PARTITION, self.log.directory, self.topic, cleaner)
        clock = ManualClock(self.log.now_ms)
        with LocalRunner(1) as runner:
            report = Coordinator(runner, clock, UnsyncedFiles(), NoEvents()).clean(
                CleanRequest((request,), force=True, expired=True, memory_bytes=MEMORY_BYTES_MIN)
            )
        assert report.partitions[0].rounds[-1].failure is None
        self.lose(self.cleaned_to)

    def lose(self, cleaned_to: int) -> None:
        """Let what ranks lower than another record below the end of a round be gone."""
        winners = self.winners(self.log_start, cleaned_to, self.log.log_end)
        for each in self.written:
            if each.key in winners and self.log_start <= each.offset < cleaned_to:
                each.is_lost |= each is not winners[each.key]

    def winners(self, log_start: int, end: int, decided: int) -> dict[bytes, Written]:
        """Return what wins in [``log_start``, ``end``), with transactions as decided there."""
        found: dict[bytes, Written] = {}
        for each in self.written:
            if each.key is None or each.is_lost or not log_start <= each.offset < end:
                continue
            transaction = each.transaction
            if transaction is not None and not (
                transaction.commits and 0 <= transaction.marker < decided
            ):
                continue
            if each.key not in found or found[each.key].rank < each.rank:
                found[each.key] = each
        return found

    def delete(self, percent: int) -> None:
        opened = keeplast.open_log(self.log.directory)
        before = self.log_start + (self.last_stable - self.log_start) * percent // 100
        opened.delete_records(self.topic, before_offset=before)

    def hold(self, percent: int, age_ms: int) -> None:
        """Hold a point of the log, if its state can still be told."""
        directory = open_data_directory(self.log.directory.parent, UnsyncedFiles())
        offset = self.log_start + (self.last_stable - self.log_start) * percent // 100
        with contextlib.suppress(RefusedError):
            (added,) = add_holds(
                directory, directory.partitions, f"hold{len(self.holds)}", HoldPoint(offset),
                age_ms, UnsyncedFiles(), ManualClock(self.log.now_ms),
            )  # fmt: skip
            self.holds.append((offset, added))

    @property
    def log_start(self) -> int:
        return keeplast.open_log(self.log.directory).log_start_offset()

    @property
    def last_stable(self) -> int:
        return min((each.first for each in self.running.values()), default=self.log.log_end)

    @property
    def cleaned_to(self) -> int:
        path = self.log.directory.parent / "cleaner-offset-checkpoint"
        lines = path.read_text().splitlines()[2:] if path.exists() else []
        return max([self.log_start, *(int(line.split()[2]) for line in lines)])

    def replay(self, end: int) -> dict[bytes, bytes]:
        """Return the plain fold of what lies in front of ``end``.

        The latest end has transactions as they are decided now.
        """
        decided = end if end < self.last_stable else self.log.log_end
        return values(self.winners(self.log_start, end, decided))

    def must_refuse(self, end: int) -> bool:
        """Say whether a cleaner has seen what an observer at ``end`` has not."""
        cleaned_to = self.cleaned_to
        if end >= self.last_stable or cleaned_to == self.log_start:
            return end < cleaned_to
        return end < cleaned_to or any(
            each.commits and each.first < cleaned_to and each.marker >= end
            for each in self.transactions
        )


def values(winners: Mapping[bytes, Written]) -> dict[bytes, bytes]:
    """Return the state: what wins and deletes nothing."""
    return {key: each.value for key, each in winners.items() if each.value is not None}


def play(
    root: Path, steps: Sequence[tuple[object, ...]], strategy: Strategy = Strategy.OFFSET
) -> World:
    world = World.make(root, strategy)
    for name, *arguments in steps:
        world.log.now_ms += 1
        if world.write(name, arguments):
            continue
        match name, arguments:
            case "roll", []:
                world.log.roll()
            case "round", []:
                world.round()
            case "wait", [int(span)]:
                world.log.now_ms += span
            case "delete", [int(percent)]:
                world.delete(percent)
            case "hold", [int(percent), int(age_ms)]:
                world.hold(percent, age_ms)
    return world


def state_of(world: World, **point: int) -> dict[bytes, bytes] | None:
    """Return the state as it is told, None when it is refused."""
    opened = keeplast.open_log(world.log.directory)
    try:
        found = opened.state(
            world.topic, end_offset=point.get("end_offset"), as_of_ms=point.get("as_of_ms")
        )
    except RefusedError:
        return None
    return {key: record.value for key, record in found.items() if record.value is not None}


@settings(max_examples=examples(60, long=5000))
@given(st.lists(STEPS, min_size=8, max_size=40), st.sampled_from(Strategy))
def test_a_state_as_of_an_offset_is_the_replay_or_refused(
    steps: list[tuple[object, ...]], strategy: Strategy
) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = play(Path(root) / "data", steps, strategy)
        for end in range(world.log_start, world.log.log_end + 1):
            told = state_of(world, end_offset=end)
            if world.must_refuse(min(end, world.last_stable)):
                assert told is None, f"end={end} told={told}"
            else:
                assert world.replay(min(end, world.last_stable)) == told, f"end={end}"
        for asked, hold in world.holds:
            if hold.is_in_force(world.log.now_ms) and asked >= world.log_start:
                assert world.replay(asked) == state_of(world, end_offset=asked), hold
        world.log.close()


@settings(max_examples=examples(40, long=3000))
@given(
    st.lists(STEPS, min_size=8, max_size=40), st.sampled_from([Strategy.OFFSET, Strategy.HEADER])
)
def test_a_state_as_of_a_time_is_that_of_its_first_later_record_or_refused(
    steps: list[tuple[object, ...]], strategy: Strategy
) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = play(Path(root) / "data", steps, strategy)
        cleaned_to, log_start = world.cleaned_to, world.log_start
        for at_ms in sorted({each.at_ms for each in world.written}):
            later = [e.offset for e in world.written if e.at_ms > at_ms and e.offset >= log_start]
            end = min([*later, world.last_stable])
            told = state_of(world, as_of_ms=at_ms)
            if told is None:
                # Nothing but a record behind what was cleaned says that the time lies there.
                assert end <= cleaned_to or world.must_refuse(end), f"at={at_ms} end={end}"
            else:
                assert world.replay(end) == told, f"at={at_ms} end={end}"
        world.log.close()


@settings(max_examples=examples(40, long=3000))
@given(st.lists(STEPS, min_size=8, max_size=40), st.sampled_from(Strategy))
def test_without_snapshots_no_state_is_told_wrong(
    steps: list[tuple[object, ...]], strategy: Strategy
) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = play(Path(root) / "data", steps, strategy)
        for path in world.log.directory.glob("*.snapshot"):
            path.unlink()
        for end in range(world.log_start, world.log.log_end + 1):
            told = state_of(world, end_offset=end)
            if world.must_refuse(min(end, world.last_stable)):
                assert told is None, f"end={end}"
            elif told is not None:
                assert world.replay(min(end, world.last_stable)) == told, f"end={end}"
        world.log.close()


def test_an_offset_that_the_log_does_not_have_is_a_mistake(tmp_path: Path) -> None:
    world = play(tmp_path / "data", [("put", 1, False, 0), ("put", 1, False, 0)])
    world.log.close()
    opened = keeplast.open_log(world.log.directory)
    for wrong in ({"end_offset": 3}, {"end_offset": -1}, {"end_offset": 1, "as_of_ms": 1}):
        with pytest.raises(InvalidError, match=f"end_offset={wrong['end_offset']}"):
            opened.state(TOPIC, end_offset=wrong.get("end_offset"), as_of_ms=wrong.get("as_of_ms"))
