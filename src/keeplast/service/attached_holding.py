"""Adds holds to a live cluster's topics: for ``hold add`` and programs."""

from __future__ import annotations

from collections.abc import Sequence

from keeplast.attach.answers.holds import AttachedHolds, HeldCluster
from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.clock import Clock
from keeplast.cluster.facts import ClusterFacts
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.status import name_of
from keeplast.config.settings import Settings
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.run.holds import choose_partitions
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName


def hold_topics(
    cluster: HeldCluster,
    facts: ClusterFacts,
    log: DecisionLog,
    layout: RemoteLayout,
    settings: Settings,
    clock: Clock,
    topics: Sequence[str],
    partitions: Sequence[int],
    name: str,
    point: HoldPoint,
    max_age_ms: int,
    *,
    address: str,
) -> tuple[Hold, ...]:
    """Hold ``partitions`` of ``topics``, all without a number, at ``point``; all or none.

    ``address`` is the cluster's, as people type it. Errors as for
    :meth:`~keeplast.attach.answers.holds.AttachedHolds.add`; InvalidError also for what is not
    there.
    """
    there = {
        TopicPartition(topic.name, number): topic
        for topic in facts.topics
        for number in range(topic.partition_count)
    }
    chosen = [
        (
            AttachedName(facts.cluster_id, name_of(there[each], each.partition)),
            AttachTerms(settings.topic_config(each.topic).cleanup_policy, address),
        )
        for each in choose_partitions(there, topics, partitions, "the cluster")
    ]
    return AttachedHolds(cluster, log, layout, clock).add(chosen, name, point, max_age_ms)
