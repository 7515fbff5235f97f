"""What consumer groups have committed, as the brokers of a live cluster say.

For logs without a ``__consumer_offsets`` next to them: those of a store, and of some directories.
An answer counts for a while. A missing answer is asked for again later, so that a cluster that does
not answer costs two calls a minute, for any number of logs.

The rule: an offset that is reported too high costs a reader its unread records. An offset that
brokers do not report, as of another topic of this name, counts as not committed. So does one that
by their own word lies beyond the log's end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from keeplast.cluster.live_cluster import TopicEnds
from keeplast.errors import CompactionError, UnavailableError, error_words
from keeplast.model.hold import Absence, WaitedGroup
from keeplast.model.partition import TopicPartition

FRESH_MS = 10_000
"""An answer counts for so long: thousands of partitions may wait for the same groups."""
SILENT_MS = 60_000
"""So long nothing is asked, once calls one after the other had no answer."""
UNREPORTED_MS = 5 * SILENT_MS
"""So long a missing answer is not asked for again: longer, so that the rest has its turn before."""
SILENCES_MAX = 2
KEPT_MAX = 10_000
Value = TypeVar("Value")


class GroupCluster(Protocol):
    """A cluster that reports on groups; see :class:`~keeplast.cluster.client.ClusterClient`."""

    def find_ends(self, topic: str) -> TopicEnds | None:
        """Return a topic's id and where its partitions end, None when there is none."""

    def read_group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return where a group goes on reading, by partition."""


class _Answer(Struct, Generic[Value], frozen=True):
    """The answer, until then; ``problem`` is why there was none, and empty otherwise."""

    until_ms: int
    value: Value | None
    problem: str = ""


class BrokerGroups:
    """Asks brokers what groups have committed, and remembers it; shared by threads.

    A :class:`~keeplast.model.hold.GroupReader`.
    """

    def __init__(self, cluster: GroupCluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._groups: dict[str, _Answer[Mapping[TopicPartition, int]]] = {}
        self._topics: dict[str, _Answer[TopicEnds]] = {}
        self._silences = 0
        self._silent: _Answer[Any] = _Answer(-1, None)

    def waited(
        self,
        partition: TopicPartition,
        groups: Sequence[str],
        topic_id: bytes | None,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return where each of ``groups`` goes on reading a partition; raises nothing.

        ``topic_id`` None is of a log that does not say which topic it is of: then the name counts.
        """
        with self._lock:
            topic = self._topic(partition.topic, now_ms)
            return tuple(
                self._waited(each, partition, topic, topic_id, now_ms)
                for each in dict.fromkeys(groups)
            )

    def problems(self) -> tuple[str, ...]:
        """Return why the last question has no answer, each reason once; for people."""
        with self._lock:
            answers: list[_Answer[Any]] = [*self._topics.values(), *self._groups.values()]
            return tuple(dict.fromkeys(each.problem for each in answers if each.problem))

    def _waited(
        self,
        group: str,
        partition: TopicPartition,
        topic: _Answer[TopicEnds],
        topic_id: bytes | None,
        now_ms: int,
    ) -> WaitedGroup:
        if topic.problem:
            return WaitedGroup(group, None, None, Absence.NOT_REPORTED, topic.problem)
        ends = topic.value
        if ends is None or topic_id not in (None, ends.topic_id):
            said = "no such topic" if ends is None else "another topic of this name, by its id"
            problem = f"the cluster has {said}; check --bootstrap-server. topic={partition.topic}"
            return WaitedGroup(group, None, None, Absence.NOT_REPORTED, problem)
        answer = self._group(group, now_ms)
        if answer.value is None:
            return WaitedGroup(group, None, None, Absence.NOT_REPORTED, answer.problem)
        offset, end = answer.value.get(partition), ends.ends.get(partition.partition)
        if offset is None:
            return WaitedGroup(group, None, None, Absence.NOT_COMMITTED)
        if end is None or offset > end:
            return WaitedGroup(group, None, None, Absence.BEYOND_END)
        return WaitedGroup(group, offset, None)

    def _topic(self, topic: str, now_ms: int) -> _Answer[TopicEnds]:
        return self._asked(self._topics, topic, lambda: self._cluster.find_ends(topic), now_ms)

    def _group(self, group: str, now_ms: int) -> _Answer[Mapping[TopicPartition, int]]:
        def ask() -> Mapping[TopicPartition, int]:
            return self._cluster.read_group_offsets(group)

        return self._asked(self._groups, group, ask, now_ms)

    def _asked(
        self,
        kept: dict[str, _Answer[Value]],
        name: str,
        ask: Callable[[], Value | None],
        now_ms: int,
    ) -> _Answer[Value]:
        """Return what is known of ``name``, or ``ask``, unless the cluster is silent."""
        known = kept.get(name)
        if known is not None and _counts(known, now_ms):
            return known
        if _counts(self._silent, now_ms):
            return _Answer(now_ms, None, self._silent.problem)
        if len(kept) >= KEPT_MAX:
            kept.clear()
        try:
            kept[name] = _Answer(now_ms + FRESH_MS, ask())
            self._silences = 0
        except (CompactionError, OSError) as error:
            problem = error_words(error)
            kept[name] = _Answer(now_ms + UNREPORTED_MS, None, problem)
            if isinstance(error, UnavailableError):
                self._silences += 1
                if self._silences >= SILENCES_MAX:
                    self._silences = 0
                    self._silent = _Answer(now_ms + SILENT_MS, None, problem)
        return kept[name]


def _counts(answer: _Answer[Any], now_ms: int) -> bool:
    """Say whether an answer counts; one of a clock that was far ahead does not."""
    return 0 < answer.until_ms - now_ms <= UNREPORTED_MS
