from __future__ import annotations

import struct

import pytest

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.batch import (
    CRC_START,
    HEADER_BYTES,
    TimestampType,
    decode_batch,
    decode_header,
    encode_batch,
    encode_empty_batch,
)
from keeplast.format.checksum import crc32c
from keeplast.format.compression import Codec, compress
from keeplast.format.record import Record, encode_record

RECORDS = (Record(10, 100, b"a", b"1"), Record(12, 90, b"b", None), Record(15, 120, None, b"3"))
ALL = {
    "base_offset": 8,
    "last_offset": 20,
    "codec": Codec.ZSTD,
    "leader_epoch": 4,
    "producer_id": 77,
    "producer_epoch": 3,
    "base_sequence": (1 << 31) - 3,
    "is_transactional": True,
}
ATTRIBUTES, COUNT = 21, 57


def patched(data: bytes, position: int, layout: str, value: int) -> bytes:
    """Change one header field and make the CRC valid again."""
    out = bytearray(data)
    struct.pack_into(layout, out, position, value)
    struct.pack_into(">I", out, 17, crc32c(out[CRC_START:]))
    return bytes(out)


def test_fields_are_taken_from_the_records() -> None:
    header = decode_header(encode_batch(RECORDS))

    assert (header.base_offset, header.last_offset, header.count, header.magic) == (10, 15, 3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (100, 120)
    assert (
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    ) == (-1, -1, -1, -1)
    assert header.last_sequence == -1
    assert Codec.NONE is header.codec
    assert TimestampType.CREATE_TIME is header.timestamp_type
    assert (
        header.is_transactional,
        header.is_control,
        header.delete_horizon_ms,
    ) == (False, False, None)


def test_fields_that_are_given_are_written() -> None:
    data = encode_batch(RECORDS, **ALL)  # type: ignore[arg-type]
    batch = decode_batch(data)

    found = {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "codec": batch.codec,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "is_transactional": batch.is_transactional,
    }
    assert found == ALL
    assert len(data) == batch.size_bytes
    assert batch.is_valid
    assert tuple(batch.records()) == RECORDS


def test_last_sequence_wraps_to_0() -> None:
    header = decode_header(encode_batch(RECORDS, base_sequence=(1 << 31) - 3))

    assert header.last_sequence == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_records_read_back_with_every_codec(codec: Codec) -> None:
    batch = decode_batch(encode_batch(RECORDS, codec=codec))

    assert codec is batch.codec
    assert tuple(batch.records()) == RECORDS


def test_delete_horizon_takes_the_base_timestamp() -> None:
    batch = decode_batch(encode_batch(RECORDS, delete_horizon_ms=1_000_000))

    assert (batch.delete_horizon_ms, batch.base_timestamp) == (1_000_000, 1_000_000)
    assert tuple(batch.records()) == RECORDS


def test_every_record_of_log_append_time_has_the_max_timestamp() -> None:
    data = encode_batch(
        RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=500, base_timestamp=7
    )
    batch = decode_batch(data)

    assert TimestampType.LOG_APPEND_TIME is batch.timestamp_type
    assert (batch.base_timestamp, batch.max_timestamp) == (7, 500)
    assert [record.timestamp for record in batch.records()] == [500, 500, 500]


def test_control_batch() -> None:
    assert decode_header(encode_batch(RECORDS[:1], is_control=True)).is_control


def test_batch_without_records_needs_a_base_offset() -> None:
    with pytest.raises(InvalidError):
        encode_batch([])


def test_batch_without_records_has_no_payload() -> None:
    batch = decode_batch(encode_batch([], base_offset=5, last_offset=9, codec=Codec.GZIP))

    assert (
        batch.size_bytes,
        batch.count,
        batch.base_offset,
        batch.last_offset,
    ) == (HEADER_BYTES, 0, 5, 9)
    assert list(batch.records()) == []


def test_empty_batch_keeps_what_must_survive() -> None:
    settings = {**ALL, "is_control": True, "delete_horizon_ms": 5, "max_timestamp": 99}
    original = decode_header(
        encode_batch(
            RECORDS,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            **settings,  # type: ignore[arg-type]
        )
    )

    data = encode_empty_batch(original)

    empty = decode_batch(data)
    assert (len(data), empty.count, empty.base_timestamp, empty.is_valid) == (61, 0, -1, True)
    assert (empty.codec, empty.delete_horizon_ms) == (Codec.NONE, None)
    kept = (
        "base_offset",
        "last_offset",
        "leader_epoch",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "last_sequence",
        "timestamp_type",
        "is_transactional",
        "is_control",
    )
    for name in kept:
        assert getattr(original, name) == getattr(empty, name), name


@pytest.mark.parametrize(
    "settings",
    [
        {"base_offset": 11},
        {"last_offset": 14},
        {"base_offset": 0, "last_offset": 1 << 31},
    ],
)
def test_offsets_that_do_not_fit_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidError):
        encode_batch(RECORDS, **settings)  # type: ignore[arg-type]


def test_offsets_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(InvalidError):
        encode_batch([RECORDS[1], RECORDS[0]])


def test_leader_epoch_and_offset_are_outside_the_crc() -> None:
    data = bytearray(encode_batch(RECORDS))
    struct.pack_into(">q", data, 0, 500)
    struct.pack_into(">i", data, 12, 9)

    batch = decode_batch(data)

    assert batch.is_valid
    assert [record.offset for record in batch.records()] == [500, 502, 505]


@pytest.mark.parametrize("position", [CRC_START, 30, HEADER_BYTES, -1])
def test_flipped_bit_is_not_valid(position: int) -> None:
    data = bytearray(encode_batch(RECORDS))
    data[position] ^= 1

    assert not decode_batch(data).is_valid


def test_positions_are_those_of_the_file() -> None:
    data = b"?" * 7 + encode_batch(RECORDS)

    assert decode_batch(data, 7, base_position=1000).position == 1007


@pytest.mark.parametrize("size", [0, 17, 60])
def test_cut_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_header(encode_batch(RECORDS)[:size])
    assert (0, f"{size} bytes") == (caught.value.position, caught.value.found)


def test_other_magic_is_corrupt() -> None:
    data = bytearray(encode_batch(RECORDS))
    data[16] = 1
    with pytest.raises(CorruptError) as caught:
        decode_header(data)
    assert (caught.value.expected, caught.value.found) == (2, 1)


@pytest.mark.parametrize("length", [48, 0, -1, -(1 << 31)])
def test_length_below_that_of_a_header_is_corrupt(length: int) -> None:
    data = bytearray(encode_batch(RECORDS))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptError):
        decode_header(data)


def test_batch_past_the_end_is_corrupt() -> None:
    data = encode_batch(RECORDS)
    with pytest.raises(CorruptError) as caught:
        decode_batch(data[:-1], base_position=30)
    assert caught.value.position == 30


@pytest.mark.parametrize("code", [5, 6, 7])
def test_unknown_codec_is_corrupt_when_asked_for(code: int) -> None:
    batch = decode_batch(patched(encode_batch(RECORDS), ATTRIBUTES, ">h", code), base_position=9)

    assert batch.is_valid
    with pytest.raises(CorruptError):
        _ = batch.codec
    with pytest.raises(CorruptError) as caught:
        list(batch.records())
    assert (9, code) == (caught.value.position, caught.value.found)


def test_high_attribute_bits_are_ignored() -> None:
    batch = decode_batch(patched(encode_batch(RECORDS), ATTRIBUTES, ">h", -256))

    assert Codec.NONE is batch.codec
    assert tuple(batch.records()) == RECORDS


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("count", [-1, 1, 2, 4, (1 << 31) - 1])
def test_wrong_count_is_corrupt(codec: Codec, count: int) -> None:
    batch = decode_batch(patched(encode_batch(RECORDS, codec=codec), COUNT, ">i", count))

    with pytest.raises(CorruptError) as caught:
        list(batch.records())

    assert caught.value.position is not None
    assert caught.value.expected is not None
    assert caught.value.found is not None


def test_count_of_0_leaves_the_payload_alone() -> None:
    batch = decode_batch(patched(encode_batch(RECORDS, codec=Codec.GZIP), COUNT, ">i", 0))

    assert list(batch.records()) == []


def test_bad_record_names_its_position_unless_it_is_compressed() -> None:
    good = encode_record(RECORDS[0], base_offset=10, base_timestamp=100)
    plain = bytearray(encode_batch(RECORDS))
    plain[HEADER_BYTES + len(good)] = 0x01
    packed = bytearray(encode_batch(RECORDS[:1]))[:HEADER_BYTES] + compress(Codec.GZIP, b"\x01")
    packed[ATTRIBUTES + 1] |= Codec.GZIP
    struct.pack_into(">i", packed, 8, len(packed) - 12)

    for data, position in ((plain, 40 + HEADER_BYTES + len(good)), (packed, 40)):
        with pytest.raises(CorruptError) as caught:
            list(decode_batch(data, base_position=40).records())
        assert position == caught.value.position


def test_limit_bounds_what_is_decompressed() -> None:
    large = Record(0, 0, b"k", bytes(100_000))
    batch = decode_batch(encode_batch([large], codec=Codec.ZSTD))

    assert [large] == list(batch.records(limit=200_000))
    with pytest.raises(CorruptError):
        list(batch.records(limit=100_000))
