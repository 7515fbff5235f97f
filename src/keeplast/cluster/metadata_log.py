"""``__remote_log_metadata`` read from its beginning to its end, and folded as brokers fold it.

The rule: **what a broker could not read, or would stop at, is told with its offset and nothing is
concluded from what stands behind it.** Brokers replay the topic from offset 0 at every start, so a
fold is whole only where offset 0 is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from keeplast.cluster.facts import METADATA_TOPIC, MetadataFault, OffsetRange, TopicFacts
from keeplast.cluster.fold_checkpoint import FoldCheckpoint
from keeplast.cluster.live_cluster import MetadataReader, MetadataValue
from keeplast.cluster.metadata_cache import ClusterCache
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.format.murmur2 import metadata_partition
from keeplast.format.remote_log_metadata import decode

FAULTS_MAX = 100
"""How many faults of one partition are told; one is enough to stop a broker."""


@dataclass(slots=True)
class FoldedMetadata:
    """What brokers know after reading ``ranges`` (by partition), and what stands in the way."""

    cache: ClusterCache = field(default_factory=ClusterCache)
    ranges: dict[int, OffsetRange] = field(default_factory=dict)
    faults: list[MetadataFault] = field(default_factory=list)
    dropped: list[MetadataFault] = field(default_factory=list)
    record_count: int = 0

    def require_sound(self) -> None:
        """Raise RefusedError for the first fault, if there is one."""
        if self.faults:
            first = self.faults[0]
            raise RefusedError(
                f"{METADATA_TOPIC} cannot be followed as brokers do: {first.problem}; see "
                f"keeplast place check. partition={first.partition} offset={first.offset}"
            )


def partitions_of(topics: Iterable[TopicFacts], metadata_topic: TopicFacts) -> list[int]:
    """Return which partitions of the metadata topic tell of ``topics``, ascending."""
    count = metadata_topic.partition_count
    return sorted(
        {
            metadata_partition(topic.topic_id, each, count)
            for topic in topics
            for each in range(topic.partition_count)
        }
    )


def fold_metadata(
    client: MetadataReader,
    metadata_topic: TopicFacts,
    partitions: Sequence[int],
    progressed: Callable[[int], object] = lambda count: None,
    kept: Callable[[int], FoldCheckpoint | None] = lambda partition: None,
) -> FoldedMetadata:
    """Read ``partitions`` of the metadata topic to their present ends and fold them.

    ``progressed`` is told how many offsets were passed. ``kept`` may know an earlier fold of a
    partition, of this cluster; where the topic does not go on from it, it is read from its
    beginning. A fault ends its partition. Errors are the client's.
    """
    folded = FoldedMetadata()
    ranges = client.read_ranges(metadata_topic)
    for partition in partitions:
        if partition >= len(ranges):
            raise InvalidError(f"no such partition of {METADATA_TOPIC}. partition={partition}")
        held = folded.ranges[partition] = ranges[partition]
        require_beginning(folded, partition, held.start)
        base = None if folded.faults else kept(partition)
        if base is None or not _go_on(folded, client, metadata_topic, base, held, progressed):
            fold_values(folded, partition, client.read_metadata(partition, held), progressed)
    return folded


def require_beginning(folded: FoldedMetadata, partition: int, start: int) -> None:
    """Note a fault unless the partition begins at offset 0: brokers that start know no more."""
    if start > 0:
        folded.faults.append(MetadataFault(partition, start, "it no longer begins at offset 0"))


def _go_on(
    folded: FoldedMetadata,
    client: MetadataReader,
    metadata_topic: TopicFacts,
    base: FoldCheckpoint,
    held: OffsetRange,
    progressed: Callable[[int], object],
) -> bool:
    """Fold what came behind ``base``; False, and nothing is folded, when it does not fit."""
    point = base.point
    is_same = (point.topic_id, point.partition_count) == (
        metadata_topic.topic_id, metadata_topic.partition_count,
    )  # fmt: skip
    if not is_same or not 0 < point.offset <= held.end:
        return False
    values = client.read_metadata(point.partition, OffsetRange(point.offset - 1, held.end))
    if not point.is_at(next(values, None)):
        return False
    folded.cache.partitions |= base.cache.copy().partitions
    folded.record_count += base.record_count
    fold_values(folded, point.partition, values, progressed)
    return True


def fold_values(
    folded: FoldedMetadata,
    partition: int,
    values: Iterable[MetadataValue | int],
    progressed: Callable[[int], object] = lambda count: None,
) -> None:
    """Fold the records of one partition, in order; see :func:`fold_metadata`."""
    for each in values:
        progressed(1)
        if isinstance(each, int):
            # A marker at the end keeps a broker that starts from ever being ready.
            fault = MetadataFault(
                partition, each, "no record at this offset: a transaction's marker, or removed"
            )
            folded.faults.append(fault)
            if len(folded.faults) >= FAULTS_MAX:
                return
            continue
        folded.record_count += 1
        try:
            dropped = folded.cache.apply(decode(each.value))
        except CorruptError as error:
            folded.faults.append(MetadataFault(partition, each.offset, str(error)))
            return
        if dropped is not None and len(folded.dropped) < FAULTS_MAX:
            folded.dropped.append(MetadataFault(partition, each.offset, dropped))
