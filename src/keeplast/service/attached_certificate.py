"""What an erasure certificate says of attached topics: the remote tier of a live cluster.

Brokers keep what they serve on their own disks too, and may upload it anew: nothing of that is
searched, and it is said. The decision log's epoch of a partition and the end of the metadata topic
only grow: lower ones are of what came back from a backup.
"""

from __future__ import annotations

from keeplast.cluster.facts import ClusterFacts, TopicFacts
from keeplast.cluster.metadata_log import FoldedMetadata
from keeplast.cluster.status import name_of
from keeplast.format.identifier import encode_id
from keeplast.format.murmur2 import metadata_partition
from keeplast.model.partition import TopicPartition
from keeplast.service.certificate import ATTACHED, NOT_SEARCHED, CertifiedPlace
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName

SEARCHED_IN_TIER = (
    "every batch of every segment of the remote tier that brokers serve, decompressed, up to "
    "searched_to",
    "segments that were copied or made, whose place others have taken, and that are not collected",
    "the list of the partitions' objects: none is there that was not searched and begins below "
    "searched_to",
)
NOT_SEARCHED_OF_ATTACHED = (
    "brokers' local logs, which have more than the remote tier serves, and what brokers upload of "
    "them later, also below searched_to",
    "brokers' and plugins' caches of segments and indexes",
    "objects in the tier's place with names that the plugin does not use, and uploads that were "
    "given up",
    "the decision log's database, its logs and its backups",
)


def attached_place(facts: ClusterFacts, folded: FoldedMetadata, log: DecisionLog) -> CertifiedPlace:
    """Return what is said of topics, before they are searched: what is found then is no older."""
    found = [(topic, number) for topic in facts.topics for number in range(topic.partition_count)]
    return CertifiedPlace(
        {
            "kind": ATTACHED, "cluster_id": facts.cluster_id, "directory_id": None,
            "node_id": None, "decision_log": log.store_id(),
        },
        SEARCHED_IN_TIER,
        (*NOT_SEARCHED, *NOT_SEARCHED_OF_ATTACHED),
        {TopicPartition(t.name, number): encode_id(t.topic_id) for t, number in found},
        {TopicPartition(t.name, n): _epoch(facts, log, t, n) for t, n in found},
        {TopicPartition(t.name, n): _metadata_end(facts, folded, t, n) for t, n in found},
    )  # fmt: skip


def _epoch(facts: ClusterFacts, log: DecisionLog, topic: TopicFacts, number: int) -> int:
    """Return at which epoch a partition was claimed last, 0 where it never was."""
    held = log.find(AttachedName(facts.cluster_id, name_of(topic, number)))
    return 0 if held is None else held.epoch


def _metadata_end(
    facts: ClusterFacts, folded: FoldedMetadata, topic: TopicFacts, number: int
) -> int:
    if facts.metadata_topic is None:
        return 0
    at = metadata_partition(topic.topic_id, number, facts.metadata_topic.partition_count)
    return folded.ranges[at].end
