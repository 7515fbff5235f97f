"""What is taken from a broker's ``server.properties``, where it counts, and what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import keeplast
from keeplast.config.definitions import BY_KEY
from keeplast.config.layers import (
    FILE_BYTES_MAX,
    BrokerConfig,
    Layer,
    SettingSources,
    decode_broker_config,
    environment_layer,
    file_layer,
    flags_layer,
)
from keeplast.config.precedence import Settings
from keeplast.config.setting_rows import assumed_defaults, assumed_of_kept, assumed_sentence
from keeplast.config.sources import read_settings
from keeplast.errors import InvalidError
from keeplast.format.meta_properties import MetaProperties, encode
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import TopicConfig

SECRET = "hunter2"
PATH = "server.properties"
COMPACT = TopicConfig(frozenset({"compact"}))


def decoded(text: str) -> BrokerConfig:
    return decode_broker_config(text.encode("latin-1"), PATH)


def value(key: str, text: str, *layers: Layer, topic: str | None = "t", **more: Layer) -> object:
    settings = Settings(layers, broker=decoded(text), directory_layer=more.get("metadata"))
    return settings.effective(BY_KEY[key], topic).value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log.retention.hours=1", 3_600_000),
        ("log.retention.minutes : 2\nlog.retention.hours=1", 120_000),
        ("log.retention.hours=1\nlog.retention.ms 3", 3),
        ("log.retention.ms = -1\n", -1),
        ("log.retention.hours=-5\n", -1),
        ("log.retention.ms=1\nlog.retention.ms=\\\n   7\n", 7),
        ("#log.retention.ms=1\n!log.retention.ms=2\n", 604_800_000),
        ("retention.ms=1\n", 604_800_000),
    ],
)
def test_the_retention_that_counts_is_the_brokers(text: str, expected: int) -> None:
    assert expected == value("retention.ms", text)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio=1", 1.0),
        ("delete.retention.ms", "log.cleaner.delete.retention.ms=604800000", 604_800_000),
        ("segment.ms", "log.roll.hours=2\n", 7_200_000),
        ("segment.ms", "log.roll.hours=2\nlog.roll.ms=5\n", 5),
        ("segment.bytes", "log.segment.bytes=1048576", 1_048_576),
        ("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms=9", 9),
        ("max.message.bytes", "message.max.bytes=5", 5),
        ("cleanup.policy", "log.cleanup.policy=compact, delete", ("compact", "delete")),
        ("min.insync.replicas", "min.insync.replicas=2", 2),
        ("producer.id.expiration.ms", "producer.id.expiration.ms=4", 4),
    ],
)
def test_settings_are_known_by_the_brokers_names(key: str, text: str, expected: object) -> None:
    assert expected == value(key, text)


def test_it_is_the_weakest_source() -> None:
    text = "log.cleaner.delete.retention.ms=1\n"
    cluster = {"log.cleaner.delete.retention.ms": "2"}
    assert 1 == value("delete.retention.ms", text, file_layer("", "f"))
    assert 2 == value("delete.retention.ms", text, metadata=Layer("metadata", cluster))
    topic = Layer("metadata", cluster, topics={"t": {"delete.retention.ms": "3"}})
    assert 3 == value("delete.retention.ms", text, metadata=topic)
    flag = flags_layer(["log.cleaner.delete.retention.ms=4"])
    assert 4 == value("delete.retention.ms", text, flag, metadata=Layer("metadata", cluster))


def test_nothing_but_known_settings_is_kept_or_shown() -> None:
    text = (
        f'ssl.keystore.password={SECRET}\nlog.dirs=/x\nsasl.jaas.config=x password="{SECRET}";\n'
        f"log.cleaner.pasword={SECRET}\nsegment.ms={SECRET}\nlog.roll.hours=1\nnode.id=7\n"
    )
    found = decoded(text)
    assert {"log.roll.hours": "1"} == found.layer.cluster
    assert ({"log.roll.hours": 6}, "7") == (found.lines, found.node_id)
    assert SECRET not in repr(found)
    for broken in (f"{text}log.roll.ms=x\n", f"a=b\nssl.key.password={SECRET}\\u12x4\n"):
        with pytest.raises(InvalidError) as caught:
            decoded(broken)
        assert SECRET not in str(caught.value)
        assert SECRET not in str(caught.value.__cause__) + str(caught.value.__context__)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=b\n\nlog.roll.ms=soon\n", ["line=3", "key=log.roll.ms", "value='soon'", "correct it"]),
        ("log.retention.hours=0\n", ["line=1", "use at least 1, or -1"]),
        ("log.retention.ms=\n", ["line=1", "not a whole number"]),
        ("log.cleanup.policy=compcat", ["line=1", "any of compact, delete"]),
        ("log.roll.ms=${file:/x:y}\n", ["line=1", "config provider", "a copy of the file"]),
        ("a=b\nc=d\\u00g0\n", ["line=2", "malformed escape"]),
    ],
)
def test_an_unusable_line_is_an_error_with_its_number(text: str, words: list[str]) -> None:
    with pytest.raises(InvalidError) as caught:
        decoded(text)
    for each in (*words, PATH):
        assert each in str(caught.value)


def test_a_property_that_a_broker_ignores_is_ignored_and_named() -> None:
    own, typo = decoded("retention.ms=5\nlog.cleaner.delete.retension.ms=1\nlisteners=x\n").warnings
    assert "the broker's is log.retention.ms" in own
    assert "did you mean log.cleaner.delete.retention.ms" in typo
    assert "line=2" in typo


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no such file"):
        keeplast.broker_settings(tmp_path / "nowhere")
    (tmp_path / "large").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidError, match="larger than"):
        keeplast.broker_settings(tmp_path / "large")


def test_another_brokers_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_bytes(encode(MetaProperties(1, "c", 3)))
    file = tmp_path / "server.properties"
    for text, expected in (("node.id=3\n", 0), ("broker.id=4\n", 1), ("", 0)):
        file.write_text(text)
        sources = SettingSources(environment={}, broker_config=file)
        settings = read_settings(tmp_path, LocalFiles(), sources)
        assert expected == len(settings.warnings)


def test_python_takes_the_files_settings_below_the_topics(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.cleaner.delete.retention.ms=7\ncompression.type=lz4\nlog.roll.hours=1\n")
    static = keeplast.broker_settings(file)
    found = keeplast.topic_config({"cleanup.policy": "compact", "segment.ms": 9}, cluster=static)
    assert (7, 9) == (found.delete_retention_ms, found.segment_ms)
    assert keeplast.cleaner_config({}, cluster={"log.cleaner.backoff.ms": 3}).backoff_ms == 3


def test_unsaid_defaults_are_assumed_and_none_with_the_file() -> None:
    flags = flags_layer(["delete.retention.ms=5", "log.cleaner.min.compaction.lag.ms=0"])
    assumed = assumed_defaults(Settings((flags,)), {"t": COMPACT})
    assert {
        "compaction.strategy": "offset",
        "producer.id.expiration.ms": "86400000",
        "min.cleanable.dirty.ratio": "0.5",
    } == assumed
    sentence = assumed_sentence(assumed)
    assert "producer.id.expiration.ms=86400000 (1 d), min.cleanable.dirty.ratio=0.5;" in sentence
    assert "--broker-config" in sentence
    forced = assumed_defaults(Settings((flags,)), {"t": COMPACT}, is_forced=True)
    assert ["compaction.strategy", "producer.id.expiration.ms"] == list(forced)
    assert {} == assumed_defaults(Settings((), broker=decoded("")), {"t": COMPACT})
    assert {} == assumed_defaults(Settings(()), {})


def test_retention_is_assumed_of_what_expires_alone() -> None:
    both = TopicConfig(frozenset({"compact", "delete"}))
    found = assumed_defaults(Settings(()), {"t": both}, cleans=False)
    assert {"retention.ms": "604800000", "retention.bytes": "-1"} == found
    assert {} == assumed_defaults(Settings(()), {"t": both}, cleans=False, expires=False)
    assert {} == assumed_defaults(Settings(()), {"t": COMPACT}, cleans=False)
    kept = [{"cleanup.policy": "delete", "retention.ms": "5"}, {"cleanup.policy": "compact"}]
    assert {"retention.bytes": "-1"} == assumed_of_kept(kept, cleans=False)


def test_the_policy_of_a_topic_is_never_that_of_the_cluster() -> None:
    cluster = {"log.cleanup.policy": "compact", "log.roll.ms": 9}
    found = keeplast.topic_config({}, cluster=cluster)
    assert (frozenset({"delete"}), 9) == (found.cleanup_policy, found.segment_ms)
    said = keeplast.topic_config({"log.cleanup.policy": "compact"}, cluster=cluster)
    assert frozenset({"compact"}) == said.cleanup_policy


def test_the_cleaners_own_settings_alone_are_said_next_to_kept_partitions() -> None:
    """What the environment says of topics changes nothing in a store, and hides no default."""
    said = environment_layer(
        {
            "KEEPLAST_LOG_CLEANER_DELETE_RETENTION_MS": "5",
            "KEEPLAST_PRODUCER_ID_EXPIRATION_MS": "5",
        }
    )
    flags = flags_layer(["min.compaction.lag.ms=5"])
    found = assumed_of_kept([{"cleanup.policy": "compact"}], [flags, said], is_forced=True)
    assert ["compaction.strategy", "delete.retention.ms", "min.compaction.lag.ms"] == list(found)
