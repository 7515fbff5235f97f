"""Messages of magic 0 and 1 as rows: the same records that the format reads."""

from __future__ import annotations

import struct

import pytest

from keeplast.errors import CorruptError
from keeplast.format.batch import TIMESTAMP_TYPE_MASK, TimestampType
from keeplast.format.compression import Codec, compress
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record, decode_record
from tests.support.kernel_window import PATH, Row, rows_of, window_of
from tests.support.legacy_sets import encode_message, encode_message_set
from tests.support.partition_maker import one

OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
RECORDS = [
    Record(57, 1000, b"a", b"1"),
    Record(58, 998, None, b""),
    Record(60, 1500, b"", None),
    Record(63, -1, b"key" * 50, b"value" * 300),
]


def decoded(row: Row, base_offset: int) -> Record:
    """Decode a converted record; its timestamps hang from 0."""
    found, end = decode_record(row.record, 0, base_offset=base_offset, base_timestamp=0)
    assert len(row.record) == end
    return found


def wrapper(magic: int, offset: int, inner: bytes, *, attributes: int = Codec.GZIP) -> bytes:
    return encode_message(
        magic=magic, offset=offset, timestamp=1500, key=None,
        value=compress(Codec.GZIP, inner), attributes=attributes,
    )  # fmt: skip


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("kind", [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME])
def test_converted_records_are_the_formats(magic: int, codec: Codec, kind: TimestampType) -> None:
    data = encode_message_set(
        RECORDS, magic=magic, codec=codec, timestamp_type=kind, append_timestamp=7777
    )
    window = window_of(data)
    expected = [record for batch in read_batches(data) for record in batch.records()]
    bases = [batch.base_offset for batch in read_batches(data)]
    rows = list(rows_of(window))
    assert expected == [decoded(row, bases[row.batch]) for row in rows]
    assert [record.offset for record in expected] == [row.offset for row in rows]


def test_relative_offsets_hang_from_the_last_message() -> None:
    """What was compacted away before the last one moves nothing."""
    inner = b"".join(
        encode_message(magic=1, offset=at, timestamp=5, key=b"k", value=b"v") for at in (1, 4, 9)
    )
    for offset, expected in ((109, [101, 104, 109]), (0, [1, 4, 9])):
        window = window_of(wrapper(1, offset, inner))
        assert expected == [row.offset for row in rows_of(window)]


def test_inner_magic_may_differ_from_the_wrappers() -> None:
    """KAFKA-4298: offsets follow the wrapper, timestamps the message."""
    inner = encode_message(magic=0, offset=0, timestamp=-1, key=b"a", value=b"1")
    inner += encode_message(magic=1, offset=1, timestamp=9, key=b"b", value=b"2")
    for attributes in (Codec.GZIP, Codec.GZIP | TIMESTAMP_TYPE_MASK):
        data = wrapper(1, 11, inner, attributes=attributes)
        (batch,) = read_batches(data)
        expected = list(batch.records())
        assert expected == [decoded(row, 10) for row in rows_of(window_of(data))]


def test_incomplete_message_at_the_end_is_dropped() -> None:
    inner = b"".join(
        encode_message(magic=1, offset=i, timestamp=5, key=b"k", value=b"value") for i in range(3)
    )
    for cut in (1, 5, 20, 30):
        data = wrapper(1, 1, inner[:-cut])
        assert [0, 1] == [row.offset for row in rows_of(window_of(data))]


def patched(message: bytes, at: int, layout: str, value: int) -> bytes:
    data = bytearray(message)
    struct.pack_into(layout, data, at, value)
    return bytes(data)


INNER = encode_message(magic=1, offset=3, timestamp=5, key=b"k", value=b"v")
BAD_SETS = {
    "no message": b"",
    "only a part of one": INNER[:20],
    "inner size below the least": patched(INNER, 8, ">i", 13),
    "inner magic 2": patched(INNER, 16, ">b", 2),
    "inner magic -1": patched(INNER, 16, ">b", -1),
    "compressed inside": patched(INNER, 17, ">b", 1),
    "size without room for a timestamp": patched(INNER[:28], 8, ">i", 16),
    "key beyond the message": patched(INNER, 26, ">i", 50),
    "value beyond the message": patched(INNER, 31, ">i", 50),
}


@pytest.mark.parametrize("name", BAD_SETS)
def test_set_that_does_not_parse_is_corrupt_at_its_wrapper(name: str) -> None:
    first = one(0, b"first")
    window = window_of(first + wrapper(1, 9, BAD_SETS[name]))
    with pytest.raises(CorruptError) as caught:
        list(rows_of(window))
    assert (str(PATH), len(first)) == (caught.value.path, caught.value.position)


def test_wrapper_offset_below_its_last_inner_offset_is_corrupt() -> None:
    with pytest.raises(CorruptError):
        list(rows_of(window_of(wrapper(1, 2, INNER))))


@pytest.mark.parametrize(
    ("value", "attributes"), [(None, Codec.GZIP), (b"", Codec.GZIP), (b"x" * 20, Codec.LZ4)]
)
def test_wrapper_whose_value_is_no_set_is_corrupt(value: bytes | None, attributes: int) -> None:
    data = encode_message(
        magic=1, offset=0, timestamp=5, key=b"k", value=value, attributes=attributes
    )
    with pytest.raises(CorruptError):
        list(rows_of(window_of(data)))


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_message_whose_fields_do_not_fit_is_corrupt(magic: int) -> None:
    message = encode_message(magic=magic, offset=0, timestamp=5, key=b"key", value=b"v")
    at = 26 if magic else 18
    for field, value in ((at, 1000), (at + 7, 1000), (at, 2**31 - 1), (at + 7, 2**31 - 1)):
        window = window_of(patched(message, field, ">i", value), checks_crc=False)
        with pytest.raises(CorruptError):
            list(rows_of(window))
