"""Kafka's names to typed settings, for callers that have a mapping instead of sources.

No file, environment or data directory is looked at. The same definitions, ranges and checks apply
as on the command line. Raises InvalidError; RefusedError for a key map without a usable slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from keeplast.config.layers import cluster_layer, flags_layer
from keeplast.config.settings import Settings
from keeplast.config.values import value_text
from keeplast.model.topic_config import CleanerConfig, TopicConfig

BROKER_POLICY = "log.cleanup.policy"
NOTHING: Mapping[str, object] = MappingProxyType({})


def topic_config(
    settings: Mapping[str, object], *, cluster: Mapping[str, object] = NOTHING
) -> TopicConfig:
    """Return the settings of a topic from Kafka's names, such as ``{"segment.bytes": 1 << 20}``.

    A broker's spelling is understood too and is weaker than the topic's; the rest are those of
    ``cluster``, under a broker's names (:func:`~keeplast.config.broker_config.broker_settings`
    reads a file of them), else Kafka's defaults. The policy is never that of ``cluster``: a topic
    whose own is not in ``settings`` is not compacted.
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
