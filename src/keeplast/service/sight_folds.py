"""The folds of one loop's sights of the metadata topic, in memory: each goes on from the last one.

The rule: **they choose what is worth a claim, and nothing else**. Whoever acts reads the topic by
:mod:`keeplast.attach.held.metadata_view`, and holds it against what was seen before; a topic that
does not go on from here is only read from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keeplast.attach.held.kept_folds import KeptFolds
from keeplast.cluster.facts import OffsetRange, TopicFacts
from keeplast.cluster.fold_checkpoint import FoldCheckpoint, FoldPoint, digest_of
from keeplast.cluster.live_cluster import MetadataReader, MetadataValue
from keeplast.cluster.metadata_cache import ClusterCache
from keeplast.cluster.metadata_log import FoldedMetadata, fold_metadata
from keeplast.format.murmur2 import metadata_partition


class SightFolds:
    """Folds of one cluster's metadata topic, a partition of it at a time."""

    def __init__(self, cluster: MetadataReader, kept: KeptFolds) -> None:
        """Take who reads, and what the decision log keeps for the first time."""
        self._cluster = cluster
        self._kept = kept
        self._known: dict[tuple[str, int], FoldCheckpoint] = {}

    def fold(
        self, cluster_id: str, metadata_topic: TopicFacts, partitions: Sequence[int]
    ) -> FoldedMetadata:
        """Return what brokers know by ``partitions`` of the topic; errors are the client's."""
        reader = _Noting(self._cluster)
        folded = fold_metadata(
            reader, metadata_topic, partitions,
            kept=lambda each: self._known.get((cluster_id, each))
            or self._kept.find(cluster_id, each),
        )  # fmt: skip
        if folded.faults:
            self._known.clear()
            return folded
        count = metadata_topic.partition_count
        told: dict[int, ClusterCache] = {each: ClusterCache() for each in partitions}
        for name, cache in folded.cache.partitions.items():
            at = metadata_partition(name.topic_id, name.partition, count)
            told[at].partitions[name] = cache
        for each, last in reader.last.items():
            if last.value is None:
                continue
            point = FoldPoint(
                cluster_id=cluster_id, topic_id=metadata_topic.topic_id, partition_count=count,
                partition=each, offset=last.offset + 1, leader_epoch=last.leader_epoch,
                record_epoch=last.leader_epoch, digest=digest_of(last.value),
            )  # fmt: skip
            # Nobody tells these caches more: who goes on from one copies it.
            self._known[cluster_id, each] = FoldCheckpoint(point, told[each], last.offset + 1)
        return folded


class _Noting:
    """A reader that remembers the last record of each partition."""

    def __init__(self, inner: MetadataReader) -> None:
        self._inner = inner
        self.last: dict[int, MetadataValue] = {}

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        return self._inner.read_ranges(topic)

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        for each in self._inner.read_metadata(partition, held):
            if isinstance(each, MetadataValue):
                self.last[partition] = each
            yield each
