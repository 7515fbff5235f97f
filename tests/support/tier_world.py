"""Several hosts, one object store, one metadata store and a seed: all that can happen to them.

Leaders append, copy, clean, expire and collect; followers replicate, cut what diverged, and take
over; hosts lose their power or are killed at any operation, or fall asleep in one and wake when
another leads. Readers read all the time. In the end everything heals, and what is left must be
exactly what was acknowledged, without a hole, garbage or drift.

The same seed gives the same run. ``tools/simulate.py`` runs many of them; see
docs/contributing/design/tiering.md.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine

from keeplast.format.record import ControlType, Record
from keeplast.host.replica import Role
from keeplast.log.append import NewRecord
from keeplast.log.files import FileSystem
from keeplast.model.topic_config import CleanerConfig
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.store.verification import verify_remote
from keeplast.tier.metadata.database import SKEW_MS_MAX
from keeplast.tier.objects.object_store import segment_of_key
from keeplast.tier.state.segment import SegmentState
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.simulated import Trace, draw_happening, run_seed
from tests.support.tier_world_cluster import (
    DATABASE,
    DELETE_RETENTION_MS,
    GARBAGE_AGE_MS,
    GRACE_MS,
    Cluster,
    Tally,
)
from tests.support.tier_world_hosts import Process, SlowReader, by_markers
from tests.support.tier_world_model import Written
from tests.support.tier_world_stores import require

DAY_MS = 24 * 60 * 60 * 1000
WRONG_CLOCKS_MS = (
    0, 0, 0, SKEW_MS_MAX // 2, -SKEW_MS_MAX // 2, 2 * SKEW_MS_MAX, DAY_MS, 365 * DAY_MS, -DAY_MS,
)  # fmt: skip
"""Within the bound a host goes on, by the database's time, and is wrong by more than anything here
takes."""
WRONG_DATABASE_MS = (0, 0, 10 * SKEW_MS_MAX, 3 * DAY_MS, -3 * DAY_MS)
"""Never what a host is wrong by as well: of two that agree it cannot be known."""
KEYS = 6
TRANSACTIONAL = (7, 8)
IDEMPOTENT = 9
HEALING_ROUNDS = 60
CATCHING_UP_ROUNDS = 3
READERS_MAX = 3
FETCH_BYTES = 1 << 20


class World(Cluster):
    """One run. Use :func:`simulate`."""

    def run(self) -> Tally:
        """Let things happen, then heal and check everything."""
        events: list[tuple[Callable[[], bool], int]] = [
            (self._append, 30), (self._replicate, 14), (self._acknowledge, 8), (self._roll, 2),
            (self._catch_up, 8),
            (self._copy, 8), (self._clean, 6), (self._expire, 2), (self._collect, 3),
            (self._clean_follower, 3), (self._retain, 2),
            (self._read_all, 2), (self._read_slowly, 5), (self._pass_time, 6),
            (self._change_leader, 2), (self._learn, 6), (self._lead_again, 8),
            (self._restart, 8), (self._wake, 6), (self._shrink, 3), (self._kill, 1),
            (self._fill_disk, 1),
        ]  # fmt: skip
        if self._mood.has_transactions:
            events.append((self._transact, 8))
        lagging = [(each, self._weight_when_lagging(each, weight)) for each, weight in events]
        count = self._mood.events
        for at in range(count):
            self._lags = self._mood.copies_lag and count // 3 <= at < count * 5 // 6
            if self._lags and at == count // 3:
                self._copy_and_clean()
            happening = draw_happening(self._dice, lagging if self._lags else events)
            has_lagged = self._mood.copies_lag and at == count * 5 // 6
            if has_lagged or (self._is_distracted() and self._dice.random() < 0.3):
                happening = self._change_leader
            if happening():
                self._settle()
        self._heal()
        self._finish_up()
        self._check_end()
        self.tally.operations = self._tasks.operations
        self.tally.records = sum(len(w.records) for w in self._model.log)
        self.tally.lost_answers += self._objects.lost_answers
        return self.tally

    def _weight_when_lagging(self, happening: Callable[[], bool], weight: int) -> int:
        """Return how often something happens while the leader does nothing for the tier.

        Followers go on meanwhile, and clean what object storage does not have, for longer than
        tombstones are kept.
        """
        changed = {
            self._append: 8, self._transact: 2, self._copy: 0, self._clean: 0,
            self._change_leader: 0, self._clean_follower: 14, self._catch_up: 14,
            self._read_all: 4, self._pass_time: 14,
        }  # fmt: skip
        return changed.get(happening, weight)

    def _copy_and_clean(self) -> None:
        """Let object storage have what there is."""
        self._keep_up()
        for happening in (self._roll, self._copy, self._clean):
            happening()

    def _is_distracted(self) -> bool:
        """Say whether the leader sleeps in the middle of something; no long wait follows."""
        return any(
            task.life.name == self._leader and task.epoch == self._epoch
            for task in self._tasks.asleep
        )

    def close(self) -> None:
        """End what still sleeps, so that no thread stays behind."""
        for process in self._processes.values():
            process.alive = False
        self._tasks.bury()

    def _settle(self) -> None:
        """Do what follows from an event."""
        self.tally.events += 1
        self._objects.now += 1
        self._objects.land_late()
        self._tasks.bury()
        self._audit()

    # Writing.

    def _append(self) -> bool:
        process = self._a_leader()
        if process is None:
            return False
        producer_id, sequence = -1, -1
        if process is self._current() and self._dice.random() < 0.3:
            producer_id = IDEMPOTENT
            if self._dice.random() < 0.3 and self._send_again(process, producer_id):
                return True
            sequence = self._next_sequence(producer_id)
        self._write(process, producer_id, sequence, is_transactional=False)
        return True

    def _transact(self) -> bool:
        process = self._current()
        if process is None:
            return False
        producer_id = self._dice.choice(TRANSACTIONAL)
        if producer_id in self._model.open_transactions() and self._dice.random() < 0.5:
            self._end_transaction(process, producer_id)
        elif not (self._dice.random() < 0.15 and self._send_again(process, producer_id)):
            self._write(
                process, producer_id, self._next_sequence(producer_id), is_transactional=True
            )
        return True

    def _write(
        self, process: Process, producer_id: int, sequence: int, *, is_transactional: bool
    ) -> None:
        new = [self._record() for _ in range(self._dice.choice([1, 1, 2, 3]))]

        def work() -> Written:
            base = process.host.log_end_offset
            records = (Record(base + i, r.timestamp_ms, r.key, r.value) for i, r in enumerate(new))
            written = Written(
                base, process.host.epoch, tuple(records), producer_id, sequence, is_transactional
            )
            self._model.write(written)
            got = process.host.append(
                new, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=sequence, is_transactional=is_transactional,
            )  # fmt: skip
            require(got == base, f"appended at {got}, not at the log end {base}")
            return written

        self._do(process, "append", "log", work, lambda made: self._appended(process, made))

    def _send_again(self, process: Process, producer_id: int) -> bool:
        """Send a producer's last batch again, as when its answer was lost."""
        last = self._model.last_of(producer_id)
        if last is None:
            return False
        new = [NewRecord(r.key, r.value, r.timestamp) for r in last.records]

        def work() -> None:
            end = process.host.log_end_offset
            got = process.host.append(
                new, producer_id=producer_id, producer_epoch=0, base_sequence=last.sequence,
                is_transactional=last.is_transactional,
            )  # fmt: skip
            require(
                (got, process.host.log_end_offset) == (last.base_offset, end),
                f"a batch that was sent again is there twice. expected={last.base_offset} "
                f"found={got}",
            )

        self._do(process, "append", "log", work)
        return True

    def _end_transaction(self, process: Process, producer_id: int) -> None:
        outcome = self._dice.choice([ControlType.COMMIT, ControlType.ABORT])

        def work() -> Written:
            base = process.host.log_end_offset
            written = Written(base, process.host.epoch, (), producer_id, outcome=outcome)
            self._model.write(written)
            process.host.end_transaction(outcome, producer_id=producer_id, producer_epoch=0)
            return written

        self._do(process, "marker", "log", work, lambda made: self._appended(process, made))

    def _appended(self, process: Process, made: object) -> None:
        assert isinstance(made, Written)
        if made.epoch == self._epoch == self._established:
            self._model.append(made)

    def _record(self) -> NewRecord:
        self._values += 1
        is_deleted = self._dice.random() < (0.4 if self._lags else 0.2)
        number = self._dice.randrange(KEYS)
        if self._lags and not is_deleted:
            number += KEYS  # What object storage has is deleted and stays so.
        key = b"k%d" % number
        value = None if is_deleted else b"v%d" % self._values
        return NewRecord(key, value, self._clock.now_ms())

    def _next_sequence(self, producer_id: int) -> int:
        last = self._model.last_of(producer_id)
        return 0 if last is None else last.sequence + len(last.records)

    def _roll(self) -> bool:
        process = self._a_leader()
        if process is None:
            return False
        self._do(process, "roll", "log", process.host.roll)
        return True

    # Replication.

    def _replicate(self) -> bool:
        followers = self._followers()
        if not followers:
            return False
        follower = self._dice.choice(followers)
        leader = self._running(follower.follows)
        if leader is None or leader.leads_at != follower.host.epoch:
            return False
        self._fetch_from(leader, follower)
        return True

    def _catch_up(self) -> bool:
        """Let every follower fetch until it has all, and the leader acknowledge it."""
        leader = self._current()
        if leader is None:
            return False
        for name in self._names * 4:
            follower = self._running(name)
            if self._running(leader.name) is not leader:
                return True
            if follower is not None and (follower.follows, follower.host.epoch) == (
                leader.name, leader.leads_at,
            ):  # fmt: skip
                self._fetch_from(leader, follower)
        if self._running(leader.name) is leader:
            leader.advance_high_watermark()
        return True

    def _fetch_from(self, leader: Process, follower: Process) -> None:
        def work() -> None:
            offset = follower.host.log_end_offset
            leader.fetched[follower.name] = offset
            caught_up = max(leader.host.high_watermark, leader.leads_from)
            if leader.leads_at == self._epoch and offset >= caught_up:
                self._in_sync.add(follower.name)
                leader.in_sync.add(follower.name)
            log_start = self._live.log_start if self._live is not None else 0
            if offset < log_start:
                follower.host.follow_log_start(log_start)
                return
            with self._tasks.awake():
                found = leader.host.fetch(offset, self._dice.choice([200, 5000]))
            follower.host.replicate(
                found.data, high_watermark=leader.host.high_watermark, log_start=log_start
            )

        self._do(follower, "replicate", "log", work)

    def _acknowledge(self) -> bool:
        process = self._a_leader()
        if process is None:
            return False
        process.advance_high_watermark()
        return True

    def _learn(self) -> bool:
        """Let a host hear who leads: it follows, and cuts what its leader does not have."""
        leader = self._current()
        behind = [
            process for name in self._names if (process := self._running(name)) is not None
            and process.name != self._leader and process.heard_epoch < self._epoch
        ]  # fmt: skip
        if leader is None or not behind:
            return False
        chosen = self._dice.choice(behind)
        if chosen.leads_at >= 0 and not self._heals and self._dice.random() < 0.7:
            return False  # Who was the leader hears of it last.
        self._follow(chosen, leader)
        return True

    def _follow(self, process: Process, leader: Process) -> None:
        epoch = leader.leads_at

        def work() -> None:
            process.host.become_follower(epoch)
            before = process.host.log_end_offset
            after = process.host.truncate_to(leader.host.lineage, leader.host.log_end_offset)
            self.tally.truncations += after < before

        def then(_: object) -> None:
            process.heard_epoch, process.follows = epoch, leader.name

        self._do(process, "follow", "log", work, then)

    def _shrink(self) -> bool:
        """Let the leader give up waiting for a replica."""
        leader = self._current()
        if leader is None:
            return False
        slow = [
            name for name in sorted(leader.in_sync) if name != leader.name
            and ((other := self._running(name)) is None or other.heard_epoch != self._epoch)
        ]  # fmt: skip
        if not slow:
            return False
        gone = self._dice.choice(slow)
        leader.in_sync.discard(gone)
        self._in_sync.discard(gone)
        self._say(f"controller: in sync {sorted(self._in_sync)}")
        return True

    # The tier.

    def _copy(self) -> bool:
        process = self._a_leader()
        if process is None:
            return False

        def then(copied: object) -> None:
            assert isinstance(copied, int)
            self.tally.copies += copied

        self._do(process, "copy", "log", process.host.copy, then)
        return True

    def _clean(self) -> bool:
        """Do a round: a leader's in both tiers, or next to it, in object storage alone."""
        process = self._a_leader()
        if process is None or "cleaner" in process.busy or not (self._live and self._live.routes):
            return False

        def then(_: object) -> None:
            self.tally.rounds += 1

        if self._dice.random() < 0.6:
            self._do(process, "clean", "log", lambda: self._clean_at(process), then)
            return True

        def work() -> object:
            return process.tiered.clean(
                PARTITION, self._runner_for, cleaner=CleanerConfig(),
                memory_bytes=MEMORY_BYTES_MIN, progressed=lambda count: None, force=True,
                grace_ms=GRACE_MS,
            )  # fmt: skip

        self._do(process, "clean", "cleaner", work, then)
        return True

    def _clean_follower(self) -> bool:
        followers = self._followers()
        if not followers:
            return False
        if not self._lags:
            self._pass_at(self._dice.choice(followers))
            return True
        self._append()
        self._keep_up()
        for process in self._followers():
            self._pass_at(process)
        return True

    def _keep_up(self) -> None:
        """Let one lead, and those that can have what it has and know what is acknowledged."""
        for _ in range(CATCHING_UP_ROUNDS):
            self._lead_again()
            while self._learn() or self._shrink():
                pass
            self._catch_up()

    def _followers(self) -> list[Process]:
        return [
            process for name in self._names if (process := self._running(name)) is not None
            and process.host.role is Role.FOLLOWER and process.follows
        ]  # fmt: skip

    def _pass_at(self, process: Process) -> None:
        """Let a follower clean what is on its disk."""

        def then(_: object) -> None:
            self.tally.local_rounds += 1

        def work() -> object:
            if self._mood.copies_lag:
                process.host.roll()  # Where segments begin is each replica's own.
            return self._clean_at(process)

        self._do(process, "clean", "log", work, then)

    def _clean_at(self, process: Process) -> object:
        return process.host.clean(
            self._runner_for, memory_bytes=MEMORY_BYTES_MIN, force=True, grace_ms=GRACE_MS
        )

    def _runner_for(self, files: FileSystem) -> Runner:
        return LocalRunner(1, files=files, clock=self._clock)

    def _expire(self) -> bool:
        process = self._a_leader()
        if process is None:
            return False

        def then(_: object) -> None:
            self.tally.expiries += 1

        self._do(process, "expire", "log", lambda: process.host.expire(grace_ms=GRACE_MS), then)
        return True

    def _retain(self) -> bool:
        """Let local segments go, of a leader or a follower."""
        up = [process for name in self._names if (process := self._running(name)) is not None]
        if not up:
            return False
        process = self._dice.choice(up)
        self._do(process, "retain", "log", process.host.retain_local)
        return True

    def _collect(self) -> bool:
        process = self._a_leader()
        if process is None or "retention" in process.busy:
            return False

        def then(_: object) -> None:
            self.tally.collections += 1

        self._do(
            process, "collect", "retention",
            lambda: process.tiered.collect(PARTITION, garbage_age_ms=GARBAGE_AGE_MS), then,
        )  # fmt: skip
        return True

    # Trouble.

    def _pass_time(self) -> bool:
        kind = self._dice.random()
        if self._mood.jumps and kind < 0.15:
            self._latest_ms = max(self._latest_ms, self._clock.now_ms())
            self._clock.advance(-self._dice.randint(1, 15_000))
            self._jumped = True
            self.tally.clock_jumps += 1
            return True
        if self._has_wrong_clocks:
            self._set_a_clock()
        limit = 400 if kind < 0.6 else 3_000 if kind < 0.92 else 15_000
        limit = 8_000 if self._lags else limit
        self._clock.advance(self._dice.randint(1, limit))
        return True

    def _set_a_clock(self) -> None:
        """Let a host's clock be wrong, or right again."""
        if self._clocks.random() < 0.6:
            return
        name = self._clocks.choice([*self._names, DATABASE])
        choices = WRONG_DATABASE_MS if name == DATABASE else WRONG_CLOCKS_MS
        wrong_ms = self._clocks.choice(choices)
        self._around.ahead_ms[name] = wrong_ms
        self._clock_was_wrong = self._clock_was_wrong or abs(wrong_ms) > SKEW_MS_MAX
        self.tally.clocks_set_wrong += wrong_ms != 0
        self._say(f"the clock of {name} is {wrong_ms} ms ahead")

    def _restart(self) -> bool:
        down = [
            name for name in self._names
            if (p := self._processes[name]) and (not p.alive or (p.opened is None and not p.busy))
        ]  # fmt: skip
        if not down:
            return False
        name = self._dice.choice(down)
        if not self._processes[name].alive:
            self._tasks.bury()
            self._start(name)
        self._open(name)
        return True

    def _kill(self) -> bool:
        process = self._processes[self._dice.choice(self._names)]
        if not process.alive or self._mood.dies == 0:
            return False
        self._say(f"{process.name} is killed")
        process.alive = False
        self._died(process)
        return True

    def _wake(self) -> bool:
        if not self._tasks.asleep:
            return False
        self._wake_one(self._dice.choice(self._tasks.asleep))
        return True

    def _fill_disk(self) -> bool:
        process = self._processes[self._dice.choice(self._names)]
        if self._mood.fails == 0 and not process.files.is_full:
            return False
        process.files.is_full = not process.files.is_full
        self.tally.full_disks += process.files.is_full
        self._say(f"the disk of {process.name} is full: {process.files.is_full}")
        return True

    # Reading.

    def _read_all(self) -> bool:
        """Read all from some offset on, at the leader and every replica that is in sync."""
        process = self._current()
        if process is None:
            return False
        start = self._dice.choice([0, self._dice.randint(0, self._model.end)])
        for each in [process, *self._in_sync_followers()]:
            self._check_whole(each, start)
        return True

    def _in_sync_followers(self) -> list[Process]:
        return [
            process for name in sorted(self._in_sync)
            if name != self._leader and (process := self._running(name)) is not None
            and process.heard_epoch == self._epoch
        ]  # fmt: skip

    def _check_whole(self, process: Process, start: int) -> None:
        """Read from ``start`` to the last stable offset at one moment."""
        log_start = self._live.log_start if self._live is not None else 0
        start = max(start, log_start)
        reader = SlowReader(start, self._clock.now_ms(), start)
        while reader.fetch(process, bytes_max=FETCH_BYTES):
            pass
        self._check_reader(reader, is_exact=True)
        reading = reader.reading()
        # Behind the high watermark a transaction may be decided that is open below it.
        decided = min([reading.end, *self._model.open_transactions(reading.end).values()])
        marked = [r for r in by_markers(reader.batches, start) if r.offset < decided]
        require(
            [r for r in reading.records if r.offset < decided] == marked,
            f"transaction indexes and markers do not say the same. start={start} "
            f"aborted={reader.aborted} indexes={reading.records} markers={marked}",
        )

    def _check_reader(self, reader: SlowReader, *, is_exact: bool) -> None:
        self.tally.reads += 1
        log_start = self._live.log_start if self._live is not None else 0
        fresh = NOW_MS << 1 if self._jumped else self._clock.now_ms() - DELETE_RETENTION_MS + 1
        self._model.check(
            reader.reading(), log_start=log_start, fresh_from_ms=fresh, is_exact=is_exact
        )

    def _read_slowly(self) -> bool:
        """Let a reader go on by a little, at any replica that is in sync."""
        if len(self._readers) < READERS_MAX and self._dice.random() < 0.4:
            start = self._dice.randint(0, self._model.end) if self._dice.random() < 0.5 else 0
            start = max(start, self._live.log_start if self._live is not None else 0)
            self._readers.append(SlowReader(start, self._clock.now_ms(), start))
        up = [
            process for name in sorted(self._in_sync)
            if (process := self._running(name)) is not None and process.heard_epoch == self._epoch
        ]  # fmt: skip
        if not self._readers or not up or self._established != self._epoch:
            return False
        reader, process = self._dice.choice(self._readers), self._dice.choice(up)
        if self._live is not None and reader.position < self._live.log_start:
            self._readers.remove(reader)  # A consumer would be reset.
            return True
        reader.fetch(process, bytes_max=self._dice.choice([1, 300, 3000]))
        leader = self._current()
        if leader is not None and reader.position >= leader.host.last_stable_offset:
            self._readers.remove(reader)
            took = self._clock.now_ms() - reader.began_ms
            is_exact = took < DELETE_RETENTION_MS and not self._jumped
            self._check_reader(reader, is_exact=is_exact)
        return True

    # The end.

    def _heal(self) -> None:
        """Wake, start and elect until one leads and all others follow it with all that it has."""
        self._heals = True
        self._objects.fails = 0.0
        self._around.ahead_ms.clear()
        self._say("everything heals")
        for _ in range(HEALING_ROUNDS):
            for process in self._processes.values():
                process.files.is_full = False
            while self._tasks.asleep:
                self._wake_one(self._tasks.asleep[0])
            while self._restart():
                self._settle()
            self._settle()
            for _ in range(HEALING_ROUNDS):
                if not self._lead_again():
                    break
                self._settle()
            leader = self._current()
            if leader is None:
                continue
            while self._learn():
                self._settle()
            for name in self._names:
                follower = self._running(name)
                if follower is not None and follower is not leader:
                    self._fetch_from(leader, follower)
            leader.advance_high_watermark()
            for producer_id in sorted(self._model.open_transactions()):
                self._end_transaction(leader, producer_id)
            ends = [process.host.log_end_offset for process in self._processes.values()]
            marks = {process.host.high_watermark for process in self._processes.values()}
            if marks == {leader.host.log_end_offset} and set(ends) == marks:
                return
        raise AssertionError(f"it does not heal. leader={self._leader} epoch={self._epoch}")

    def _finish_up(self) -> None:
        """Copy and clean everything, then let all grace pass and collect."""
        self._objects.land_late(everything=True)
        for happening in (self._roll, self._copy, self._clean, self._clean, self._expire):
            happening()
        # Where the clock has jumped back, what was written before is from the future.
        ahead_ms = max(self._latest_ms - self._clock.now_ms(), 0)
        self._clock.advance(ahead_ms + GARBAGE_AGE_MS + GRACE_MS + DELETE_RETENTION_MS + 20_000)
        if self._live is not None and self._live.routes:
            self._clean()
            self._clock.advance(GRACE_MS)
        self._collect()
        self._settle()

    def _check_end(self) -> None:
        leader = self._current()
        require(leader is not None and not self._tasks.asleep, "there is no leader")
        assert leader is not None
        state = leader.store.load(PARTITION)
        findings = verify_remote(self._objects, state, lambda count: None)
        require(not findings, f"verify: {findings}")
        kept = {segment_of_key(key) for key in self._objects.found}
        live = {route.segment_id for route in state.routes}
        require(kept == live, f"garbage is left: {kept - live}, missing: {live - kept}")
        states = set(leader.store.known_ids(PARTITION).values())
        require(states <= {SegmentState.LIVE, SegmentState.DELETED}, f"segments are left: {states}")
        require(
            state.remote_end == state.first_dirty() == leader.host.log_end_offset,
            f"not all is clean. remote_end={state.remote_end} first_dirty={state.first_dirty()} "
            f"log_end={leader.host.log_end_offset}",
        )
        require(self._model.acknowledged == self._model.end, "not all is acknowledged")
        for name in self._names:
            process = self._processes[name]
            for start in (0, self._dice.randint(0, self._model.end)):
                self._check_whole(process, start)
        self._check_cleaned(leader)

    def _check_cleaned(self, leader: Process) -> None:
        """No key is there twice below the first dirty offset."""
        reader = SlowReader(0, 0, self._live.log_start if self._live is not None else 0)
        while reader.fetch(leader, bytes_max=FETCH_BYTES):
            pass
        keys = [record.key for record in reader.reading().records]
        require(
            len(keys) == len(set(keys)), f"a key is there more than once: {sorted(keys, key=str)}"
        )


def simulate(seed: int, engine: Engine | None = None, *, trace: Trace | None = None) -> Tally:
    """Do one run; see :func:`.run_seed`."""
    found: Tally = run_seed(
        lambda engine, trace: World(seed, engine, trace=trace), seed, engine, trace
    )  # fmt: skip
    return found
