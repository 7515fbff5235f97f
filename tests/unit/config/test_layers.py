"""What each source says, and what is refused before anything is decided."""

from __future__ import annotations

import pytest

from keeplast.config.definition import Scope, cluster_spellings, topic_spellings
from keeplast.config.definitions import DEFINITIONS
from keeplast.config.layers import (
    environment_layer,
    file_layer,
    flags_layer,
    warnings_of,
)
from keeplast.errors import InvalidError
from keeplast.model.topic_config import CleanerConfig, TopicConfig


def test_no_two_definitions_share_a_spelling() -> None:
    topic = [key for definition in DEFINITIONS for key in topic_spellings(definition)]
    cluster = [s.key for definition in DEFINITIONS for s in cluster_spellings(definition)]
    assert len(set(topic)) == len(topic)
    assert len(set(cluster)) == len(cluster)


def test_every_field_of_the_models_has_a_definition_with_the_same_default() -> None:
    topic, cleaner = TopicConfig(), CleanerConfig()
    for definition in DEFINITIONS:
        if definition.field is None or definition.field == "key_map_bytes":
            continue
        model = topic if definition.scope is Scope.TOPIC else cleaner
        default: object = definition.default
        if definition.key == "cleanup.policy":
            default = frozenset({"delete"})
        assert default == getattr(model, definition.field), definition.key


def test_the_spelling_of_a_flag_decides_its_scope() -> None:
    layer = flags_layer(["segment.bytes=100", "log.segment.bytes=200", "log.roll.hours=2"])
    assert {"segment.bytes": "100"} == layer.every_topic
    assert {"log.segment.bytes": "200", "log.roll.hours": "2"} == layer.cluster


def test_a_later_flag_beats_an_earlier_one_and_a_value_may_contain_an_equals_sign() -> None:
    layer = flags_layer(["segment.bytes=100", "segment.bytes=200"])
    assert {"segment.bytes": "200"} == layer.every_topic
    header = flags_layer(["compaction.strategy.header=a=b"])
    assert {"compaction.strategy.header": "a=b"} == header.every_topic


@pytest.mark.parametrize(
    "flag",
    [
        "segment.bytes",
        "segmnt.bytes=100",
        "segment.bytes=13",
        "segment.bytes=many",
        "segment.bytes=2147483648",
        "segment.bytes=1_000",
        "min.cleanable.dirty.ratio=1.1",
        "min.cleanable.dirty.ratio=nan",
        "min.compaction.lag.ms=-1",
        "max.compaction.lag.ms=0",
        "max.compaction.lag.ms=9223372036854775808",
        "delete.retention.ms=-1",
        "segment.ms=0",
        "log.roll.hours=0",
        "segment.index.bytes=3",
        "index.interval.bytes=-1",
        "cleanup.policy=Compact",
        "cleanup.policy=compact,purge",
        "compression.type=lzma",
        "compression.gzip.level=0",
        "compression.lz4.level=18",
        "compression.zstd.level=23",
        "message.timestamp.type=createtime",
        "preallocate=yes",
        "retention.ms=-2",
        "log.retention.hours=0",
        "log.retention.ms=0",
        "local.retention.bytes=-3",
        "log.cleaner.threads=0",
        "producer.id.expiration.ms=0",
        "compaction.strategy=newest",
        "keep.versioned.tombstones=maybe",
    ],
)
def test_an_unusable_flag_is_refused(flag: str) -> None:
    with pytest.raises(InvalidError):
        flags_layer([flag])


@pytest.mark.parametrize(
    "flag",
    [
        "segment.bytes=14",
        "cleanup.policy=",
        "cleanup.policy=delete, compact",
        "compression.gzip.level=-1",
        "compression.zstd.level=-131072",
        "min.cleanable.dirty.ratio=1",
        "min.cleanable.dirty.ratio=5e-1",
        "compaction.strategy=offset",
        "compaction.strategy=",
        "compaction.strategy=timestamp",
        "log.cleaner.compaction.strategy=header",
        "log.retention.hours=-1",
        "log.retention.ms=-7",
        "keep.versioned.tombstones=true",
        "leader.replication.throttled.replicas=*",
        "remote.storage.enable=TRUE",
        "local.retention.ms=-2",
        "internal.segment.bytes=1000",
    ],
)
def test_a_value_at_the_edge_of_its_range_is_accepted(flag: str) -> None:
    flags_layer([flag])


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidError, match=r"delete\.retention\.ms"):
        flags_layer(["delete.retenton.ms=1"])


def test_a_variable_of_the_environment_is_about_the_cluster() -> None:
    layer = environment_layer(
        {"KEEPLAST_LOG_SEGMENT_BYTES": "200", "KEEPLAST_SEGMENT_MS": "5", "PATH": "/bin"}
    )
    assert {"log.segment.bytes": "200", "segment.ms": "5"} == layer.cluster
    assert {} == layer.every_topic


def test_an_unknown_variable_with_the_prefix_is_refused_and_the_cache_folder_is_not() -> None:
    with pytest.raises(InvalidError, match="KEEPLAST_LOG_SEGMENT_BYTES"):
        environment_layer({"KEEPLAST_LOG_SEGMNT_BYTES": "200"})
    assert {} == environment_layer({"KEEPLAST_CACHE_DIR": "/somewhere"}).cluster


def test_a_file_may_quote_its_keys_or_not() -> None:
    layer = file_layer(
        """
        [cluster]
        log.segment.bytes = 200
        "log.preallocate" = true
        [topic."a.b"]
        "cleanup.policy" = ["compact", "delete"]
        min.cleanable.dirty.ratio = 0.25
        """,
        "keeplast.toml",
    )
    assert {"log.segment.bytes": "200", "log.preallocate": "true"} == layer.cluster
    assert {
        "a.b": {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.25"}
    } == layer.topics


@pytest.mark.parametrize(
    "text",
    [
        "segment.bytes = ",
        "[topics.a]\nsegment.bytes = 100",
        "cluster = 3",
        "topic = 3",
        "[topic]\na = 3",
        "[cluster]\nlog.segmnt.bytes = 3",
        "[topic.a]\nsegmnt.bytes = 3",
        "[topic.a]\nlog.segment.bytes = 300",
        "[topic.a]\nproducer.id.expiration.ms = 300",
        "[topic.a]\nsegment.bytes = 2020-01-01",
    ],
)
def test_an_unusable_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match=r"keeplast\.toml"):
        file_layer(text, "keeplast.toml")


def test_keys_without_effect_are_accepted_and_said_so() -> None:
    layer = flags_layer(["segment.jitter.ms=5", "segment.bytes=500", "log.cleaner.threads=2"])
    warned = warnings_of(layer)
    assert ["segment.jitter.ms", "log.cleaner.threads"] == [
        word.removeprefix("key=") for line in warned for word in line.split() if "key=" in word
    ]
