from __future__ import annotations

import pytest

from keeplast.errors import CorruptError
from keeplast.format.checkpoint import decode_offsets, encode_offsets
from keeplast.model.partition import TopicPartition

OFFSETS = {TopicPartition("t", 0): 100, TopicPartition("u.v-w", 12): (1 << 63) - 1}


def test_offsets_read_back() -> None:
    data = encode_offsets(OFFSETS)

    assert data == b"0\n2\nt 0 100\nu.v-w 12 9223372036854775807\n"
    assert decode_offsets(data) == OFFSETS


def test_no_offsets() -> None:
    assert encode_offsets({}) == b"0\n0\n"
    assert decode_offsets(b"0\n0\n") == {}


def test_empty_file_has_no_entries() -> None:
    assert decode_offsets(b"") == {}
    assert decode_offsets(b"0\n") == {}


@pytest.mark.parametrize(
    "data",
    [b"0\n1\nt 0 100", b"0\r\n1\r\nt 0 100\r\n", b"0\n1\nt \t 0   100  \n", b"+0\r1\rt 0 +100"],
)
def test_spelling_that_java_accepts(data: bytes) -> None:
    assert {TopicPartition("t", 0): 100} == decode_offsets(data)


def test_last_line_of_a_repeated_partition_counts() -> None:
    assert {TopicPartition("t", 0): 2} == decode_offsets(b"0\n2\nt 0 1\nt 0 2\n")


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"1\n0\n", 0),
        (b"x\n0\n", 0),
        (b"\n0\n", 0),
        (b"0\nx\n", 2),
        (b"0\n2\nt 0 1\n", 2),
        (b"0\n0\nt 0 1\n", 2),
        (b"0\n-1\n", 2),
        (b"0\n1\nt 0\n", 4),
        (b"0\n1\nt 0 1 2\n", 4),
        (b"0\n1\n t 0 1\n", 4),
        (b"0\n1\nt 0 1\n\n", 10),
        (b"0\n1\nt 0 9223372036854775808\n", 4),
        (b"0\n1\nt 2147483648 0\n", 4),
        (b"0\n1\nt 0 1_0\n", 4),
        ("0\n2\né 0 1\nt 0 ٣\n".encode(), 11),
        (b"0\n1\n\xff 0 1\n", 4),
    ],
)
def test_anything_else_is_corrupt_and_names_its_line(data: bytes, position: int) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_offsets(data)
    assert position == caught.value.position
    assert caught.value.expected is not None
    assert caught.value.found is not None
