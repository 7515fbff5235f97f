"""What was read of a live cluster, as values; nothing here talks to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

METADATA_TOPIC = "__remote_log_metadata"

Settings = Mapping[str, str | None]
"""Values by name; one that is not said (a password) is None."""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker, and its settings; ``unset`` names those that nobody has set: its release's own."""

    broker_id: int
    settings: Settings
    unset: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic; ``replicas`` is the least number of replicas of one of its partitions."""

    name: str
    topic_id: bytes
    partition_count: int
    replicas: int
    settings: Settings

    @property
    def is_tiered(self) -> bool:
        """Return whether its segments are copied to the remote tier."""
        return is_tiered(self.settings)


ASSUMED_OF_BROKERS = (
    f"brokers are taken to have read of a swap in {METADATA_TOPIC} when its grace is over, and its "
    "sources go then; attach collect and run ask them with --broker-metrics"
)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What a partition's leader has: from ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """A topic's id, and where each of its partitions ends, exclusive, as readers see it."""

    topic_id: bytes
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster, its brokers and topics; ``metadata_topic`` is None where there is none.

    ``accepts_untested`` says that who asked takes the risk of brokers of a release that was not
    tested.
    """

    cluster_id: str
    brokers: tuple[BrokerFacts, ...]
    topics: tuple[TopicFacts, ...]
    metadata_topic: TopicFacts | None
    accepts_untested: bool = False


@dataclass(frozen=True, slots=True)
class MetadataFault:
    """Something in the metadata topic that stands in the way; ``offset`` is where it is."""

    partition: int
    offset: int
    problem: str


def is_tiered(settings: Settings) -> bool:
    """Return whether segments of a topic with these settings are copied to the remote tier."""
    return settings.get("remote.storage.enable") == "true"
