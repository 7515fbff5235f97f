from __future__ import annotations

import pytest

from keeplast.errors import CorruptError, InvariantError
from keeplast.format.identifier import decode_id, encode_id

TEXT = "lZ6vvmajTWKDBUTV6SQAtQ"
RAW = bytes.fromhex("959eafbe66a34d62830544d5e92400b5")


def test_text_and_bytes() -> None:
    assert decode_id(TEXT) == RAW
    assert encode_id(RAW) == TEXT


def test_padding_is_accepted_and_not_written() -> None:
    assert decode_id(f"{TEXT}==") == RAW


@pytest.mark.parametrize(
    "text",
    ["", "A", "lZ6vvmajTWKDBUTV6SQAt", f"{TEXT}AA", f"{TEXT}A", "+" * 22, "é" * 22, " " * 22],
)
def test_other_text_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_id(text, position=12)
    assert caught.value.position == 12


def test_other_lengths_are_our_bug() -> None:
    with pytest.raises(InvariantError):
        encode_id(RAW[:15])
