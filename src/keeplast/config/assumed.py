"""Which of Kafka's defaults a call rests on because nobody says what the broker's are.

A broker keeps its cluster's settings in ``server.properties``, which lies elsewhere. A default that
is taken in its place can remove something early, or clean what should wait; so it is said, once a
call and as short as can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from keeplast.config.definition import Scope
from keeplast.config.definitions import BY_KEY, CLUSTER_KEYS
from keeplast.config.layers import Layer, flags_layer
from keeplast.config.settings import EXPIRY_KEYS, Settings
from keeplast.config.values import value_words
from keeplast.model.topic_config import TopicConfig

ROUND_KEYS = (
    "compaction.strategy", "delete.retention.ms", "min.compaction.lag.ms",
    "producer.id.expiration.ms",
)  # fmt: skip
"""What decides which record stays in a round, and when something may go or must stay."""
RATIO_KEY = "min.cleanable.dirty.ratio"


def assumed_defaults(
    settings: Settings,
    topics: Mapping[str, TopicConfig],
    *,
    is_forced: bool = False,
    cleans: bool = True,
    expires: bool = True,
) -> dict[str, str]:
    """Return the defaults, as Kafka's texts by key, that no source says of one of ``topics``.

    ``cleans`` and ``expires`` are what the call does; ``is_forced`` says that it asks for no ratio.
    """
    compacted = [topic for topic, config in topics.items() if config.is_compacted] if cleans else []
    expiring = [topic for topic, config in topics.items() if config.expires] if expires else []
    keys = ROUND_KEYS if is_forced else (*ROUND_KEYS, RATIO_KEY)
    return settings.assumed(compacted, keys) | settings.assumed(expiring, EXPIRY_KEYS)


def assumed_of_kept(
    kept: Iterable[Mapping[str, str]],
    layers: Sequence[Layer] = (),
    *,
    is_forced: bool = False,
    cleans: bool = True,
    expires: bool = True,
) -> dict[str, str]:
    """Return the same of partitions by the settings that a store keeps with each of them.

    ``layers`` are what else is said, the strongest first. Of them the cleaner's own settings count:
    those of topics act by what is kept with a partition, and by a broker's file.
    """
    found: dict[str, str] = {}
    beside = [of_the_cleaner(layer) for layer in layers]
    for texts in {tuple(sorted(each.items())): None for each in kept}:
        own = flags_layer(f"{key}={text}" for key, text in texts)
        settings = Settings((own, *beside))
        found |= assumed_defaults(
            settings, {"": settings.topic_config("")},
            is_forced=is_forced, cleans=cleans, expires=expires,
        )  # fmt: skip
    return found


def of_the_cleaner(layer: Layer) -> Layer:
    """Return what a layer says of settings that no topic has."""
    cluster = {
        key: text
        for key, text in layer.cluster.items()
        if CLUSTER_KEYS[key][0].scope is Scope.CLUSTER
    }
    return Layer(layer.source, cluster)


def assumed_sentence(assumed: Mapping[str, str]) -> str:
    """Return what people are told of defaults, which are at least one."""
    values = []
    for key, text in assumed.items():
        words = value_words(BY_KEY[key], BY_KEY[key].default)
        values.append(f"{key}={text} ({words})" if words else f"{key}={text}")
    return (
        f"Kafka's defaults are assumed, no source says otherwise: {', '.join(values)}; "
        "--broker-config FILE reads the broker's"
    )
