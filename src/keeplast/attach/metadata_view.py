"""What a live cluster says at one moment of one partition, and whether it may be acted upon.

The rule: **a view is read to the partition's end under one leader epoch**, and of a metadata topic
that goes on from what was seen before. One that is shorter, was created again, or has another
record where one was seen, is another topic: restored, cloned, or cut by an unclean leader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from keeplast.attach.batch import Batch
from keeplast.cluster.check import Severity, check_cluster, check_topic
from keeplast.cluster.facts import METADATA_TOPIC, OffsetRange, TopicFacts
from keeplast.cluster.live_cluster import LiveCluster, MetadataEnd, MetadataValue
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.metadata_log import FoldedMetadata, fold_values
from keeplast.cluster.status import is_compactors
from keeplast.errors import ConflictError, RefusedError, UnavailableError
from keeplast.format.identifier import encode_id
from keeplast.format.murmur2 import metadata_partition
from keeplast.tier.state.attached import AttachedName, MetadataPoint, epoch_of_mark

LOOKS_MAX = 3
"""How often a view is read again because the leader changed meanwhile."""


@dataclass(frozen=True, slots=True)
class AttachTerms:
    """What keeplast is asked to do with a topic, and how the cluster is called in remedies."""

    policy: frozenset[str] = frozenset({"compact"})
    address: str = "HOST:PORT"


@dataclass(slots=True)
class MetadataView:
    """One look; ``range_`` of the log as its leader has it, ``end`` of the metadata partition."""

    topic: TopicFacts
    metadata_topic: TopicFacts
    metadata_partition: int
    log: OffsetRange
    end: MetadataEnd
    folded: FoldedMetadata
    name: AttachedName
    digest: str = ""
    is_continued: bool = True
    """Whether what was seen before is still there."""
    places: dict[bytes, list[int]] = field(default_factory=dict)
    """Where values that were looked for lie, ascending."""

    @property
    def cache(self) -> PartitionCache:
        """Return what brokers know of the partition."""
        return self.folded.cache.partitions.setdefault(self.name.partition, PartitionCache())

    @property
    def point(self) -> MetadataPoint:
        """Return how far was seen."""
        return MetadataPoint(
            topic_id=self.metadata_topic.topic_id,
            partition_count=self.metadata_topic.partition_count, offset=self.end.offset,
            leader_epoch=self.end.leader_epoch, digest=self.digest,
        )  # fmt: skip

    def find(self, batch: Batch) -> OffsetRange | None:
        """Return where ``batch``, which was looked for, lies in one piece; None when nowhere."""
        first, *rest = batch.values
        for start in self.places.get(first, ()):
            if all(
                start + at in self.places.get(value, ()) for at, value in enumerate(rest, start=1)
            ):
                return OffsetRange(start, start + len(batch.values))
        return None

    def require_continued(self) -> None:
        """Raise RefusedError when the metadata topic is another one than was seen before."""
        if not self.is_continued:
            raise RefusedError(
                f"{METADATA_TOPIC} is not the one that was seen before, or has lost its end: it "
                "was restored, cloned or cut. Nothing is decided or deleted until somebody has "
                "looked, and says keeplast attach repair --accept-metadata. "
                f"partition={self.metadata_partition} end={self.end.offset}"
            )

    def require_own(self, known: Iterable[bytes], epoch: int) -> None:
        """Raise RefusedError for a segment with a compactor's mark that is not among ``known``.

        ``epoch`` is the newest of the decision log.
        """
        ids = set(known)
        marked = [each for each in self.cache.segments if is_compactors(each)]
        for each in marked:
            if each.id.segment_id not in ids or epoch_of_mark(each.broker_id) > epoch:
                raise RefusedError(
                    "a compactor announced a segment that this decision log does not know: "
                    "another one works here, or this log is an older one. Use the --store that "
                    "has it, or its backup; docs/operations/attach.md says how to go on without. "
                    f"partition={self.name} segment={encode_id(each.id.segment_id)} "
                    f"mark={each.broker_id}"
                )


def look(
    cluster: LiveCluster,
    name: AttachedName,
    terms: AttachTerms,
    seen: MetadataPoint | None = None,
    batches: Sequence[Batch] = (),
) -> MetadataView:
    """Read everything anew; ``batches`` are looked for.

    RefusedError when a rule of :mod:`keeplast.cluster.check` refuses, the cluster or the topic is
    another one, or the metadata topic cannot be followed.
    """
    for left in reversed(range(LOOKS_MAX)):
        view = _begin(cluster, name, terms, seen)
        try:
            _read(cluster, view, 0, seen, batches)
        except ConflictError:
            if not left:
                raise
            continue
        view.folded.require_sound()
        return view
    raise AssertionError("unreachable")


def look_further(cluster: LiveCluster, view: MetadataView, batches: Sequence[Batch]) -> None:
    """Read what was appended since ``view`` was read, and fold it on; errors as :func:`look`."""
    start = view.end.offset
    found = cluster.read_end(view.metadata_partition)
    if found.offset < start or found.leader_epoch < view.end.leader_epoch:
        raise UnavailableError(
            f"a leader of {METADATA_TOPIC} has less than the one before; look again. "
            f"partition={view.metadata_partition} end={found.offset} before={start}"
        )
    view.end = found
    _read(cluster, view, start, None, batches)
    view.folded.require_sound()


def _begin(
    cluster: LiveCluster, name: AttachedName, terms: AttachTerms, seen: MetadataPoint | None
) -> MetadataView:
    facts = cluster.read_facts([name.partition.topic])
    (topic,) = facts.topics
    metadata = facts.metadata_topic
    findings = list(check_cluster(facts, terms.address))
    findings += check_topic(topic, terms.policy, terms.address)
    for each in findings:
        if each.severity is Severity.REFUSES:
            raise RefusedError(
                f"{each.words}; see keeplast attach check. rule={each.rule} partition={name}"
            )
    if metadata is None:
        raise RefusedError(f"there is no {METADATA_TOPIC} any more. partition={name}")
    if facts.cluster_id != name.cluster_id or topic.topic_id != name.partition.topic_id:
        raise RefusedError(
            "the topic is another one of the same name: it was deleted and created again, or the "
            f"address is another cluster's. partition={name} cluster_id={facts.cluster_id} "
            f"topic_id={encode_id(topic.topic_id)}"
        )
    is_same = seen is not None and seen.topic_id == metadata.topic_id
    if seen is not None and is_same and seen.partition_count != metadata.partition_count:
        raise RefusedError(
            f"partitions were added to {METADATA_TOPIC}: brokers go on by the count that they were "
            "configured with, and it is not known here which of them they read. "
            "--accept-metadata does not help: restore the topic. "
            f"partition_count={metadata.partition_count} before={seen.partition_count}"
        )
    at = metadata_partition(topic.topic_id, name.partition.partition, metadata.partition_count)
    view = MetadataView(
        topic, metadata, at, cluster.read_ranges(topic)[name.partition.partition],
        cluster.read_end(at), FoldedMetadata(), name,
    )  # fmt: skip
    if seen is not None:
        view.is_continued = (
            (seen.topic_id, seen.partition_count) == (metadata.topic_id, metadata.partition_count)
            and view.end.offset >= seen.offset
            and view.end.leader_epoch >= seen.leader_epoch
        )
    return view


def _read(
    cluster: LiveCluster, view: MetadataView, start: int, seen: MetadataPoint | None,
    batches: Sequence[Batch],
) -> None:  # fmt: skip
    """Fold ``[start, end)``; ConflictError when another leader came meanwhile."""
    held = OffsetRange(start, view.end.offset)
    view.folded.ranges[view.metadata_partition] = OffsetRange(0, view.end.offset)
    wanted = {value for batch in batches for value in batch.values}

    def noted() -> Iterator[MetadataValue | int]:
        for each in cluster.read_metadata(view.metadata_partition, held):
            if isinstance(each, MetadataValue) and each.value is not None:
                if each.value in wanted:
                    view.places.setdefault(each.value, []).append(each.offset)
                if each.offset + 1 == view.end.offset:
                    view.digest = _digest(each.value)
                if seen is not None and each.offset + 1 == seen.offset:
                    view.is_continued &= _digest(each.value) == seen.digest
            yield each

    fold_values(view.folded, view.metadata_partition, noted())
    after = cluster.read_end(view.metadata_partition)
    if after.leader_epoch != view.end.leader_epoch or after.offset < view.end.offset:
        raise ConflictError(
            f"the leader of {METADATA_TOPIC} changed while it was read; look again. "
            f"partition={view.metadata_partition} epoch={view.end.leader_epoch} "
            f"now={after.leader_epoch}"
        )


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
