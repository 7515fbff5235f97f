"""Kafka's MemoryRecordsTest (cleaning.md section 8.4), as far as it concerns a cleaner.

Kafka's tests call the filter with a predicate of their own; mostly "has a key". Here the same
records lie in a segment and a round drops those without a key, which amounts to the same. What a
round does not do by itself (retain or drop any batch on demand) is a rule's truth table in
``tests/unit/columns/test_rules.py``. README-formats.md in this directory has the list.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.batch import (
    HEADER_BYTES,
    RecordBatch,
    TimestampType,
    decode_batch,
    encode_batch,
    encode_empty_batch,
)
from keeplast.format.checksum import crc32c
from keeplast.format.compression import Codec
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import (
    ControlType,
    EndTransactionMarker,
    Record,
    decode_control_type,
    decode_end_transaction,
    encode_control_key,
)
from keeplast.model.partition import increment_sequence
from tests.support.kernel_window import windows_of
from tests.support.legacy_sets import encode_message, encode_message_set
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    batches_of,
    clean,
    clean_at,
    clean_request,
    marker,
    one,
    write_partition,
    write_snapshot,
)

Grid = tuple[int, Codec, int]
GRID: list[Grid] = [
    (first, codec, magic)
    for first in (0, 57)
    for codec in Codec
    for magic in (0, 1, 2)
    if magic == 2 or codec is not Codec.ZSTD
]
grid = pytest.mark.parametrize(("first", "codec", "magic"), GRID)
FAR = 1_000_000


def encoded(
    records: Sequence[Record], codec: Codec, magic: int, *, leader_epoch: int = -1, **fields: Any
) -> bytes:
    """Encode a batch of any magic; only magic 2 has the further fields."""
    if magic < 2:
        return encode_message_set(records, magic=magic, codec=codec)
    return encode_batch(records, codec=codec, leader_epoch=leader_epoch, **fields)


def filtered(tmp_path: Path, batches: Sequence[bytes], *, first: int) -> list[Batch]:
    """Return what a round leaves of ``batches``; a later batch ends the round."""
    directory = write_partition(
        tmp_path, {first: b"".join(batches), FAR: one(FAR, b"last"), FAR + 1: b""}
    )
    clean(clean_request(directory))
    return batches_of(directory)[:-1]


def records_in(batches: Sequence[Batch]) -> list[Record]:
    return [record for batch in batches for record in batch.records()]


@grid
def test_mr01_leader_epoch_is_kept(tmp_path: Path, first: int, codec: Codec, magic: int) -> None:
    records = [
        Record(first + 10, 1, None, b"a"),
        Record(first + 11, 1, b"1", b"b"),
        Record(first + 12, 1, None, b"c"),
    ]
    batch = encoded(records, codec, magic, leader_epoch=67)
    (left,) = filtered(tmp_path, [batch], first=first)
    assert (67 if magic == 2 else -1) == left.leader_epoch
    assert [first + 11] == [record.offset for record in left.records()]


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("codec", Codec)
def test_mr02_empty_batch_keeps_offsets_sequences_and_times(
    tmp_path: Path, codec: Codec, is_transactional: bool
) -> None:
    """It is the last batch of an active producer, so that its header is retained."""
    records = [Record(3, 11, None, b"1"), Record(4, 12, None, b"2")]
    batch = encode_batch(
        records, codec=codec, leader_epoch=293, producer_id=23, producer_epoch=5,
        base_sequence=10, is_transactional=is_transactional,
    )  # fmt: skip
    directory = write_partition(
        tmp_path,
        {0: batch, 100: one(100, b"last"), 101: marker(101, 23, ControlType.COMMIT, epoch=5)},
    )
    write_snapshot(directory, 101, [ProducerEntry(23, 5, 11, 4, 1, NOW_MS, -1, -1)])
    report = clean(clean_request(directory))
    left = batches_of(directory)[0]
    assert isinstance(left, RecordBatch)
    assert encode_empty_batch(decode_batch(batch)) == bytes(left.data)
    assert (0, 3, 4, 10, 11, 12, 61) == (
        left.count, left.base_offset, left.last_offset, left.base_sequence, left.last_sequence,
        left.max_timestamp, left.size_bytes,
    )  # fmt: skip
    assert (TimestampType.CREATE_TIME, is_transactional) == (
        left.timestamp_type, left.is_transactional,
    )  # fmt: skip
    assert report.stats is not None
    assert (3, 1, len(batch) + len(one(100, b"last"))) == (
        report.stats.messages_read, report.stats.messages_written, report.stats.bytes_read,
    )  # fmt: skip


def empty_batch(producer_id: int) -> bytes:
    return encode_batch(
        [], base_offset=3, last_offset=3, max_timestamp=12, producer_id=producer_id,
        producer_epoch=5, base_sequence=10,
    )  # fmt: skip


def test_mr03_empty_batch_stays_empty(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: empty_batch(23), 100: one(100, b"x"), 101: b""})
    write_snapshot(directory, 101, [ProducerEntry(23, 5, 10, 3, 0, NOW_MS, -1, -1)])
    report = clean(clean_request(directory))
    left = batches_of(directory)[0]
    assert isinstance(left, RecordBatch)
    assert empty_batch(23) == bytes(left.data)
    assert (HEADER_BYTES, 3, 12) == (left.size_bytes, left.last_offset, left.max_timestamp)
    assert report.stats is not None
    assert report.stats.messages_read == 1


def test_mr04_empty_batch_goes_when_it_is_not_needed(tmp_path: Path) -> None:
    assert filtered(tmp_path, [empty_batch(-1)], first=0) == []


def test_mr04_empty_batch_of_an_expired_producer_goes(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: empty_batch(23), 100: one(100, b"x"), 101: b""})
    write_snapshot(directory, 101, [ProducerEntry(23, 5, 10, 3, 0, NOW_MS - DAY_MS, -1, -1)])
    clean(clean_request(directory))
    assert [100] == [batch.base_offset for batch in batches_of(directory)]


@pytest.mark.parametrize("codec", Codec)
def test_mr05_horizon_moves_the_base_timestamp_and_not_the_records_times(
    tmp_path: Path, codec: Codec
) -> None:
    records = [Record(0, 5, b"0", b"0"), Record(1, 10, b"1", None), Record(2, 15, b"2", b"2")]
    directory = write_partition(
        tmp_path, {0: encode_batch(records, codec=codec), 100: one(100, b"x"), 101: b""}
    )
    horizon = (2**31 - 1) // 2
    topic = replace(COMPACT, delete_retention_ms=1)
    clean_at(directory, horizon - 1, topic=topic)
    left = batches_of(directory)[0]
    assert horizon == left.delete_horizon_ms
    assert records == list(left.records())


@grid
def test_mr06_whole_batches_go(tmp_path: Path, first: int, codec: Codec, magic: int) -> None:
    """Those that end at 2 and 6 hold nothing but keyless records."""
    sizes, batches, offset = (1, 2, 3, 1), [], first
    for number, size in enumerate(sizes):
        key = None if number in (1, 3) else b"key"
        records = [
            Record(offset + i, NOW_MS, key and b"%s%d" % (key, offset + i), b"v")
            for i in range(size)
        ]
        batches.append(encoded(records, codec, magic))
        offset += size
    left = filtered(tmp_path, batches, first=first)
    if magic == 2 or codec is not Codec.NONE:
        assert [first, first + 5] == [batch.last_offset for batch in left]
    else:
        assert [first, first + 3, first + 4, first + 5] == [batch.last_offset for batch in left]


@grid
def test_mr07_a_batch_with_gaps_is_filtered_again(
    tmp_path: Path, first: int, codec: Codec, magic: int
) -> None:
    records = [
        Record(first + 5, 10, None, b"b"),
        Record(first + 8, 11, b"1", b"c"),
        Record(first + 10, 12, None, b"d"),
    ]
    fields = {"base_offset": first, "last_offset": first + 10} if magic == 2 else {}
    (left,) = filtered(tmp_path, [encoded(records, codec, magic, **fields)], first=first)
    assert [replace(records[1], timestamp=11 if magic else -1)] == list(left.records())
    expected = (first, first + 10) if magic == 2 else (first + 8, first + 8)
    assert expected == (left.base_offset, left.last_offset)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("first", [0, 57])
def test_mr08_producer_fields_are_kept(tmp_path: Path, first: int, codec: Codec) -> None:
    def batch(offset: int, producer_id: int, epoch: int, sequence: int, **flags: Any) -> bytes:
        keys = (None, b"%d-1" % offset, b"%d-2" % offset)
        return encode_batch(
            [Record(offset + i, NOW_MS, key, b"v") for i, key in enumerate(keys)],
            codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
            **flags,
        )  # fmt: skip

    batches = [
        batch(first, -1, -1, -1),
        batch(first + 3, 23, 5, 10),
        batch(first + 6, 99384, 234, 15, is_transactional=True),
        marker(first + 9, 99384, ControlType.COMMIT, epoch=234),
    ]
    left = filtered(tmp_path, batches, first=first)[:3]
    assert [
        (first, first + 2, -1, -1, -1, -1, False),
        (first + 3, first + 5, 23, 5, 10, 12, False),
        (first + 6, first + 8, 99384, 234, 15, 17, True),
    ] == [
        (
            b.base_offset, b.last_offset, b.producer_id, b.producer_epoch, b.base_sequence,
            b.last_sequence, b.is_transactional,
        )
        for b in left
    ]  # fmt: skip
    # A record's own sequence follows from its offset, so what is gone moves no other's.
    assert [11, 12] == [
        increment_sequence(left[1].base_sequence, record.offset - left[1].base_offset)
        for record in left[1].records()
    ]


@grid
def test_mr09_window_smaller_than_a_batch_changes_nothing(
    tmp_path: Path, first: int, codec: Codec, magic: int
) -> None:
    """There is no output buffer to be too small; windows are what is bounded."""
    offset, batches = first, []
    for size in (1, 128, 2, 128):
        records = [
            Record(offset + i, 10, key, bytes(size)) for i, key in enumerate((None, b"%d" % offset))
        ]
        batches.append(encoded(records, codec, magic))
        offset += 2
    data = b"".join(batches)
    whole = [w.batches for w in windows_of(data)]
    small = [w.batches for w in windows_of(data, window_bytes=64)]
    assert sum(whole) == sum(small)
    left = records_in(filtered(tmp_path, batches, first=first))
    assert [first + 1, first + 3, first + 5, first + 7] == [record.offset for record in left]


def mr10_records(first: int) -> list[list[Record]]:
    texts: list[list[tuple[bytes | None, int]]] = [
        [(None, 10)],
        [(b"1", 11), (None, 12)],
        [(None, 13), (b"4", 20), (b"5", 15)],
        [(b"6", 16)],
    ]
    offset, batches = first, []
    for group in texts:
        batches.append(
            [Record(offset + i, stamp, key, b"v") for i, (key, stamp) in enumerate(group)]
        )
        offset += len(group)
    return batches


@grid
def test_mr10_offsets_times_and_codec_of_filtered_batches(
    tmp_path: Path, first: int, codec: Codec, magic: int
) -> None:
    """Old formats leave as magic 2, from the first to the last record that stays: F1."""
    groups = mr10_records(first)
    directory = write_partition(
        tmp_path,
        {
            first: b"".join(encoded(records, codec, magic) for records in groups),
            FAR: one(FAR, b"last"),
            FAR + 1: b"",
        },
    )
    report = clean(clean_request(directory))
    left = batches_of(directory)[:-1]
    is_plain_old = magic < 2 and codec is Codec.NONE
    ends = [1, 4, 5, 6] if is_plain_old else [2, 5, 6] if magic == 2 else [1, 5, 6]
    starts = [1, 4, 5, 6] if is_plain_old else [1, 3, 6] if magic == 2 else [1, 4, 6]
    times = [11, 20, 15, 16] if is_plain_old else [11, 20, 16]
    assert [first + offset for offset in ends] == [batch.last_offset for batch in left]
    assert [first + offset for offset in starts] == [batch.base_offset for batch in left]
    assert [time if magic else -1 for time in times] == [batch.max_timestamp for batch in left]
    assert {(codec, 2)} == {(batch.codec, batch.magic) for batch in left}
    assert report.stats is not None
    assert (8, 5, 3) == (
        report.stats.messages_read, report.stats.messages_written,
        report.stats.invalid_messages_read,
    )  # fmt: skip
    size = sum(path.stat().st_size for path in directory.glob("*.log"))
    assert size == report.stats.bytes_written


@grid
def test_mr11_append_time_is_kept(tmp_path: Path, first: int, codec: Codec, magic: int) -> None:
    appended = NOW_MS + 5

    def batch(records: Sequence[Record]) -> bytes:
        kind = TimestampType.LOG_APPEND_TIME
        if magic == 2:
            return encode_batch(records, codec=codec, timestamp_type=kind, max_timestamp=appended)
        return encode_message_set(
            records, magic=magic, codec=codec, timestamp_type=kind, append_timestamp=appended
        )

    left = filtered(tmp_path, [batch(group) for group in mr10_records(first)[:3]], first=first)
    assert (3 if magic < 2 and codec is Codec.NONE else 2) == len(left)
    assert {codec} == {found.codec for found in left}
    if magic > 0:
        assert {(TimestampType.LOG_APPEND_TIME, appended)} == {
            (found.timestamp_type, found.max_timestamp) for found in left
        }
        assert {appended} == {record.timestamp for record in records_in(left)}


@grid
def test_mr12_size_of_the_next_batch_from_its_header(first: int, codec: Codec, magic: int) -> None:
    batch = encoded([Record(first, 10, b"a", b"1")], codec, magic)
    for cut in (1, 12, 17):
        with pytest.raises(CorruptError):
            list(windows_of(batch[:cut]))
    assert [len(batch)] == [window.length for window in windows_of(batch)]
    for at, value in ((16, 10), (11, 0)):
        damaged = bytearray(batch)
        damaged[at] = value
        with pytest.raises(CorruptError):
            list(windows_of(bytes(damaged)))


@grid
def test_mr13_records_come_back_as_written(first: int, codec: Codec, magic: int) -> None:
    pairs = [
        (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (None, b"4"), (b"d", None), (None, None),
    ]  # fmt: skip
    records = [Record(first + i, 1 + i, key, value) for i, (key, value) in enumerate(pairs)]
    fields = {"producer_id": 134234, "producer_epoch": 28, "base_sequence": 777}
    data = encoded(records, codec, magic, leader_epoch=543, **(fields if magic == 2 else {}))
    expected = records if magic else [replace(record, timestamp=-1) for record in records]
    for _ in range(2):
        batches = list(read_batches(data))
        assert all(batch.is_valid for batch in batches)
        assert {codec} == {batch.codec for batch in batches}
        assert expected == records_in(batches)
    if magic == 2:
        (batch,) = read_batches(data)
        assert (543, 134234, 28, 777, 782) == (
            batch.leader_epoch, batch.producer_id, batch.producer_epoch, batch.base_sequence,
            batch.last_sequence,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("codec", "magic", "expected"),
    [
        (Codec.NONE, 0, 1978725405),
        (Codec.NONE, 1, 109425508),
        (Codec.NONE, 2, 3851219455),
        (Codec.LZ4, 0, 66944826),
        (Codec.LZ4, 1, 1407303399),
        (Codec.LZ4, 2, 2745969314),
    ],
)
def test_mr16_checksums_of_known_records(codec: Codec, magic: int, expected: int) -> None:
    records = [Record(0, 283843, b"key1", b"value1"), Record(1, 1234, b"key2", b"value2")]
    batch = next(iter(read_batches(encoded(records, codec, magic))))
    assert expected == batch.crc
    assert batch.is_valid


def test_mr17_end_transaction_marker() -> None:
    data = marker(983, 73, ControlType.COMMIT, epoch=13)
    (batch,) = read_batches(data)
    (record,) = batch.records()
    assert batch.is_control
    assert batch.is_transactional
    assert (983, 73, 13, -1) == (
        record.offset, batch.producer_id, batch.producer_epoch, batch.base_sequence,
    )  # fmt: skip
    expected = EndTransactionMarker(ControlType.COMMIT, 0)
    assert expected == decode_end_transaction(record.key, record.value)


def test_mr18_leader_change_record_stays(tmp_path: Path) -> None:
    """A control batch that ends nothing is kept with its record, round after round."""
    key = encode_control_key(ControlType.LEADER_CHANGE)
    value = struct.pack(">hi", 0, 5)
    change = encode_batch([Record(0, NOW_MS, key, value)], is_control=True)
    directory = write_partition(tmp_path, {0: change, 100: one(100, b"x"), 101: b""})
    for days in range(3):
        clean_at(directory, NOW_MS + days * 2 * DAY_MS)
        left = batches_of(directory)[0]
        assert isinstance(left, RecordBatch)
        assert change == bytes(left.data)
    (record,) = left.records()
    assert decode_control_type(record.key) is ControlType.LEADER_CHANGE


def test_mr20_zstd_does_not_exist_for_old_formats() -> None:
    for magic in (0, 1):
        with pytest.raises(InvalidError):
            encode_message_set([Record(0, 1, b"a", b"1")], magic=magic, codec=Codec.ZSTD)
        message = encode_message(
            magic=magic, offset=0, timestamp=1, key=None, value=b"x", attributes=Codec.ZSTD
        )
        with pytest.raises(CorruptError):
            records_in(list(read_batches(message)))


@pytest.mark.parametrize("magic", [0, 1])
def test_mr20_zstd_in_an_old_message_stops_a_round(tmp_path: Path, magic: int) -> None:
    message = encode_message(
        magic=magic, offset=0, timestamp=1, key=None, value=b"x" * 20, attributes=Codec.ZSTD
    )
    directory = write_partition(tmp_path, {0: message, 100: one(100, b"x"), 101: b""})
    with pytest.raises(CorruptError) as caught:
        clean(clean_request(directory))
    assert (str(directory / f"{0:020d}.log"), 0) == (caught.value.path, caught.value.position)


def test_crc_of_a_filtered_batch_is_right(tmp_path: Path) -> None:
    batch = encoded([Record(0, 1, b"a", b"1"), Record(1, 1, None, b"2")], Codec.NONE, 2)
    (left,) = filtered(tmp_path, [batch], first=0)
    assert isinstance(left, RecordBatch)
    assert crc32c(left.data[21:]) == left.crc
