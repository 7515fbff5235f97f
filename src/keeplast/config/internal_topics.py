"""What brokers give the topics that they keep for themselves and compact by definition.

A broker writes these into the topic's own configuration when it makes the topic, so they count as
the topic's own, after everything that the user and the directory's metadata say. The metadata log
is no such topic, and neither are those of tiered storage and share groups: those are trimmed, not
compacted. Answers to ``GroupCoordinatorService.groupMetadataTopicConfigs`` and
``TransactionStateManager.transactionTopicConfigs``.
"""

from __future__ import annotations

from collections.abc import Collection

from keeplast.config.layers import Layer
from keeplast.format import consumer_offsets, transaction_state

SOURCE = "Kafka's own topics"
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
TOPICS = (consumer_offsets.TOPIC, transaction_state.TOPIC)


def internal_layer(described: Collection[str]) -> Layer:
    """Return the settings of the internal topics that the directory does not describe itself."""
    return Layer(SOURCE, topics={topic: SETTINGS for topic in TOPICS if topic not in described})
