"""Folds of a cluster's metadata topic that were made before: the newest here, each in a store.

The rule: **what is kept was read from a topic that was accepted**, and is told to nobody as true:
whoever goes on from it compares the topic with its point first. When it lies, that is said once
by :meth:`KeptFolds.refute`, and the next fold that is kept takes its place.
"""

from __future__ import annotations

from collections.abc import Callable

from keeplast.cluster.facts import ClusterFacts, TopicFacts
from keeplast.cluster.fold_checkpoint import (
    FoldCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from keeplast.cluster.live_cluster import MetadataReader
from keeplast.cluster.metadata_log import FoldedMetadata, fold_metadata, partitions_of
from keeplast.errors import CorruptError
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.metadata.folds import FoldRows

WRITTEN_RECORDS_MIN = 500
"""So few records are read again in no time."""
RECORDS_A_SEGMENT = 4
"""To read a record takes longer than to write a segment, of which a fold has all each time."""


class KeptFolds:
    """The folds that a decision log keeps, for one thread. One of them is in memory, as it is."""

    def __init__(self, rows: FoldRows) -> None:
        """Read nothing yet."""
        self._rows = rows
        self._newest: FoldCheckpoint | None = None
        self._stored: dict[tuple[str, int], int] = {}
        self._refuted: set[tuple[str, int]] = set()

    def find(self, cluster_id: str, partition: int) -> FoldCheckpoint | None:
        """Return what was kept of a partition of the metadata topic, whichever that topic was.

        What is damaged, or was kept by other rules, is as if there were none.
        """
        known = self._newest
        if known is not None and _key(known) == (cluster_id, partition):
            return known
        if (cluster_id, partition) in self._refuted:
            return None
        data = self._rows.read(cluster_id, partition)
        if data is None:
            return None
        try:
            found = decode_checkpoint(data)
        except CorruptError:
            return None
        if _key(found) != (cluster_id, partition):
            return None
        self._newest = found
        self._stored[cluster_id, partition] = found.record_count
        return found

    def refute(self, cluster_id: str, partition: int) -> None:
        """Forget a fold that the metadata topic does not go on from."""
        self._refuted.add((cluster_id, partition))
        self._stored.pop((cluster_id, partition), None)
        if self._newest is not None and _key(self._newest) == (cluster_id, partition):
            self._newest = None

    def keep(self, checkpoint: FoldCheckpoint) -> None:
        """Keep a fold of a topic that was accepted; written when that is worth it."""
        key = _key(checkpoint)
        self._newest = checkpoint
        new = checkpoint.record_count - self._stored.get(key, 0)
        is_worth = new >= WRITTEN_RECORDS_MIN
        is_worth &= new * RECORDS_A_SEGMENT >= checkpoint.segment_count
        if is_worth or key in self._refuted:
            data = encode_checkpoint(checkpoint) if is_worth else None
            self._rows.write(*key, data)
            self._stored[key] = checkpoint.record_count if data is not None else 0
            self._refuted.discard(key)


def _key(checkpoint: FoldCheckpoint) -> tuple[str, int]:
    return checkpoint.point.cluster_id, checkpoint.point.partition


def fold_known(
    client: MetadataReader,
    facts: ClusterFacts,
    metadata_topic: TopicFacts,
    log: DecisionLog | None,
    progressed: Callable[[int], object] = lambda count: None,
) -> FoldedMetadata:
    """Return what brokers know of the topics of ``facts``; what ``log`` keeps is not read again."""

    def kept(partition: int) -> FoldCheckpoint | None:
        return None if log is None else KeptFolds(log.folds).find(facts.cluster_id, partition)

    chosen = partitions_of(facts.topics, metadata_topic)
    return fold_metadata(client, metadata_topic, chosen, progressed, kept)
