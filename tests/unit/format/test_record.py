from __future__ import annotations

import pytest

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.fields import encode_varint
from keeplast.format.record import Record, decode_record, encode_record

HEADED = Record(3, 5, b"k", b"v", ((b"x", b"x"), (b"n", None)))


def framed(body: str) -> bytes:
    raw = bytes.fromhex(body)
    return encode_varint(len(raw)) + raw


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (Record(0, 0, b"k", b"v"), "10000000026b027600"),
        (Record(0, 0, None, None), "0c000000010100"),
        (HEADED, "1e000a06026b0276040278027802 6e01".replace(" ", "")),
        (Record(0, 0, b"", b""), "0c000000000000"),
    ],
)
def test_record_of_the_specification(record: Record, text: str) -> None:
    data = bytes.fromhex(text)

    assert data == encode_record(record, base_offset=0, base_timestamp=0)
    assert (record, len(data)) == decode_record(data, 0, base_offset=0, base_timestamp=0)


def test_null_key_and_empty_key_differ() -> None:
    null = encode_record(Record(0, 0, None, b""), base_offset=0, base_timestamp=0)
    empty = encode_record(Record(0, 0, b"", b""), base_offset=0, base_timestamp=0)

    assert null != empty


def test_only_a_null_value_is_a_tombstone() -> None:
    assert Record(0, 0, b"k", None).is_tombstone
    assert not Record(0, 0, b"k", b"").is_tombstone


def test_offset_and_timestamp_are_relative_to_the_batch() -> None:
    record = Record(1_000_003, 400, b"k", b"v")
    data = b"??" + encode_record(record, base_offset=1_000_000, base_timestamp=10_000)

    decoded, end = decode_record(data, 2, base_offset=1_000_000, base_timestamp=10_000)

    assert (record, len(data)) == (decoded, end)


def test_append_timestamp_takes_the_place_of_the_delta() -> None:
    data = encode_record(HEADED, base_offset=0, base_timestamp=0)

    record, _ = decode_record(data, 0, base_offset=0, base_timestamp=0, append_timestamp=77)

    assert record.timestamp == 77


def test_sums_wrap_as_in_java() -> None:
    data = encode_record(Record(1, 1, None, None), base_offset=0, base_timestamp=0)

    record, _ = decode_record(data, 0, base_offset=(1 << 63) - 1, base_timestamp=(1 << 63) - 1)

    assert (record.offset, record.timestamp) == (-(1 << 63), -(1 << 63))


def test_delta_of_distant_timestamps_wraps_back() -> None:
    low, high = -(1 << 63), (1 << 63) - 1
    data = encode_record(Record(0, low, None, None), base_offset=0, base_timestamp=high)

    assert low == decode_record(data, 0, base_offset=0, base_timestamp=high)[0].timestamp


def test_any_negative_length_is_null() -> None:
    data = framed("00 00 00 03 05 00")

    record, _ = decode_record(data, 0, base_offset=0, base_timestamp=0)

    assert (record.key, record.value) == (None, None)


def test_attributes_are_ignored() -> None:
    assert decode_record(framed("ff 00 00 01 01 00"), 0, base_offset=0, base_timestamp=0)


@pytest.mark.parametrize("offset", [-1, 1 << 31])
def test_offset_outside_the_batch_is_refused(offset: int) -> None:
    with pytest.raises(InvalidError):
        encode_record(Record(offset, 0, None, None), base_offset=0, base_timestamp=0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x01",
        b"\x0c\x00\x00\x00\x01\x01",
        framed(""),
        framed("00"),
        framed("00 80"),
        framed("00 00 00 01 01"),
        framed("00 00 00 01 01 00 00"),
        framed("00 00 00 04 61"),
        framed("00 00 00 01 04 61"),
        framed("00 00 00 01 01 01"),
        framed("00 00 00 01 01 06 00 00"),
        framed("00 00 00 01 01 02 01 01"),
        framed("00 00 00 01 01 02 04 61 01"),
        framed("00 00 00 01 01 02 00 04 61"),
        framed("00 00 00 ff ff ff ff ff 01"),
        framed("00 ff ff ff ff ff ff ff ff ff ff 01 00"),
    ],
)
def test_anything_else_is_corrupt_at_its_first_byte(data: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_record(b"??" + data, 2, base_offset=0, base_timestamp=0)
    assert caught.value.position == 2
    assert caught.value.expected is not None
    assert caught.value.found is not None


def test_field_may_not_reach_into_the_next_record() -> None:
    short = framed("00 00 00 08 61 62 63")
    with pytest.raises(CorruptError):
        decode_record(short + bytes(50), 0, base_offset=0, base_timestamp=0)
