"""How a host of keeplast reaches a simulated cluster and its decision log, each call a step.

A batch that is appended may fail to arrive, arrive without an answer, or arrive long after it was
given up: as a request does that a frozen leader still holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    BrokerFacts,
    ClusterFacts,
    MetadataEnd,
    MetadataValue,
    OffsetRange,
    TopicFacts,
    encode_batch,
)
from keeplast.errors import CommitUnknownError, InvalidError, UnavailableError
from keeplast.format.remote_log_metadata import RemoteLogEvent
from keeplast.tier.metadata.database import HostTime
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.holder import Holder
from tests.support.attached_world import (
    BROKER_SETTINGS,
    CLUSTER_ID,
    METADATA_SETTINGS,
    PARTITION,
    SETTINGS,
)
from tests.support.live_world_brokers import NODES, Brokers
from tests.support.live_world_fold import MetadataTopic
from tests.support.live_world_mood import CHECK_MS, LOST_ANSWER, LOST_BATCH, LiveMood, LiveTally
from tests.support.manual_clock import ManualClock
from tests.support.tier_world_stores import SimulatedTransactions
from tests.support.tier_world_tasks import Task, Tasks

METADATA_ID = bytes(reversed(range(16)))
Sent = Callable[[Sequence[RemoteLogEvent]], None]


@dataclass(slots=True)
class End:
    """That a task falls asleep, or dies, before the ``count``-th call of a name from now on."""

    call: str
    count: int
    is_asleep: bool


class LiveTasks(Tasks):
    """Tasks before whose calls brokers may do something, and that say before which they ended."""

    def __init__(
        self, trace: Callable[[str], None], ended: Callable[[Task], None], tally: LiveTally,
        meanwhile: Callable[[Task], None],
    ) -> None:  # fmt: skip
        """``ended`` hears of a task whose process dies, ``meanwhile`` of each that comes by."""
        super().__init__(trace, lambda life: None)
        self.ends: dict[Task, End] = {}
        """Where tasks end that do so before a call of a name."""
        self._ended = ended
        self._tally = tally
        self._meanwhile = meanwhile

    def step(self, operation: str) -> bool:
        """Account for a call; see the base."""
        task = self.current
        if task is None:
            return super().step(operation)
        if task.life.alive:
            self._meanwhile(task)
            number = task.operations + 1
            self._plan(task, operation, number)
            self._tally.slept_before[operation] += number == task.sleeps_at
            if number == task.dies_at and number != task.sleeps_at:
                self._tally.died_before[operation] += 1
                self._ended(task)
        fails = super().step(operation)
        self._tally.faults += fails
        return fails

    def _plan(self, task: Task, operation: str, number: int) -> None:
        end = self.ends.get(task)
        if end is None or end.call != operation:
            return
        end.count -= 1
        if end.count == 0 and end.is_asleep:
            task.sleeps_at = number
        elif end.count == 0:
            task.dies_at = number


class HostCluster:
    """The cluster as one host reaches it: a :class:`~keeplast.cluster.live_cluster.LiveCluster`."""

    def __init__(
        self, brokers: Brokers, metadata: MetadataTopic, mood: LiveMood, tasks: LiveTasks,
        clock: ManualClock, dice: random.Random, tally: LiveTally, late: list[list[bytes]],
    ) -> None:  # fmt: skip
        """``metadata`` is another one's for a clone; ``late`` takes what will arrive later."""
        self.heard: Sent = lambda events: None
        self.arrived: Callable[[], None] = lambda: None
        self.is_quiet = False
        self._brokers = brokers
        self._metadata = metadata
        self._is_clone = metadata is not brokers.metadata
        self._held = OffsetRange(brokers.log.start, brokers.log.end)
        self._mood = mood
        self._tasks = tasks
        self._clock = clock
        self._dice = dice
        self._tally = tally
        self._late = late

    @property
    def metadata_topic(self) -> TopicFacts:
        """Return the metadata topic of one partition."""
        return TopicFacts(METADATA_TOPIC, METADATA_ID, 1, NODES, METADATA_SETTINGS)

    @property
    def topic(self) -> TopicFacts:
        """Return the topic."""
        retention_ms = self._mood.retention_ms
        removal = self._mood.removal
        settings = {
            **SETTINGS, "retention.ms": "-1" if retention_ms is None else str(retention_ms),
            "local.retention.ms": "-1" if removal is None else str(removal.local_ms),
        }  # fmt: skip
        return TopicFacts(PARTITION.topic, PARTITION.topic_id, 1, NODES, settings)

    @property
    def _is_gone(self) -> bool:
        return self._brokers.is_deleted and not self._is_clone

    def read_facts(self, topics: Sequence[str] = ()) -> ClusterFacts:
        """Return the cluster."""
        self._look("read facts")
        if topics and self._is_gone:
            raise InvalidError(f"no such topic in the cluster. topics={list(topics)}")
        settings = {**BROKER_SETTINGS, "log.retention.check.interval.ms": str(CHECK_MS)}
        brokers = tuple(BrokerFacts(node, settings) for node in range(NODES))
        found = () if self._is_gone else (self.topic,)
        return ClusterFacts(CLUSTER_ID, brokers, found, self.metadata_topic)

    def find_topic_id(self, topic: str) -> bytes | None:
        """Return the topic's id, None when it is deleted."""
        self._look("find topic")
        return None if self._is_gone else PARTITION.topic_id

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        """Return what a topic's one partition holds."""
        self._look("read ranges")
        if topic.name == METADATA_TOPIC:
            return [OffsetRange(0, self._metadata.end)]
        if self._is_gone:
            raise UnavailableError("the cluster does not answer as it should")
        log = self._brokers.log
        return [self._held if self._is_clone else OffsetRange(log.start, log.end)]

    def read_end(self, partition: int) -> MetadataEnd:
        """Return where the metadata topic ends."""
        self._look("read end")
        return MetadataEnd(self._metadata.end, self._metadata.leader_epoch)

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        """Yield records."""
        self._look("read metadata")
        for offset in range(held.start, held.end):
            yield MetadataValue(
                offset, self._metadata.values[offset], self._metadata.epochs[offset]
            )

    def append(
        self, metadata_topic: TopicFacts, partition: int, events: Sequence[RemoteLogEvent]
    ) -> OffsetRange:
        """Append one batch, or leave it open what became of it."""
        values = encode_batch(metadata_topic, partition, events)
        fails = self._tasks.step("append") or (
            not self.is_quiet and self._dice.random() < self._mood.loses
        )
        how = self._dice.choice(["lost", "unanswered", "late"]) if fails else "arrives"
        if how in ("lost", "late"):
            self._tally.happened[LOST_BATCH] += 1
            if how == "late" and not self._is_clone:
                self._late.append(values)
            raise CommitUnknownError("the simulated batch did not arrive")
        start = self._metadata.end
        self.arrive(values)
        self.heard(events)
        self.arrived()
        if self._tasks.step("append answered") or how == "unanswered":
            self._tally.happened[LOST_ANSWER] += 1
            raise CommitUnknownError("the simulated answer was lost")
        return OffsetRange(start, start + len(values))

    def arrive(self, values: Sequence[bytes]) -> None:
        """Let a batch become a part of the topic, whole."""
        self._metadata.append(values, self._clock.now_ms())

    def _look(self, what: str) -> None:
        if self._tasks.step(what):
            raise UnavailableError(f"the simulated cluster does not answer. asked={what}")


def open_decisions(
    engine: Engine, clock: ManualClock, tasks: Tasks, dice: random.Random, number: int
) -> DecisionLog:
    """Open a decision log as process ``number``, of which it is unknown whether it is over."""
    holder, time = Holder(f"{number:032x}", f"host{number}", number, "", ""), HostTime(clock)
    log = DecisionLog(engine, clock, holder, time)
    transactions = SimulatedTransactions(engine, clock, tasks, dice, lambda: None, time)
    transactions.holder = holder
    log._transactions = transactions
    return log
