"""Brokers of a simulated cluster with one tiered topic: what they copy, forget, delete and serve.

Each has a fold of the metadata topic of its own, which lags, and rolls its local log where it
likes; so a new leader uploads over what was copied before, by any host or compactor. What
brokers do takes several events: a segment is announced, stored and finished, and a leader may
change between them. Source: attach.md; tiering.md sections 1 to 5.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.format import leader_epoch, producer_snapshot, txn_index
from keeplast.format.record import ControlType, Record
from keeplast.format.remote_log_metadata import (
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    encode,
)
from keeplast.format.txn_index import AbortedTransaction
from tests.support.attached_world import PARTITION, files_of
from tests.support.live_world_fold import CF, CS, DF, DS, MetadataTopic, Seen
from tests.support.live_world_log import WrittenLog
from tests.support.live_world_mood import (
    ABANDONED_UPLOAD,
    CHECK_MS,
    EXPIRED_ANNOUNCED,
    EXPIRED_SOURCES,
    LAGGING_READ,
    LATE_UPLOAD,
    LOG_START_CUTS,
    OVER_COMPACTED,
    OVERLAPPING,
    REPLACED_DISK,
    SLOW_FETCH,
    TOMBSTONE_GONE,
    LiveMood,
    RemovalMood,
)
from tests.support.live_world_objects import LOG, RemoteTier
from tests.support.manual_clock import ManualClock
from tests.support.reader import DecodedBatch, committed_records
from tests.support.tier_world_stores import require

LAG_MS = 2_000
"""How far a broker's fold may be behind: the grace is longer than this and :data:`FETCH_MS`."""
FETCH_MS = 1_000
NODES = 3
STEPS_A_SEGMENT = 20
"""Of the deletion of one, at most: two, and some that come to nothing."""
WALKS_KEPT = 256
TRANSACTIONAL = (7, 8)
IDEMPOTENT = 9


@dataclass(slots=True)
class Upload:
    """A segment on its way to the remote tier, begun by the leader of ``epoch``."""

    segment: RemoteLogSegment
    epoch: int
    is_stored: bool = False


@dataclass(slots=True)
class Broker:
    """One broker. ``rolls`` are where its local segments begin, the last one is active."""

    node: int
    seen: Seen = field(default_factory=Seen)
    local_start: int = 0
    rolls: list[int] = field(default_factory=lambda: [0])
    upload: Upload | None = None
    deleting: list[RemoteLogSegment] = field(default_factory=list)

    def __str__(self) -> str:
        return f"broker {self.node}"


@dataclass(slots=True)
class Fetch:
    """A broker reads an object that it has looked up, until ``due_ms`` at the latest."""

    broker: Broker
    segment: RemoteLogSegment
    due_ms: int


Answer = tuple[bytes, int, int, RemoteLogSegment, list[DecodedBatch]]
"""Of one fetch: whose batches, from where, how many, and they."""


class Walk:
    """What one broker answered, fetch by fetch, from an offset to its local log."""

    def __init__(self, answers: list[Answer], seen_changes: int) -> None:
        """``seen_changes`` is up to which change of the tier all of it was there."""
        self.answers = answers
        self.seen_changes = seen_changes
        self.key = tuple(each[:3] for each in answers)
        self.names = {each[0] for each in answers}
        self.segments = list({each[0]: each[3] for each in answers}.values())
        self._given: dict[int, Record] | None = None
        self._committed: tuple[frozenset[AbortedTransaction], list[int]] | None = None

    @property
    def given(self) -> dict[int, Record]:
        """Return the records that a reader in read-uncommitted isolation gets, by offset."""
        if self._given is None:
            self._given = {
                record.offset: record
                for _, at, _, _, batches in self.answers
                for batch in batches
                if not batch.is_control
                for record in batch.given
                if record.offset >= at
            }
        return self._given

    def committed(self, aborted: frozenset[AbortedTransaction]) -> list[int]:
        """Return the offsets that a read-committed reader gets who knows what was aborted."""
        if self._committed is None or self._committed[0] != aborted:
            self._committed = (
                aborted,
                [
                    record.offset
                    for _, at, _, _, batches in self.answers
                    for record in committed_records(batches, aborted, at)
                ],
            )
        return self._committed[1]


class Brokers:
    """The cluster; ``happened`` counts what was worth a guard."""

    def __init__(
        self, tier: RemoteTier, clock: ManualClock, dice: random.Random, mood: LiveMood,
        happened: Counter[str],
    ) -> None:  # fmt: skip
        """Start with an empty log, led by the first broker."""
        self.metadata = MetadataTopic()
        self.log = WrittenLog()
        self.all = [Broker(node) for node in range(NODES)]
        self.leader = self.all[0]
        self.is_deleted = False
        self.finished: set[bytes] = set()
        """Ids that a broker has announced as copied whole."""
        self.reads = 0
        self.is_held: Callable[[RemoteLogSegment, Seen], bool] = lambda segment, seen: False
        """Whether an upload may not be finished now."""
        self._epoch = 0
        self._tier = tier
        self._clock = clock
        self._dice = dice
        self._mood = mood
        self._happened = happened
        self._ids = 0
        self._values = 0
        self._fetches: list[Fetch] = []
        self._judged: dict[tuple[int, bool], object] = {}
        self._walks: dict[tuple[int, int, int], Walk] = {}
        self._newest: tuple[int, frozenset[bytes]] | None = None

    # Producers.

    def produce(self) -> None:
        """Append a batch of a plain or an idempotent producer."""
        producer_id = IDEMPOTENT if self._dice.random() < 0.3 else -1
        self.log.append(self._draw(), self._clock.now_ms(), producer_id=producer_id)

    def transact(self) -> None:
        """Go on with a transaction, or end it."""
        producer_id = self._dice.choice(TRANSACTIONAL)
        if producer_id in self.log.open and self._dice.random() < 0.6:
            aborts = self._dice.random() < 0.4
            self.end_transaction(producer_id, ControlType.ABORT if aborts else ControlType.COMMIT)
        else:
            self.log.append(
                self._draw(), self._clock.now_ms(), producer_id=producer_id, is_transactional=True
            )

    def end_transaction(self, producer_id: int, outcome: ControlType) -> None:
        """End an open one."""
        self.log.end_transaction(producer_id, outcome, self._clock.now_ms())

    def _draw(self) -> list[tuple[bytes, bytes | None]]:
        found: list[tuple[bytes, bytes | None]] = []
        # Where tombstones go there are some that are not overwritten.
        is_removing = self._mood.removal is not None
        deletes, keys = (0.45, 4 * self._mood.keys) if is_removing else (0.2, self._mood.keys)
        for _ in range(self._dice.choice([1, 1, 2, 3])):
            self._values += 1
            value = None if self._dice.random() < deletes else b"v%d" % self._values
            found.append((b"k%d" % self._dice.randrange(keys), value))
        return found

    # The metadata topic.

    def announce(self, broker: Broker, *events: RemoteLogEvent) -> None:
        """Append what a broker says, and let it hear all that came before."""
        self.metadata.append([encode(each) for each in events], self._clock.now_ms())
        self.hear(broker, self.metadata.end)

    def hear(self, broker: Broker, end: int) -> None:
        """Let a broker read up to ``end``."""
        for event in self.metadata.events[broker.seen.read_to : end]:
            broker.seen.hear(event)

    def hear_some(self) -> None:
        """Let a broker read a few records: it may stop in the middle of a batch.

        Not where the batch ends with what keeps a late copy served: no order of the records can
        keep all of it served in between (decision 0032).
        """
        broker = self._dice.choice(self.all)
        end = min(broker.seen.read_to + self._dice.randint(1, 6), self.metadata.end)
        if end and self.metadata.closes[end - 1]:
            end = self.metadata.batch_ends[end - 1]
        self.hear(broker, end)

    def keep_up(self) -> None:
        """Let every broker read what it may not lag behind any more."""
        oldest_ms = self._clock.now_ms() - LAG_MS
        for broker in self.all:
            end = broker.seen.read_to
            while end < self.metadata.end and self.metadata.times_ms[end] <= oldest_ms:
                end += 1
            self.hear(broker, end)
        if self._mood.removal is not None:
            self._expire_local(self._mood.removal)

    def _expire_local(self, removal: RemovalMood) -> None:
        """Let every broker forget what its local retention lets it keep no longer."""
        oldest_ms = self._clock.now_ms() - removal.local_ms - CHECK_MS
        batches = self.log.batches
        young = bisect_right(batches, oldest_ms, key=lambda each: each.timestamp)
        oldest_kept = batches[young].base if young < len(batches) else self.log.end
        for broker in self.all:
            copied = broker.seen.highest(self.log.lineage, self.log.end)
            start = min(copied + 1, oldest_kept)
            if start > broker.local_start:
                broker.local_start = start
                broker.rolls = [start, *(each for each in broker.rolls if each > start)]

    def restart(self) -> None:
        """Let a broker forget everything, and read the topic from its beginning."""
        broker = self._dice.choice(self.all)
        broker.seen, broker.upload, broker.deleting = Seen(), None, []
        self.hear(broker, self.metadata.end)

    def change_metadata_leader(self) -> None:
        """Let another broker lead the metadata topic."""
        self.metadata.leader_epoch += 1

    # Leaders.

    def change_leader(self) -> None:
        """Elect another replica, all of which have everything."""
        others = [each for each in self.all if each is not self.leader]
        self.leader = self._dice.choice(others)
        self._epoch += self._dice.choice([1, 1, 2])
        self.log.begin_epoch(self._epoch)

    def roll(self) -> None:
        """Let brokers begin another segment, not all of them at the same offset."""
        for broker in self.all:
            rolls = broker is self.leader or self._dice.random() < self._mood.rolls_alike
            if rolls and broker.rolls[-1] < self.log.end:
                broker.rolls.append(self.log.end)

    def lose_disk(self) -> None:
        """Let a follower begin again: where its leader's local log begins."""
        broker = self._dice.choice([each for each in self.all if each is not self.leader])
        fresh = Broker(broker.node, local_start=self.leader.local_start)
        fresh.rolls = [self.leader.local_start]
        self.all[self.all.index(broker)] = fresh
        self.hear(fresh, self.metadata.end)
        self._fetches = [each for each in self._fetches if each.broker is not broker]
        self._happened[REPLACED_DISK] += 1

    def drop_local(self) -> None:
        """Let a broker delete local segments that it knows to be remote."""
        self.drop_local_of(self._dice.choice(self.all))

    def drop_local_of(self, broker: Broker) -> None:
        """Delete all local segments that a broker knows to be remote."""
        copied = broker.seen.highest(self.log.lineage, self.log.end)
        bases = [each for each in broker.rolls if each <= copied + 1]
        if bases and bases[-1] > broker.local_start:
            broker.local_start = bases[-1]
            broker.rolls = [each for each in broker.rolls if each >= broker.local_start]

    # Copying.

    def copy(self) -> None:
        """Do one step of an upload: the leader's, or one that a leader before had begun."""
        late = [each for each in self.all if self._is_late(each)]
        removal = self._mood.removal
        share = 0.5 if removal is None else removal.late
        broker = self._dice.choice(late) if late and self._dice.random() < share else self.leader
        if self._is_late(broker) and self._dice.random() < 0.3 * share / 0.5:
            self._abandon(broker)
        elif broker.upload is None:
            self._announce(broker)
        elif not broker.upload.is_stored:
            self._store(broker.upload)
        else:
            self._finish(broker, broker.upload)

    def _is_late(self, broker: Broker) -> bool:
        """Say whether a broker is at a copy that it began in a leadership that is over.

        Also when it leads again: nothing calls back a copy that is on its way (tiering.md 4), and
        what others have copied meanwhile is not in it.
        """
        return broker.upload is not None and broker.upload.epoch != self._epoch

    def copy_all(self) -> None:
        """Let the leader copy all that may be, without interruption."""
        for broker in self.all:
            self.hear(broker, self.metadata.end)
        while self.leader.upload is not None or self._next_segment(self.leader) is not None:
            self.copy()

    def give_up_uploads(self) -> None:
        """Let nothing that was begun be finished any more."""
        for broker in self.all:
            if broker.upload is not None:
                self._abandon(broker)

    def _next_segment(self, broker: Broker) -> tuple[int, int] | None:
        """Return first and last offset of what a leader copies next."""
        copied = broker.seen.highest(self.log.lineage, self.log.end)
        at = max(copied + 1, self.log.start)
        bases = [each for each in broker.rolls if each <= at]
        if not bases or bases[-1] == broker.rolls[-1]:
            return None
        end = broker.rolls[broker.rolls.index(bases[-1]) + 1]
        return None if end > self.log.last_stable else (bases[-1], end - 1)

    def _announce(self, broker: Broker) -> None:
        # A leader that has not read what was copied leaves a hole, whether anybody compacts or not.
        self.hear(broker, self.metadata.end)
        found = self._next_segment(broker)
        if found is None:
            return
        first, last = found
        batches = self.log.between(first, last)
        self._ids += 1
        segment = RemoteLogSegment(
            id=RemoteLogSegmentId(PARTITION, self._ids.to_bytes(16, "big")), start_offset=first,
            end_offset=last, broker_id=broker.node,
            max_timestamp_ms=max(each.timestamp for each in batches),
            event_timestamp_ms=self._clock.now_ms(), epochs=self.log.epochs_of(first, last),
            size_bytes=sum(len(each.data) for each in batches), custom_metadata=None,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )  # fmt: skip
        broker.upload = Upload(segment, self._epoch)
        self.announce(broker, segment)

    def _store(self, upload: Upload) -> None:
        segment = upload.segment
        first, last = segment.start_offset, segment.end_offset
        log = b"".join(each.data for each in self.log.between(first, last))
        files = {str(kind): data for kind, data in files_of(segment, log).items()}
        files[AuxiliaryFile.SNAPSHOT] = producer_snapshot.encode(self.log.producers_at(last + 1))
        files[AuxiliaryFile.LEADER_EPOCHS] = leader_epoch.encode(self.log.lineage_to(last))
        aborted = self.log.aborted_in(first, last)
        if aborted:
            files[AuxiliaryFile.TXN_INDEX] = txn_index.encode(aborted)
        for kind, data in files.items():
            self._tier.put(segment.id.segment_id, first, kind, data)
        self._tier.put(segment.id.segment_id, first, LOG, log)
        upload.is_stored = True

    def _finish(self, broker: Broker, upload: Upload) -> None:
        is_late = self._is_late(broker)
        if is_late and self._breaks_by_itself(upload.segment):
            self._abandon(broker)
            return
        self.hear(broker, self.metadata.end)
        if self.is_held(upload.segment, broker.seen):
            return
        known = [each for each in broker.seen.known.values() if each.state is CF]
        over = [each for each in known if each.end_offset >= upload.segment.start_offset]
        if over:
            self._happened[OVERLAPPING] += 1
        if any(each.broker_id < 0 for each in over):
            self._happened[OVER_COMPACTED] += 1
        if is_late:
            self._happened[LATE_UPLOAD] += 1
        self.announce(broker, _moved(upload.segment, broker, CF))
        name = upload.segment.id.segment_id
        if name in broker.seen.known and broker.seen.known[name].state is CF:
            self.finished.add(name)
        broker.upload = None

    def _breaks_by_itself(self, segment: RemoteLogSegment) -> bool:
        """Say whether an overtaken leader would leave a hole that no other process has to do with.

        Its segment may end before that of the next leader which begins there: brokers have no
        answer to that, whether anybody compacts or not.
        """
        raw = Seen()
        for each in self.metadata.events:
            if each.broker_id >= 0:
                raw.hear(each)
        raw.hear(_moved(segment, self.leader, CF))
        under_way = self.leader.upload
        if under_way is not None and not self._is_late(self.leader):
            raw.hear(_moved(under_way.segment, self.leader, CF))
        end = raw.highest(self.log.lineage, self.log.end)
        return any(
            raw.lookup(self.log.epoch_of(offset), offset) is None
            for batch in self.log.between(self.log.start, end)
            for offset in (batch.base, batch.last)
            if offset <= end
        )

    def _abandon(self, broker: Broker) -> None:
        """Leave an upload, or take it back as 4.x does."""
        upload, broker.upload = broker.upload, None
        assert upload is not None
        self._happened[ABANDONED_UPLOAD] += 1
        if self._dice.random() < 0.5:
            self.announce(broker, _moved(upload.segment, broker, DS))
            self._tier.remove_all(upload.segment.id.segment_id)
            self.announce(broker, _moved(upload.segment, broker, DF))

    # Deleting.

    def delete_records(self) -> None:
        """Move the log start somewhere, a half of the way to what is stable at most."""
        self.cut(self._dice.randint(self.log.start, (self.log.start + self.log.last_stable) // 2))

    def retain(self) -> None:
        """Delete segments from the front whose youngest record is old enough."""
        if self._mood.retention_ms is None:
            return
        oldest_ms = self._clock.now_ms() - self._mood.retention_ms
        while self.log.start < self.leader.local_start:
            segment = self._looked_up(self.leader, self.log.start)
            if segment is None or segment.max_timestamp_ms > oldest_ms:
                return
            self.cut(segment.end_offset + 1)

    def cut(self, offset: int) -> None:
        """Move the log start to ``offset``, unless it is there or beyond."""
        if offset <= self.log.start:
            return
        self.log.cut(offset)
        self._happened[LOG_START_CUTS] += 1
        for each in self.all:
            if each.local_start < offset:
                each.local_start = max(
                    (base for base in each.rolls if base <= offset), default=each.local_start
                )
                each.rolls = [base for base in each.rolls if base >= each.local_start]

    def expire_all(self) -> None:
        """Let the leader delete all that lies below the log start."""
        for _ in range(STEPS_A_SEGMENT * (1 + len(self.leader.seen.known))):
            if not self._has_expired():
                return
            self.expire()
        require(not self._has_expired(), "the deletion of what has expired does not end")

    def _has_expired(self) -> bool:
        """Say whether there is anything below the log start, or on its way out."""
        self.hear(self.leader, self.metadata.end)
        known = self.leader.seen.known.values()
        return bool(self.leader.deleting) or any(e.end_offset < self.log.start for e in known)

    def expire(self) -> None:
        """Let the leader do one step of the deletion of a segment below the log start."""
        broker = self.leader
        self.hear(broker, self.metadata.end)
        if broker.deleting and self._dice.random() < 0.7:
            self._remove(broker, broker.deleting.pop(0))
            return
        begun = {each.id for each in broker.deleting}
        for each in sorted(broker.seen.known.values(), key=lambda each: each.start_offset):
            if each.end_offset < self.log.start and each.id not in begun:
                if each.broker_id < 0 and each.state is CS:
                    self._happened[EXPIRED_ANNOUNCED] += 1
                if each.state is DS:
                    self._happened[EXPIRED_SOURCES] += 1
                broker.deleting.append(each)
                self.announce(broker, _moved(each, broker, DS))
                return

    def _remove(self, broker: Broker, segment: RemoteLogSegment) -> None:
        self._tier.remove_all(segment.id.segment_id)
        self.announce(broker, _moved(segment, broker, DF))

    def delete_topic(self) -> None:
        """Delete the topic, and all that the leader knows of it."""
        self.is_deleted = True
        broker = self.leader
        self.hear(broker, self.metadata.end)
        known = list(broker.seen.known.values())
        self.announce(broker, *(_moved(each, broker, DS) for each in known))
        for each in known:
            self._remove(broker, each)

    # Reading.

    def begin_fetch(self) -> None:
        """Let a broker look up an offset, and read the object a while later."""
        broker = self._dice.choice(self.all)
        if self.log.start >= broker.local_start or self.is_deleted:
            return
        offset = self._dice.randrange(self.log.start, broker.local_start)
        segment = self._looked_up(broker, offset)
        require(segment is not None, f"C5: {broker} serves nothing at {offset}")
        assert segment is not None
        self._fetches.append(Fetch(broker, segment, self._clock.now_ms() + FETCH_MS))

    def end_fetches(self) -> None:
        """Let fetches that are under way read what they have looked up."""
        due, self._fetches = self._fetches, []
        for each in due:
            is_served = each.segment.end_offset >= self.log.start and not self.is_deleted
            if is_served and each.due_ms >= self._clock.now_ms():
                self._tier.read(f"a slow fetch by {each.broker}", each.segment)
                newest = max(self.all, key=lambda broker: broker.seen.read_to).seen
                known = newest.known.get(each.segment.id.segment_id)
                self._happened[SLOW_FETCH] += known is not None and known.state is DS

    def check(self) -> None:
        """Read through every broker, from the log start and from somewhere, and judge it."""
        if self.is_deleted:
            return
        for broker in self.all:
            self._check(broker, self.log.start)
        broker = self._dice.choice(self.all)
        if broker.local_start > self.log.start:
            self._check(broker, self._dice.randrange(self.log.start, broker.local_start))

    def _check(self, broker: Broker, start: int) -> None:
        self.reads += 1
        walk = self._walk(broker, start)
        if not walk.names <= self._serving_newest():
            self._happened[LAGGING_READ] += 1
        entries = {entry for each in walk.segments for entry in self._tier.aborted(each)}
        entries |= {each for each in self.log.aborted if each.last_offset >= broker.local_start}
        # What is remote is stable: what comes after it only lets more of it be missing.
        is_stable = broker.local_start <= self.log.last_stable
        changes = -1 if is_stable else self.log.changes
        key = (start, changes, broker.local_start, walk.key, entries)
        asked = broker.node, start == self.log.start
        if self._judged.get(asked) == key:
            return
        self._judged[asked] = key
        removal = self._mood.removal
        gone = self.log.judge(
            f"{broker} of {self.leader}", walk.given, walk.committed(frozenset(entries)), start,
            broker.local_start,
            written_before_ms=-1
            if removal is None
            else self._clock.now_ms() - removal.delete_retention_ms,
        )  # fmt: skip
        self._happened[TOMBSTONE_GONE] += bool(gone)

    def _serving_newest(self) -> frozenset[bytes]:
        """Return who serves by the fold of who has read the most."""
        newest = max(self.all, key=lambda each: each.seen.read_to).seen
        if self._newest is None or self._newest[0] != newest.read_to:
            self._newest = newest.read_to, frozenset(name for _, _, name in newest.starts())
        return self._newest[1]

    def answers(self, broker: Broker, start: int | None = None) -> Sequence[Answer]:
        """Return what a broker answers from the remote tier."""
        return self._walk(broker, self.log.start if start is None else start).answers

    def _walk(self, broker: Broker, start: int) -> Walk:
        """Read through a broker from ``start`` to its local log.

        What brokers find depends on how far they have read the metadata topic, and on nothing else:
        a walk that was done is done again only as far as objects may be gone.
        """
        if self._dice.random() < 0.2:
            return Walk(self._read_through(broker, start, stops_early=True), self._tier.changes)
        asked = broker.seen.read_to, start, broker.local_start
        known = self._walks.get(asked)
        if known is None:
            if len(self._walks) >= WALKS_KEPT:
                self._walks.clear()
            found = self._read_through(broker, start, stops_early=False)
            known = self._walks[asked] = Walk(found, self._tier.changes)
        elif known.seen_changes != self._tier.changes:
            for each in known.segments:
                self._tier.read(broker, each)
            known.seen_changes = self._tier.changes
        return known

    def _read_through(self, broker: Broker, start: int, *, stops_early: bool) -> list[Answer]:
        found: list[Answer] = []
        at = start
        while at < broker.local_start:
            segment = self._looked_up(broker, at)
            if segment is None:
                raise AssertionError(f"C5: {broker} serves nothing at {at}")
            stored = self._tier.read(broker, segment)
            batches = [each for each in stored if each.last_offset >= at]
            if stops_early and len(batches) > 1:
                batches = batches[: self._dice.randrange(1, len(batches))]
            if not batches:
                raise AssertionError(f"C7: {broker} answers with nothing at {at}")
            found.append((segment.id.segment_id, at, len(batches), segment, batches))
            at = batches[-1].last_offset + 1
        return found

    def _looked_up(self, broker: Broker, offset: int) -> RemoteLogSegment | None:
        return broker.seen.lookup(self.log.epoch_of(offset), offset)


def _moved(
    segment: RemoteLogSegment, broker: Broker, state: RemoteLogSegmentState
) -> RemoteLogSegmentUpdate:
    return RemoteLogSegmentUpdate(
        id=segment.id, broker_id=broker.node, event_timestamp_ms=segment.event_timestamp_ms,
        custom_metadata=segment.custom_metadata, state=state,
    )  # fmt: skip
