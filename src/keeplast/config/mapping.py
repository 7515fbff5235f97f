"""Typed settings for callers that have no sources: of a mapping, of a store, of attached topics.

*A mapping* gives Kafka's names to callers that have one instead of sources. No file, environment or
data directory is looked at. The same definitions, ranges and checks apply as on the command line.
Raises InvalidError; RefusedError for a key map without a usable slot.

*Attached topics* are those of a live cluster, whose own policy stays ``delete``. The rule: brokers
say nothing of compaction. What somebody says counts first, then what brokers say of sizes and
retention; a topic without a given policy is to be compacted.

*A store* keeps settings with its partitions. A topic's partitions may have been given different
ones. A caller that asks for the topic as a whole gets an answer where they agree in how its records
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from keeplast.cleaner.settings import pinned
from keeplast.cluster.live_cluster import TopicFacts
from keeplast.config.definition import value_text
from keeplast.config.layers import Layer, cluster_layer, flags_layer
from keeplast.config.precedence import PolicyOrigin, Settings
from keeplast.errors import InvalidError, RefusedError
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.tier.objects.log_directory import LogDirectoryRecipe

BROKER_POLICY = "log.cleanup.policy"
NOTHING: Mapping[str, object] = MappingProxyType({})


def topic_config(
    settings: Mapping[str, object], *, cluster: Mapping[str, object] = NOTHING
) -> TopicConfig:
    """Return the settings of a topic from Kafka's names, such as ``{"segment.bytes": 1 << 20}``.

    A broker's spelling is understood too and is weaker than the topic's. The rest are those of
    ``cluster``, under a broker's names (:func:`~keeplast.config.layers.broker_settings` reads a
    file of them), else Kafka's defaults. The policy is never that of ``cluster``: a topic whose own
    is not in ``settings`` is not compacted.
    """
    own = {key: value for key, value in cluster.items() if key != BROKER_POLICY}
    return _settings(settings, own).topic_config("")


def cleaner_config(
    settings: Mapping[str, object],
    *,
    cluster: Mapping[str, object] = NOTHING,
    key_map_bytes: int | None = None,
) -> CleanerConfig:
    """Return the settings of the cleaner from Kafka's names.

    ``key_map_bytes`` bounds the key map and beats ``log.cleaner.dedupe.buffer.size``.
    """
    return _settings(settings, cluster, key_map_bytes=key_map_bytes).cleaner_config()


def _settings(
    settings: Mapping[str, object],
    cluster: Mapping[str, object],
    *,
    key_map_bytes: int | None = None,
) -> Settings:
    given = replace(
        flags_layer(f"{key}={value_text(value)}" for key, value in settings.items()),
        source="the topic's settings",
    )
    static = cluster_layer({key: value_text(value) for key, value in cluster.items()})
    return Settings((given, static), key_map_bytes=key_map_bytes)


BROKER_KEYS = (
    "segment.bytes", "segment.ms", "segment.index.bytes", "index.interval.bytes",
    "max.message.bytes", "retention.ms", "retention.bytes",
)  # fmt: skip
"""What brokers say of a topic that counts here too, unless the caller says otherwise."""
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
            raise InvalidError(
                f"the topic is not in the store; correct its name. topic={topic}", code="K114"
            )
        ranks = {(each.strategy, each.strategy_header) for each in found.values()}
        if len(ranks) > 1:
            raise RefusedError(
                "the partitions of the topic rank their records differently; read them one by one, "
                f"or make their settings equal with keeplast configure. topic={topic}",
                code="K131",
            )
        return next(iter(found.values()))

    return of
