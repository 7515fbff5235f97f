"""Which settings a store takes for a topic: refused by name is what its rounds cannot do."""

from __future__ import annotations

from keeplast.cleaner.internal_topics import check_internal
from keeplast.errors import RefusedError
from keeplast.model.topic_config import TopicConfig


def check_stored(topic: str, config: TopicConfig) -> None:
    """Raise RefusedError for settings by which a round in a store would take what is needed.

    What a round there replaced stays for the grace, for readers alone: who set a time for undo
    would believe that it can be put back.
    """
    check_internal(topic, config)
    if config.undo_retention_ms:
        raise RefusedError(
            "no round in a store can be undone; leave undo.retention.ms out for what is in one. "
            f"topic={topic} undo.retention.ms={config.undo_retention_ms}"
        )
