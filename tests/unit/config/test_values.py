"""Text of values and ranges in words."""

from __future__ import annotations

import pytest

from keeplast.config.definitions import DEFINITIONS
from keeplast.config.values import setting_value, value_range, value_text, value_words

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
