"""What values must not say together, and what a user reads of them.

LC ids are those of Kafka's LogConfigTest, KafkaConfigTest and DynamicBrokerConfigTest (cleaning.md
section 8.6).
"""

from __future__ import annotations

import pytest

from keeplast.config.definition import (
    Definition,
    Scope,
    Synonym,
    ValueType,
    cluster_spellings,
    value_text,
)
from keeplast.config.definitions import TOPIC_DEFINITIONS
from keeplast.config.layers import file_layer, flags_layer
from keeplast.config.precedence import Effective, Settings, contradictions
from keeplast.errors import InvalidError
from keeplast.model.topic_config import Strategy


def values_of(**changed: object) -> dict[str, Effective]:
    """Return the defaults, with the topic's own values for keys that are written with ``_``."""
    values = {each.key: Effective(each.default) for each in TOPIC_DEFINITIONS}
    for name, value in changed.items():
        key = name.replace("_", ".")
        assert key in values
        values[key] = Effective(value, "test", Scope.TOPIC, key)  # type: ignore[arg-type]
    return values


def settings(*flags: str, file: str = "") -> Settings:
    return Settings((flags_layer(flags), file_layer(file, "keeplast.toml")))


def test_the_defaults_contradict_nothing() -> None:
    assert [] == contradictions(values_of())


def test_lc01_a_least_lag_above_the_largest_is_refused() -> None:
    (problem,) = contradictions(values_of(min_compaction_lag_ms=200, max_compaction_lag_ms=100))
    assert "min.compaction.lag.ms=200" in problem
    assert "max.compaction.lag.ms=100" in problem
    assert [] == contradictions(values_of(min_compaction_lag_ms=100, max_compaction_lag_ms=100))


def test_what_is_kept_for_undo_may_not_outlast_the_greatest_lag() -> None:
    (problem,) = contradictions(values_of(undo_retention_ms=101, max_compaction_lag_ms=100))
    assert "undo.retention.ms=101" in problem
    assert [] == contradictions(values_of(undo_retention_ms=100, max_compaction_lag_ms=100))


@pytest.mark.parametrize(
    "setting",
    [
        "cleanup.policy=true",
        "cleanup.policy=foobar",
        "min.cleanable.dirty.ratio=not_a_number",
        "min.cleanable.dirty.ratio=-0.1",
        "min.cleanable.dirty.ratio=1.2",
        *(
            f"{key}={text}"
            for key in (
                "min.compaction.lag.ms",
                "max.compaction.lag.ms",
                "delete.retention.ms",
                "segment.ms",
                "segment.bytes",
                "segment.index.bytes",
                "index.interval.bytes",
                "max.message.bytes",
                "file.delete.delay.ms",
                "flush.messages",
                "flush.ms",
                "message.timestamp.before.max.ms",
                "message.timestamp.after.max.ms",
            )
            for text in ("not_a_number", "-1")
        ),
        "retention.bytes=not_a_number",
        "retention.ms=not_a_number",
        "retention.ms=-2",
        "min.insync.replicas=0",
    ],
)
def test_lc02_a_value_that_kafka_refuses_is_refused(setting: str) -> None:
    with pytest.raises(InvalidError, match=setting.partition("=")[0]):
        flags_layer([setting])


@pytest.mark.parametrize("policy", ["compact", "delete,compact", "compact,delete", "delete"])
def test_lc03_remote_storage_goes_with_every_policy(policy: str) -> None:
    """A broker refuses all but the last; architecture 2.2 h, differences.md."""
    config = settings(f"cleanup.policy={policy}", "remote.storage.enable=true").topic_config("t")
    assert frozenset(policy.split(",")) == config.cleanup_policy


@pytest.mark.parametrize(
    "setting",
    [
        "log.cleaner.dedupe.buffer.size=not_a_number",
        "log.cleaner.dedupe.buffer.size=1024",
        "log.cleaner.min.cleanable.ratio=not_a_number",
        "log.cleaner.min.compaction.lag.ms=not_a_number",
        "log.cleaner.max.compaction.lag.ms=not_a_number",
        "log.cleaner.delete.retention.ms=not_a_number",
        "log.cleaner.enable=not_a_boolean",
        "log.retention.ms=0",
        "log.cleanup.policy=delete,purge",
    ],
)
def test_lc04_a_brokers_value_that_kafka_refuses_is_refused(setting: str) -> None:
    with pytest.raises(InvalidError, match=setting.partition("=")[0]):
        settings(setting).cleaner_config()


@pytest.mark.parametrize(
    ("definition", "name"),
    [(each, name) for each in TOPIC_DEFINITIONS for name in cluster_spellings(each)],
    ids=lambda value: str(value.key),
)
def test_lc05_every_name_of_a_broker_gives_its_topics_their_default(
    definition: Definition, name: Synonym
) -> None:
    text, expected = "2", value_text(2 * name.factor)
    if definition.minimum is not None and definition.minimum > 2:
        text = expected = value_text(definition.minimum)
    elif definition.maximum is not None and definition.maximum < 2:
        text = expected = "0.25"
    elif definition.choices is not None:
        text = expected = definition.choices[0]
    elif definition.type is ValueType.BOOLEAN:
        text = expected = value_text(not definition.default)
    found = settings(file=f'[cluster]\n"{name.key}" = "{text}"').effective(definition, "t")
    assert (Scope.CLUSTER, name.key) == (found.scope, found.key)
    assert expected == value_text(found.value)


def test_a_strategy_in_other_letters_is_the_same_and_a_header_keeps_its_own() -> None:
    config = settings("compaction.strategy=HeaDer", "compaction.strategy.header=Ver")
    assert Strategy.HEADER is config.topic_config("t").strategy
    assert "Ver" == config.topic_config("t").strategy_header


def test_an_empty_strategy_of_a_topic_is_offset_and_an_absent_one_the_clusters() -> None:
    file = '[topic.empty]\n"compaction.strategy" = ""\n[topic.absent]\n'
    chosen = settings("log.cleaner.compaction.strategy=Timestamp", file=file)
    assert Strategy.OFFSET is chosen.topic_config("empty").strategy
    assert Strategy.TIMESTAMP is chosen.topic_config("absent").strategy


@pytest.mark.parametrize("name", [None, ""])
def test_strategy_header_needs_the_name_of_a_header(name: str | None) -> None:
    values = values_of(compaction_strategy="header", compaction_strategy_header=name)
    (problem,) = contradictions(values)
    assert "compaction.strategy.header" in problem
    values["compaction.strategy.header"] = Effective("ver", "test", Scope.CLUSTER)
    assert [] == contradictions(values)


@pytest.mark.parametrize(
    ("local", "total", "is_refused"),
    [
        (100, 100, False),
        (101, 100, True),
        (-1, 100, True),
        (-2, 100, False),
        (101, -1, False),
        (-1, -1, False),
    ],
)
@pytest.mark.parametrize("unit", ["ms", "bytes"])
def test_local_retention_is_at_most_the_total(
    unit: str, local: int, total: int, is_refused: bool
) -> None:
    values = values_of()
    values[f"retention.{unit}"] = Effective(total, "test", Scope.CLUSTER)
    values[f"local.retention.{unit}"] = Effective(local, "test", Scope.TOPIC)
    assert is_refused == bool(contradictions(values))


def test_a_clusters_local_retention_is_about_tiered_topics_only() -> None:
    values = values_of(retention_ms=100)
    values["local.retention.ms"] = Effective(200, "test", Scope.CLUSTER)
    assert [] == contradictions(values)
    values["remote.storage.enable"] = Effective(True, "test", Scope.TOPIC)
    assert 1 == len(contradictions(values))


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("", None),
        ("billing", None),
        (" billing , search ", None),
        ("billing,", "not the name of a consumer group"),
        ("x" * (1 << 15), "not the name of a consumer group"),
        (",".join(f"g{number}" for number in range(33)), "name 32 at most"),
    ],
)
def test_groups_that_are_waited_for_have_names(groups: str, said: str | None) -> None:
    found = settings("tombstones.wait.for.groups=" + groups)
    if said is None:
        expected = tuple(each.strip() for each in groups.split(",") if each)
        assert expected == found.topic_config("t").tombstones_wait_for_groups
        return
    with pytest.raises(InvalidError, match=said) as error:
        found.topic_config("t")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("wait", ["-1", "367d"])
def test_a_wait_for_readers_has_an_end(wait: str) -> None:
    with pytest.raises(InvalidError, match="0 to 31622400000"):
        settings("tombstones.wait.max.ms=" + wait).topic_config("t")
