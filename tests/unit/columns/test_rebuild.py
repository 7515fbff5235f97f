"""Batches that are written again: their fields, and what refuses to be written.

A batch is rebuilt when a later record supersedes one of its own; here that is always key ``x``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.columns.kernel import BAD_ORDER, BAD_PRODUCER, BAD_TIMESTAMP, PROBLEMS
from keeplast.columns.rebuild import RUN_BYTES_MIN
from keeplast.errors import CorruptError
from keeplast.format.batch import HEADER_BYTES, RecordBatch, TimestampType, encode_batch
from keeplast.format.checksum import crc32c
from keeplast.format.compression import Codec, compress, decompress
from keeplast.format.fields import encode_varint
from keeplast.format.message_set import Batch
from keeplast.format.record import ControlType, Record, encode_record
from keeplast.model.partition import INT64_MAX
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from tests.support.legacy_sets import encode_message_set
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    batches_of,
    clean,
    clean_at,
    clean_request,
    coordinator,
    last_round,
    marker,
    one,
    write_partition,
)

HEADERS = ((b"h", b"1"), (b"h", None), (b"\xff\xfe", b""))
RECORDS = [
    Record(10, 500, b"x", b"old"),
    Record(11, 300, b"a", b"first", HEADERS),
    Record(13, 900, b"x", b"old"),
    Record(15, -1, b"b", b"second"),
    Record(16, 999, b"x", b"old"),
]
PRODUCER = 5
KEPT = [RECORDS[1], RECORDS[3]]


def sealed(batch: bytes) -> bytes:
    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def cleaned(tmp_path: Path, batch: bytes, *, base_offset: int = 0) -> Batch:
    """Return what becomes of ``batch`` when every ``x`` in it is superseded."""
    later = marker(100, PRODUCER, ControlType.COMMIT) + one(101, b"x")
    directory = write_partition(tmp_path, {base_offset: batch, 100: later, 102: b""})
    clean(clean_request(directory))
    return batches_of(directory)[0]


@pytest.mark.parametrize("codec", Codec)
def test_rebuilt_batch_is_what_the_format_writes(tmp_path: Path, codec: Codec) -> None:
    fields: dict[str, Any] = {
        "base_offset": 9, "last_offset": 17, "codec": codec, "leader_epoch": 4,
        "producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": 2**31 - 2,
        "is_transactional": True,
    }  # fmt: skip
    found = cleaned(tmp_path, encode_batch(RECORDS, **fields))
    expected = encode_batch(KEPT, **fields)
    assert isinstance(found, RecordBatch)
    assert expected == bytes(found.data)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_append_time_stays_and_client_deltas_are_lost(tmp_path: Path, codec: Codec) -> None:
    fields: dict[str, Any] = {"codec": codec, "timestamp_type": TimestampType.LOG_APPEND_TIME}
    batch = encode_batch(RECORDS, **fields, max_timestamp=5000)
    found = cleaned(tmp_path, batch)
    same_time = [replace(record, timestamp=5000) for record in KEPT]
    expected = encode_batch(
        same_time,
        **fields,
        max_timestamp=5000,
        base_offset=10,
        last_offset=16,
    )
    assert isinstance(found, RecordBatch)
    assert expected == bytes(found.data)


def test_records_are_rewritten_in_the_shortest_form(tmp_path: Path) -> None:
    """Attributes become 0, overlong numbers short, and negative lengths -1."""
    odd = (
        b"\x55" + b"\x80\x00" + b"\x82\x00" + b"\x82\x80\x00k" + b"\x05"
        + b"\x82\x00" + b"\x82\x00h" + b"\x09"
    )  # fmt: skip
    payload = encode_record(Record(0, 0, b"x", b"1"), base_offset=0, base_timestamp=0)
    payload += encode_varint(len(odd)) + odd
    template = bytearray(encode_batch([Record(0, 0, b"x", b"1"), Record(1, 0, b"k", b"v")]))
    template[8:12] = (HEADER_BYTES - 12 + len(payload)).to_bytes(4, "big")
    found = cleaned(tmp_path, sealed(bytes(template[:HEADER_BYTES]) + payload))
    expected = encode_record(
        Record(1, 0, b"k", None, ((b"h", None),)),
        base_offset=0,
        base_timestamp=NOW_MS + COMPACT.delete_retention_ms,
    )
    assert isinstance(found, RecordBatch)
    assert expected == bytes(found.payload())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("first_ms", [0, 1, 63, 64, 8191, 8192, -8193, 1 << 40])
def test_deltas_and_lengths_that_get_shorter_or_longer_are_those_of_a_writer(
    tmp_path: Path, first_ms: int, codec: Codec
) -> None:
    """The first record goes, and with it the time from which the others count."""
    value_bytes = [0, 1, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 8170, 8180, 8184, 8188]
    kept = [
        Record(1, 8192, b"", b""),
        Record(2, 8192 + 63, b"headers", b"v" * 40, ((b"h", b"1"), (b"", None))),
        *(Record(3 + i, n * 60, b"k%d" % n, b"v" * n) for i, n in enumerate(value_bytes)),
    ]
    found = cleaned(tmp_path, encode_batch([Record(0, first_ms, b"x", b""), *kept], codec=codec))
    assert isinstance(found, RecordBatch)
    assert encode_batch(kept, base_offset=0, codec=codec) == bytes(found.data)


def test_timestamps_far_apart_wrap_and_come_back(tmp_path: Path) -> None:
    records = [Record(0, 0, b"x", b""), Record(1, INT64_MAX, b"a", b""), Record(2, -1, b"b", b"")]
    found = cleaned(tmp_path, encode_batch(records))
    assert records[1:] == list(found.records())
    assert (INT64_MAX, INT64_MAX) == (found.base_timestamp, found.max_timestamp)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_leave_as_magic_2(tmp_path: Path, magic: int, codec: Codec) -> None:
    """F1; offsets from the first to the last record that is retained, no producer, epoch -1."""
    plain = [replace(record, headers=()) for record in RECORDS]
    directory = write_partition(
        tmp_path,
        {
            10: encode_message_set(plain, magic=magic, codec=codec),
            100: one(100, b"x"),
            101: b"",
        },
    )
    clean(clean_request(directory))
    times = [-1, -1] if magic == 0 else [300, -1]
    kept = [Record(11, times[0], b"a", b"first"), Record(15, times[1], b"b", b"second")]
    groups = [[record] for record in kept] if codec is Codec.NONE else [kept]
    expected = [encode_batch(group, codec=codec) for group in groups]
    found = batches_of(directory)[:-1]
    assert expected == [bytes(batch.data) for batch in found]


def test_horizon_takes_the_place_of_the_base_timestamp(tmp_path: Path) -> None:
    records = [RECORDS[0], Record(11, 7, b"gone", None), RECORDS[3]]
    found = cleaned(tmp_path, encode_batch(records, codec=Codec.LZ4))
    horizon = NOW_MS + COMPACT.delete_retention_ms
    expected = encode_batch(records[1:], base_offset=10, codec=Codec.LZ4, delete_horizon_ms=horizon)
    assert isinstance(found, RecordBatch)
    assert expected == bytes(found.data)


def failure_of(tmp_path: Path, batch: bytes) -> CorruptError:
    first = one(0, b"first")
    directory = write_partition(tmp_path, {0: first + batch, 100: one(100, b"x"), 101: b""})
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    error = last_round(coordinator().clean(clean_request(directory))).failure
    assert isinstance(error, CorruptError)
    assert (str(directory / f"{0:020d}.log"), len(first)) == (error.path, error.position)
    assert before == {path.name: path.read_bytes() for path in directory.iterdir()}
    return error


def raw_batch(records: list[tuple[int, int, bytes]], codec: Codec, **header: int) -> bytes:
    """Return a batch of (offset, timestamp, key) that no encoder would write."""
    payload = b"".join(
        encode_record(Record(10, 0, key, b"v"), base_offset=10, base_timestamp=0)
        if (offset, timestamp) == (10, 0)
        else _record(offset - 10, timestamp, key)
        for offset, timestamp, key in records
    )
    stored = compress(codec, payload) if codec else payload
    data = struct.pack(
        ">qiibIhiqqqhii", 10, HEADER_BYTES - 12 + len(stored), 0, 2, 0, int(codec), 9, 0, 0,
        header.get("producer_id", -1), header.get("producer_epoch", -1),
        header.get("base_sequence", -1), len(records),
    )  # fmt: skip
    assert codec is Codec.NONE or payload == bytes(decompress(codec, stored))
    return sealed(data + stored)


def _record(delta: int, timestamp: int, key: bytes) -> bytes:
    body = b"\x00" + encode_varint(timestamp) + encode_varint(delta)
    body += encode_varint(len(key)) + key + b"\x02v\x00"
    return encode_varint(len(body)) + body


SUPERSEDED = (10, 0, b"x")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    ("records", "header", "code"),
    [
        ([SUPERSEDED, (12, 0, b"a"), (11, 0, b"b")], {}, BAD_ORDER),
        ([SUPERSEDED, (12, 0, b"a"), (12, 0, b"b")], {}, BAD_ORDER),
        ([SUPERSEDED, (12, -2, b"a")], {}, BAD_TIMESTAMP),
        ([SUPERSEDED, (12, 0, b"a")], {"producer_id": 1, "base_sequence": 0}, BAD_PRODUCER),
        ([SUPERSEDED, (12, 0, b"a")], {"producer_id": 1, "producer_epoch": 0}, BAD_PRODUCER),
    ],
)
def test_batch_that_a_writer_would_refuse_is_corrupt(
    tmp_path: Path,
    records: list[tuple[int, int, bytes]],
    header: dict[str, int],
    code: int,
    codec: Codec,
) -> None:
    """X55 and its neighbours: none of them matters while the batch is only copied."""
    batch = raw_batch(records, codec, **header)
    assert PROBLEMS[code] == failure_of(tmp_path, batch).problem


def test_batch_that_is_only_copied_is_not_judged(tmp_path: Path) -> None:
    batch = raw_batch([(10, 0, b"a"), (12, -2, b"b")], Codec.NONE)
    directory = write_partition(tmp_path, {0: batch + one(30, b"x"), 100: one(100, b"x"), 101: b""})
    clean(clean_request(directory))
    assert batch == (directory / f"{0:020d}.log").read_bytes()[: len(batch)]


def test_a_long_run_of_untouched_batches_is_written_as_it_lies(tmp_path: Path) -> None:
    value = bytes(1000)
    count = 3 * RUN_BYTES_MIN // (2 * len(value))
    untouched = b"".join(one(1 + i, b"%d" % i, value) for i in range(count))
    data = one(0, b"x") + untouched + one(count + 1, b"x") + one(count + 2, b"end", value)
    last = count + 3
    directory = write_partition(tmp_path, {0: data, last: one(last, b"x"), last + 1: b""})
    report = clean(replace(clean_request(directory), memory_bytes=MEMORY_BYTES_DEFAULT))
    left = untouched + one(count + 2, b"end", value) + one(count + 3, b"x")
    assert left == (directory / f"{0:020d}.log").read_bytes()
    assert report.stats is not None
    assert report.stats.copied_bytes >= RUN_BYTES_MIN


def test_segment_that_loses_nothing_is_not_even_written(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a"), 1: b""})
    before = (directory / f"{0:020d}.log").stat().st_ino
    report = clean_at(directory)
    assert report.stats is not None
    assert report.stats.segments_left_alone == 1
    assert before == (directory / f"{0:020d}.log").stat().st_ino
