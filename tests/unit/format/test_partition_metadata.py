from __future__ import annotations

import pytest

from keeplast.errors import CorruptError
from keeplast.format.partition_metadata import PartitionMetadata, decode, encode

DATA = b"version: 0\ntopic_id: lZ6vvmajTWKDBUTV6SQAtQ"
METADATA = PartitionMetadata(bytes.fromhex("959eafbe66a34d62830544d5e92400b5"))


def test_file_of_the_specification() -> None:
    assert decode(DATA) == METADATA
    assert encode(METADATA) == DATA


@pytest.mark.parametrize(
    "data",
    [DATA + b"\n", DATA + b"\r\nmore: x\n", DATA.replace(b"\n", b"\r\n"), DATA + b"\n\xff\xfe"],
)
def test_line_ends_and_further_lines_do_not_matter(data: bytes) -> None:
    assert decode(data) == METADATA


def test_later_version_is_accepted() -> None:
    assert decode(DATA.replace(b"0", b"3", 1)).version == 3


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"", 0),
        (b"version: 0", 11),
        (b"version: -1\n", 0),
        (b"version:0\n", 0),
        (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 11),
        (b"version: 0\ntopic_id: short", 11),
        (b"\xff" * 10_000, 0),
    ],
)
def test_anything_else_is_corrupt(data: bytes, position: int) -> None:
    with pytest.raises(CorruptError) as caught:
        decode(data)
    assert position == caught.value.position
