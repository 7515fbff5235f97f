"""What a user should know of settings that are accepted, worded in one place for every command.

Answers to the recommendations of KIP-280, "Public Interfaces".
"""

from __future__ import annotations

from collections.abc import Iterable

from keeplast.model.duration import duration_text
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import TopicConfig


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
