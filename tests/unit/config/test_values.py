"""Text of values and ranges in words."""

from __future__ import annotations

import pytest

from keeplast.config.definition import setting_value, value_range, value_text, value_words
from keeplast.config.definitions import DEFINITIONS
from keeplast.errors import InvalidError

BY_KEY = {definition.key: definition for definition in DEFINITIONS}


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (5, "5"), (0.25, "0.25"), (["a", "b"], "a,b"), ([], ""), ("x", "x")],
)
def test_typed_values_become_kafkas_text(value: object, text: str) -> None:
    assert text == value_text(value)


def test_every_default_is_inside_its_own_range() -> None:
    for definition in DEFINITIONS:
        if definition.default is not None:
            text = value_text(definition.default)
            value = setting_value(definition, text, source="test")
            assert definition.default == value, definition.key


def test_ranges_in_words() -> None:
    assert "at least 14" == value_range(BY_KEY["segment.bytes"])
    assert "1 to 9, or -1" == value_range(BY_KEY["compression.gzip.level"])
    assert "any of compact, delete" == value_range(BY_KEY["cleanup.policy"])
    assert "true or false" == value_range(BY_KEY["preallocate"])
    assert "any" == value_range(BY_KEY["retention.bytes"])


def test_every_definition_says_its_trade_off_in_a_sentence() -> None:
    for definition in DEFINITIONS:
        assert definition.about.endswith("."), definition.key
        assert len(definition.about) > 20, definition.key


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("retention.ms", 604_800_000, "7 d"),
        ("retention.ms", 86_400_000, "1 d"),
        ("retention.ms", 5_400_000, "90 min"),
        ("retention.ms", 1500, ""),
        ("retention.ms", 1_000_000_000_000, "about 11574 d"),
        ("retention.ms", 0, ""),
        ("retention.ms", -1, "no limit"),
        ("local.retention.ms", -2, "as retention.ms"),
        ("max.compaction.lag.ms", (1 << 63) - 1, "no limit"),
        ("segment.bytes", 1 << 30, "1 GiB"),
        ("max.message.bytes", 1_048_588, ""),
        ("log.cleaner.dedupe.buffer.size", 134_217_728, "128 MiB"),
        ("compression.gzip.level", -1, ""),
        ("min.insync.replicas", 1024, ""),
        ("preallocate", True, ""),
    ],
)
def test_a_number_is_said_in_the_unit_that_it_is_exact_in(key: str, value: int, words: str) -> None:
    assert words == value_words(BY_KEY[key], value)


def test_a_definition_either_reaches_a_field_or_says_why_not() -> None:
    for each in DEFINITIONS:
        assert (each.field is None) == (each.idle is not None), each.key


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("retention.ms", "7d", 604_800_000),
        ("retention.ms", "7 d", 604_800_000),
        ("min.compaction.lag.ms", "90min", 5_400_000),
        ("min.compaction.lag.ms", "12h", 43_200_000),
        ("segment.ms", "30s", 30_000),
        ("segment.ms", "500 ms", 500),
        ("retention.ms", "no limit", -1),
        ("max.compaction.lag.ms", "no limit", (1 << 63) - 1),
        ("segment.bytes", "1 GiB", 1 << 30),
        ("segment.bytes", "64m", 64 << 20),
        ("retention.bytes", "1g", 1 << 30),
        ("log.cleaner.dedupe.buffer.size", "128 MiB", 128 << 20),
    ],
)
def test_a_value_is_taken_as_it_is_shown(key: str, text: str, value: int) -> None:
    assert value == setting_value(BY_KEY[key], text, source="test")


@pytest.mark.parametrize("value", [1000, 90_000, 5_400_000, 604_800_000, -1])
def test_what_is_shown_means_the_same_again(value: int) -> None:
    definition = BY_KEY["retention.ms"]
    assert value == setting_value(definition, value_words(definition, value), source="test")


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("retention.ms", "7 days", "nor a span of time such as 7d"),
        ("retention.ms", "1g", "nor a span of time such as 7d"),
        ("segment.bytes", "7d", "nor a size such as 64k"),
        ("segment.bytes", "64g", "nor a size such as 64k"),
        ("min.insync.replicas", "1k", "32 bits; correct it"),
        ("min.insync.replicas", "no limit", "32 bits; correct it"),
        ("retention.ms", "9" * 15 + "d", "not a whole number of 64 bits"),
    ],
)
def test_a_unit_of_something_else_is_a_mistake(key: str, text: str, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        setting_value(BY_KEY[key], text, source="test")


def test_a_brokers_own_file_has_plain_numbers() -> None:
    with pytest.raises(
        InvalidError, match=r"not a whole number of 64 bits; correct it\. key=reten"
    ):
        setting_value(BY_KEY["retention.ms"], "7d", source="server.properties", is_brokers=True)
