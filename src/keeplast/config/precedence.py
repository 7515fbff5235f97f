"""Decides which value of a setting counts, and checks the values against each other.

1. Scope comes first: a topic's own value, from any source, beats the cluster's, which beats Kafka's
   default.
2. Within a scope the order is: flags, the table of a named place, the settings file, the
   environment. Then the data directory's own ``__cluster_metadata-0``, a broker's
   ``server.properties``, what brokers give their internal topics. What those are pinned to beats
   everything.
3. Within one source the first spelling that is present wins (``log.roll.ms`` before
   ``log.roll.hours``).

Checks run on effective values, whichever sources they come from. So a pair such as the two lags is
caught when its second half is set. A contradiction is refused; a hazard is said
(:mod:`keeplast.cleaner.settings`). Answers to ``LogConfig.validate`` and
``ServerTopicConfigSynonyms``; architecture 8 and 2.2 d.

Brokers keep topics for themselves. A broker writes ``SETTINGS`` into the own configuration of the
topics that it compacts by definition. So they count as the topic's own, after everything that the
user and the directory's metadata say. ``PINS`` count before everything that any source says
(:mod:`keeplast.cleaner.settings` says why). Answers to
``GroupCoordinatorService.groupMetadataTopicConfigs`` and
``TransactionStateManager.transactionTopicConfigs``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from keeplast.cleaner.settings import COMPACTED_TOPICS, INTERNAL_TOPICS, PINNED_BY, find_hazards
from keeplast.config.definition import (
    Definition,
    Scope,
    Synonym,
    Value,
    cluster_spellings,
    setting_value,
    topic_spellings,
    value_text,
)
from keeplast.config.definitions import BY_KEY, CLUSTER_DEFINITIONS, TOPIC_DEFINITIONS
from keeplast.config.layers import BrokerConfig, Layer, warnings_of
from keeplast.errors import InvalidError, InvariantError
from keeplast.format.consumer_offsets import group_name
from keeplast.model.topic_config import AS_TOTAL, SLOT_BYTES, CleanerConfig, Strategy, TopicConfig
from keeplast.survey.request import usable_slots

GROUPS_MAX = 32
"""Groups that one topic's tombstones may wait for."""


class Effective(Struct, frozen=True):
    """A value and where it came from; ``source`` None means Kafka's default.

    ``key`` is the name under which the source gave it.
    """

    value: Value | None
    source: str | None = None
    scope: Scope | None = None
    key: str | None = None

    @property
    def is_default(self) -> bool:
        """True when no source set it."""
        return self.source is None

    @property
    def number(self) -> int | float:
        """The value of a setting that is a number."""
        if not isinstance(self.value, int | float):
            raise InvariantError(
                f"a number was defined as something else. value={self.value!r}", code="K901"
            )
        return self.value


def contradictions(values: Mapping[str, Effective]) -> list[str]:
    """Return a sentence with the remedy for each thing that ``values`` (by key) must not say."""
    found: list[str] = []
    if values["min.compaction.lag.ms"].number > values["max.compaction.lag.ms"].number:
        found.append(
            "min.compaction.lag.ms above max.compaction.lag.ms; lower the first or raise the "
            f"second. {_name_sources(values, 'min.compaction.lag.ms', 'max.compaction.lag.ms')}"
        )
    if values["undo.retention.ms"].number > values["max.compaction.lag.ms"].number:
        found.append(
            "undo.retention.ms above max.compaction.lag.ms: what was deleted would lie on the disk "
            "for longer than it may lie in the log; lower the first or raise the second. "
            f"{_name_sources(values, 'undo.retention.ms', 'max.compaction.lag.ms')}"
        )
    header = values["compaction.strategy.header"]
    if values["compaction.strategy"].value == "header" and not header.value:
        found.append(
            "strategy header without the name of a header; set compaction.strategy.header. "
            f"{_name_sources(values, 'compaction.strategy', 'compaction.strategy.header')}"
        )
    found += _find_no_groups(values["tombstones.wait.for.groups"])
    for unit in ("ms", "bytes"):
        local, total = f"local.retention.{unit}", f"retention.{unit}"
        if _is_tiered(values, local) and _is_longer(values[local].number, values[total].number):
            found.append(
                f"{local} above {total}: the local part is kept longer than the whole; lower it, "
                f"or say -2 to follow {total}. {_name_sources(values, local, total)}"
            )
    return found


def _find_no_groups(effective: Effective) -> list[str]:
    """Return what is wrong with the groups that are waited for."""
    groups = effective.value if isinstance(effective.value, tuple) else ()
    where = f"key=tombstones.wait.for.groups source={effective.source or 'default'}"
    if len(groups) > GROUPS_MAX:
        return [f"too many groups to wait for; name {GROUPS_MAX} at most. {where}"]
    for group in groups:
        try:
            group_name(group)
        except InvalidError as error:
            return [f"{error} {where}"]
    return []


def _is_tiered(values: Mapping[str, Effective], key: str) -> bool:
    """Say whether the local retention matters: the topic is tiered, or has a value of its own.

    A cluster's value says nothing about topics that are not tiered, in Kafka either.
    """
    return values["remote.storage.enable"].value is True or values[key].scope is Scope.TOPIC


def _is_longer(local: int | float, total: int | float) -> bool:
    if total < 0 or local == AS_TOTAL:
        return False
    return local < 0 or local > total


def _name_sources(values: Mapping[str, Effective], *keys: str) -> str:
    return " ".join(
        f"{key}={'' if values[key].value is None else values[key].value} "
        f"source={values[key].source or 'default'}"
        for key in keys
    )


SOURCE = "Kafka's own topics"
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
PINS = {"compaction.strategy": "offset"}


def internal_layer(described: Collection[str]) -> Layer:
    """Return the settings of the internal topics that the directory does not describe itself."""
    return Layer(
        SOURCE, topics={topic: SETTINGS for topic in COMPACTED_TOPICS if topic not in described}
    )


def pinned_value(key: str, topic: str | None) -> Effective | None:
    """Return the value that a broker's own topic has whatever any source says, None without one."""
    if topic not in INTERNAL_TOPICS or key not in PINS:
        return None
    return Effective(PINS[key], SOURCE, Scope.TOPIC, key)


DEDUPE_BYTES_PER_THREAD_MIN = 1_048_576
KAFKA_DEFAULT = "Kafka's default: no source says another"
"""The source of a value that no source gave."""
KEPT_KEYS = ("compaction.strategy", "delete.retention.ms", "min.compaction.lag.ms")
"""A topic's settings that decide whether a round removes a record or keeps it."""
EXPIRY_KEYS = ("retention.ms", "retention.bytes")
"""A topic's settings that decide when its oldest segments expire."""


class PolicyOrigin(Enum):
    """The source that said what a topic's policy is."""

    TOPIC = "topic"
    """A source named the topic, or the directory's metadata describe it."""
    CLUSTER = "cluster"
    """Only the cluster's default is known; the topic may have a value of its own elsewhere."""
    UNKNOWN = "unknown"


class Settings:
    """All sources of one call, the strongest first."""

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        directory_layer: Layer | None = None,
        broker: BrokerConfig | None = None,
        key_map_bytes: int | None = None,
    ) -> None:
        """Take user layers in order, what the directory knows about its topics, and a broker's
        file.

        ``key_map_bytes`` is the value of ``--key-map-bytes``; it beats every source.
        """
        self._user_layers = tuple(layers)
        known = () if directory_layer is None else (directory_layer,)
        described = () if directory_layer is None else directory_layer.topics
        static = () if broker is None else (broker.layer,)
        self._layers = (*layers, *known, *static, internal_layer(described))
        self._has_broker = broker is not None
        self._broker_source = None if broker is None else broker.layer.source
        self._directory_layer = directory_layer
        self._key_map_bytes = key_map_bytes
        # Thousands of partitions ask the same of a few topics.
        self._found: dict[tuple[str, str | None], Effective] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._cleaner: CleanerConfig | None = None
        self.warnings: tuple[str, ...] = tuple(
            warning for layer in layers for warning in warnings_of(layer)
        )
        self.warnings_of_broker = () if broker is None else broker.warnings
        self.warnings += self.warnings_of_broker

    def topic_names(self) -> frozenset[str]:
        """Return the topics that the user's sources name."""
        return frozenset(topic for layer in self._user_layers for topic in layer.topics)

    def knows_topic(self, topic: str) -> bool:
        """Say whether the directory's metadata describe ``topic``."""
        return self._directory_layer is not None and topic in self._directory_layer.topics

    def effective(self, definition: Definition, topic: str | None) -> Effective:
        """Return the value that counts for ``topic``; None asks for the cluster's."""
        asked = definition.key, topic
        if asked not in self._found:
            pin = pinned_value(definition.key, topic)
            self._found[asked] = self._find_said(definition, topic) if pin is None else pin
        return self._found[asked]

    def _find_said(self, definition: Definition, topic: str | None) -> Effective:
        if topic is not None:
            for layer in self._layers:
                table = layer.topic(topic)
                for key in topic_spellings(definition):
                    if key in table:
                        name = Synonym(key)
                        value = setting_value(
                            definition, table[key], source=layer.source, spelling=name
                        )
                        return Effective(value, layer.source, Scope.TOPIC, key)
        for layer in self._layers:
            for synonym in cluster_spellings(definition):
                if synonym.key in layer.cluster:
                    value = setting_value(
                        definition,
                        layer.cluster[synonym.key],
                        source=layer.source,
                        spelling=synonym,
                    )
                    return Effective(value, layer.source, Scope.CLUSTER, synonym.key)
        return Effective(definition.default, None)

    def policy_origin(self, topic: str) -> PolicyOrigin:
        """Return the source that decided the policy of ``topic``."""
        effective = self.effective(BY_KEY["cleanup.policy"], topic)
        if effective.scope is Scope.TOPIC or self.knows_topic(topic):
            return PolicyOrigin.TOPIC
        return PolicyOrigin.UNKNOWN if effective.is_default else PolicyOrigin.CLUSTER

    def topic_values(self, topic: str | None) -> dict[str, Effective]:
        """Return every topic setting by its own name, for ``topic`` or as the cluster's default."""
        return {
            definition.key: self.effective(definition, topic) for definition in TOPIC_DEFINITIONS
        }

    def assumed(self, topics: Iterable[str], keys: Sequence[str]) -> dict[str, str]:
        """Return those of ``keys`` that no source says for one of ``topics``, with Kafka's default.

        None with a broker's file: what that leaves out has its default on the broker too.
        """
        if self._has_broker:
            return {}
        named = list(topics)
        found: dict[str, str] = {}
        for key in keys:
            definition = BY_KEY[key]
            asked = named if definition.scope is Scope.TOPIC else [None] if named else []
            if any(self.effective(definition, topic).is_default for topic in asked):
                found[key] = value_text(definition.default)
        return found

    def borrowed(self, topic: str) -> dict[str, str]:
        """Return what decides what is kept of ``topic`` and only a broker's file says, as texts.

        What the file leaves out has Kafka's default, as on the broker. None without such a file,
        and none of a topic whose own settings the directory's metadata give.
        """
        if not self._has_broker or self.knows_topic(topic):
            return {}
        config = self._config(topic)
        keys = (*KEPT_KEYS, *EXPIRY_KEYS) if config.expires else KEPT_KEYS
        said = {key: self.effective(BY_KEY[key], topic) for key in keys}
        return {
            key: value_text(each.value)
            for key, each in said.items()
            if each.is_default or each.source == self._broker_source
        }

    def problems(self, topic: str | None) -> list[str]:
        """Return what makes the effective settings of ``topic`` unusable, a sentence each."""
        about = "" if topic is None else f" topic={topic}"
        return [f"{problem}{about}" for problem in contradictions(self.topic_values(topic))]

    def hazards(self, topic: str | None) -> list[str]:
        """Return what a user should know of the effective settings of ``topic``."""
        return [*self._find_overruled(topic), *find_hazards(topic, self._config(topic))]

    def _find_overruled(self, topic: str | None) -> list[str]:
        """Return a sentence for each thing that a source says and that cannot count."""
        found: list[str] = []
        for key in PINS:
            pin, said = pinned_value(key, topic), self._find_said(BY_KEY[key], topic)
            if pin is not None and not said.is_default and said.value != pin.value:
                found.append(
                    f"brokers read this topic by {pin.value}, and so it is cleaned: "
                    f"{said.key}={value_text(said.value)} does not count for it. "
                    f"topic={topic} source={said.source}"
                )
        return found

    def topic_config(self, topic: str) -> TopicConfig:
        """Return the effective settings of ``topic``; InvalidError when they contradict."""
        if topic not in self._configs:
            for problem in self.problems(topic):
                raise InvalidError(problem, code="K121")
            self._configs[topic] = self._config(topic)
        return self._configs[topic]

    def _config(self, topic: str | None) -> TopicConfig:
        values = self.topic_values(topic)
        fields: dict[str, object] = {
            definition.field: values[definition.key].value
            for definition in TOPIC_DEFINITIONS
            if definition.field is not None
        }
        policy = fields["cleanup_policy"]
        fields["cleanup_policy"] = frozenset(policy if isinstance(policy, tuple) else ())
        fields["strategy"] = Strategy(str(fields["strategy"]))
        said = _source_words(values["compaction.strategy"])
        fields["strategy_said"] = fields["strategy"], said
        return TopicConfig(**fields)  # type: ignore[arg-type]

    def cleaner_config(self) -> CleanerConfig:
        """Return the effective settings of the cleaner.

        RefusedError when the load factor or the bound leaves no usable slot (architecture 2.2 d).
        """
        if self._cleaner is None:
            self._cleaner = self._find_cleaner()
        return self._cleaner

    def _find_cleaner(self) -> CleanerConfig:
        values = {
            definition.key: self.effective(definition, None) for definition in CLUSTER_DEFINITIONS
        }
        dedupe = values["log.cleaner.dedupe.buffer.size"]
        threads = values["log.cleaner.threads"]
        per_thread = int(dedupe.number) // int(threads.number)
        if per_thread <= DEDUPE_BYTES_PER_THREAD_MIN:
            raise InvalidError(
                f"key map of a thread is not above 1 MiB; raise the buffer, or bound the map with "
                f"--key-map-bytes. log.cleaner.dedupe.buffer.size={dedupe.value} "
                f"log.cleaner.threads={threads.value} source={dedupe.source or threads.source}",
                code="K132",
            )
        fields: dict[str, object] = {
            definition.field: values[definition.key].value
            for definition in CLUSTER_DEFINITIONS
            if definition.field is not None
        }
        map_bytes = self._key_map_bytes
        if map_bytes is None and not dedupe.is_default:
            map_bytes = int(dedupe.number)
        factor = values["log.cleaner.io.buffer.load.factor"]
        usable_slots(map_bytes, SLOT_BYTES, factor.number, source=factor.source or "default")
        check_io_rate(values["log.cleaner.io.max.bytes.per.second"])
        return CleanerConfig(**{**fields, "key_map_bytes": map_bytes})  # type: ignore[arg-type]


def _source_words(effective: Effective) -> str:
    """Return the source that gave a value."""
    if effective.is_default:
        return KAFKA_DEFAULT
    if effective.source == SOURCE:
        return PINNED_BY
    default = ", as the cluster's default" if effective.scope is Scope.CLUSTER else ""
    return f"from {effective.source}{default}"


def check_io_rate(rate: Effective) -> None:
    """Raise InvalidError unless the bytes a second that all workers may move are above 0."""
    if not rate.number > 0:
        raise InvalidError(
            "a round would never end with a limit of no bytes. Leave it out, or give a number "
            f"above 0. log.cleaner.io.max.bytes.per.second={rate.value} "
            f"source={rate.source}",
            code="K133",
        )
