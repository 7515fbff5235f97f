"""Typed settings from a mapping of Kafka's names."""

from __future__ import annotations

import pytest

import keeplast


def test_values_may_be_typed_or_text() -> None:
    config = keeplast.topic_config(
        {"cleanup.policy": ["compact", "delete"], "segment.bytes": 1000, "segment.ms": "5"}
    )
    assert frozenset({"compact", "delete"}) == config.cleanup_policy
    assert 1000 == config.segment_bytes
    assert 5 == config.segment_ms


def test_the_same_checks_apply() -> None:
    with pytest.raises(keeplast.InvalidError):
        keeplast.topic_config({"segmnt.bytes": 1000})
    with pytest.raises(keeplast.RefusedError):
        keeplast.cleaner_config({}, key_map_bytes=10)


def test_every_public_name_can_be_imported() -> None:
    for name in keeplast.__all__:
        assert getattr(keeplast, name) is not None
    assert set(keeplast.__all__) == set(dir(keeplast))
    with pytest.raises(AttributeError):
        _ = keeplast.no_such_name
