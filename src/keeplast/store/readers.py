"""Whom tombstones of a partition in object storage wait for, by what brokers say.

A store has no ``__consumer_offsets``, nor has a live cluster's remote tier, and the log there ends
where the copies do: what groups have committed, and whether that is of this log, the cluster's
brokers alone can tell. Without any to ask every group counts as not there yet, and the longest wait
as the only end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keeplast.cleaner.internal_topics import INTERNAL_TOPICS
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader, ReaderWait, WaitedGroup, nobody_asked
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.log_bounds import Checkpoints
from keeplast.survey.request import PartitionRequest


@dataclass(frozen=True, slots=True)
class StoredReaders:
    """Who tells of groups, for the log of one partition in a store, or in a remote tier.

    ``topic_id`` is the log's, 32 hexadecimal digits, all of them 0 where it has none.
    """

    topic_id: str
    brokers: GroupReader | None

    def waited(
        self,
        partition: PartitionRequest,
        groups: Sequence[str],
        checkpoints: Checkpoints,
        log_end: int,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return where groups go on reading, to a survey that asks for it.

        They may well have read beyond ``log_end``, which is where the copies end.
        """
        return self.of(partition.partition, groups, now_ms)

    def of(
        self, partition: TopicPartition, groups: Sequence[str], now_ms: int
    ) -> tuple[WaitedGroup, ...]:
        """Return where ``groups`` go on reading the partition."""
        if self.brokers is None:
            return nobody_asked(groups)
        known = bytes.fromhex(self.topic_id) if int(self.topic_id, 16) else None
        return self.brokers.waited(partition, groups, known, now_ms)

    def wait(self, partition: TopicPartition, topic: TopicConfig, now_ms: int) -> ReaderWait | None:
        """Return whom tombstones wait for by the settings, None for nobody."""
        groups = topic.tombstones_wait_for_groups
        if not groups or partition.topic in INTERNAL_TOPICS:
            return None
        return ReaderWait(self.of(partition, groups, now_ms), topic.tombstones_wait_max_ms)
