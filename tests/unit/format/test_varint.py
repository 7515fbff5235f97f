from __future__ import annotations

import pytest

from keeplast.errors import CorruptError, InvariantError
from keeplast.format.fields import (
    decode_unsigned,
    decode_varint,
    decode_varlong,
    encode_unsigned,
    encode_varint,
    encode_varlong,
)


def test_six_byte_varint_is_corrupt() -> None:
    with pytest.raises(CorruptError) as caught:
        decode_varint(bytes.fromhex("00ffffffffff01"), 1)
    assert caught.value.position == 1
    assert caught.value.found == "ffffffffff"


def test_eleven_byte_varlong_is_corrupt() -> None:
    with pytest.raises(CorruptError):
        decode_varlong(bytes.fromhex("ffffffffffffffffffff01"))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff"])
def test_varint_that_the_data_cuts_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_varint(data)
    assert f"{len(data)} bytes" == caught.value.found


def test_position_past_the_end_is_corrupt() -> None:
    with pytest.raises(CorruptError):
        decode_unsigned(b"\x01", 7)


def test_overlong_encoding_is_accepted() -> None:
    assert decode_varint(bytes.fromhex("8000")) == (0, 2)


def test_bits_that_do_not_fit_are_dropped() -> None:
    assert decode_varint(bytes.fromhex("ffffffff7f")) == (-(1 << 31), 5)
    assert decode_unsigned(bytes.fromhex("ffffffff7f")) == (-1, 5)
    assert decode_varlong(bytes.fromhex("ffffffffffffffffff7f")) == (-(1 << 63), 10)


def test_number_of_more_bits_is_our_bug() -> None:
    with pytest.raises(InvariantError):
        encode_varint(1 << 31)
    with pytest.raises(InvariantError):
        encode_varlong(1 << 63)
    with pytest.raises(InvariantError):
        encode_unsigned(1 << 32)
