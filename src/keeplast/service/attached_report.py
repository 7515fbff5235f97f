"""Everything that is told of attached topics at a look: the one document of terminal and console.

Put together of brokers' announcements, offsets and the decision log where there is one; of objects
only what an outlook asks for, and none without a layout. The rule that a reader must not break:
**terminal and pages tell the same**, so that nothing is added to a document anywhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keeplast.attach.answers.shown_logs import told_from
from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT
from keeplast.clock import Clock
from keeplast.cluster.facts import ClusterFacts, OffsetRange, TopicFacts
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.metadata_log import FoldedMetadata
from keeplast.cluster.status import name_of
from keeplast.config.settings import Settings
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader
from keeplast.service.attached_outlook import PartitionOutlook, find_outlooks
from keeplast.service.attached_status import AttachedStatus, attached_status, waits_of
from keeplast.service.documents import PARTITIONS, attached_head, attached_row
from keeplast.service.tombstone_dates import PartitionTombstones, find_tombstones
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedReport:
    """The tiered topics of a live cluster; ``metadata_ends`` are how far the metadata topic was
    read, exclusive, by its partitions.

    ``told_from`` says as of which offset earlier states can be told, of every partition, and
    ``tombstones`` when they go, of those of which something is served; both are empty where no
    decision log was asked, and then ``has_log`` is not set.
    """

    cluster_id: str
    metadata_ends: Mapping[int, int]
    partitions: tuple[AttachedStatus, ...]
    outlooks: Mapping[TopicPartition, PartitionOutlook]
    has_log: bool
    told_from: Mapping[TopicPartition, int]
    tombstones: Mapping[TopicPartition, PartitionTombstones]

    def as_document(self, shown: Collection[TopicPartition] | None = None) -> dict[str, Any]:
        """Return what ``keeplast attach status --json`` prints, of ``shown`` in their order.

        None is all of them.
        """
        by_name = {each.partition: each for each in self.partitions}
        names = [each for each in (by_name if shown is None else shown) if each in by_name]
        document: dict[str, Any] = {
            **attached_head(self.cluster_id, self.metadata_ends),
            PARTITIONS: [attached_row(by_name[e].remote, by_name[e].readers) for e in names],
            "outlook": [self.outlooks[each].as_document() for each in names],
        }
        if self.has_log:
            document["told_from"] = [
                {"topic": e.topic, "partition": e.partition, "told_from": self.told_from[e]}
                for e in names
            ]
            document["tombstones"] = [
                self.tombstones[each].as_document() for each in names if each in self.tombstones
            ]
        return document


def attached_report(
    facts: ClusterFacts, ranges: Mapping[str, Sequence[OffsetRange]], folded: FoldedMetadata,
    log: DecisionLog | None, layout: RemoteLayout | None, settings: Settings, groups: GroupReader,
    clock: Clock, address: str, *, numbers: Collection[int] = (), grace_ms: int = GRACE_MS_DEFAULT,
) -> AttachedReport:  # fmt: skip
    """Return what is told of the topics of ``facts``, of their partitions ``numbers`` if any.

    ``ranges`` are those of each topic's partitions, by number; ``groups`` say how far consumers
    have read. Without a ``log`` all counts as dirty, without a ``layout`` no object is read.
    """
    caches = folded.cache.partitions
    known = () if log is None else log.partitions(facts.cluster_id)
    attached = {each.name.partition: each for each in known}
    waits = waits_of(groups, facts, settings, clock)
    chosen = [
        (topic, number)
        for topic in facts.topics
        for number in range(len(ranges[topic.name]))
        if not numbers or number in numbers
    ]
    found: list[tuple[TopicFacts, AttachedStatus, Sequence[Decision]]] = []
    told: dict[TopicPartition, int] = {}
    for topic, number in chosen:
        name, partition = name_of(topic, number), TopicPartition(topic.name, number)
        own, ends = attached.get(name), ranges[topic.name][number]
        decisions = () if log is None or own is None else log.decisions(own)
        status = attached_status(
            topic, number, ends, caches.get(name), own, decisions, waits.get(partition)
        )
        found.append((topic, status, decisions))
        if log is not None:
            cache = caches.get(name, PartitionCache())
            told[partition] = told_from(cache, log, own, log_start=ends.start)
    outlooks = find_outlooks(
        facts, folded.cache, log, layout, settings, grace_ms, clock.now_ms(), address, found
    )
    tombstones = (
        []
        if log is None
        else find_tombstones(facts, ranges, caches, log, settings, grace_ms, chosen)
    )
    return AttachedReport(
        cluster_id=facts.cluster_id,
        metadata_ends={each: held.end for each, held in sorted(folded.ranges.items())},
        partitions=tuple(status for _, status, _ in found),
        outlooks={each.partition: each for each in outlooks},
        has_log=log is not None,
        told_from=told,
        tombstones={each.partition: each for each in tombstones},
    )
