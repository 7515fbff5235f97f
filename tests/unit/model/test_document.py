"""What values are encoded to in the documents of commands."""

from __future__ import annotations

import json
from enum import Enum, IntEnum, StrEnum
from pathlib import Path

import pytest
from msgspec import Struct

from keeplast.model.document import JSON_VERSION, document_of, encode, shown_fields


class Word(StrEnum):
    HOLDS = "holds"


class Number(IntEnum):
    TWO = 2


class Plain(Enum):
    OLD = "old"


class Inner(Struct, frozen=True):
    key: bytes
    path: Path


class Outer(Struct, frozen=True):
    word: Word
    inner: tuple[Inner, ...]
    secret: str = "not shown"

    def as_document(self) -> dict[str, object]:
        return {**shown_fields(self, "secret"), "more": {1: Number.TWO}}


def test_a_value_is_encoded_by_its_fields_or_as_it_says_itself() -> None:
    found = document_of(Outer(Word.HOLDS, (Inner(b"\x00k", Path("a/b")),)))
    expected = {
        "version": JSON_VERSION,
        "word": "holds",
        "inner": [{"key": "006b", "path": "a/b"}],
        "more": {"1": 2},
    }
    assert expected == found
    assert list(expected) == list(found)
    assert expected == json.loads(json.dumps(found))


@pytest.mark.parametrize(
    ("expected", "value"),
    [(None, None), (True, True), (1.5, 1.5), ("old", Plain.OLD), ([1, None], (1, None))],
)
def test_plain_values_are_themselves(expected: object, value: object) -> None:
    assert expected == encode(value)
    assert type(expected) is type(encode(value))


@pytest.mark.parametrize("value", [object(), ValueError("x"), Inner, {1, 2}])
def test_what_no_document_shows_is_a_defect(value: object) -> None:
    with pytest.raises(TypeError, match="no document shows"):
        encode(value)
