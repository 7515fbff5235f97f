"""What a live cluster's topics are meant to be, whose own policy stays ``delete``.

The rule: brokers say nothing of compaction. What somebody says counts first, then what brokers say
of sizes and retention; a topic of which nobody says a policy is to be compacted.
"""

from __future__ import annotations

from collections.abc import Sequence

from keeplast.cluster.facts import TopicFacts
from keeplast.config.layers import Layer
from keeplast.config.settings import PolicyOrigin, Settings

BROKER_KEYS = (
    "segment.bytes", "segment.ms", "segment.index.bytes", "index.interval.bytes",
    "max.message.bytes", "retention.ms", "retention.bytes",
)  # fmt: skip
"""What brokers say of a topic that counts here too, unless somebody says otherwise."""
BROKERS_SOURCE = "the cluster"
ASSUMED_SOURCE = "keeplast, of tiered topics"


def wanted_settings(layers: Sequence[Layer], topics: Sequence[TopicFacts]) -> Settings:
    """Return what ``layers`` say of ``topics``, and beneath it what the brokers say of sizes."""
    said = Settings(layers)
    tables: dict[str, dict[str, str]] = {}
    assumed: dict[str, dict[str, str]] = {}
    for topic in topics:
        values = {key: topic.settings.get(key) for key in BROKER_KEYS}
        tables[topic.name] = {key: text for key, text in values.items() if text is not None}
        if said.policy_origin(topic.name) is PolicyOrigin.UNKNOWN:
            assumed[topic.name] = {"cleanup.policy": "compact"}
    return Settings(
        [*layers, Layer(BROKERS_SOURCE, topics=tables), Layer(ASSUMED_SOURCE, topics=assumed)]
    )
