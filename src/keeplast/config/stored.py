"""The settings of topics that a store keeps with their partitions.

A topic's partitions may have been given different ones; who asks for the topic as a whole gets an
answer where they agree in how its records rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keeplast.cleaner.internal_topics import pinned
from keeplast.config.mapping import NOTHING, topic_config
from keeplast.errors import InvalidError, RefusedError
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.objects.log_directory import LogDirectoryRecipe

KEPT_SOURCE = "kept with the partition"
"""The source of settings that a store keeps."""


def stored_topic_config(
    logs: LogDirectoryRecipe, cluster: Mapping[str, object] = NOTHING
) -> Callable[[str], TopicConfig]:
    """Return what gives the settings of a topic of a store; ``cluster`` is a broker's.

    RefusedError, when asked, for a topic whose partitions rank their records differently.
    """

    def of(topic: str) -> TopicConfig:
        found = {
            each.partition: pinned(topic, topic_config(each.settings, cluster=cluster))
            for each in logs.logs
            if each.partition.topic == topic
        }
        if not found:
            raise InvalidError(f"the topic is not in the store. topic={topic}")
        ranks = {(each.strategy, each.strategy_header) for each in found.values()}
        if len(ranks) > 1:
            raise RefusedError(
                "the partitions of the topic rank their records differently; read them one by one, "
                f"or make their settings equal with keeplast configure. topic={topic}"
            )
        return next(iter(found.values()))

    return of
