"""Which settings a store takes for a topic: refused by name is what its rounds cannot do."""

from __future__ import annotations

from keeplast.cleaner.internal_topics import check_internal
from keeplast.errors import RefusedError
from keeplast.model.topic_config import TopicConfig


def check_stored(topic: str, config: TopicConfig) -> None:
    """Raise RefusedError for settings by which a round in a store would take what is needed.

    A store has no ``__consumer_offsets`` of its own: who named groups would wait in vain, or
    believe that somebody waits for them. What a round there replaced stays for the grace, for
    readers alone: who set a time for undo would believe that it can be put back.
    """
    check_internal(topic, config)
    if config.tombstones_wait_for_groups:
        raise RefusedError(
            "rounds in a store wait for no consumer group; leave tombstones.wait.for.groups out "
            "for what is in one, and give delete.retention.ms the time that readers need. "
            f"topic={topic} "
            f"tombstones.wait.for.groups={','.join(config.tombstones_wait_for_groups)}"
        )
    if config.undo_retention_ms:
        raise RefusedError(
            "no round in a store can be undone; leave undo.retention.ms out for what is in one. "
            f"topic={topic} undo.retention.ms={config.undo_retention_ms}"
        )
