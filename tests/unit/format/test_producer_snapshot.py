from __future__ import annotations

import struct

import pytest

from keeplast.errors import CorruptError
from keeplast.format.checksum import crc32c
from keeplast.format.producer_snapshot import ENTRY_BYTES, ProducerEntry, decode, encode

ENTRIES = (
    ProducerEntry(23423, 145, 983, 37, 22, 1_700_000_000_000, -1, -1),
    ProducerEntry(1, 0, -1, -1, 0, -1, 7, 12),
)


def with_count(count: int) -> bytes:
    body = struct.pack(">i", count) + encode(ENTRIES)[10:]
    return struct.pack(">hI", 1, crc32c(body)) + body


def test_entries_read_back_in_file_order() -> None:
    data = encode(ENTRIES)

    assert len(data) == 10 + 2 * ENTRY_BYTES
    assert decode(data) == ENTRIES


def test_count_made_by_hand_is_the_encoders() -> None:
    assert encode(ENTRIES) == with_count(2)


@pytest.mark.parametrize("count", [-1, 0, 1, 3, (1 << 31) - 1])
def test_wrong_count_is_corrupt(count: int) -> None:
    with pytest.raises(CorruptError) as caught:
        decode(with_count(count))
    assert caught.value.position == 6


@pytest.mark.parametrize("size", range(10))
def test_cut_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptError):
        decode(encode(())[:size])


def test_flipped_bit_fails_the_crc() -> None:
    data = bytearray(encode(ENTRIES))
    data[40] ^= 1
    with pytest.raises(CorruptError) as caught:
        decode(data)
    assert caught.value.position == 2


def test_other_version_is_corrupt() -> None:
    with pytest.raises(CorruptError) as caught:
        decode(b"\x00\x02" + encode(ENTRIES)[2:])
    assert (caught.value.position, caught.value.expected, caught.value.found) == (0, 1, 2)
