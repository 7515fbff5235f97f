"""Text of values and ranges in words."""

from __future__ import annotations

import pytest

from keeplast.config.definitions import DEFINITIONS
from keeplast.config.values import setting_value, value_range, value_text

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
            value = setting_value(definition, text, key=definition.key, source="test")
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
