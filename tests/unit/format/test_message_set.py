from __future__ import annotations

import struct

import pytest

from keeplast.errors import CorruptError
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.message_set import Entry, read_batches, read_entries, valid_bytes
from keeplast.format.record import Record
from tests.support.legacy_sets import encode_message_set

ZERO = encode_message_set([Record(0, -1, b"a", b"1")], magic=0)
ONE = encode_message_set(
    [Record(1, 5, b"b", b"2"), Record(2, 6, b"c", b"3")], magic=1, codec=Codec.LZ4
)
TWO = encode_batch([Record(3, 7, b"d", b"4")], leader_epoch=9)
LOG = ZERO + ONE + TWO


def test_entries_of_all_magics_are_read_in_order() -> None:
    batches = list(read_batches(LOG, base_position=1000))

    assert [batch.magic for batch in batches] == [0, 1, 2]
    assert [1000, 1000 + len(ZERO), 1000 + len(ZERO + ONE)] == [b.position for b in batches]
    assert [len(ZERO), len(ONE), len(TWO)] == [batch.size_bytes for batch in batches]
    assert [record.key for b in batches for record in b.records()] == [b"a", b"b", b"c", b"d"]
    assert [batch.leader_epoch for batch in batches] == [-1, -1, 9]


def test_entries_are_found_by_their_prefix() -> None:
    first, second = len(ZERO), len(ZERO + ONE)
    expected = [Entry(0, first, 0), Entry(first, second, 1), Entry(second, len(LOG), 2)]

    assert expected == list(read_entries(LOG))


def test_empty_data_has_no_entries() -> None:
    assert list(read_batches(b"")) == []
    assert valid_bytes(b"") == 0


@pytest.mark.parametrize("size", [1, 17])
def test_fewer_than_18_bytes_are_the_end(size: int) -> None:
    # 17 bytes of zeros would be an entry that is too small, if they were looked at.
    data = LOG + bytes(size)

    assert len(list(read_batches(data))) == 3
    assert len(LOG) == valid_bytes(data)


@pytest.mark.parametrize("cut", [1, 5, len(TWO) - 18])
def test_entry_that_reaches_past_the_end_is_the_end(cut: int) -> None:
    assert len(list(read_batches(LOG[:-cut]))) == 2
    assert len(ZERO + ONE) == valid_bytes(LOG[:-cut])


def test_zeros_after_the_last_entry_are_corrupt() -> None:
    with pytest.raises(CorruptError) as caught:
        list(read_batches(LOG + bytes(18), base_position=50))
    assert (50 + len(LOG), 0) == (caught.value.position, caught.value.found)
    with pytest.raises(CorruptError):
        valid_bytes(LOG + bytes(18))


@pytest.mark.parametrize("magic", [3, 127, -1, -128])
def test_unknown_magic_is_corrupt(magic: int) -> None:
    data = bytearray(LOG)
    struct.pack_into(">b", data, len(ZERO) + 16, magic)

    with pytest.raises(CorruptError) as caught:
        list(read_batches(data))
    assert (len(ZERO), magic) == (caught.value.position, caught.value.found)


@pytest.mark.parametrize("size", [13, 0, -1, -(1 << 31)])
def test_size_below_the_least_is_corrupt(size: int) -> None:
    data = bytearray(LOG)
    struct.pack_into(">i", data, 8, size)

    with pytest.raises(CorruptError) as caught:
        list(read_batches(data))
    assert (0, size) == (caught.value.position, caught.value.found)


def test_v2_batch_shorter_than_a_header_is_corrupt() -> None:
    data = bytearray(TWO)
    struct.pack_into(">i", data, 8, 40)

    with pytest.raises(CorruptError):
        list(read_batches(data))


def test_entry_does_not_see_the_one_after_it() -> None:
    data = bytearray(ONE + ONE)
    struct.pack_into(">i", data, 26, 0)
    struct.pack_into(">i", data, 30, len(ONE) + 10)

    with pytest.raises(CorruptError):
        list(next(read_batches(data)).records())
