from __future__ import annotations

import struct

import pytest

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.batch import TimestampType
from keeplast.format.compression import Codec, compress
from keeplast.format.message_set import LegacyBatch, decode_message
from keeplast.format.record import Record
from tests.support.legacy_sets import encode_message, encode_message_set

RECORDS = (Record(7, 100, b"a", b"1"), Record(8, 90, b"b", None), Record(9, 120, None, b"3"))
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
COMPRESSED = 1
LOG_APPEND_TIME = 8


def without_time(records: tuple[Record, ...]) -> tuple[Record, ...]:
    return tuple(Record(record.offset, -1, record.key, record.value) for record in records)


def inner(offset: int, *, magic: int = 1, timestamp: int = 5, attributes: int = 0) -> bytes:
    return encode_message(
        magic=magic, offset=offset, timestamp=timestamp, key=b"k", value=b"v", attributes=attributes
    )


def wrapper(
    entries: bytes | None, *, offset: int, magic: int = 1, timestamp: int = 50, attributes: int = 0
) -> LegacyBatch:
    value = None if entries is None else compress(Codec.GZIP, entries)
    return decode_message(
        encode_message(
            magic=magic,
            offset=offset,
            timestamp=timestamp,
            key=None,
            value=value,
            attributes=attributes | COMPRESSED,
        ),
        base_position=300,
    )


def offsets(batch: LegacyBatch) -> list[int]:
    return [record.offset for record in batch.records()]


@pytest.mark.parametrize(
    ("magic", "text"),
    [
        (0, "00000000000000050000000ea7ec68030000ffffffffffffffff"),
        (1, "0000000000000005000000165b41f4e30100ffffffffffffffffffffffffffffffff"),
    ],
)
def test_null_key_and_value_of_the_specification(magic: int, text: str) -> None:
    data = encode_message(magic=magic, offset=5, timestamp=-1, key=None, value=None)

    assert bytes.fromhex(text) == data
    batch = decode_message(data)
    assert batch.is_valid
    assert [Record(5, -1, None, None)] == list(batch.records())


@pytest.mark.parametrize("codec", CODECS)
def test_wrapper_of_magic_1_reads_back(codec: Codec) -> None:
    batch = decode_message(encode_message_set(RECORDS, magic=1, codec=codec))

    assert (batch.base_offset, batch.last_offset, batch.count) == (7, 9, 3)
    assert (batch.max_timestamp, batch.timestamp_type) == (120, TimestampType.CREATE_TIME)
    assert codec is batch.codec
    assert batch.is_valid
    assert tuple(batch.records()) == RECORDS


@pytest.mark.parametrize("codec", CODECS)
def test_wrapper_of_magic_0_has_no_timestamps(codec: Codec) -> None:
    batch = decode_message(encode_message_set(RECORDS, magic=0, codec=codec))

    assert (batch.base_offset, batch.last_offset, batch.count) == (7, 9, 3)
    assert (batch.max_timestamp, batch.timestamp_type) == (-1, TimestampType.NO_TIMESTAMP)
    assert without_time(RECORDS) == tuple(batch.records())


@pytest.mark.parametrize("magic", [0, 1])
def test_uncompressed_message_is_a_batch_of_its_own(magic: int) -> None:
    data = encode_message_set(RECORDS[:1], magic=magic)
    batch = decode_message(data, base_position=20)

    assert (batch.base_offset, batch.last_offset, batch.count) == (7, 7, 1)
    assert (20, len(data), magic) == (batch.position, batch.size_bytes, batch.magic)


def test_fields_that_the_format_lacks() -> None:
    batch = decode_message(inner(3))

    assert {-1} == {
        batch.leader_epoch,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
    }
    assert (
        batch.is_transactional,
        batch.is_control,
        batch.delete_horizon_ms,
    ) == (False, False, None)


def test_no_records_give_no_bytes() -> None:
    assert encode_message_set([], magic=1, codec=Codec.GZIP) == b""


def test_log_append_time_of_a_wrapper_is_that_of_every_message() -> None:
    data = encode_message_set(
        RECORDS,
        magic=1,
        codec=Codec.GZIP,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        append_timestamp=999,
    )
    batch = decode_message(data)

    assert TimestampType.LOG_APPEND_TIME is batch.timestamp_type
    assert batch.max_timestamp == 999
    assert [record.timestamp for record in batch.records()] == [999, 999, 999]


def test_log_append_time_of_a_plain_message_is_its_timestamp() -> None:
    data = encode_message_set(
        RECORDS[:1],
        magic=1,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        append_timestamp=999,
    )
    batch = decode_message(data)

    assert TimestampType.LOG_APPEND_TIME is batch.timestamp_type
    assert [record.timestamp for record in batch.records()] == [999]


def test_relative_offsets_are_anchored_on_the_last_message() -> None:
    # As a cleaner leaves it: the first messages of the wrapper are gone.
    assert offsets(wrapper(inner(2) + inner(5), offset=105)) == [102, 105]


def test_wrapper_offset_0_means_base_0() -> None:
    assert offsets(wrapper(inner(0) + inner(1) + inner(2), offset=0)) == [0, 1, 2]


def test_absolute_offsets_of_magic_0() -> None:
    assert offsets(wrapper(inner(41) + inner(42), offset=42, magic=0)) == [41, 42]


def test_offsets_follow_the_wrapper_where_magics_differ() -> None:
    mixed = inner(0) + inner(1, magic=0)

    batch = wrapper(mixed, offset=11)

    assert [(record.offset, record.timestamp) for record in batch.records()] == [(10, 5), (11, -1)]


def test_append_time_does_not_reach_inner_messages_of_magic_0() -> None:
    mixed = inner(0) + inner(1, magic=0)

    batch = wrapper(mixed, offset=11, attributes=LOG_APPEND_TIME)

    assert [record.timestamp for record in batch.records()] == [50, -1]


@pytest.mark.parametrize("cut", [1, 20, 33])
def test_incomplete_message_at_the_end_is_dropped(cut: int) -> None:
    entries = inner(0) + inner(1)

    assert offsets(wrapper(entries[:-cut], offset=9)) == [9]


def test_inner_crc_is_not_checked() -> None:
    entries = bytearray(inner(0))
    entries[12] ^= 0xFF

    assert offsets(wrapper(bytes(entries), offset=9)) == [9]


def test_bytes_after_the_value_are_ignored() -> None:
    data = bytearray(inner(3) + b"??")
    struct.pack_into(">i", data, 8, len(data) - 12)

    assert [Record(3, 5, b"k", b"v")] == list(decode_message(data).records())


def test_flipped_bit_is_not_valid() -> None:
    data = bytearray(inner(3))
    data[-1] ^= 1

    assert not decode_message(data).is_valid


@pytest.mark.parametrize(
    "batch",
    [
        wrapper(None, offset=9),
        wrapper(b"", offset=9),
        wrapper(inner(0)[:-1], offset=9),
        wrapper(bytes(8) + b"\0\0\0\x0d" + bytes(20), offset=9),
        wrapper(bytes(8) + b"\xff\xff\xff\xff" + bytes(20), offset=9),
        wrapper(inner(0, attributes=COMPRESSED), offset=9),
        wrapper(inner(5), offset=4),
        wrapper(inner(0)[:16] + b"\x02" + inner(0)[17:], offset=9),
        wrapper(inner(0)[:26] + b"\0\0\0\x63" + inner(0)[30:], offset=9),
    ],
    ids=[
        "null value",
        "no message",
        "no whole message",
        "small message",
        "negative size",
        "nested set",
        "offset below the last inner one",
        "inner magic 2",
        "key past the end",
    ],
)
def test_bad_wrapper_is_corrupt_at_its_position(batch: LegacyBatch) -> None:
    with pytest.raises(CorruptError) as caught:
        list(batch.records())
    assert caught.value.position == 300
    assert caught.value.expected is not None
    assert caught.value.found is not None


@pytest.mark.parametrize("code", [4, 5, 7])
def test_codec_that_legacy_messages_lack_is_corrupt(code: int) -> None:
    batch = decode_message(inner(3, attributes=code), base_position=8)

    with pytest.raises(CorruptError) as caught:
        list(batch.records())
    assert (8, code) == (caught.value.position, caught.value.found)


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (8, ">i", 21),
        (8, ">i", -1),
        (8, ">i", 1 << 30),
        (16, ">b", 2),
        (16, ">b", -1),
        (26, ">i", 99),
        (31, ">i", 99),
    ],
)
def test_bad_field_is_corrupt(position: int, layout: str, value: int) -> None:
    data = bytearray(inner(3))
    struct.pack_into(layout, data, position, value)

    with pytest.raises(CorruptError) as caught:
        list(decode_message(data, base_position=8).records())
    assert caught.value.position == 8


@pytest.mark.parametrize("size", [0, 11, 17])
def test_cut_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptError):
        decode_message(inner(3)[:size])


def test_what_the_format_cannot_hold_is_refused() -> None:
    headed = Record(0, 0, b"k", b"v", ((b"h", b"v"),))
    with pytest.raises(InvalidError):
        encode_message_set([headed], magic=1)
    with pytest.raises(InvalidError):
        encode_message_set(RECORDS, magic=1, codec=Codec.ZSTD)
    with pytest.raises(InvalidError):
        encode_message(magic=2, offset=0, timestamp=0, key=None, value=None)


def test_limit_bounds_what_is_decompressed() -> None:
    data = encode_message_set([Record(0, 0, b"k", bytes(100_000))], magic=1, codec=Codec.GZIP)

    with pytest.raises(CorruptError):
        list(decode_message(data).records(limit=100_000))
