"""Decides which value of a setting counts, and checks the values against each other.

1. Scope comes first: a topic's own value, from any source, beats the cluster's, which beats
   Kafka's default.
2. Within a scope flags beat the environment, that beats the file, that beats what the directory
   itself knows (its ``__cluster_metadata-0``), and that what brokers give their internal topics.
3. Within one source the first spelling that is present wins (``log.roll.ms`` before
   ``log.roll.hours``).

Checks run on effective values, so that a pair such as the two lags may come from two sources.
Answers to ``LogConfig.validate`` and ``ServerTopicConfigSynonyms``; architecture 8 and 2.2 d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from keeplast.config.definitions import (
    CLUSTER_DEFINITIONS,
    TOPIC_DEFINITIONS,
    Definition,
    Scope,
    Value,
)
from keeplast.config.internal_topics import internal_layer
from keeplast.config.layers import Layer, cluster_spellings, topic_spellings, warnings_of
from keeplast.config.values import setting_value
from keeplast.errors import InvalidError, InvariantError, RefusedError
from keeplast.model.strategy import SLOT_BYTES, Strategy
from keeplast.model.topic_config import CleanerConfig, TopicConfig

DEDUPE_BYTES_PER_THREAD_MIN = 1_048_576


class PolicyOrigin(Enum):
    """Who said what a topic's policy is."""

    TOPIC = "topic"
    """A source named the topic, or the directory's metadata describe it."""
    CLUSTER = "cluster"
    """Only the cluster's default is known; the topic may have a value of its own elsewhere."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Effective:
    """A value and where it came from; ``source`` None means Kafka's default."""

    value: Value | None
    source: str | None
    scope: Scope | None = None

    @property
    def is_default(self) -> bool:
        """True when no source set it."""
        return self.source is None


class Settings:
    """All sources of one call, the strongest first."""

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        directory_layer: Layer | None = None,
        key_map_bytes: int | None = None,
    ) -> None:
        """Take user layers in order, and what the directory knows about its topics.

        ``key_map_bytes`` is the value of ``--key-map-bytes``; it beats every source.
        """
        self._user_layers = tuple(layers)
        known = () if directory_layer is None else (directory_layer,)
        described = () if directory_layer is None else directory_layer.topics
        self._layers = (*layers, *known, internal_layer(described))
        self._directory_layer = directory_layer
        self._key_map_bytes = key_map_bytes
        self.warnings: tuple[str, ...] = tuple(
            warning for layer in layers for warning in warnings_of(layer)
        )

    def topic_names(self) -> frozenset[str]:
        """Return the topics that the user's sources name."""
        return frozenset(topic for layer in self._user_layers for topic in layer.topics)

    def knows_topic(self, topic: str) -> bool:
        """Say whether the directory's metadata describe ``topic``."""
        return self._directory_layer is not None and topic in self._directory_layer.topics

    def effective(self, definition: Definition, topic: str | None) -> Effective:
        """Return the value that counts for ``topic``; None asks for the cluster's."""
        if topic is not None:
            for layer in self._layers:
                table = layer.topic(topic)
                for key in topic_spellings(definition):
                    if key in table:
                        value = setting_value(definition, table[key], key=key, source=layer.source)
                        return Effective(value, layer.source, Scope.TOPIC)
        for layer in self._layers:
            for synonym in cluster_spellings(definition):
                if synonym.key in layer.cluster:
                    value = setting_value(
                        definition,
                        layer.cluster[synonym.key],
                        key=synonym.key,
                        source=layer.source,
                        factor=synonym.factor,
                    )
                    return Effective(value, layer.source, Scope.CLUSTER)
        return Effective(definition.default, None)

    def policy_origin(self, topic: str) -> PolicyOrigin:
        """Say who decided the policy of ``topic``."""
        effective = self.effective(_TOPIC["cleanup.policy"], topic)
        if effective.scope is Scope.TOPIC or self.knows_topic(topic):
            return PolicyOrigin.TOPIC
        return PolicyOrigin.UNKNOWN if effective.is_default else PolicyOrigin.CLUSTER

    def topic_config(self, topic: str) -> TopicConfig:
        """Return the effective settings of ``topic``; InvalidError when they contradict."""
        values = {
            definition.key: self.effective(definition, topic) for definition in TOPIC_DEFINITIONS
        }
        low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
        if _number(low) > _number(high):
            raise InvalidError(
                f"min.compaction.lag.ms above max.compaction.lag.ms; lower the first or raise the "
                f"second. topic={topic} min.compaction.lag.ms={low.value} "
                f"source={low.source or 'default'} max.compaction.lag.ms={high.value} "
                f"source={high.source or 'default'}"
            )
        fields: dict[str, object] = {
            definition.field: values[definition.key].value
            for definition in TOPIC_DEFINITIONS
            if definition.field is not None
        }
        policy = fields["cleanup_policy"]
        fields["cleanup_policy"] = frozenset(policy if isinstance(policy, tuple) else ())
        strategy = Strategy(str(fields["strategy"]))
        fields["strategy"] = strategy
        if strategy is Strategy.HEADER and not fields["strategy_header"]:
            raise InvalidError(
                f"strategy header without the name of the header; set compaction.strategy.header. "
                f"topic={topic} source={values['compaction.strategy'].source or 'default'}"
            )
        return TopicConfig(**fields)  # type: ignore[arg-type]

    def cleaner_config(self) -> CleanerConfig:
        """Return the effective settings of the cleaner.

        RefusedError when the load factor or the bound leaves no usable slot (architecture 2.2 d).
        """
        values = {
            definition.key: self.effective(definition, None) for definition in CLUSTER_DEFINITIONS
        }
        dedupe = values["log.cleaner.dedupe.buffer.size"]
        threads = values["log.cleaner.threads"]
        per_thread = int(_number(dedupe)) // int(_number(threads))
        if per_thread <= DEDUPE_BYTES_PER_THREAD_MIN:
            raise InvalidError(
                f"key map of a thread is not above 1 MiB; raise the buffer, or bound the map with "
                f"--key-map-bytes. log.cleaner.dedupe.buffer.size={dedupe.value} "
                f"log.cleaner.threads={threads.value} source={dedupe.source or threads.source}"
            )
        map_bytes = self._key_map_bytes
        if map_bytes is None and not dedupe.is_default:
            map_bytes = int(_number(dedupe))
        factor = values["log.cleaner.io.buffer.load.factor"]
        check_key_map(map_bytes, _number(factor), source=factor.source)
        return CleanerConfig(
            key_map_bytes=map_bytes,
            load_factor=_number(factor),
            producer_id_expiration_ms=int(_number(values["producer.id.expiration.ms"])),
            io_bytes_per_second=_io_rate(values["log.cleaner.io.max.bytes.per.second"]),
            backoff_ms=int(_number(values["log.cleaner.backoff.ms"])),
            has_expired_rounds=values["log.cleaner.expired.rounds"].value is True,
        )


def check_key_map(map_bytes: int | None, load_factor: float, *, source: str | None) -> None:
    """Raise RefusedError unless at least one slot of the key map may be used."""
    if not 0 < load_factor <= 1:
        raise RefusedError(
            f"load factor outside (0, 1]: a full map would never end a search; use 0.9. "
            f"log.cleaner.io.buffer.load.factor={load_factor} source={source or 'default'}"
        )
    if map_bytes is None:
        return
    slots = map_bytes // SLOT_BYTES
    if int(slots * load_factor) < 1:
        raise RefusedError(
            f"key map without a usable slot: no round would end; raise --key-map-bytes, "
            f"{SLOT_BYTES} bytes a slot. key_map_bytes={map_bytes} slots={slots} "
            f"log.cleaner.io.buffer.load.factor={load_factor}"
        )


def _io_rate(effective: Effective) -> float:
    """Return the bytes a second that all workers may move; InvalidError unless above 0."""
    rate = _number(effective)
    if not rate > 0:
        raise InvalidError(
            f"a limit of no bytes at all would never let a round end; leave it out, or give a "
            f"number above 0. log.cleaner.io.max.bytes.per.second={effective.value} "
            f"source={effective.source}"
        )
    return float(rate)


def _number(effective: Effective) -> float | int:
    value = effective.value
    if not isinstance(value, int | float):
        raise InvariantError(f"a number was defined as something else. value={value!r}")
    return value


_TOPIC = {definition.key: definition for definition in TOPIC_DEFINITIONS}
