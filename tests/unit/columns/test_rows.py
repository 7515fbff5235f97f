"""Records as rows: what is parsed, and what does not parse."""

from __future__ import annotations

import pytest

from keeplast.columns.kernel import BAD_COUNT, BAD_RECORD, PROBLEMS
from keeplast.columns.rows import HAS_KEY, HAS_VALUE, PLAIN
from keeplast.errors import CorruptError
from keeplast.format.batch import HEADER_BYTES, decode_batch, encode_batch
from keeplast.format.checksum import crc32c
from keeplast.format.compression import Codec, compress
from keeplast.format.fields import encode_varint
from keeplast.format.record import Record
from tests.support.kernel_window import PATH, rows_of, window_of
from tests.support.partition_maker import one


def batch_with(payload: bytes, count: int, codec: Codec = Codec.NONE) -> bytes:
    """Return a v2 batch with any bytes where its records should be."""
    template = bytearray(encode_batch([Record(0, 0, b"k", b"v")], codec=codec)[:HEADER_BYTES])
    stored = payload if codec is Codec.NONE else compress(codec, payload)
    template[57:61] = count.to_bytes(4, "big", signed=True)
    template[8:12] = (HEADER_BYTES - 12 + len(stored)).to_bytes(4, "big")
    data = bytes(template) + stored
    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def record(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


KEY, VALUE, NULL, NONE = b"\x02k", b"\x02v", b"\x01", b"\x00"
HEAD = b"\x00\x00\x00"
"""Attributes, timestamp delta, offset delta."""
SOUND = record(HEAD + KEY + VALUE + NONE)


@pytest.mark.parametrize(
    ("body", "flags"),
    [
        (HEAD + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE | PLAIN),
        (HEAD + KEY + NULL + NONE, HAS_KEY | PLAIN),
        (HEAD + NULL + VALUE + NONE, HAS_VALUE | PLAIN),
        (HEAD + NONE + NONE + NONE, HAS_KEY | HAS_VALUE | PLAIN),
        (HEAD + KEY + VALUE + b"\x02" + KEY + NULL, HAS_KEY | HAS_VALUE | PLAIN),
        # Sound, and not as Kafka's writer would write it.
        (b"\x01\x00\x00" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE),
        (HEAD + b"\x82\x00k" + VALUE + NONE, HAS_KEY | HAS_VALUE),
        (HEAD + b"\x03" + VALUE + NONE, HAS_VALUE),
        (HEAD + KEY + b"\x05" + NONE, HAS_KEY),
        (HEAD + KEY + VALUE + b"\x80\x00", HAS_KEY | HAS_VALUE),
        (HEAD + KEY + VALUE + b"\x02" + KEY + b"\x03", HAS_KEY | HAS_VALUE),
        (b"\x00\x80\x00\x00" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE),
        (b"\x00\x82\x80\x80\x00\x00" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE),
        # As many bytes as it takes; of the last one readers drop all bits but one, or four.
        (b"\x00" + b"\xff" * 9 + b"\x01\x00" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE | PLAIN),
        (b"\x00" + b"\xff" * 9 + b"\x03\x00" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE),
        (b"\x00" + b"\xff" * 9 + b"\x7f\x00" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE),
        (b"\x00\x00" + b"\xfe\xff\xff\xff\x0f" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE | PLAIN),
        (b"\x00\x00" + b"\xfe\xff\xff\xff\x1f" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE),
        (b"\x00\x00" + b"\xfe\xff\xff\xff\x7f" + KEY + VALUE + NONE, HAS_KEY | HAS_VALUE),
    ],
)
def test_flags_of_a_record(body: bytes, flags: int) -> None:
    (row,) = rows_of(window_of(batch_with(record(body), 1)))
    assert flags == row.flags
    assert record(body) == row.record


BAD_PAYLOADS: dict[str, tuple[bytes, int, int]] = {
    "nothing": (b"", 1, BAD_RECORD),
    "fewer records than counted": (SOUND, 2, BAD_RECORD),
    "more records than counted": (SOUND * 3, 2, BAD_COUNT),
    "count that cannot fit": (SOUND, 4, BAD_COUNT),
    "bytes after the last record": (SOUND + b"\x00" * 9, 1, BAD_COUNT),
    "length beyond the payload": (b"\x7e" + SOUND[1:], 1, BAD_RECORD),
    "length negative": (b"\x01" + SOUND[1:], 1, BAD_RECORD),
    "length zero": (b"\x00" + SOUND[1:], 1, BAD_RECORD),
    "length that does not end": (b"\xff" * 8, 1, BAD_RECORD),
    "record longer than its fields": (record(HEAD + KEY + VALUE + NONE + b"\x00"), 1, BAD_RECORD),
    "record shorter than its fields": (record(HEAD + KEY + VALUE), 1, BAD_RECORD),
    "key beyond the record": (record(HEAD + b"\x0e" + KEY + VALUE + NONE), 1, BAD_RECORD),
    "value beyond the record": (record(HEAD + KEY + b"\x0e" + NONE), 1, BAD_RECORD),
    "header count negative": (record(HEAD + KEY + VALUE + b"\x01"), 1, BAD_RECORD),
    "header count beyond the record": (record(HEAD + KEY + VALUE + b"\x7e"), 1, BAD_RECORD),
    "header key null": (record(HEAD + KEY + VALUE + b"\x02\x01\x01"), 1, BAD_RECORD),
    "header key beyond the record": (record(HEAD + KEY + VALUE + b"\x02\x08k"), 1, BAD_RECORD),
    "header value beyond": (record(HEAD + KEY + VALUE + b"\x02" + KEY + b"\x08"), 1, BAD_RECORD),
    "timestamp that does not end": (record(b"\x00" + b"\xff" * 12), 1, BAD_RECORD),
    "offset that does not end": (record(b"\x00\x00" + b"\xff" * 12), 1, BAD_RECORD),
}


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_records_that_do_not_fill_their_batch_are_corrupt(name: str, codec: Codec) -> None:
    """RB04: too many, too few, and sizes that do not fit, compressed or not."""
    payload, count, code = BAD_PAYLOADS[name]
    first = one(0, b"first")
    window = window_of(first + batch_with(payload, count, codec))
    with pytest.raises(CorruptError) as caught:
        list(rows_of(window))
    assert (str(PATH), len(first)) == (caught.value.path, caught.value.position)
    if payload:
        assert PROBLEMS[code] == caught.value.problem
    with pytest.raises(CorruptError):
        list(decode_batch(batch_with(payload, count, codec)).records())


def test_batches_without_records_have_no_rows() -> None:
    data = one(0, b"a") + encode_batch([], base_offset=1, last_offset=4) + one(5, b"b")
    assert [(0, 0), (2, 5)] == [(row.batch, row.offset) for row in rows_of(window_of(data))]


def test_compressed_batch_may_hold_more_records_than_bytes() -> None:
    count = 30_000
    records = [Record(i, 0, b"", b"") for i in range(count)]
    data = encode_batch(records, codec=Codec.ZSTD)
    assert len(data) < count
    assert list(range(count)) == [row.offset for row in rows_of(window_of(data))]


def test_a_batch_with_more_records_than_rows_gets_the_room() -> None:
    """The rows of a workspace are for a window of ordinary records."""
    count = 200_000
    data = encode_batch([Record(i, 0, None, None) for i in range(count)], codec=Codec.LZ4)
    offsets = [row.offset for row in rows_of(window_of(one(0, b"a") + data + one(count, b"b")))]
    assert [0, *range(count), count] == offsets
