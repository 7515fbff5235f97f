"""Varints inside kernels; vectors of formats.md 6.1."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeplast.columns import machine
from keeplast.errors import CorruptError
from keeplast.format.fields import decode_varint, decode_varlong, encode_varlong
from tests.support.called_part import called_part

VARINTS = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    300: "d804",
    8191: "fe7f",
    8192: "808001",
    -8193: "818001",
    134217728: "8080808001",
    2**31 - 1: "feffffff0f",
    -(2**31): "ffffffff0f",
}
VARLONGS = {
    17179869183: "feffffff7f",
    17179869184: "808080808001",
    -282609: "e1bf22",
    -1073741818: "f3ffffff07",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}
INVALID = -1

read_varint = called_part(machine.read_varint)
read_varlong = called_part(machine.read_varlong)
varlong_bytes = called_part(machine.varlong_bytes)
write_varlong = called_part(machine.write_varlong)


def varint(data: bytes, *, at: int = 0, end: int | None = None) -> tuple[int, int]:
    array = np.frombuffer(bytearray(data), np.uint8)
    value, after = read_varint(array, at, len(data) if end is None else end)
    return int(value), int(after)


def varlong(data: bytes) -> tuple[int, int]:
    value, after = read_varlong(np.frombuffer(bytearray(data), np.uint8), 0, len(data))
    return int(value), int(after)


@pytest.mark.parametrize(("number", "text"), VARINTS.items())
def test_varint_reads(number: int, text: str) -> None:
    data = bytes.fromhex(text)
    expected = (number, len(data))
    assert expected == varint(data)
    assert expected == varlong(data)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *VARLONGS.items(),
        # Longer than it need be.
        (0, "8000"), (1, "828000"), (1, "8280808000"), (-64, "ff8080808000"),
    ],
)  # fmt: skip
def test_varlong_reads(number: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert (number, len(data)) == varlong(data)


@pytest.mark.parametrize(("number", "text"), [*VARINTS.items(), *VARLONGS.items()])
def test_shortest_form_is_written(number: int, text: str) -> None:
    expected = bytes.fromhex(text)
    out = np.zeros(10, np.uint8)
    after = write_varlong(out, 0, number)
    assert expected == out[:after].tobytes()
    assert len(expected) == varlong_bytes(number)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        *itertools.product([varint], [b"", b"\x80", b"\xff" * 4, b"\xff" * 5, b"\xff" * 6]),
        *itertools.product([varlong], [b"", b"\x80" * 9, b"\xff" * 10, b"\xff" * 11 + b"\x00"]),
    ],
)
def test_a_number_that_does_not_end_is_invalid(
    read: Callable[[bytes], tuple[int, int]], data: bytes
) -> None:
    assert INVALID == read(data)[1]


def test_end_is_a_wall_even_where_the_array_goes_on() -> None:
    assert INVALID == varint(b"\x80\x01\x02", end=1)[1]
    assert INVALID == varint(b"\x80\x80\x80\x01", end=3)[1]
    assert INVALID == varint(b"\x02", at=1)[1]


def test_bits_beyond_the_width_are_dropped() -> None:
    data = bytes.fromhex("ffffffff7f")
    assert (-(2**31), 5) == varint(data)
    data = bytes.fromhex("feffffffffffffffff7f")
    assert (2**63 - 1, 10) == varlong(data)


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_writing_equals_the_format(number: int) -> None:
    expected = encode_varlong(number)
    out = np.zeros(10, np.uint8)
    after = write_varlong(out, 0, number)
    assert expected == out[:after].tobytes()


@given(data=st.binary(max_size=12))
def test_reading_equals_the_format(data: bytes) -> None:
    for ours, theirs in ((varint, decode_varint), (varlong, decode_varlong)):
        try:
            expected = theirs(data, 0)
        except CorruptError:
            expected = (0, INVALID)
        assert expected == ours(data)
