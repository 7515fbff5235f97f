"""The one form of a signed statement, and the keyed hash that keys have in it."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from keeplast.errors import InvalidError
from keeplast.model.erasure_request import KeyHasher, read_statement, statement_bytes

STATEMENT = {"b": [1, None, "é"], "a": {"z": "", "y": True}}


def test_written_bytes_are_read() -> None:
    assert STATEMENT == read_statement(statement_bytes(STATEMENT))


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(STATEMENT).encode(),
        statement_bytes(STATEMENT).replace(b"\\u00e9", "é".encode()),
        statement_bytes(STATEMENT)[:-1],
        statement_bytes(STATEMENT) + b"\n",
        statement_bytes(STATEMENT).replace(b'"a": {', b'"a": 7,\n "a": {'),
        statement_bytes(STATEMENT)[:40],
        b"[1]\n",
        b"[" * 100_000,
        b"\xff",
        b"",
    ],
    ids=[
        "spaces",
        "letters",
        "no end",
        "more end",
        "twice",
        "cut",
        "list",
        "deep",
        "bytes",
        "none",
    ],
)
def test_any_other_form_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidError):
        read_statement(data)


def test_a_hash_is_an_hmac_of_the_key_and_of_nothing_else() -> None:
    hasher = KeyHasher(b"k" * 32)
    expected = hmac.new(b"k" * 32, b"keeplast erasure key\nanna", hashlib.sha256).hexdigest()
    assert expected == hasher.hash_of(b"anna")
    assert hasher.check != KeyHasher(b"l" * 32).check
    assert "kkk" not in repr(hasher)


@pytest.mark.parametrize("size", [0, 31, 4097])
def test_a_hash_key_that_could_be_guessed_is_refused(size: int) -> None:
    with pytest.raises(InvalidError, match="32 to 4096 bytes"):
        KeyHasher(b"k" * size)
