"""A log that is written at random, and the model of its states: all that was ever written.

Of every strategy, with transactions, tombstones, rounds that expire them, and DeleteRecords. The
model keeps every record, and knows what rounds there were; wherever the log lies, what readers are
shown of a part of it is judged by :class:`Expected`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hypothesis import strategies as st
from msgspec.structs import replace

import keeplast
from keeplast.api.open_log import OpenLog
from keeplast.errors import RefusedError
from keeplast.format.record import Record
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import CleanerConfig, Strategy, TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.log_builder import LogBuilder, Producer
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import PARTITION
from tests.support.record_rank import Rank, rank_of
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
END = st.tuples(st.just("end"), st.integers(1, 2), st.booleans())
ROLL = st.tuples(st.just("roll"))
WAIT = st.tuples(st.just("wait"), st.sampled_from([1, 2 * SECOND, 10 * SECOND]))
DELETE = st.tuples(st.just("delete"), st.integers(0, 100))
Steps = Sequence[tuple[object, ...]]


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
class WrittenLog:
    """A log on disk, and everything that was ever written to it."""

    log: LogBuilder
    producers: dict[int, Producer]
    written: list[Written] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    running: dict[int, Transaction] = field(default_factory=dict)
    topic: TopicConfig = TOPIC

    @classmethod
    def make(cls, root: Path, strategy: Strategy = Strategy.OFFSET) -> WrittenLog:
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

    @property
    def expected(self) -> Expected:
        """Return what readers of the directory must be shown."""
        return Expected(self, self.log_start, self.log.log_end, self.cleaned_to)


def values(winners: Mapping[bytes, Written]) -> dict[bytes, bytes]:
    """Return the state: what wins and deletes nothing."""
    return {key: each.value for key, each in winners.items() if each.value is not None}


ShowState = Callable[..., dict[bytes, bytes] | None]
"""The state as of an ``end_offset`` or ``as_of_ms``, None when it is refused."""


@dataclass(frozen=True)
class Expected:
    """What readers must be shown of the part [``log_start``, ``end``) of a log that a place has.

    Its rounds have seen all below ``told_from``. One that was cut short may have gone further than
    the rounds that ended, the last of which did so at ``round_end``.
    """

    world: WrittenLog
    log_start: int
    end: int
    told_from: int
    round_end: int = 0

    @cached_property
    def last_stable(self) -> int:
        """Where the first transaction begins that is not decided in what the place has."""
        known = [*self.world.running.values(), *self.world.transactions]
        open_ = (each.first for each in known if not 0 <= each.marker < self.end)
        return max(min([self.end, *open_]), self.log_start)

    def replay(self, at: int) -> dict[bytes, bytes]:
        """Return the plain fold of what lies in front of ``at``.

        The latest one has transactions as they are decided now.
        """
        decided = at if at < self.last_stable else self.end
        return values(self.world.winners(self.log_start, at, decided))

    def must_refuse(self, at: int) -> bool:
        """Say whether a round has seen what an observer at ``at`` has not."""
        if at >= self.last_stable or self.told_from == self.log_start:
            return at < self.told_from
        return at < self.told_from or any(
            each.commits and each.first < self.told_from and each.marker >= at
            for each in self.world.transactions
        )

    def check_offsets(self, show: ShowState, *, may_refuse: bool = False) -> None:
        """Each offset is refused where it must be, and is the replay elsewhere.

        With ``may_refuse`` it may be refused there too.
        """
        for end in range(self.log_start, self.end + 1):
            at, found = min(end, self.last_stable), show(end_offset=end)
            if self.must_refuse(at):
                assert found is None, f"end={end} shown={found}"
            elif found is None:
                assert may_refuse, f"refused without a reason. end={end}"
            else:
                assert self.replay(at) == found, f"end={end}"
                assert at >= self.round_end, f"end={end}"

    def check_times(self, show: ShowState) -> None:
        """Each time is that of its first later record, or it is refused where it may be."""
        written = self.world.written
        for at_ms in sorted({each.at_ms for each in written}):
            later = [e.offset for e in written if e.at_ms > at_ms and e.offset >= self.log_start]
            end, found = min([*later, self.last_stable]), show(as_of_ms=at_ms)
            if found is None:
                # Nothing but a record behind what was cleaned says that the time lies there.
                assert end <= self.told_from or self.must_refuse(end), f"at={at_ms} end={end}"
            else:
                assert self.replay(end) == found, f"at={at_ms} end={end}"


def shown_state(log: OpenLog, topic: TopicConfig, **point: int) -> dict[bytes, bytes] | None:
    """Return the state as an opened log shows it, None when it is refused."""
    try:
        found = log.state(topic, end_offset=point.get("end_offset"), as_of_ms=point.get("as_of_ms"))
    except RefusedError:
        return None
    return {key: each.value for key, each in found.items() if each.value is not None}
