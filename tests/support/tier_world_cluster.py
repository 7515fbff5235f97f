"""The hosts of a simulated cluster, what they run on, and a controller that says who leads.

The controller is Kafka's: it elects among the replicas that are in sync, which have everything that
was acknowledged, whatever their leader knows of it. A host that loses its power is not in sync any
more, because it may have lost what it had; the last one that is never loses its power.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Engine

from keeplast.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    RefusedError,
    UnavailableError,
)
from keeplast.format.filename import LOG
from keeplast.format.message_set import read_batches
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.metadata.database import SKEW_MS_MAX, StoreTime
from keeplast.tier.objects.object_store import object_key
from keeplast.tier.state.segment import SegmentState, is_within_lineage
from tests.support import simulated
from tests.support.crashing_files import Image
from tests.support.manual_clock import ManualClock, SharedTime, SkewedClock
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.tier_world_hosts import Process, SlowReader, Surroundings, start_process
from tests.support.tier_world_model import Model
from tests.support.tier_world_stores import (
    TOPIC_ID,
    Live,
    SimulatedObjects,
    SimulatedStore,
    check_live,
    empty_database,
    is_routed,
    read_live,
    require,
)
from tests.support.tier_world_tasks import Life, Task, Tasks

DATABASE = "the database"
GRACE_MS = 1_000
GARBAGE_AGE_MS = 6_000
DELETE_RETENTION_MS = 5_000
RETENTION_MS = 12_000
TRANSIENT = (UnavailableError, CommitUnknownError, ConflictError, FencedError, RefusedError)

SPANS = {
    "append": 6, "marker": 6, "roll": 24, "replicate": 16, "lead": 24, "follow": 28, "copy": 80,
    "clean": 160, "expire": 16, "collect": 50, "start": 6, "retain": 24,
}  # fmt: skip
"""About how many operations a task has: where it sleeps, dies or fails is drawn from these, early
ones more often, because most tasks are short."""
LONG_TASKS = frozenset({"lead", "copy", "clean", "expire", "collect"})
"""What changes the tier: to sleep in it is what makes a zombie of a leader."""


@dataclass(slots=True)
class Tally(simulated.Tally):
    """What was survived."""

    operations: int = 0
    records: int = 0
    kills: int = 0
    power_losses: int = 0
    sleeps: int = 0
    zombies_woken: int = 0
    leader_changes: int = 0
    faults: int = 0
    lost_answers: int = 0
    fenced: int = 0
    copies: int = 0
    rounds: int = 0
    local_rounds: int = 0
    expiries: int = 0
    collections: int = 0
    full_disks: int = 0
    clock_jumps: int = 0
    truncations: int = 0
    reads: int = 0
    clocks_set_wrong: int = 0
    refused_by_clock: int = 0
    expired_on_time: int = 0

    def progress(self) -> str:
        """Return what shows that it goes on."""
        return f"{self.leader_changes:,} leader changes, {self.kills + self.power_losses:,} crashes"

    def never_happened(self) -> tuple[str, ...]:
        """Return what should have happened in many runs, and never did."""
        parts = (self.kills, self.power_losses, self.zombies_woken, self.leader_changes)
        names = ("kills", "power losses", "zombies woken", "leader changes")
        return tuple(name for name, count in zip(names, parts, strict=True) if not count)

    def __str__(self) -> str:
        """Say it in lines of three."""
        parts = self.counts()
        return "\n".join(
            "".join(f"{p:<34}" for p in parts[i : i + 3]) for i in range(0, len(parts), 3)
        )


class Mood(simulated.Mood, frozen=True, kw_only=True):
    """What kind of run a seed is."""

    hosts: int
    sleeps: float
    jumps: bool
    copies_lag: bool
    """From some time on the leader leaves the tier alone, and its followers do not."""


def draw_mood(dice: random.Random) -> Mood:
    """Return how likely what is in this run."""
    policy = {"compact"} if dice.random() < 0.7 else {"compact", "delete"}
    topic = TopicConfig(
        cleanup_policy=frozenset(policy), segment_bytes=dice.choice([300, 500, 900]),
        delete_retention_ms=DELETE_RETENTION_MS, retention_ms=RETENTION_MS,
        local_retention_ms=dice.choice([-2, 2_000, 10_000]),
        local_delete_requires_clean=dice.random() < 0.3, local_delete_max_extra_ms=20_000,
        min_cleanable_dirty_ratio=0.0, index_interval_bytes=dice.choice([1, 200, 4096]),
    )  # fmt: skip
    calm = dice.random() < 0.1
    return Mood(
        hosts=dice.choice([2, 3, 3]),
        topic=topic,
        sleeps=0.0 if calm else dice.choice([0.05, 0.15, 0.3]),
        dies=0.0 if calm else dice.choice([0.0, 0.03, 0.1]),
        fails=0.0 if calm else dice.choice([0.0, 0.1, 0.3]),
        jumps=dice.random() < 0.2,
        has_transactions=dice.random() < 0.6,
        copies_lag=dice.random() < 0.15,
        events=dice.randint(100, 180),
    )


def shared_time(clock: SkewedClock) -> StoreTime | None:
    """Return what gives the time of a store whose database has a clock."""
    return SharedTime(clock)


def has_wrong_clocks(seed: int) -> bool:
    """Say whether in a seed's run hosts have clocks of their own, and the database one for all."""
    return random.Random(f"clocks {seed}").random() < 0.2


class Cluster:
    """Hosts with a store and a controller; what happens to them is up to who inherits."""

    def __init__(self, seed: int, engine: Engine, *, trace: Callable[[str], None]) -> None:
        """Start ``seed``'s hosts on an empty store."""
        self.seed = seed
        self.tally = Tally(runs=1)
        self._dice = random.Random(seed)
        self._mood = draw_mood(self._dice)
        self._trace = trace
        self._clock = ManualClock(NOW_MS)
        self._tasks = Tasks(trace, self._died)
        self._tables: Any = engine.raw_connection().driver_connection
        self._objects = SimulatedObjects(self._tasks, self._clock, self._dice)
        self._objects.is_routed = partial(is_routed, self._tables)
        self._objects.fails = self._mood.fails / 10
        self._objects.is_due = self._is_due
        self._clocks = random.Random(f"clocks {seed}, set")
        self._has_wrong_clocks = has_wrong_clocks(seed)
        ahead_ms: dict[str, int] = {}
        database = SkewedClock(self._clock, ahead_ms, DATABASE)
        self._around = Surroundings(
            self._tasks, self._clock, self._dice, self._objects, engine, self._mood.topic, Model(),
            ahead_ms, shared_time(database) if self._has_wrong_clocks else None,
        )  # fmt: skip
        self._model = self._around.model
        self._live: Live | None = None
        empty_database(engine)
        self._names = [chr(ord("a") + i) for i in range(self._mood.hosts)]
        self._disks: dict[str, Image] = {name: {} for name in self._names}
        self._processes: dict[str, Process] = {}
        self._readers: list[SlowReader] = []
        self._jumped = False
        self._clock_was_wrong = False
        self._latest_ms = NOW_MS
        self._values = 0
        # The controller's.
        self._leader = ""
        self._epoch = 0
        self._in_sync = set(self._names)
        self._established = -1
        self._heals = False
        self._lags = False
        self._first_dirty = 0
        self._compact_to = 0
        self._auditor = SimulatedStore(engine, self._clock, self._tasks, self._dice, lambda: None)
        for name in self._names:
            self._start(name)
        self._processes[self._names[0]].store.create(PARTITION, TOPIC_ID, log_start=0, settings={})
        for name in self._names:
            self._open(name)
        self._elect(self._names[0])

    def _say(self, line: str) -> None:
        self._trace(line)

    # Processes.

    def _start(self, name: str) -> None:
        self._processes[name] = start_process(
            name, self._disks[name], self._around, self._committed
        )

    def _open(self, name: str) -> None:
        process = self._processes[name]
        self._do(process, "start", "log", process.open)

    def _running(self, name: str) -> Process | None:
        """Return a host's process when it is up and no task in it sleeps with the log in hand."""
        process = self._processes[name]
        if not process.alive or process.opened is None or "log" in process.busy:
            return None
        return process

    def _a_leader(self) -> Process | None:
        """Return mostly the leader, now and then one that only thinks that it leads."""
        current = self._current()
        if current is not None and self._dice.random() < 0.8:
            return current
        found = [self._running(name) for name in self._names]
        believers = [p for p in found if p is not None and p.leads_at >= 0]
        return self._dice.choice(believers) if believers else None

    def _current(self) -> Process | None:
        """Return the leader, when it is up and has taken over."""
        process = self._running(self._leader)
        if process is None or self._established != self._epoch:
            return None
        return process if process.leads_at == self._epoch else None

    def _died(self, life: Life) -> None:
        """Keep of a process what its disk has."""
        process = self._processes[life.name]
        others = [
            name for name in self._in_sync
            if name != life.name and self._processes[name].alive
        ]  # fmt: skip
        if others and self._dice.random() < 0.5:
            self.tally.power_losses += 1
            self._say(f"    {life.name} has lost its power")
            self._disks[life.name] = process.files.survivor(self._dice)
            self._in_sync.discard(life.name)
            leader = self._processes[self._leader]
            if leader.leads_at == self._epoch:
                leader.in_sync.discard(life.name)
        else:
            self.tally.kills += 1
            self._disks[life.name] = process.files.image()

    def _do(
        self, process: Process, name: str, holds: str, work: Callable[[], object],
        then: Callable[[object], None] = lambda result: None,
    ) -> None:  # fmt: skip
        """Start a task, which may sleep, die or fail at one of its operations."""
        span, mood, dice = SPANS[name], self._mood, self._dice
        quiet = self._heals or not self._leader
        # What happens all the time rarely goes wrong, or no host would ever lead for long enough to
        # do anything else.
        often = (1.0 if name in LONG_TASKS else 0.2) * (0.2 if self._lags else 1.0)
        sleeps = mood.sleeps * (2 if name in LONG_TASKS else 0.5) * (0.2 if self._lags else 1.0)

        def draw(share: float) -> int | None:
            if quiet or dice.random() >= share:
                return None
            return round(float(span ** dice.random()))

        task = Task(
            process, name, work, holds=holds, epoch=max(process.heard_epoch, process.leads_at),
            sleeps_at=draw(sleeps), dies_at=draw(mood.dies * often),
            fails_at=draw(mood.fails * often),
        )  # fmt: skip
        self._say(f"{process.name} {name} at {self._clock.now_ms() - NOW_MS} ms")

        def finished(done: Task) -> None:
            self._finish(process, done, then)

        self._tasks.start(task, finished)
        if not task.is_done:
            self.tally.sleeps += 1

    def _wake_one(self, task: Task) -> None:
        self.tally.zombies_woken += task.epoch < self._epoch
        self._say(f"{task.life.name} {task.name} wakes")
        self._tasks.wake(task)

    def _finish(self, process: Process, task: Task, then: Callable[[object], None]) -> None:
        error = task.error
        if isinstance(error, AssertionError):
            raise error
        if task.is_dead or not process.alive:
            return
        if error is None:
            then(task.result)
            return
        self._say(f"    {process.name} {task.name}: {type(error).__name__}: {error}")
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.ENOSPC):
            # A disk that fails takes the process with it; it is opened again.
            self.tally.faults += 1
            process.alive = False
            self._died(process)
        elif isinstance(error, FencedError):
            self.tally.fenced += 1
            newest = min(task.epoch, process.leads_at)
            require(newest < self._epoch, f"the newest leader was fenced. {error}")
        elif isinstance(error, UnavailableError) and "ahead_seconds" in str(error):
            wrong_ms = self._around.ahead_ms.get(process.name, 0)
            self.tally.refused_by_clock += 1
            require(
                abs(wrong_ms) > SKEW_MS_MAX or self._clock_was_wrong,
                f"a host whose clock is right was refused. {error}",
            )
        elif isinstance(error, TRANSIENT):
            self.tally.faults += 1
            self.tally.lost_answers += isinstance(error, CommitUnknownError)
        else:
            raise error

    # What the metadata store says, after every commit.

    def _is_due(self, segment_id: str, modified_ms: int) -> bool:
        """Say whether objects of a segment may go by the clock that is right."""
        query = "SELECT not_before_ms, state FROM segments WHERE id = ?"
        row = self._tables.execute(query, (segment_id,)).fetchone()
        task = self._tasks.current
        is_its_authors = task is not None and task.name != "collect"  # Who takes an upload back.
        if self._jumped or not self._has_wrong_clocks or is_its_authors:
            return True
        if row is None or row[1] == SegmentState.DELETED:
            return modified_ms <= self._clock.now_ms() - GARBAGE_AGE_MS
        return row[0] is not None and int(row[0]) <= self._clock.now_ms()

    def _check_expired(self, live: Live, before: Live) -> None:
        """AssertionError when something has expired before its time by the clock that is right."""
        if self._jumped or live.log_start == before.log_start:
            return
        kept = {segment_id for _, _, segment_id in live.routes}
        for _, last, segment_id in before.routes:
            if segment_id in kept or last >= live.log_start:
                continue
            query = "SELECT base_offset FROM segments WHERE id = ?"
            (base,) = self._tables.execute(query, (segment_id,)).fetchone()
            key = object_key(PARTITION, TOPIC_ID, segment_id, base, LOG)
            data = self._objects.found[key][0]
            dated = [b.max_timestamp for b in read_batches(data) if not b.is_control]
            newest = max(dated, default=-1)
            self.tally.expired_on_time += 1
            require(
                newest < self._clock.now_ms() - RETENTION_MS,
                f"a segment expired {newest + RETENTION_MS - self._clock.now_ms()} ms too early",
            )

    def _committed(self) -> None:
        live, before = read_live(self._tables), self._live
        check_live(live, before, self._tables, self._objects)
        if before is not None:
            self._check_expired(live, before)
        task = self._tasks.current
        # Who changes anything of a partition raises its version. What leaves it as it was is a
        # fact of the whole store, as the key of its filters, which may be anybody's.
        if task is not None and live != before:
            # A pass that slept before it asked goes on at the epoch at which its host leads now.
            epoch = max(task.epoch, self._processes[task.life.name].heard_epoch)
            require(
                epoch >= live.leader_epoch,
                f"I-19: epoch {epoch} has changed what epoch {live.leader_epoch} owns",
            )
        if before is None or live.end > before.end:
            decided = self._model.decided_end()
            require(
                live.end <= decided,
                f"copied up to {live.end}, of which only {decided} is decided on every replica",
            )
        self._live = live
        if live != before:
            self._check_compact()

    def _check_compact(self) -> None:
        """AssertionError unless each key is once in object storage below the first dirty offset.

        After every commit: a crash may come before the next one.
        """
        with self._tasks.unobserved():
            state = self._auditor.load(PARTITION)
        first_dirty = state.first_dirty()
        if first_dirty == self._compact_to:
            return
        self._compact_to = first_dirty
        seen: dict[bytes | None, int] = {}
        for route in state.routes:
            segment = state.segments[route.segment_id]
            key = object_key(PARTITION, TOPIC_ID, segment.segment_id, segment.base_offset, LOG)
            for batch in read_batches(self._objects.found[key][0]):
                for record in () if batch.is_control else batch.records():
                    if not max(route.base_offset, state.log_start) <= record.offset < first_dirty:
                        continue
                    require(
                        record.key not in seen,
                        f"a key is twice below the first dirty offset {first_dirty}. "
                        f"key={record.key!r} offsets={seen.get(record.key)},{record.offset}",
                    )
                    seen[record.key] = record.offset

    def _audit(self) -> None:
        """AssertionError unless the vector only grows and all that is read is of the lineage.

        Elections are clean here, so that nothing is ever truncated that was copied.
        """
        state = self._auditor.load(PARTITION)
        first_dirty = state.first_dirty()
        require(
            self._first_dirty <= first_dirty <= state.remote_end,
            f"I-18: the first dirty offset went from {self._first_dirty} to {first_dirty}, "
            f"remote_end={state.remote_end}",
        )
        self._first_dirty = first_dirty
        for process in self._processes.values():
            mark = -1 if process.opened is None else process.opened.high_watermark
            known = self._model.acknowledged
            require(
                not process.alive or mark <= known,
                f"{process.name} takes {mark} for acknowledged, which is {known}",
            )
        for segment in state.segments.values():
            require(
                is_within_lineage(segment, state.lineage, state.remote_end),
                f"I-23: {segment} is not within {state.lineage}",
            )

    # Leadership.

    def _change_leader(self) -> bool:
        choices = [
            name for name in self._names
            if name in self._in_sync and self._running(name) is not None
        ]  # fmt: skip
        if not choices:
            return False
        others = [name for name in choices if name != self._leader]
        self._elect(self._dice.choice(others if others and self._dice.random() < 0.7 else choices))
        return True

    def _elect(self, name: str) -> None:
        self._epoch += 1
        self._leader = name
        self._say(
            f"controller: {name} leads at epoch {self._epoch}, in sync {sorted(self._in_sync)}"
        )
        self.tally.leader_changes += 1
        self._take_over(name)

    def _take_over(self, name: str) -> None:
        process = self._running(name)
        if process is None:
            return
        process.heard_epoch = epoch = self._epoch
        in_sync = set(self._in_sync)

        def work() -> object:
            return process.host.become_leader(epoch)

        def then(_: object) -> None:
            # Another one may lead by the time that a sleeper wakes.
            process.in_sync = in_sync if epoch != self._epoch else set(self._in_sync)
            process.fetched = {}
            process.leads_from = process.host.log_end_offset
            if epoch == self._epoch:
                self._established = epoch
                self._model.adopt(process.host.lineage, process.host.log_end_offset)

        self._do(process, "lead", "log", work, then)

    def _lead_again(self) -> bool:
        """Have who was elected try again when it failed, or elect another when it is gone."""
        process = self._running(self._leader)
        if process is None or process.heard_epoch != self._epoch:
            return self._change_leader()
        if self._established == self._epoch:
            return False
        self._take_over(self._leader)
        return True
