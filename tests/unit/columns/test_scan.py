"""What a window of batches says, and what is refused before anybody follows a length."""

from __future__ import annotations

import struct

import pytest

from keeplast.columns import batches as t
from keeplast.columns.kernel import (
    BAD_CODEC,
    BAD_COUNT,
    BAD_CRC,
    BAD_MAGIC,
    BAD_SIZE,
    PROBLEMS,
)
from keeplast.errors import CorruptError
from keeplast.format.batch import TimestampType, encode_batch
from keeplast.format.checksum import crc32c
from keeplast.format.compression import Codec
from keeplast.format.record import ControlType, Record
from tests.support.kernel_window import PATH, window_of, windows_of
from tests.support.legacy_sets import encode_message, encode_message_set
from tests.support.partition_maker import NOW_MS, marker, one

RECORDS = [Record(7, NOW_MS, b"a", b"1"), Record(9, NOW_MS + 5, b"b", None)]


def patched(batch: bytes, at: int, layout: str, value: int, *, seals: bool = True) -> bytes:
    """Return a v2 batch with one field replaced and, by default, a right CRC again."""
    data = bytearray(batch)
    struct.pack_into(layout, data, at, value)
    if seals:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def test_fields_of_a_v2_batch() -> None:
    data = encode_batch(
        RECORDS, base_offset=5, last_offset=11, codec=Codec.GZIP, producer_id=2**40,
        producer_epoch=-3, base_sequence=9, is_transactional=True,
        timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW_MS + 9,
    )  # fmt: skip
    row = window_of(data).table[0]
    assert [int(row[column]) for column in (
        t.POSITION, t.SIZE, t.BASE_OFFSET, t.LAST_OFFSET, t.MAGIC, t.ATTRIBUTES, t.COUNT,
        t.MAX_TIMESTAMP, t.BASE_TIMESTAMP, t.PRODUCER_ID, t.PRODUCER_EPOCH, t.PAYLOAD_IN,
    )] == [
        0, len(data), 5, 11, 2, Codec.GZIP | t.LOG_APPEND_TIME | t.TRANSACTIONAL, 2,
        NOW_MS + 9, NOW_MS, 2**40, -3, -1,
    ]  # fmt: skip


def test_a_message_of_an_old_format_is_a_batch_of_its_own() -> None:
    for magic, timestamp in ((0, -1), (1, NOW_MS)):
        data = encode_message(magic=magic, offset=4, timestamp=NOW_MS, key=b"k", value=b"v")
        row = window_of(data).table[0]
        expected = [4, 4, magic, 0, 1, timestamp, -1]
        columns = (t.BASE_OFFSET, t.LAST_OFFSET, t.MAGIC, t.ATTRIBUTES, t.COUNT, t.MAX_TIMESTAMP,
                   t.PRODUCER_ID)  # fmt: skip
        assert expected == [int(row[column]) for column in columns]


def test_all_magics_in_one_window() -> None:
    parts = [
        encode_message_set([Record(0, -1, b"a", b"1")], magic=0),
        encode_message_set([Record(1, 5, b"a", b"1")], magic=1, codec=Codec.LZ4),
        one(2, b"a"),
        marker(3, 1, ControlType.COMMIT),
    ]
    window = window_of(b"".join(parts))
    positions = [0, *(sum(len(p) for p in parts[: i + 1]) for i in range(3))]
    assert positions == window.table[: window.batches, t.POSITION].tolist()
    assert [0, 1, 2, 3] == window.table[: window.batches, t.LAST_OFFSET].tolist()


DAMAGES = {
    "size below a message": (one(1, b"k"), 8, ">i", 13, BAD_SIZE),
    "size zero": (one(1, b"k"), 8, ">i", 0, BAD_SIZE),
    "size negative": (one(1, b"k"), 8, ">i", -1, BAD_SIZE),
    "v2 size below a header": (one(1, b"k"), 8, ">i", 48, BAD_SIZE),
    "magic 3": (one(1, b"k"), 16, ">b", 3, BAD_MAGIC),
    "magic -1": (one(1, b"k"), 16, ">b", -1, BAD_MAGIC),
    "count negative": (one(1, b"k"), 57, ">i", -1, BAD_COUNT),
    "count beyond the bytes": (one(1, b"k"), 57, ">i", 2**31 - 1, BAD_COUNT),
    "codec 5": (one(1, b"k"), 21, ">h", 5, BAD_CODEC),
    "codec 7": (one(1, b"k"), 21, ">h", 7, BAD_CODEC),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_header_is_corrupt_where_its_batch_begins(name: str) -> None:
    batch, at, layout, value, code = DAMAGES[name]
    whole = one(0, b"first")
    seen: list[int] = []
    with pytest.raises(CorruptError) as caught:
        seen.extend(w.batches for w in windows_of(whole + patched(batch, at, layout, value)))
    assert (PROBLEMS[code], str(PATH), len(whole)) == (
        caught.value.problem, caught.value.path, caught.value.position,
    )  # fmt: skip
    assert seen == [1]


@pytest.mark.parametrize("size", [14, 21])
def test_a_message_of_magic_1_has_room_for_its_timestamp(size: int) -> None:
    message = bytearray(encode_message(magic=1, offset=0, timestamp=0, key=None, value=None))
    struct.pack_into(">i", message, 8, size)
    with pytest.raises(CorruptError) as caught:
        list(windows_of(bytes(message)))
    assert PROBLEMS[BAD_SIZE] == caught.value.problem


@pytest.mark.parametrize("length", [10, 60, 4000, 5000, 200_000])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_any_flipped_byte_under_the_crc_is_found(magic: int, length: int) -> None:
    """Small batches are checked by a kernel, large ones by the library."""
    if magic == 2:
        batch = one(1, b"k", bytes(length))
    else:
        batch = encode_message(magic=magic, offset=1, timestamp=0, key=b"k", value=bytes(length))
    first = one(0, b"first")
    for at in (len(batch) - 1, len(batch) // 2 + 15, len(batch) - 5):
        data = bytearray(first + batch)
        data[len(first) + at] ^= 0x10
        with pytest.raises(CorruptError) as caught:
            list(windows_of(bytes(data)))
        assert (PROBLEMS[BAD_CRC], len(first)) == (caught.value.problem, caught.value.position)
        assert caught.value.expected != caught.value.found


def test_leader_epoch_is_outside_the_crc() -> None:
    window_of(patched(one(0, b"k"), 12, ">i", 77, seals=False))


def test_crc_is_not_looked_at_when_not_asked_for() -> None:
    data = patched(one(0, b"k"), 17, ">I", 0, seals=False)
    assert window_of(data, checks_crc=False).batches == 1


def test_a_full_table_ends_a_window_early_and_loses_nothing() -> None:
    empty = encode_batch([], base_offset=0)
    count = 40_000
    batches = [window.batches for window in windows_of(empty * count, window_bytes=4 << 20)]
    assert len(batches) > 1
    assert count == sum(batches)
