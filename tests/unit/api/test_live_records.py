"""``keeplast.LiveState``: what is no record as a broker has it is refused, and takes nothing."""

from __future__ import annotations

from typing import Any

import pytest

import keeplast
from keeplast.errors import InvalidError

SECRET = "anna-4711"


def state_of(**settings: str) -> keeplast.LiveState:
    return keeplast.LiveState(keeplast.topic_config({"cleanup.policy": "compact"} | settings))


def take(state: keeplast.LiveState, offset: int, **record: Any) -> bool:
    given: dict[str, Any] = {
        "partition": 0,
        "offset": offset,
        "timestamp_ms": 1,
        "key": b"k",
        "value": b"v",
    }
    return state.apply(**(given | record))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"key": SECRET}, "the key is not bytes"),
        ({"key": 4711}, "the key is not bytes"),
        ({"key": bytearray(b"k")}, "the key is not bytes"),
        ({"value": SECRET}, "the value is not bytes"),
        ({"value": {"name": SECRET}}, "the value is not bytes"),
    ],
)
def test_what_a_deserializer_made_is_refused_and_nothing_is_taken(
    record: dict[str, Any], words: str
) -> None:
    state = state_of()
    take(state, 0)
    with pytest.raises(InvalidError, match=words) as error:
        take(state, 1, **record)
    assert SECRET not in str(error.value)
    assert ({0: 1}, b"v") == (dict(state.positions), state[0, b"k"].value)
    assert take(state, 1, value=None)
    assert 0 == len(state)


def test_a_record_without_a_key_or_a_value_is_one() -> None:
    state = state_of()
    assert not take(state, 0, key=None)
    assert take(state, 1, key=b"")
    assert take(state, 2, key=b"", value=None)
    assert ({0: 3}, 0) == (dict(state.positions), len(state))
