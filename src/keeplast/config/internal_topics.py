"""What brokers give the topics that they keep for themselves, and what nobody can say otherwise.

A broker writes ``SETTINGS`` into the own configuration of the topics that it compacts by
definition, so they count as the topic's own, after everything that the user and the directory's
metadata say. ``PINS`` count before everything that anybody says
(:mod:`keeplast.cleaner.internal_topics` says why).

Answers to ``GroupCoordinatorService.groupMetadataTopicConfigs`` and
``TransactionStateManager.transactionTopicConfigs``.
"""

from __future__ import annotations

from collections.abc import Collection

from keeplast.cleaner.internal_topics import COMPACTED_TOPICS, INTERNAL_TOPICS
from keeplast.config.definition import Scope
from keeplast.config.effective import Effective
from keeplast.config.layers import Layer

SOURCE = "Kafka's own topics"
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
PINS = {"compaction.strategy": "offset"}


def internal_layer(described: Collection[str]) -> Layer:
    """Return the settings of the internal topics that the directory does not describe itself."""
    return Layer(
        SOURCE, topics={topic: SETTINGS for topic in COMPACTED_TOPICS if topic not in described}
    )


def pinned_value(key: str, topic: str | None) -> Effective | None:
    """Return the value that a broker's own topic has whatever anybody says, None without one."""
    if topic not in INTERNAL_TOPICS or key not in PINS:
        return None
    return Effective(PINS[key], SOURCE, Scope.TOPIC, key)
