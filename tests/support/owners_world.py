"""A broker's directory and a store that gains from it: two owners of one log, and a seed.

The broker appends, rolls, cleans, expires, truncates, deletes records, crashes and restarts as it
likes, between keeplast's commands and in the middle of them. keeplast imports, copies, takes turns
of ``run``, cleans, expires, collects and exports, and dies at any write or transaction. After
every commit a read-committed reader of the store gets what the broker's log has promised, and so
does one of each export; or keeplast refused, for a cause that the model knows of. A healthy broker
is never refused.

The same seed gives the same run. ``tools/simulate.py --world owners`` runs many of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Engine

from keeplast.errors import (
    CommitUnknownError,
    CompactionError,
    ConflictError,
    RefusedError,
    UnavailableError,
)
from keeplast.format.filename import CLEANED, DELETED, LOG, LOG_START_CHECKPOINT, SWAP, TXN_INDEX
from keeplast.format.record import ControlType, Record
from keeplast.log.files import FileSystem
from keeplast.model.topic_config import CleanerConfig, Strategy
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.service.daemon import Daemon
from keeplast.service.store_choice import StoreSettings
from keeplast.service.store_work import StoreWork
from keeplast.store.removal import Removal
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.collection import Marks
from keeplast.tier.objects.object_store import object_key
from keeplast.tier.state.continuity import SLACK_PARTS
from tests.support.daemon_world import Published
from tests.support.manual_clock import ManualClock
from tests.support.owners_backup import Backup, back_up, placed_mark, standing
from tests.support.owners_broker import Broker
from tests.support.owners_disk import SharedFiles
from tests.support.owners_model import Piece, Promise, decode_piece
from tests.support.owners_mood import (
    BACK_SEEN,
    BACK_UNSEEN,
    CHANGED_DURING,
    DAY_MS,
    HOUR_MS,
    INDEX_MISSING,
    JUMP_AHEAD,
    JUMP_BACK,
    LOG_START_MOVED,
    MARKER_DROPPED,
    NEXT_TO_DELETED,
    NEXT_TO_STAGED,
    NEXT_TO_SWAP,
    NOT_REPLICATED,
    OLDER_ACCEPTED,
    OLDER_LIKE_NEWEST,
    OLDER_REFUSED,
    OTHER_STRATEGY,
    OUTRANKED,
    TAIL_CUT,
    TOMBSTONE_DROPPED,
    UNCLEAN,
    UNDO_REFUSED,
    UNDONE,
    VERSION_HEADER,
    WITHOUT_INDEXES,
    OwnersTally,
    draw_mood,
)
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.reference_cleaner import rank
from tests.support.simulated import Trace, draw_happening, run_seed
from tests.support.store_world import NarratedStore
from tests.support.tier_world_model import Written
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

# Both ask for the lock: one whether somebody is at work, one whether a swap was cut off.
IS_LOCKED = ("keeplast.log.readers.is_locked", "keeplast.log.partition_log.is_locked")
ROOT = Path("/broker")
EXPORT = Path("/export")
KEYS = 5
TRANSACTIONAL = (7, 8)
IDEMPOTENT = 9
SPANS = {
    "import": 60, "copy": 60, "run": 120, "clean": 120, "expire": 12, "collect": 20,
    "truncate": 24, "forget": 8, "undo": 40,
}  # fmt: skip
REMOVING = frozenset({"truncate", "forget"})
COPYING = frozenset({"import", "copy"})
GRACE_MS = 60_000
UNDOING = 0.2
"""In so many runs rounds are kept for undo."""
MEANWHILE_MAX = 60
"""What a broker does in the middle of one command. One that never keeps still while it is looked at
is no broker: a turn of ``run`` would find something new each time, and take no end."""
NOT_COMMITTED = "the commit did not happen"
TRIES_BUSY = 3
TRIES_MAX = 40
GARBAGE_AGE_MS = 10 * 60_000
NEXT_TO = {CLEANED: NEXT_TO_STAGED, SWAP: NEXT_TO_SWAP, DELETED: NEXT_TO_DELETED}


class OwnedStore(TieredStore):
    """A store whose owner is heard of what goes wrong, also where a loop goes on without it."""

    heard: Callable[[str, Exception], None]
    runner_for: Callable[[FileSystem], Runner]

    def copy_directory(self, *args: Any, **options: Any) -> Any:
        """Copy."""
        with self._hearing("copy"):
            return super().copy_directory(*args, **options)

    def clean(self, partition: Any, runner_for: Any = None, **options: Any) -> Any:
        """Clean by a runner that has the simulation's files."""
        with self._hearing("clean"):
            return super().clean(partition, self.runner_for, **options)

    @contextmanager
    def _hearing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.heard(name, error)
            raise


class Cause(Struct, frozen=True):
    """Why a command may be refused: words of its error, and what has to be so in the model."""

    words: str
    may_be: Callable[[World], bool]


CAUSES = (
    Cause("a swap of segments was interrupted", lambda world: world.is_unsettled),
    Cause("a swap was interrupted", lambda world: world.is_unsettled),
    Cause("its end is torn", lambda world: world.is_unsettled),
    Cause("removed before it was copied", lambda world: world.has_gap),
    Cause("has another history", lambda world: world.was_unclean),
    Cause("may have dropped deletes", lambda world: world.tally.broker_rounds > 0),
    Cause("cleans by offset", lambda world: world.is_by_version),
    Cause("the metadata is older than its objects", lambda world: world.is_restored),
)
"""Everything that a copy, or older metadata, may be refused for."""


class SharedClock(ManualClock):
    """A clock in whose pauses another one goes on too."""

    def __init__(self, now_ms: int, waited: Callable[[float], None]) -> None:
        """``waited`` hears of pauses, in seconds."""
        super().__init__(now_ms)
        self._waited = waited

    def sleep(self, seconds: float) -> None:
        """Let time pass for everybody."""
        super().sleep(seconds)
        self._waited(seconds)


class World:
    """One run. Use :func:`simulate`."""

    def __init__(self, seed: int, engine: Engine, *, trace: Callable[[str], None]) -> None:
        """Start with an empty log and a store that knows nothing of it."""
        self.tally: OwnersTally = OwnersTally(runs=1)
        self._is_even = seed % 2 == 0
        self._dice = random.Random(seed)
        self._mood = draw_mood(self._dice)
        self._trace = trace
        self._clock = SharedClock(NOW_MS, self._wait)
        self._broker_clock = ManualClock(NOW_MS)
        self._tasks = Tasks(trace, lambda life: None)
        self._engine = engine
        empty_database(engine)
        self._tables: Any = engine.raw_connection().driver_connection
        self._objects = SimulatedObjects(self._tasks, self._clock, self._dice)
        self._objects.is_routed = partial(is_routed, self._tables)
        self._objects.fails = self._mood.fails / 10
        self._files = SharedFiles(self._tasks, self._clock)
        self.broker = Broker(self._files, ROOT, self._mood.topic, self._broker_clock, self._dice)
        # The directory is in memory; its lock is the broker's while that is up.
        self._patches = ExitStack()
        for name in IS_LOCKED:
            self._patches.enter_context(patch(name, lambda root: self.broker.is_up))
        self.model = Promise(partial(rank, topic=self._mood.store_topic))
        self._live: Live | None = None
        self._pieces: dict[str, Piece] = {}
        self._violation: AssertionError | None = None
        self._values = 0
        self._is_imported = False
        self._copied_ms = NOW_MS
        self._jumped = False
        self._misses_deletes = False
        """Whether deletes may be gone that no host could know of."""
        # What the broker did since the running command began.
        self._meanwhiles = 0
        self._stages: set[str] = set()
        self._refused: list[str] = []
        # Dice of their own: what other runs do does not change with it.
        self._is_backed_up = self._mood.is_backed_up(random.Random(f"backups {seed}"))
        self._backup: Backup | None = None
        self._undoes = not self._mood.by_version and self._draw_undo(random.Random(f"undo {seed}"))
        self._is_older = self._is_unread = False
        self._was_unclean = False
        self._loses_more = False
        """Whether a cut took records with it that lay below, because a round had gone by it."""
        self._diverged: int | None = None
        """From where on the store has what an unclean election has taken from the broker."""

    def _draw_undo(self, dice: random.Random) -> bool:
        """Say whether rounds are kept for undo, which is set then."""
        if dice.random() >= UNDOING:
            return False
        kept_ms = dice.choice([HOUR_MS, DAY_MS, 10 * DAY_MS])
        topic = replace(self._mood.store_topic, undo_retention_ms=kept_ms)
        self._mood = replace(self._mood, store_topic=topic)
        return True

    def close(self) -> None:
        """Let the lock of directories be a lock again."""
        self._patches.close()

    # What the model knows of causes.

    @property
    def is_unsettled(self) -> bool:
        """Say whether a swap was under way or stopped in the middle, or the log's end is torn."""
        return SWAP in self._stages or not self.broker.is_up

    @property
    def has_gap(self) -> bool:
        """Say whether the broker may have removed what the store lacks."""
        end = 0 if self._live is None else self._live.end
        return self.broker.segments[0].base > end or self._interfered

    @property
    def _interfered(self) -> bool:
        """Say whether the broker has done something since the running command began."""
        return self._meanwhiles > 0

    @property
    def was_unclean(self) -> bool:
        """Say whether a replica was elected that lacked what was acknowledged."""
        return self._was_unclean

    @property
    def is_by_version(self) -> bool:
        """Say whether the store cleans by another strategy than the broker."""
        return self._mood.by_version

    @property
    def is_restored(self) -> bool:
        """Say whether older metadata is in the place of the newest."""
        return self._is_older

    # Happenings.

    def run(self) -> OwnersTally:
        """Let things happen, and check everything all the time."""
        mood = self._mood
        events: list[tuple[Callable[[], None], float]] = [
            (self._append, 24), (self._acknowledge, 6), (self._roll, 5), (self._checkpoint, 3),
            (self._begin_round, 7), (self._step_round, 7), (self._whole_round, 4),
            (self._copy, 8), (self._import, 1), (self._turn, 3), (self._clean, 4),
            (self._give_way, 1.5), (self._expire, 1), (self._collect, 2),
            (self._export, 1.5), (self._pass_time, 10),
        ]  # fmt: skip
        if mood.has_transactions:
            events.append((self._transact, 12))
        if not mood.is_healthy:
            events.append((self._go_on_alone, 1.5))
        if mood.deletes:
            events += [(self._delete_records, 5 if mood.by_version else 1.5), (self._retain, 3)]
        if mood.changes_leader:
            events.append((self._change_leader, 3))
        if mood.goes_down:
            events.append((self._go_down, 3))
        if mood.goes_down and mood.has_transactions:
            events.append((self._copy_without_indexes, 1.5))
        if mood.ahead_ms:
            events.append((self._go_ahead_and_back, 2))
        if mood.is_unclean:
            events.append((self._elect_unclean, 2))
        if self._is_backed_up:
            events += [(self._back_up, 5), (self._restore, 5)]
        if self._undoes:
            events.append((self._undo, 5))
        for _ in range(mood.events):
            self._happen(draw_happening(self._dice, events))
        self._finish_up()
        self.tally.records = sum(len(w.records) for w in self.model.log)
        return self.tally

    def _happen(self, happening: Callable[[], None]) -> None:
        self.tally.events += 1
        self._trace(f"{happening.__name__[1:]} end={self.broker.log_end}")
        happening()
        self._objects.now += 1
        self._objects.land_late()
        self.broker.remove_trash()
        require(
            self.broker.open_transactions() == self.model.open_transactions()
            and self.broker.log_end == self.model.end,
            "the broker of the simulation is not the model's",
        )
        if self._violation is not None:
            raise self._violation

    # The broker.

    def _append(self) -> None:
        if not self.broker.is_up:
            return
        producer_id = IDEMPOTENT if self._dice.random() < 0.2 else -1
        self._write(producer_id, is_transactional=False)

    def _transact(self) -> None:
        if not self.broker.is_up:
            return
        producer_id = self._dice.choice(TRANSACTIONAL)
        if producer_id in self.broker.open_transactions() and self._dice.random() < 0.6:
            self._end(producer_id, self._dice.choice([ControlType.COMMIT, ControlType.ABORT]))
        else:
            self._write(producer_id, is_transactional=True)

    def _end(self, producer_id: int, outcome: ControlType) -> None:
        self._append_batch(
            Written(self.broker.log_end, self.broker.epoch, (), producer_id, outcome=outcome)
        )
        self.broker.end_transaction(producer_id, outcome)

    def _write(self, producer_id: int, *, is_transactional: bool) -> None:
        base, records = self.broker.log_end, list[Record]()
        for at in range(self._dice.choice([1, 1, 2])):
            self._values += 1
            key = b"k%d" % self._dice.randrange(KEYS)
            value = None if self._dice.random() < 0.3 else b"v%d" % self._values
            ahead_ms = self._dice.randint(-5_000, 0) if self._mood.by_version else 0
            now_ms = self._broker_clock.now_ms() + ahead_ms
            records.append(Record(base + at, now_ms, key, value, self._draw_headers()))
        self._append_batch(
            Written(base, self.broker.epoch, tuple(records), producer_id, 0, is_transactional)
        )
        self.broker.append(records, producer_id, is_transactional=is_transactional)
        if self._dice.random() < 0.7:
            self._acknowledge_up_to(self.broker.log_end)

    def _draw_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return a version for a store that cleans by it; some records have none."""
        if self._mood.store_topic.strategy is not Strategy.HEADER or self._dice.random() < 0.2:
            return ()
        return ((VERSION_HEADER.encode(), self._dice.randint(-3, 9).to_bytes(8, signed=True)),)

    def _append_batch(self, written: Written) -> None:
        self.model.write(written)
        self.model.append(written)

    def _acknowledge(self) -> None:
        if self.broker.is_up:
            self._acknowledge_up_to(self.broker.log_end)

    def _acknowledge_up_to(self, offset: int) -> None:
        self.broker.acknowledge(offset)
        self.model.acknowledge(self.broker.whole_lineage, offset)

    def _roll(self) -> None:
        if self.broker.is_up:
            self.broker.roll()

    def _checkpoint(self) -> None:
        if self.broker.is_up:
            self.broker.checkpoint()

    def _begin_round(self) -> None:
        if self._mood.broker_cleans and self.broker.is_up and self.broker.begin_round():
            self.tally.broker_rounds += 1

    def _step_round(self) -> None:
        if self.broker.is_up:
            for _ in range(self._dice.randint(1, 12)):
                self.broker.step()

    def _whole_round(self) -> None:
        self._begin_round()
        if self.broker.is_up:
            self.broker.finish_round()

    def _clean_a_closed_segment(self) -> None:
        for happening in (self._append, self._acknowledge, self._roll, self._whole_round):
            happening()

    def _abort_behind_a_copy(self) -> None:
        """Let the store have the data of an aborted transaction, the broker its marker."""
        producer_id = self._dice.choice(TRANSACTIONAL)
        if not self.broker.is_up:
            return
        self._write(producer_id, is_transactional=True)
        self._roll()
        self._end(producer_id, ControlType.ABORT)
        self._acknowledge()
        self._checkpoint()
        self._copy()

    def _go_on_alone(self) -> None:
        """Let the broker write and clean, for longer than it keeps tombstones and markers."""
        if self._mood.has_transactions and self._is_even:
            self._abort_behind_a_copy()
        for _ in range(self._dice.randint(2, 4)):
            for _ in range(self._dice.randint(1, 4)):
                self._append()
                if self._mood.has_transactions:
                    self._transact()
            self._acknowledge()
            self._roll()
            self._checkpoint()
            self._whole_round()
            self._advance(self._mood.topic.delete_retention_ms + 1)

    def _delete_records(self) -> None:
        if self.broker.is_up:
            start = self.broker.log_start
            self.broker.delete_records(self._dice.randint(start, self.broker.high_watermark))
            has_moved = self.broker.log_start > start
            self.tally.happened["DeleteRecords"] += has_moved
            self.tally.happened[OUTRANKED] += has_moved and self._mood.by_version

    def _retain(self) -> None:
        if self.broker.is_up:
            self.tally.happened["local retention"] += self.broker.retain() > 0

    def _change_leader(self) -> None:
        if not self.broker.is_up:
            return
        ends = self.broker.ends() or [self.broker.log_end]
        before = self.broker.log_end
        end = self._dice.choice([max(ends), *ends])
        self.broker.change_leader(end, self.broker.epoch + 1)
        self.model.adopt(self.broker.whole_lineage, end)
        self.tally.happened[TAIL_CUT] += end < before

    def _elect_unclean(self) -> None:
        """Let a replica lead that lacks what was acknowledged, and nothing that was cleaned."""
        broker = self.broker
        if not broker.is_up or broker.is_swapping:
            return
        floor = max(broker.cleaned_by(), broker.log_start)
        ends = [end for end in broker.batch_ends() if floor <= end < broker.high_watermark]
        if not ends:
            return
        end = self._dice.choice(ends)
        broker.change_leader(end, broker.epoch + 1)
        self.model.lose(broker.whole_lineage, end)
        broker.checkpoint()
        self._was_unclean = True
        if self._live is not None and self._live.end > end:
            self._diverged = end if self._diverged is None else min(self._diverged, end)
        self.tally.happened[UNCLEAN] += 1

    def _go_down(self) -> None:
        if self.broker.is_up:
            self.broker.stop(is_crash=self._dice.random() < 0.6)
            if self._dice.random() < 0.4:
                self.broker.lose_indexes()
        else:
            self.broker.start()

    def _copy_without_indexes(self) -> None:
        """Let somebody copy an aborted transaction from logs that have lost their indexes."""
        broker = self.broker
        if not broker.is_up:
            return
        for producer_id in sorted(broker.open_transactions()):
            self._end(producer_id, ControlType.COMMIT)
        producer_id = self._dice.choice(TRANSACTIONAL)
        self._write(producer_id, is_transactional=True)
        self._end(producer_id, ControlType.ABORT)
        self._acknowledge()
        self._roll()
        broker.stop(is_crash=False)
        broker.lose_indexes()
        self.tally.happened[WITHOUT_INDEXES] += broker.missing_index(broker.log_end)
        self._copy()
        broker.start()

    def _go_ahead_and_back(self) -> None:
        """Let the machine's clock be ahead for a while, in which the broker may clean.

        A copy in between remembers it. Without one no host can know what the broker has dropped by
        then from what it has dropped later, unless clocks may differ by so much.
        """
        retention_ms = self._mood.topic.delete_retention_ms
        if self._dice.random() < 0.6:
            # This round gives tombstones a horizon, and one in between goes by it.
            self._clean_a_closed_segment()
        before, copied_ms = self.tally.broker_rounds, self._copied_ms
        is_under_way = self.broker.is_swapping
        self._advance(self._mood.ahead_ms)
        meanwhile = [self._append, self._roll, self._checkpoint, self._clean_a_closed_segment]
        if self._dice.random() < 0.4:
            meanwhile.append(self._copy)
        for _ in range(self._dice.randint(1, 5)):
            self._dice.choice(meanwhile)()
        has_cleaned = self.tally.broker_rounds > before or is_under_way
        is_unseen = has_cleaned and self._copied_ms == copied_ms
        is_unseen &= 0 < retention_ms < SLACK_PARTS * self._mood.ahead_ms
        self._advance(-self._mood.ahead_ms)
        self._jumped = True
        self._misses_deletes |= is_unseen
        self.tally.happened[BACK_UNSEEN if is_unseen else BACK_SEEN] += 1

    def _meanwhile(self) -> None:
        """Let the broker do something in the middle of a command."""
        if self._meanwhiles == MEANWHILE_MAX:
            return
        if self._dice.random() >= self._mood.busy or not self.broker.is_up:
            return
        happening = self._dice.choice([
            self._append, self._roll, self._step_round, self._step_round, self._whole_round,
            self._checkpoint, *([self._change_leader] if self._mood.changes_leader else []),
            *([self._retain, self._delete_records] if self._mood.deletes else []),
        ])  # fmt: skip
        self._trace(f"    meanwhile: {happening.__name__[1:]}")
        happening()
        self._meanwhiles += 1
        self._stages |= self.broker.staged()

    # keeplast.

    def _import(self) -> None:
        def work() -> object:
            return self._open().import_directory(
                PARTITION, self.broker.directory, self._mood.settings, takes_over=True
            )

        self._is_imported |= self._gain("import", work)

    def _copy(self) -> None:
        if not self._is_imported:
            self._import()
        else:
            self._gain(
                "copy", lambda: self._open().copy_directory(PARTITION, self.broker.directory)
            )

    def _gain(self, name: str, work: Callable[[], object]) -> bool:
        """Import or copy, and look at what came of it; returns whether it went well."""
        if self._mood.is_healthy:
            self.broker.checkpoint()
        # Between two renames the disk may have a segment already that reaches further.
        expected_end = 0 if self.broker.is_swapping else self._copyable_end()
        log_start = self._named_log_start()
        hazards = self._hazards()
        refusals, replacements = len(self._refused), self.tally.replacements
        is_done = self._do(name, work)
        if is_done and not self._interfered:
            assert self._live is not None
            require(
                self._live.end >= expected_end,
                f"{name} left something out. store_end={self._live.end} expected={expected_end}",
            )
            require(
                self._live.log_start >= log_start,
                f"{name} has not followed the log start. store={self._live.log_start} "
                f"broker={log_start}",
            )
        if is_done:
            self._copied_ms = self._clock.now_ms()
        for hazard in hazards:
            self.tally.happened[hazard] += 1
            outcome = "went on"
            if len(self._refused) > refusals:
                outcome = "refused"
            elif self.tally.replacements > replacements:
                outcome = "replaced"
            self.tally.outcomes[hazard, outcome] += 1
        return is_done

    def _give_way(self) -> None:
        """Do what a refusal says: cut the store where the directory was, or begin it again."""
        if not self._refused or not self._is_imported or not self.broker.is_up:
            return
        cause = self._refused.pop()
        self._refused.clear()
        if cause == "has another history" and self._dice.random() < 0.6:
            self._truncate()
        else:
            self._do("forget", lambda: self._open().removals.forget(PARTITION, grace_ms=GRACE_MS))
            # A command that died behind its commit has given it up too.
            if self._is_given_up():
                self._is_imported = False
                self._import()

    def _truncate(self) -> None:
        """Cut the store where the directory was; it says when more is lost than goes."""
        done: list[Removal] = []
        self._loses_more = False
        self._do(
            "truncate",
            lambda: done.append(
                self._open().removals.truncate(
                    PARTITION, directory=self.broker.directory, grace_ms=GRACE_MS
                )
            ),
        )  # fmt: skip
        is_said = all(removal.is_cleaned_by for removal in done)
        require(is_said or not self._loses_more, "a cut lost more than it said")

    def _promise_what_is_left(self, before: Live, live: Live) -> None:
        """Promise a store that was cut no more than it had: what goes took older records away."""
        pieces = [self._piece(*route) for route in before.routes]
        there = {r.offset for piece in pieces for b in piece.batches for r in b.records()}
        promised = self.model.state(live.log_start, self.model.stable_end(live.end))
        self._loses_more = any(
            record.value is not None and record.offset not in there for record in promised.values()
        )
        self.tally.happened["a cut took more than it cut"] += self._loses_more
        self.model.take(there, live.end)

    def _turn(self) -> None:
        """Take a turn of ``run`` next to the broker, until it would wait."""
        if not self._is_imported:
            return
        self._do("run", self._take_turn)

    def _take_turn(self) -> None:
        narrated = NarratedStore()
        cleaner = CleanerConfig(backoff_ms=15_000)
        settings = StoreSettings(
            "the store", "owner", lambda partition: True, lambda: cleaner, data_dir=ROOT,
            takes_over=True, memory_bytes=MEMORY_BYTES_MIN, grace_ms=GRACE_MS,
            garbage_age_ms=GARBAGE_AGE_MS,
        )  # fmt: skip
        with LocalRunner(1, files=self._files, clock=self._clock) as runner:
            work = StoreWork(
                self._open(), runner, self._clock, self._files, settings, narrator=narrated,
                events=narrated,
            )  # fmt: skip
            Daemon(work, self._clock, narrator=narrated, observer=Published(), is_once=True).run()

    def _clean(self) -> None:
        if self._live is None or not self._live.routes:
            return
        self._do(
            "clean",
            lambda: self._open().clean(
                PARTITION, cleaner=CleanerConfig(), memory_bytes=MEMORY_BYTES_MIN,
                force=True, grace_ms=GRACE_MS, takes_over=True,
            ),
        )  # fmt: skip

    def _undo(self) -> None:
        """Put back what the newest round replaced: whatever was done since, nothing is lost."""
        if self._live is None or not self._live.routes:
            return

        def work() -> None:
            undo = self._open().undo
            try:
                undone = undo.put_back(PARTITION, grace_ms=GRACE_MS, takes_over=True)
            except RefusedError as error:
                if "cannot be undone" not in str(error):
                    raise
                # Rounds are kept without a gap, so that one bar is left next to a broker's cleaner.
                is_cleaner = "checkpoint says" in str(error) and self.tally.broker_rounds > 0
                is_gone = "missing or damaged" in str(error) and self._is_backed_up
                require(is_cleaner or is_gone, f"an undo is refused for no known cause. {error}")
                self.tally.happened[UNDO_REFUSED] += 1
            else:
                self.tally.happened[UNDONE] += undone is not None

        self._do("undo", work)

    def _expire(self) -> None:
        if self._is_imported:
            self._do("expire", lambda: self._open().expire(PARTITION, grace_ms=GRACE_MS))

    def _collect(self) -> None:
        if self._is_imported:
            self._do(
                "collect",
                lambda: self._open().collect(PARTITION, garbage_age_ms=GARBAGE_AGE_MS),
            )

    def _export(self) -> None:
        if self._live is None or not self._live.routes or self._diverged is not None:
            return
        directory = EXPORT / str(PARTITION)
        self._files.remove_directory(directory)
        self._files.remove_directory(EXPORT)
        with self._tasks.unobserved():
            self._open().export(PARTITION, directory)
        found = self._files.content(directory)
        pieces = [
            decode_piece(found[name], found.get(name.replace(LOG, TXN_INDEX), b""))
            for name in sorted(found) if name.endswith(LOG)
        ]  # fmt: skip
        bases = [int(name[:20]) for name in found if name.endswith(LOG)]
        named = self._files.read_offset(EXPORT / LOG_START_CHECKPOINT)
        self._check(pieces, max(min(bases), named or 0), self._live.end, "export")
        self.tally.exports += 1

    def _back_up(self) -> None:
        if self._live is not None:
            self._backup = back_up(self._tables, is_imported=self._is_imported)

    def _restore(self) -> None:
        """Work with older metadata: it is refused, or nothing of it is gone and it goes on."""
        backup = self._backup
        if backup is None:
            return
        newest, live = back_up(self._tables, is_imported=self._is_imported), self._live
        assert live is not None
        is_older = placed_mark(self._objects) > backup.mark
        # So much that all that was replaced, or is garbage, might go.
        self._advance(max(GRACE_MS, GARBAGE_AGE_MS) + 1)
        self._return_to(backup)
        self._is_older = is_older
        if not is_older:
            # Nothing was deleted behind the last commit without a mark.
            check_live(read_live(self._tables), None, self._tables, self._objects)
        before = standing(self._tables)
        self._dice.choice([self._turn, self._copy, self._clean, self._collect, self._expire])()
        self._is_older = False
        if not is_older:
            self.tally.happened[OLDER_LIKE_NEWEST] += 1
            return
        require(before == standing(self._tables), "older metadata was worked with")
        if self._dice.random() < 0.3:
            self._accept()
            return
        self.tally.happened[OLDER_REFUSED] += 1
        self._return_to(newest)
        check_live(live, None, self._tables, self._objects)

    def _return_to(self, backup: Backup) -> None:
        backup.put_back(self._tables)
        self._live, self._is_imported = read_live(self._tables), backup.is_imported

    def _accept(self) -> None:
        """Go on with older metadata, of which objects may be gone, as its page says."""
        self.tally.happened[OLDER_ACCEPTED] += 1
        mood, fails = self._mood, self._objects.fails
        self._mood, self._objects.fails = replace(mood, dies=0.0, fails=0.0, busy=0.0), 0.0
        # What it names may be gone, and it says so: it is not read before it is given up.
        self._is_unread = True
        self._do("collect", lambda: self._open().restoration.accept())
        if not self._is_given_up():
            self._do("forget", lambda: self._open().removals.forget(PARTITION, grace_ms=GRACE_MS))
        self._is_unread, self._live = False, read_live(self._tables)
        require(not self._live.routes, "what was given up is still there")
        self._is_imported = False
        if self.broker.is_up:
            self._import()
        self._mood, self._objects.fails = mood, fails
        # Any other copy is refused from now on.
        self._backup = None

    def _open(self) -> OwnedStore:
        store = SimulatedStore(self._engine, self._clock, self._tasks, self._dice, self._committed)
        made = OwnedStore(
            store, self._objects, owner="owner", topic_of=lambda settings: self._mood.store_topic,
            clock=self._clock, files=self._files,
            marks=Marks(store, self._objects) if self._is_backed_up else None,
        )  # fmt: skip
        made.heard = self._heard
        made.runner_for = lambda files: LocalRunner(1, files=files, clock=self._clock)
        return made

    def _do(self, name: str, work: Callable[[], object]) -> bool:
        """Run a command, which may die or fail at one of its operations; True when it ended well.

        It is a process of its own, as every call of the command line is.
        """
        dice, mood, span = self._dice, self._mood, SPANS[name]
        self._meanwhiles, self._stages = 0, self.broker.staged()

        def draw(share: float) -> int | None:
            return round(float(span ** dice.random())) if dice.random() < share else None

        life = Life("keeplast")
        task = Task(
            life, name, work, holds=name, dies_at=draw(mood.dies), fails_at=draw(mood.fails)
        )
        if mood.busy:
            self._files.meanwhile = self._meanwhile
        self._tasks.start(task, lambda done: None)
        self._files.meanwhile = lambda: None
        self.tally.commands += 1
        self.tally.crashes += task.is_dead
        if name in COPYING:
            self.tally.happened[CHANGED_DURING] += self._interfered
            self.tally.happened.update(NEXT_TO[stage] for stage in self._stages)
        error = task.error
        if isinstance(error, AssertionError):
            raise error
        if error is not None:
            self._trace(f"    {name}: {type(error).__name__}: {error}")
            self._judge(name, error)
        return error is None and not task.is_dead

    def _heard(self, name: str, error: Exception) -> None:
        """Hear of an error of a loop that goes on."""
        task = self._tasks.current
        if task is not None and task.name == "run":
            self._trace(f"    run, {name}: {type(error).__name__}: {error}")
            try:
                self._judge("copy" if name == "copy" else name, error)
            except AssertionError as violation:
                self._violation = self._violation or violation

    def _judge(self, name: str, error: Exception) -> None:
        """Account for a command that did not do it; AssertionError when it should have."""
        is_undone = isinstance(error, ConflictError) and NOT_COMMITTED in str(error)
        if is_undone or isinstance(error, (UnavailableError, CommitUnknownError)):
            self.tally.faults += 1
            is_mine = self._mood.fails > 0 or self._interfered
            require(is_mine, f"{name} failed by itself. {type(error).__name__}: {error}")
            return
        if not isinstance(error, CompactionError):
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        cause = next((each for each in CAUSES if each.words in str(error)), None)
        require(cause is not None, f"{name} refused for no known cause. {error}")
        assert cause is not None
        self.tally.refusals[f"{name}: {cause.words}"] += 1
        self._refused.append(cause.words)
        require(not self._mood.is_healthy, f"a healthy broker is refused: {error}")
        require(cause.may_be(self), f"{name} refused without the cause that it names. {error}")

    # What is known of the store.

    def _dirty_from(self) -> int:
        """Return how far the store says that it is clean, exclusive."""
        query = "SELECT epoch, offsets FROM publications ORDER BY epoch DESC, number DESC LIMIT 1"
        row = self._tables.execute(query).fetchone()
        return 0 if row is None else int(json.loads(row[1])[str(row[0])])

    def _is_given_up(self) -> bool:
        query = "SELECT 1 FROM partitions WHERE forgotten_ms IS NOT NULL"
        return self._tables.execute(query).fetchone() is not None

    def _committed(self) -> None:
        if self._is_unread or self._tables.execute("SELECT 1 FROM partitions").fetchone() is None:
            return
        try:
            self._look_at(read_live(self._tables))
        except AssertionError as error:
            # Loops go on whatever happens.
            self._violation = self._violation or error
            raise

    def _look_at(self, live: Live) -> None:
        before, self._live = self._live, live
        if live == before:
            return
        task = self._tasks.current
        removes = task is not None and task.name in REMOVING
        begins = before is None or not before.routes
        if begins and self._mood.by_version:
            # A store of another strategy begins with the broker's log as it is now: what a command
            # began with may have waited for a swap, or was given up meanwhile.
            self.model.take(self.broker.offsets(), self.broker.log_end)
        check_live(live, None if removes or begins else before, self._tables, self._objects)
        is_cut = task is not None and task.name == "truncate"
        if before is not None and is_cut and live.end < before.end:
            self._promise_what_is_left(before, live)
        if before is not None and task is not None and task.name in COPYING:
            kept = {route[2] for route in live.routes}
            # What lies below a log start that was followed is not replaced.
            gone = {r[2] for r in before.routes if r[1] >= live.log_start} - kept
            self.tally.replacements += bool(gone)
            # An import that was begun and not ended has left no word of when it looked.
            is_promised = self._mood.is_healthy and self._is_imported
            require(not (gone and is_promised), "what a healthy broker had was replaced")
        if self._diverged is not None and live.routes and live.end > self._diverged:
            grown = before is not None and live.end > before.end
            require(not grown, "a store goes on with another history than its own")
            return
        self._diverged = None
        require(
            live.end <= self.model.acknowledged,
            f"copied up to {live.end}, acknowledged is {self.model.acknowledged}",
        )
        pieces = [self._piece(*route) for route in live.routes]
        self._check(pieces, live.log_start, live.end, "store")

    def _piece(self, base: int, last: int, segment_id: str) -> Piece:
        if segment_id not in self._pieces:
            (at,) = self._tables.execute(
                "SELECT base_offset FROM segments WHERE id = ?", (segment_id,)
            ).fetchone()
            data, index = (
                self._objects.found.get(
                    object_key(PARTITION, TOPIC_ID, segment_id, at, suffix), (b"", 0)
                )[0]
                for suffix in (LOG, TXN_INDEX)
            )
            self._pieces[segment_id] = decode_piece(data, index)
        piece = self._pieces[segment_id]
        if not piece.batches or piece.batches[0].base_offset >= base:
            return piece
        kept = [b.within(base, last + 1) for b in piece.batches if b.last_offset >= base]
        return replace(piece, batches=tuple(kept))

    def _check(self, pieces: list[Piece], start: int, end: int, where: str) -> None:
        now_ms = max(self._clock.now_ms(), self._broker_clock.now_ms())
        fresh_ms = now_ms - self._mood.topic.delete_retention_ms + 1
        self.model.check_pieces(
            pieces, start=start, end=end, where=where,
            fresh_from_ms=NOW_MS << 1 if self._jumped else fresh_ms,
            dirty_from=self._dirty_from(), misses_deletes=self._misses_deletes,
        )  # fmt: skip
        self.tally.reads += 1

    def _copyable_end(self) -> int:
        """Return how far a copy gets that goes by what the directory says."""
        high = self._files.read_offset(ROOT / "replication-offset-checkpoint") or 0
        stable = min([high, *self.model.open_transactions(high).values()])
        ends = [s.base for s in self.broker.segments[1:]]
        return max([end for end in ends if end <= stable], default=0)

    def _named_log_start(self) -> int:
        return self._files.read_offset(ROOT / LOG_START_CHECKPOINT) or 0

    def _hazards(self) -> list[str]:
        """Return what the broker has done that a copy must not miss."""
        found = []
        end = 0 if self._live is None else self._live.end
        if self._live is not None and self._live.routes:
            start, decided = self._live.log_start, self.model.decided_end()
            seen = self.model.state(start, self.model.stable_end(end))
            newest, left = self.model.state(start, decided), self.broker.offsets()
            for key, record in seen.items():
                last = newest[key]
                if (
                    record.value is not None and last.value is None and last.offset >= end
                    and last.offset not in left
                ):  # fmt: skip
                    found.append(TOMBSTONE_DROPPED)
                    break
            for entry in self.model.aborted():
                if entry.first_offset < end <= entry.last_offset in self.broker.removed_markers:
                    found.append(MARKER_DROPPED)
                    break
        if self.broker.missing_index(self._copyable_end()):
            found.append(INDEX_MISSING)
        if self.broker.log_end > self.model.acknowledged:
            found.append(NOT_REPLICATED)
        checkpoint = self.broker.cleaner_checkpoint()
        if self._mood.by_version and checkpoint is not None and checkpoint > end:
            found.append(OTHER_STRATEGY)
        if self._named_log_start() > (0 if self._live is None else self._live.log_start):
            found.append(LOG_START_MOVED)
        return found

    # Time, and the end.

    def _wait(self, seconds: float) -> None:
        """Let the broker go on in a pause of keeplast: a swap takes no time."""
        self._broker_clock.sleep(seconds)
        broker = self.broker
        while broker.is_up and broker.is_swapping and SWAP in broker.staged():
            broker.step()

    def _pass_time(self) -> None:
        mood = self._mood
        if mood.jump_ms and self._dice.random() < 0.2:
            # Both owners are on one machine. In a run its clock goes ahead, or back, or both.
            self._advance(mood.jump_ms)
            self._jumped = True
            self.tally.happened[JUMP_AHEAD if mood.jump_ms > 0 else JUMP_BACK] += 1
            return
        self._let_pass(round(self._dice.uniform(0, 1) ** 3 * mood.time_step_ms))

    def _let_pass(self, duration_ms: int) -> None:
        """Let time pass for both; a healthy store is copied to often enough.

        A broker that does something at one look in ten meets every copy of a long log: behind a
        few tries it keeps still for one.
        """
        regular_ms = self._mood.topic.delete_retention_ms // 2 - HOUR_MS
        mood, tries = self._mood, 0
        while mood.is_healthy and duration_ms > 0:
            left = self._copied_ms + regular_ms - self._clock.now_ms()
            if duration_ms < left:
                break
            tries = tries + 1 if left <= 0 else 0
            require(tries < TRIES_MAX, "no copy next to a healthy broker goes well")
            self._advance(max(left, 0))
            duration_ms -= max(left, 0)
            self._mood = replace(mood, busy=0.0) if tries > TRIES_BUSY else mood
            self._copy()
            self._mood = mood
        self._advance(duration_ms)

    def _advance(self, duration_ms: int) -> None:
        self._clock.advance(duration_ms)
        self._broker_clock.advance(duration_ms)

    def _finish_up(self) -> None:
        """Let the broker be whole and quiet, copy all that it has, and read everything."""
        self._trace("everything heals")
        self._mood = replace(self._mood, busy=0.0, dies=0.0, fails=0.0)
        self._objects.fails = 0.0
        self._objects.land_late(everything=True)
        if not self.broker.is_up:
            self.broker.start()
        self.broker.finish_round()
        for producer_id in sorted(self.broker.open_transactions()):
            self._end(producer_id, ControlType.COMMIT)
        self._acknowledge()
        self.broker.roll()
        self.broker.checkpoint()
        last = self._dice.choice([self._turn, self._clean])
        for happening in (self._copy, self._give_way, self._copy, last, self._export):
            self._happen(happening)


def simulate(
    seed: int, engine: Engine | None = None, *, trace: Trace | None = None
) -> OwnersTally:  # fmt: skip
    """Do one run; see :func:`.run_seed`."""
    found: OwnersTally = run_seed(
        lambda engine, trace: World(seed, engine, trace=trace),
        seed,
        engine,
        trace,
        "--world owners ",
    )
    return found
