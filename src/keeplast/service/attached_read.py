"""What brokers serve of a live cluster's topics, to read states from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from keeplast.attach.answers.shown_logs import find_shown_topics, naming_segments
from keeplast.attach.rounds.attached_files import ROOT
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.facts import ClusterFacts
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.config.choice import PartitionChoice
from keeplast.config.settings import Settings
from keeplast.model.partition import TopicPartition
from keeplast.service.read_place import ReadPlace, checkpoint_topic
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.objects.log_directory import LogDirectoryRecipe


def attached_read(
    client: ClusterClient,
    facts: ClusterFacts,
    log: DecisionLog | None,
    layout: RemoteLayout,
    settings: Settings,
    scope: PartitionChoice,
    checkpoint: str | None,
    where: str,
    progressed: Callable[[int], object] = lambda count: None,
) -> ReadPlace:
    """Look at a cluster once, for what of ``facts`` is in ``scope`` and for a checkpoint's topic.

    ``where`` says in messages what is read. Errors as for
    :func:`~keeplast.attach.answers.shown_logs.find_shown_topics`.
    """
    marking = checkpoint_topic(checkpoint)

    def wants(partition: TopicPartition) -> bool:
        return scope.includes(partition) or partition.topic == marking

    found = find_shown_topics(client, facts, log, layout, wants, where, progressed)
    return ReadPlace(
        {"path": str(ROOT)}, lambda _: settings.topic_config,
        shows=lambda options: options.of(found), groups=BrokerGroups(client),
        named=lambda: naming_segments(found), notes=tuple(_notes(found, has_log=log is not None)),
    )  # fmt: skip


def _notes(found: LogDirectoryRecipe, *, has_log: bool) -> Iterator[str]:
    for each in found.logs:
        if each.behind:
            yield f"{each.partition}: {each.behind}"
        if not has_log and each.told_from > each.log_start:
            yield (
                f"{each.partition}: it was compacted; how far, the decision log says (--store), "
                "and without it only the latest state can be told"
            )
