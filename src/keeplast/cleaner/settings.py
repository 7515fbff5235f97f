"""What settings entail: hazards, and what brokers' own topics are pinned to.

*Hazards* are what a user should know of settings that are accepted, worded in one place for every
command. Answers to the recommendations of KIP-280, "Public Interfaces".

*Brokers' own topics* are pinned to what the brokers that read them do. A group or transaction
coordinator takes the last record of a key, by offset, whatever strategy a cluster has as its
default. Cleaned by another one, the topic would keep an older commit than the coordinator acted on.
Kafka's topics of share groups, of tiered storage and of the metadata are trimmed by their owners.
Several live records share a key there, or have none, and compaction would lose all but the last.
Topics of Connect and of Streams are their users' own.

Answers to ``GroupCoordinatorService.groupMetadataTopicConfigs``,
``TransactionStateManager.transactionTopicConfigs``,
``ShareCoordinatorService.shareGroupStateTopicConfigs`` and ``TopicBasedRemoteLogMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from keeplast.errors import RefusedError
from keeplast.model.text import duration_text
from keeplast.model.topic_config import Strategy, TopicConfig


def find_hazards(topic: str | None, config: TopicConfig) -> tuple[str, ...]:
    """Return a sentence for each hazard of ``topic``, or of a cluster's default when it is None."""
    retention_ms = config.delete_retention_ms
    late = {
        key: value
        for key, value in (
            ("segment.ms", config.segment_ms),
            ("max.compaction.lag.ms", config.max_compaction_lag_ms),
        )
        if value >= retention_ms
    }
    if config.strategy is Strategy.OFFSET or config.keep_versioned_tombstones or not late:
        return ()
    given = " ".join(f"{key}={value}" for key, value in late.items())
    about = "" if topic is None else f" topic={topic}"
    return (
        f"with strategy {config.strategy} an older record that arrives late can bring a deleted "
        f"key back: keep {' and '.join(late)} below delete.retention.ms "
        f"({duration_text(retention_ms)}). {given} delete.retention.ms={retention_ms}{about}",
    )


def hazards_of(topics: Iterable[tuple[str, TopicConfig]]) -> tuple[str, ...]:
    """Return the hazards of compacted topics, each once however many partitions they have."""
    found = (find_hazards(topic, config) for topic, config in topics if config.is_compacted)
    return tuple(dict.fromkeys(sentence for each in found for sentence in each))


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
            "none. All but the last would go; leave compact out of its cleanup.policy. "
            f"topic={topic} cleanup.policy={','.join(sorted(config.cleanup_policy))}",
            code="K129",
        )
    if config.is_compacted and pinned(topic, config) != config:
        raise RefusedError(
            "brokers read this topic by offset, and would find an older record than the one they "
            "acted on; leave its strategy at offset. "
            f"topic={topic} compaction.strategy={config.strategy}",
            code="K129",
        )
