"""What brokers' own topics are pinned to: what the brokers that read them do.

A group or transaction coordinator takes the last record of a key, by offset, whatever strategy a
cluster has as its default: cleaned by another one, the topic would keep an older commit than the
coordinator acted on. Kafka's topics of share groups, of tiered storage and of the metadata are
trimmed by their owners: several live records share a key there, or have none, and compaction
would lose all but the last. Topics of Connect and of Streams are their users' own.

Answers to ``GroupCoordinatorService.groupMetadataTopicConfigs``,
``TransactionStateManager.transactionTopicConfigs``,
``ShareCoordinatorService.shareGroupStateTopicConfigs`` and ``TopicBasedRemoteLogMetadataManager``.
"""

from __future__ import annotations

from dataclasses import replace

from keeplast.errors import RefusedError
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import TopicConfig

COMPACTED_TOPICS = ("__consumer_offsets", "__transaction_state")
"""What is compacted by definition, by offset and by nothing else."""
TRIMMED_TOPICS = ("__share_group_state", "__remote_log_metadata", "__cluster_metadata")
"""What is never compacted."""
PINNED_BY = "as brokers read this topic"
INTERNAL_TOPICS = frozenset(COMPACTED_TOPICS + TRIMMED_TOPICS)


def pinned(topic: str, config: TopicConfig) -> TopicConfig:
    """Return ``config`` as the readers of ``topic`` need it; another topic's is left as it is."""
    if topic not in INTERNAL_TOPICS:
        return config
    return replace(config, strategy=Strategy.OFFSET, strategy_said=(Strategy.OFFSET, PINNED_BY))


def check_internal(topic: str, config: TopicConfig) -> None:
    """Raise RefusedError when to clean ``topic`` by ``config`` would lose what its readers need."""
    if topic in TRIMMED_TOPICS and config.is_compacted:
        raise RefusedError(
            "brokers trim this topic and never compact it: its live records share keys or have "
            "none, and all but the last would go; leave compact out of its cleanup.policy. "
            f"topic={topic} cleanup.policy={','.join(sorted(config.cleanup_policy))}"
        )
    if config.is_compacted and pinned(topic, config) != config:
        raise RefusedError(
            "brokers read this topic by offset, and would find an older record than the one they "
            "acted on; leave its strategy at offset. "
            f"topic={topic} compaction.strategy={config.strategy}"
        )
