"""A live cluster with a tiered topic, those who compact it from outside, and a seed.

Brokers copy, forget, expire, change leaders and lag (:mod:`.live_world_brokers`); two hosts of
keeplast do the product's own rounds, publications, repairs and collections on it. A host dies or
falls asleep before any call of the cluster, the remote tier or the decision log, and wakes when the
other one has taken over, also in the middle of its round; calls fail or lose their answers. Another
decision log tries to compact the same topic, or a clone of the cluster over the same objects.

After whatever may change what is read, every broker is read through and judged by what producers
got acknowledged (:mod:`.live_world_log`), which shares no code with keeplast's fold. In the end
everything heals: nothing decided is unpublished, nothing replaced is left, all but the margin is
clean.

The same seed gives the same run. ``tools/simulate.py --world attached`` runs many of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

from sqlalchemy import Engine

from keeplast.attach.held.metadata_view import AttachTerms, KeptFolds
from keeplast.attach.held.outputs import filter_name, work_name
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.rounds.round import RoundWish, clean_attached, clean_to
from keeplast.attach.upkeep.orphans import collect_gone
from keeplast.attach.upkeep.replaced_segments import collect, repair
from keeplast.cluster.late_copies import COPY_MS
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    RefusedError,
    UnavailableError,
)
from keeplast.format.record import ControlType
from keeplast.format.remote_log_metadata import (
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentUpdate,
    RemotePartitionDelete,
)
from keeplast.model.topic_config import CleanerConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName, DecisionState
from tests.support.attached_world import CLUSTER_ID, PARTITION
from tests.support.live_world_brokers import FETCH_MS, LAG_MS, Brokers
from tests.support.live_world_fold import CF, CS, MetadataTopic, Seen, ranges_of
from tests.support.live_world_log import Fate
from tests.support.live_world_mood import (
    ABANDONED_IDS,
    CUT_OFF_IN_COLLECTION,
    CUT_OFF_IN_ROUND,
    CUT_OFF_IN_SWAP,
    FENCED,
    FILTERED,
    FINISHED_LATER,
    LATE_BATCH,
    LEADER_IN_ROUND,
    MARKER_GONE,
    METADATA_LEADER,
    RIVAL_OF_CLONE,
    RIVAL_REFUSED,
    SEVERAL_SWAPS,
    TAKEN_BACK,
    TOPIC_DELETED,
    UPLOADED_IN_ROUND,
    WOKEN_IN_ROUND,
    ZOMBIE_PUBLISHED,
    LiveMood,
    LiveTally,
    draw_mood,
)
from tests.support.live_world_objects import HostLayout, RemoteTier
from tests.support.live_world_ports import End, HostCluster, LiveTasks, open_decisions
from tests.support.live_world_readers import SlowReaders
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import NOW_MS
from tests.support.simulated import Trace, draw_happening, run_seed
from tests.support.tier_world_stores import empty_database, open_database_in_memory, require
from tests.support.tier_world_tasks import Life, Task

HOUR_MS = 60 * 60 * 1000
GRACE_MS = LAG_MS + FETCH_MS + 2_000
HOSTS = ("one", "two")
RIVAL = "rival"
FILLED = 5
"""Segments that there are before anybody compacts."""
SPANS = {"round": 160, "collect": 100, "both": 200, RIVAL: 1}
"""About how many calls a task makes: where it sleeps, dies or fails is drawn from these."""
CALLS = (
    "append", "append", "append", "append", "append answered", "database answer", "put log",
    "delete log", "put own", "replace own",
)  # fmt: skip
"""Before which a task ends rather than before others."""
HEALING_ROUNDS = 6
REMOVING_ROUNDS = 4
HEARD_MS = 1_000
RECORDS_MAX = 500
"""From so many on no producer writes while keeplast works: its calls grow with the log, and what
comes between them with its calls, so that some runs would never end. Most have a fifth of it."""
SLOT_BYTES = 24
EXPECTED = (UnavailableError, CommitUnknownError, ConflictError, FencedError)
GONE_WORDS = ("missing", "lacks a file", "shorter", "size that was announced")
GONE_TOPIC_WORDS = ("no such topic", "topic or its metadata is gone")
OWN_WORDS = ("another decision log owns", "does not know")


class Host(Life):
    """A process of keeplast and what it has open."""

    def __init__(
        self, name: str, log: DecisionLog, layout: HostLayout, cluster: HostCluster,
        folds: KeptFolds | None,
    ) -> None:  # fmt: skip
        """Begin."""
        super().__init__(name)
        self.log = log
        self.layout = layout
        self.cluster = cluster
        self.folds = folds
        self.epoch = 0
        self.swaps = 0


class World:
    """One run. Use :func:`simulate`."""

    def __init__(
        self, seed: int, engine: Engine, rival: Engine, *, trace: Callable[[str], None]
    ) -> None:
        """Start with a topic of which some segments are remote, and without a compactor."""
        self.tally = LiveTally(runs=1)
        self._dice = random.Random(seed)
        self._mood: LiveMood = draw_mood(self._dice, seed)
        self._trace = trace
        self._clock = ManualClock(NOW_MS)
        self._tasks = LiveTasks(trace, self._ended, self.tally, self._meanwhile)
        self._engines = {RIVAL: rival}
        for name in HOSTS:
            self._engines[name] = engine
        for each in (engine, rival):
            empty_database(each)
        self._tables: Any = engine.raw_connection().driver_connection
        self.tier = RemoteTier(now_ms=self._clock.now_ms, noted=self._changed)
        self.brokers = Brokers(
            self.tier, self._clock, self._dice, self._mood, self.tally.happened
        )  # fmt: skip
        self.brokers.is_held = self._is_held
        self._readers: SlowReaders | None = None
        if self._mood.removal is not None:
            self._readers = SlowReaders(
                self.brokers, self.tier, self._clock, self._dice, self._mood.removal,
                self.tally.happened,
            )  # fmt: skip
        self._late: list[list[bytes]] = []
        self._violation: Exception | None = None
        self._heals = self._is_meanwhile = False
        self._processes = 0
        self._newest_epoch = 0
        self._fill()
        self._clone: MetadataTopic | None = None
        if self._mood.has_rival and self._mood.is_cloned:
            self._clone = self.brokers.metadata.copy()
        self._hosts = {name: self._start(name) for name in HOSTS}

    def _fill(self) -> None:
        while len(self.brokers.finished) < FILLED:
            for _ in range(self._dice.randint(2, 6)):
                self._write()
            self.brokers.roll()
            self.brokers.copy_all()

    def _start(self, name: str) -> Host:
        self._processes += 1
        log = open_decisions(
            self._engines[name], self._clock, self._tasks, self._dice, self._processes
        )
        is_clone = name == RIVAL and self._clone is not None
        metadata = self._clone if is_clone else self.brokers.metadata
        assert metadata is not None
        cluster = HostCluster(
            self.brokers, metadata, self._mood, self._tasks, self._clock, self._dice, self.tally,
            self._late,
        )  # fmt: skip
        layout = HostLayout(self.tier, self._tasks, self._dice)
        folds = KeptFolds(log.folds) if self._mood.keeps_folds else None
        host = Host(name, log, layout, cluster, folds)
        if name != RIVAL:
            cluster.heard = lambda events: self._heard(host, events)
        cluster.arrived = self._audit
        cluster.is_quiet = name == RIVAL or self._heals
        return host

    # Happenings.

    def run(self) -> LiveTally:
        """Let things happen, then heal and check everything."""
        mood = self._mood
        own: list[tuple[Callable[[], None], float]] = [
            (self._round, 6), (self._collect, 4), (self._both, 6), (self._wake, 6),
            (self._kill, 1), (self._pass_time, 9), (self.brokers.begin_fetch, 4),
            (self._end_fetches, 3), *self._brokers_events(),
        ]  # fmt: skip
        if mood.has_rival:
            own.append((self._rival, 2))
        if self._readers is not None:
            own += [(self._readers.begin, 6), (self._readers.go_on, 12), (self._pass_time, 9)]
            own.append((self._hurry, 4))
        for _ in range(mood.events):
            if self.brokers.is_deleted:
                break
            happening = draw_happening(self._dice, own)
            self._say(happening.__name__.strip("_"))
            happening()
            self._settle()
        if mood.deletes_topic and not self.brokers.is_deleted:
            self.brokers.delete_topic()
        self._heal()
        if self.brokers.is_deleted:
            self._check_gone()
        else:
            self._check_end()
        self.tally.operations = self._tasks.operations
        self.tally.records = len(self.brokers.log.records)
        self.tally.reads = self.brokers.reads
        return self.tally

    def _brokers_events(self) -> list[tuple[Callable[[], None], float]]:
        """Return what brokers and producers do, also in the middle of a call of keeplast."""
        mood, brokers = self._mood, self.brokers
        found: list[tuple[Callable[[], None], float]] = [
            (self._write, 22), (brokers.roll, 11), (self._copy, 26), (brokers.drop_local, 7),
            (brokers.hear_some, 8), (brokers.expire, 3), (brokers.restart, 1),
            (brokers.lose_disk, 0.5), (self._change_metadata_leader, 1),
        ]  # fmt: skip
        if mood.changes_leader:
            found.append((self._change_leader, 3))
        if mood.deletes_records:
            found.append((brokers.delete_records, 1))
        if mood.retention_ms is not None:
            found.append((brokers.retain, 3))
        return found

    def _is_held(self, segment: RemoteLogSegment, seen: Seen) -> bool:
        """Say whether a batch that somebody may still send would hide a part of ``segment``.

        What is finished over all that an output has of an epoch, between the last look and the
        batch, is hidden until the audit, right behind the batch: no check before it can see that.
        """
        if not (self._is_meanwhile or self._tasks.asleep or self._late):
            return False
        mine = {epoch: (first, last) for epoch, first, last in ranges_of(segment)}
        return any(
            epoch in mine and mine[epoch][0] <= first and last < mine[epoch][1]
            for each in seen.known.values()
            if each.broker_id < 0 and each.state in (CS, CF)
            for epoch, first, last in ranges_of(each)
        )

    def _settle(self) -> None:
        self.tally.events += 1
        self._tasks.bury()
        if self._late and self._dice.random() < 0.2:
            self._land(self._late.pop(0))
        self._audit()
        if self._violation is not None:
            raise self._violation

    def _land(self, values: list[bytes]) -> None:
        self._say("a batch comes after it was given up")
        self.tally.happened[LATE_BATCH] += 1
        self.brokers.metadata.append(values, self._clock.now_ms())

    def _audit(self) -> None:
        """Read through every broker; what is wrong ends the run when this event is over."""
        try:
            self.brokers.keep_up()
            self.brokers.check()
        except AssertionError as error:
            self._violation = self._violation or error

    def _changed(self, verb: str) -> None:
        """Hear of a request that has changed the remote tier."""
        if self._mood.slow_ms and not self._heals:
            self._clock.advance(self._dice.randint(0, self._mood.slow_ms))
        if verb.startswith("delete ") and verb != "delete own":
            self._audit()

    def _meanwhile(self, task: Task) -> None:
        """Let somebody else do something before a call of ``task``, now and then."""
        if self._heals or self._is_meanwhile or self._dice.random() >= self._mood.busy:
            return
        self._is_meanwhile = True
        try:
            with self._tasks.unobserved():
                self._do_meanwhile(task)
                self._audit()
        finally:
            self._is_meanwhile = False

    def _do_meanwhile(self, task: Task) -> None:
        sleepers = [each for each in self._tasks.asleep if each is not task]
        if sleepers and self._dice.random() < 0.25:
            self.tally.happened[WOKEN_IN_ROUND] += 1
            self._wake_one(self._dice.choice(sleepers))
            return
        if self._mood.deletes_topic and self._dice.random() < 0.02:
            self._say("    the topic is deleted")
            self.tally.happened[TOPIC_DELETED] += 1
            self.brokers.delete_topic()
            return
        if self.brokers.is_deleted:
            return
        events = self._brokers_events()
        happening = draw_happening(self._dice, events)
        before = len(self.brokers.finished), self.brokers.leader, self.brokers.metadata.leader_epoch
        self._say(f"    meanwhile {happening.__name__.strip('_')}")
        if happening != self._write or len(self.brokers.log.records) < RECORDS_MAX:
            happening()
        self.tally.happened[UPLOADED_IN_ROUND] += len(self.brokers.finished) > before[0]
        self.tally.happened[LEADER_IN_ROUND] += self.brokers.leader is not before[1]
        self.tally.happened[METADATA_LEADER] += self.brokers.metadata.leader_epoch != before[2]

    # The cluster.

    def _write(self) -> None:
        transacts = self._mood.has_transactions and self._dice.random() < 0.4
        (self.brokers.transact if transacts else self.brokers.produce)()

    def _copy(self) -> None:
        for _ in range(self._dice.randint(1, 6)):
            self.brokers.copy()

    def _change_leader(self) -> None:
        self.tally.leader_changes += 1
        self.brokers.change_leader()

    def _change_metadata_leader(self) -> None:
        self.brokers.change_metadata_leader()

    def _end_fetches(self) -> None:
        self.brokers.end_fetches()

    def _pass_time(self) -> None:
        self._clock.advance(self._dice.choice([100, 500, 1_000, 3_000]))
        if self._mood.retention_ms is None and self._dice.random() < 0.1:
            self._pass_hour()

    def _pass_hour(self) -> None:
        """Let so much time pass that what brokers were copying is finished or never will be."""
        self.brokers.give_up_uploads()
        self._clock.advance(HOUR_MS)

    # Hosts.

    def _round(self) -> None:
        self._begin("round")

    def _collect(self) -> None:
        self._begin("collect")

    def _both(self) -> None:
        self._begin("both")

    def _hurry(self) -> None:
        """Let rounds follow one another at once, and readers ask brokers that lag."""
        assert self._readers is not None
        for _ in range(self._dice.randint(2, 4)):
            for _ in range(2):
                self._write()
            self.brokers.roll()
            for _ in range(6):
                self.brokers.copy()
            self._begin("round")
            self._readers.begin()
            self._readers.go_on()

    def _begin(self, name: str) -> None:
        """Let a host that has nothing to do begin something, if there is one."""
        free = [each for each in self._hosts.values() if not each.busy]
        if not free:
            return
        host = self._dice.choice(free)
        others_end = not self._tasks.asleep and self._dice.random() < 0.5
        self._do(host, name, self._work(host, name, takes_over=not others_end))

    def _work(self, host: Host, name: str, *, takes_over: bool) -> Callable[[], object]:
        wish = RoundWish(
            topic=self._mood.topic, margin_bytes=self._mood.margin_bytes, force=True,
            memory_bytes=MEMORY_BYTES_MIN, cleaner=self._cleaner(),
        )  # fmt: skip

        def work() -> None:
            publisher = self._claim(host, takes_over)
            try:
                found = repair(publisher)
                self.tally.happened[FINISHED_LATER] += found.published
                self.tally.happened[TAKEN_BACK] += found.discarded
                host.swaps = 0
                if name != "collect":
                    runner = LocalRunner(1, clock=self._clock)
                    report = clean_attached(
                        publisher, wish, lambda _: nullcontext(runner), self._clock,
                        progressed=lambda _: None,
                    )  # fmt: skip
                    filters = report.filters
                    self.tally.happened[FILTERED] += bool(filters and filters.skipped_segments)
                self.tally.happened[SEVERAL_SWAPS] += host.swaps > 1
                if name == RIVAL:
                    self._clock.advance(GRACE_MS)
                if name != "round":
                    self.tally.collected += collect(publisher, GRACE_MS).decisions
            finally:
                publisher.close()

        return work

    def _cleaner(self) -> CleanerConfig:
        """Return what a key map may have: in the end all of the keys."""
        removal = self._mood.removal
        if removal is None or removal.key_slots is None or self._heals:
            return CleanerConfig()
        return CleanerConfig(key_map_bytes=SLOT_BYTES * removal.key_slots, load_factor=1.0)

    def _claim(self, host: Host, takes_over: bool) -> Publisher:
        terms = AttachTerms(self._mood.policy, "localhost:9092")
        publisher = claim(
            host.cluster, host.log, host.layout, PARTITION, CLUSTER_ID, terms,
            takes_over=takes_over, folds=host.folds,
        )  # fmt: skip
        host.epoch = publisher.epoch
        if host.name != RIVAL:
            self._newest_epoch = max(self._newest_epoch, publisher.epoch)
        return publisher

    def _heard(self, host: Host, events: Sequence[RemoteLogEvent]) -> None:
        """Hear of a batch that has arrived."""
        first = events[0]
        self._say(f"    {host.name} announced {len(events)} records, the first {_shown(first)}")
        if isinstance(first, RemoteLogSegmentUpdate) and first.state is CF:
            self.tally.swaps += 1
            host.swaps += 1
            self.tally.happened[ZOMBIE_PUBLISHED] += host.epoch < self._newest_epoch

    def _rival(self) -> None:
        """Let another decision log try, once the first one owns the topic."""
        if not self._newest_epoch:
            return
        host = self._start(RIVAL)
        self._do(host, RIVAL, self._work(host, RIVAL, takes_over=True))

    def _do(self, host: Host, name: str, work: Callable[[], object]) -> Task:
        """Start a task, which may sleep, die or fail at one of its calls."""
        span, mood, dice = SPANS[name], self._mood, self._dice

        is_quiet = self._heals or name == RIVAL

        def draw(share: float) -> int | None:
            if is_quiet or dice.random() >= share:
                return None
            return max(round(span * dice.random()), 1)

        task = Task(
            host, name, work, holds="partition", sleeps_at=draw(mood.sleeps),
            dies_at=draw(mood.dies), fails_at=draw(mood.fails),
        )  # fmt: skip
        if not is_quiet and dice.random() < max(mood.sleeps, mood.dies) / 2:
            is_asleep = dice.random() * (mood.sleeps + mood.dies) < mood.sleeps
            self._tasks.ends[task] = End(dice.choice(CALLS), dice.randint(1, 3), is_asleep)
            # A thread of its own, so that it can sleep.
            task.sleeps_at = task.sleeps_at or 1 << 30
        deleted = self.tier.deletions - host.layout.deletions
        self.tally.tasks += name != RIVAL
        self._say(f"{host.name} {name} at {self._clock.now_ms() - NOW_MS} ms")

        def finished(done: Task) -> None:
            self._finish(host, done, self.tier.deletions - host.layout.deletions > deleted)

        self._tasks.start(task, finished)
        self.tally.sleeps += not task.is_done
        return task

    def _finish(self, host: Host, task: Task, others_deleted: bool) -> None:
        error = task.error
        if error is not None:
            is_gone = isinstance(error, FileNotFoundError)
            words = "an object" if is_gone else str(error).split(".")[0].split(";")[0]
            self._say(f"    {host.name} {task.name}: {type(error).__name__}: {words}")
        if task.is_dead or not host.alive:
            self.tally.deaths += 1
            if host.name in HOSTS:
                self._hosts[host.name] = self._start(host.name)
            return
        if error is None:
            if task.name == RIVAL:
                self._violation = AssertionError("AT-30: another decision log was not refused")
            return
        if isinstance(error, AssertionError) or not self._may_end(task, error, others_deleted):
            self._violation = self._violation or error
            return
        self.tally.ends[f"{type(error).__name__}: {words}"] += 1
        self.tally.happened[FENCED] += isinstance(error, FencedError)
        self.tally.happened[ABANDONED_IDS] += "they are abandoned" in str(error)

    def _may_end(self, task: Task, error: Exception, others_deleted: bool) -> bool:
        """Say whether a task may end with ``error``, by what has happened."""
        text = str(error)
        if task.name == RIVAL:
            is_refused = isinstance(error, RefusedError) and any(e in text for e in OWN_WORDS)
            self.tally.happened[RIVAL_REFUSED] += is_refused and self._clone is None
            self.tally.happened[RIVAL_OF_CLONE] += is_refused and self._clone is not None
            return is_refused or self.brokers.is_deleted
        is_gone = self.brokers.is_deleted and any(each in text for each in GONE_TOPIC_WORDS)
        if is_gone and isinstance(error, (InvalidError, RefusedError)):
            return True
        if isinstance(error, CorruptError):
            return others_deleted and any(each in text for each in GONE_WORDS)
        if isinstance(error, RefusedError):
            return "another process works on the partition" in text
        return isinstance(error, EXPECTED)

    def _ended(self, task: Task) -> None:
        """Count where a process ends."""
        states = {state for (state,) in self._tables.execute("SELECT state FROM decisions")}
        if DecisionState.DECIDED.value in states:
            self.tally.happened[CUT_OFF_IN_SWAP] += 1
        elif DecisionState.COLLECTING.value in states:
            self.tally.happened[CUT_OFF_IN_COLLECTION] += 1
        elif task.name != "collect":
            self.tally.happened[CUT_OFF_IN_ROUND] += 1

    def _wake(self) -> None:
        if self._tasks.asleep:
            self._wake_one(self._dice.choice(self._tasks.asleep))

    def _wake_one(self, task: Task) -> None:
        self._say(f"{task.life.name} {task.name} wakes")
        self._tasks.wake(task)

    def _kill(self) -> None:
        """End a process that sleeps."""
        if self._tasks.asleep:
            self._dice.choice(self._tasks.asleep).life.alive = False

    # The end.

    def _heal(self) -> None:
        """Let everybody wake and everything come, and keeplast do all that there is to do."""
        self._heals = True
        self._say("healing")
        while self._tasks.asleep:
            self._wake_one(self._tasks.asleep[0])
        while self._late:
            self._land(self._late.pop(0))
        self._audit()
        if self.brokers.is_deleted:
            return
        for producer_id in sorted(self.brokers.log.open):
            self.brokers.end_transaction(producer_id, ControlType.COMMIT)
        self.brokers.produce()
        self.brokers.roll()
        self.brokers.copy_all()
        self._pass_hour()
        # A copy that was left behind holds rounds back for as long as it may be finished yet.
        self._clock.advance(COPY_MS)
        removal = self._mood.removal
        for number in range(HEALING_ROUNDS):
            if removal is not None and number < REMOVING_ROUNDS:
                # Horizons pass, and there is something to do as well.
                self._clock.advance(removal.delete_retention_ms + removal.local_ms + HEARD_MS)
                for _ in range(3):
                    self.brokers.produce()
                self.brokers.roll()
                self.brokers.copy_all()
                self.brokers.drop_local()
            self._hosts["one"] = self._start("one")
            before = self.tally.swaps
            self._do(
                self._hosts["one"], "both", self._work(self._hosts["one"], "both", takes_over=True)
            )
            self.brokers.expire_all()
            self._clock.advance(GRACE_MS)
            self._settle()
            if self._readers is not None:
                self._readers.begin()
                self._readers.go_on()
            is_removing = removal is not None and number < REMOVING_ROUNDS
            if number and self.tally.swaps == before and not is_removing:
                break
        else:
            require(False, f"rounds find more to do each time. rounds={HEALING_ROUNDS}")
        self._do(
            self._hosts["one"],
            "collect",
            self._work(self._hosts["one"], "collect", takes_over=True),
        )
        self._settle()

    def _check_end(self) -> None:
        brokers, log = self.brokers, self._hosts["one"].log
        for each in brokers.all:
            brokers.hear(each, brokers.metadata.end)
            brokers.drop_local_of(each)
        self._settle()
        newest = brokers.leader.seen
        left = [
            each for each in newest.known.values() if each.broker_id < 0 and each.state is not CF
        ]
        require(not left, f"what compactors announced is left. segments={left}")
        waiting = [e for e in newest.known.values() if e.state not in (CF, CS)]
        require(not waiting, f"deletions have not ended. segments={waiting}")
        garbage = {
            each
            for each in self.tier.segments
            if each not in newest.known and not _is_brokers(each, brokers.finished)
        }
        require(not garbage, f"objects are left. ids={sorted(e.hex()[:8] for e in garbage)}")
        self._check_own()
        known = log.find(AttachedName(CLUSTER_ID, PARTITION))
        assert known is not None
        states = {each.state for each in log.decisions(known)}
        require(states <= {DecisionState.COLLECTED}, f"decisions are open. states={states}")
        ids = [e for e in log.own_segments(known) if e.decision_id is None]
        require(all(e.is_discarded for e in ids), f"ids are open. ids={ids}")
        self._count_markers()
        cache = PartitionCache()
        for event in brokers.metadata.events:
            assert not isinstance(event, RemotePartitionDelete)
            cache.apply(event)
        for served in cache.served():
            for offset in (served.start_offset, served.end_offset):
                found = newest.lookup(served.epoch, offset)
                require(
                    found is not None and found.id == served.segment.id,
                    f"keeplast's fold is not the brokers'. offset={offset} {served} {found}",
                )
        self._check_clean(clean_to(log, known, cache, brokers.log.start))

    def _count_markers(self) -> None:
        """Count transactions of which nothing is left, marker included."""
        log = self.brokers.log
        answers = self.brokers.answers(self.brokers.leader)
        there = {
            each.last_offset
            for *_, batches in answers
            for each in batches
            if each.is_control and next(iter(each.records()), None) is not None
        }
        markers = {
            each for _, each in log.spans if log.start <= each < self.brokers.leader.local_start
        }
        self.tally.happened[MARKER_GONE] += bool(markers - there)

    def _check_own(self) -> None:
        """Nothing is left of keeplast's own but the owner object.

        And the word of what a process began that died before anything of it was there, and filters
        of what was live and not replaced: those of what brokers removed go with the next round.
        """
        began = {work_name(RemoteLogSegmentId(PARTITION, each)) for each in self.tier.segments}
        left = {name for name in self.tier.own if not name.startswith("work/") or name in began}
        left -= self._filters_that_may_be()
        owners = {name for name in left if name.startswith("owner-")}
        require(left == owners, f"own objects are left. names={left}")
        require(len(owners) <= (not self.brokers.is_deleted), f"owner objects are left. {owners}")

    def _filters_that_may_be(self) -> set[str]:
        log = self._hosts["one"].log
        known = log.find(AttachedName(CLUSTER_ID, PARTITION))
        assert known is not None
        decisions = log.decisions(known)
        live = {RemoteLogSegmentId(PARTITION, each) for each in self.brokers.finished}
        live |= {each.id for decision in decisions for each in decision.outputs}
        live -= {each.id for decision in decisions for each in decision.sources}
        return {filter_name(each) for each in live}

    def _check_clean(self, cleaned_to: int) -> None:
        """No key is there twice below the first dirty offset, which is where it can be."""
        brokers, log = self.brokers, self.brokers.log
        served: dict[int, int] = {}
        for _, at, _, segment, batches in brokers.answers(brokers.leader):
            if segment.start_offset < log.start:
                continue  # What the log start cuts stays as it is.
            served[segment.start_offset] = segment.end_offset
            for batch in batches:
                for record in batch.records():
                    if batch.is_control or not at <= record.offset < cleaned_to:
                        continue
                    is_old = log.is_superseded(record, cleaned_to)
                    is_committed = log.fates[record.offset] is Fate.COMMITTED
                    require(
                        not (is_old and is_committed),
                        f"a key is there more than once. cleaned_to={cleaned_to} record={record}",
                    )
        # A segment that lies over another one is one source with it.
        bounds: list[int] = []
        reach = -1
        for start, end in sorted(served.items()):
            if start > reach:
                bounds.append(start)
            reach = max(reach, end)
        if self._mood.margin_bytes == 0 and bounds:
            last = bounds[-1]
            bound = min([last, *(first for first, end in log.spans if first < last <= end)])
            wanted = max((each for each in bounds if each <= bound), default=0)
            require(
                max(cleaned_to, bounds[0]) >= wanted,
                f"not all is clean. cleaned_to={cleaned_to} bound={bound} served={served}",
            )

    def _check_gone(self) -> None:
        """Of a topic that is gone nothing is left once it was collected."""
        host = self._hosts["one"] = self._start("one")
        known = host.log.find(AttachedName(CLUSTER_ID, PARTITION))
        if known is None:
            return
        self._clock.advance(GRACE_MS)
        folds = KeptFolds(host.log.folds)
        found = collect_gone(
            host.cluster, host.log, host.layout, known, GRACE_MS, folds, takes_over=True
        )
        require(not found.unknown and not found.waiting, f"something is left. orphans={found}")
        require(not self.tier.segments, f"objects are left. count={len(self.tier.segments)}")
        require(not self.tier.own, f"own objects are left. names={sorted(self.tier.own)}")

    def close(self) -> None:
        """End what still sleeps, so that no thread stays behind."""
        for task in self._tasks.asleep:
            task.life.alive = False
        self._heals = True
        self._tasks.bury()

    def _say(self, line: str) -> None:
        self._trace(line)


def _shown(event: RemoteLogEvent) -> str:
    assert isinstance(event, RemoteLogSegment | RemoteLogSegmentUpdate)
    return f"{event.state.name} {event.id.segment_id.hex()[:8]}"


def _is_brokers(segment_id: bytes, finished: set[bytes]) -> bool:
    """Say whether a broker began to upload this and never said that it was whole."""
    return segment_id[:8] == bytes(8) and segment_id not in finished


@cache
def _rivals_database() -> Engine:
    return open_database_in_memory()


def simulate(seed: int, engine: Engine | None = None, *, trace: Trace | None = None) -> LiveTally:
    """Do one run; see :func:`.run_seed`."""
    found: LiveTally = run_seed(
        lambda engine, trace: World(seed, engine, _rivals_database(), trace=trace), seed, engine,
        trace, "--world attached ",
    )  # fmt: skip
    return found
