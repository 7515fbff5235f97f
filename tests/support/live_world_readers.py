"""Read-committed readers of a simulated cluster that take their time, and what they end up with.

Kafka promises: who reads a log from some offset on, and comes to its end within
``delete.retention.ms``, has the last value of every key, and no value of one that was deleted. A
reader asks any broker (KIP-392), a few answers at a time; between them anything may happen. What it
has at the end is judged by what producers got acknowledged, and by nothing of keeplast's.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from keeplast.format.record import Record
from tests.support.live_world_brokers import Broker, Brokers
from tests.support.live_world_log import Fate
from tests.support.live_world_mood import SLOW_READER, RemovalMood
from tests.support.live_world_objects import RemoteTier
from tests.support.manual_clock import ManualClock
from tests.support.reader import committed_records
from tests.support.tier_world_stores import require

READERS_MAX = 4


@dataclass(slots=True)
class SlowReader:
    """One reader; ``state`` has the last record of every key that it was given."""

    start: int
    at: int
    began_ms: int
    state: dict[bytes, Record] = field(default_factory=dict)


class SlowReaders:
    """Readers that are under way."""

    def __init__(
        self, brokers: Brokers, tier: RemoteTier, clock: ManualClock, dice: random.Random,
        mood: RemovalMood, happened: Counter[str],
    ) -> None:  # fmt: skip
        """Begin with none."""
        self._brokers = brokers
        self._tier = tier
        self._clock = clock
        self._dice = dice
        self._retention_ms = mood.delete_retention_ms
        self._happened = happened
        self._readers: list[SlowReader] = []

    def begin(self) -> None:
        """Let one begin, at the log start or anywhere."""
        log = self._brokers.log
        if len(self._readers) < READERS_MAX:
            # Or where the local log begins, which moves on.
            starts = [log.start, log.start, self._brokers.leader.local_start]
            start = self._dice.choice([*starts, self._dice.randint(log.start, log.end)])
            self._readers.append(SlowReader(start, start, self._clock.now_ms()))

    def go_on(self) -> None:
        """Let every one be given a few answers; who is too late gives up."""
        if self._brokers.is_deleted:
            self._readers.clear()
            return
        self._brokers.keep_up()
        left = []
        for each in self._readers:
            is_late = each.began_ms + self._retention_ms < self._clock.now_ms()
            if is_late or each.at < self._brokers.log.start:
                continue
            for _ in range(self._dice.choice([1, 1, 2, 40])):
                self._answer(each, self._dice.choice(self._brokers.all))
            if each.at < self._brokers.log.last_stable:
                left.append(each)
            else:
                self._judge(each)
        self._readers = left

    def _answer(self, reader: SlowReader, broker: Broker) -> None:
        """Let a broker give a reader a few answers, from the remote tier and then of its own."""
        brokers, log = self._brokers, self._brokers.log
        local_start, count = broker.local_start, self._dice.choice([1, 2, 4])
        pieces = brokers.answers(broker, reader.at)
        entries = {entry for *_, segment, _ in pieces for entry in self._tier.aborted(segment)}
        entries |= {each for each in log.aborted if each.last_offset >= local_start}
        for *_, batches in pieces[:count]:
            for each in committed_records(batches, entries, reader.at):
                self._take(reader, each)
            reader.at = batches[-1].last_offset + 1
        if count > len(pieces):
            end = min(reader.at + 4 * (count - len(pieces)), log.last_stable)
            for offset in range(reader.at, end):
                if offset in log.records and log.fates[offset] is Fate.COMMITTED:
                    self._take(reader, log.records[offset])
            reader.at = max(reader.at, end)

    def _take(self, reader: SlowReader, record: Record) -> None:
        assert record.key is not None
        reader.state[record.key] = record

    def _judge(self, reader: SlowReader) -> None:
        self._happened[SLOW_READER] += 1
        log = self._brokers.log
        truth = log.state_at(reader.at)
        where = f"reader from {reader.start} to {reader.at}"
        for key, found in reader.state.items():
            last = truth.get(key)
            is_last = last is not None and found.offset == last.offset
            require(
                is_last or found.value is None,
                f"a value is kept that was deleted or overwritten. {where} {found} last={last}",
            )
        for key, last in truth.items():
            if last.value is not None and last.offset >= max(reader.start, log.start):
                require(
                    reader.state.get(key) == last,
                    f"the last value of a key was not given. {where} last={last}",
                )
