"""Kafka's DefaultRecordBatchTest (cleaning.md section 8.5, RB)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from keeplast.errors import CorruptError
from keeplast.format.batch import TimestampType, decode_batch, encode_batch, encode_empty_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.model.partition import INT32_MAX, NO_TIMESTAMP, increment_sequence
from tests.support.kernel_window import rows_of, window_of, windows_of
from tests.support.partition_maker import NOW_MS, clean, clean_request, one, write_partition


@pytest.mark.parametrize(
    ("kind", "is_transactional", "is_control"),
    list(itertools.product(
        [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME], [False, True], [False, True]
    )),
)  # fmt: skip
def test_rb01_empty_header(kind: TimestampType, is_transactional: bool, is_control: bool) -> None:
    batch = decode_batch(
        encode_batch(
            [Record(15, NOW_MS, b"k", None), Record(37, NOW_MS, b"l", b"v")],
            codec=Codec.GZIP, timestamp_type=kind, max_timestamp=NOW_MS + 1, leader_epoch=15,
            producer_id=23423, producer_epoch=145, base_sequence=983,
            is_transactional=is_transactional, is_control=is_control, delete_horizon_ms=99,
        )
    )  # fmt: skip
    empty = decode_batch(encode_empty_batch(batch))
    assert empty.is_valid
    assert list(empty.records()) == []
    assert (15, 37, 15, 23423, 145, 983, 983 + 22, 61, 0, NO_TIMESTAMP, NOW_MS + 1) == (
        empty.base_offset, empty.last_offset, empty.leader_epoch, empty.producer_id,
        empty.producer_epoch, empty.base_sequence, empty.last_sequence, empty.size_bytes,
        empty.count, empty.base_timestamp, empty.max_timestamp,
    )  # fmt: skip
    assert (kind, is_transactional, is_control, Codec.NONE, None) == (
        empty.timestamp_type, empty.is_transactional, empty.is_control, empty.codec,
        empty.delete_horizon_ms,
    )  # fmt: skip


@pytest.mark.parametrize(("producer_id", "epoch", "sequence"), [(-1, -1, -1), (23423, 145, 983)])
def test_rb02_fields_of_a_batch(producer_id: int, epoch: int, sequence: int) -> None:
    records = [Record(1234567, 1, b"a", b"v"), Record(1234568, 2, b"b", b"v")]
    batch = decode_batch(
        encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )
    assert batch.is_valid
    assert records == list(batch.records())
    assert (1234567, 1234568, 2, 2, producer_id, epoch, sequence) == (
        batch.base_offset, batch.last_offset, batch.max_timestamp, batch.count, batch.producer_id,
        batch.producer_epoch, batch.base_sequence,
    )  # fmt: skip


def test_rb03_sequences_wrap() -> None:
    records = [Record(i, 1, b"k", b"v") for i in range(3)]
    batch = decode_batch(
        encode_batch(records, producer_id=1, producer_epoch=0, base_sequence=INT32_MAX - 1)
    )
    assert (INT32_MAX - 1, 0) == (batch.base_sequence, batch.last_sequence)
    found = [increment_sequence(batch.base_sequence, record.offset) for record in records]
    assert [INT32_MAX - 1, INT32_MAX, 0] == found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("count", [2, 4, 100_000])
def test_rb04_record_count_that_does_not_fit(count: int, codec: Codec) -> None:
    data = bytearray(encode_batch([Record(i, 1, b"k", b"v") for i in range(3)], codec=codec))
    data[57:61] = count.to_bytes(4, "big")
    with pytest.raises(CorruptError):
        list(decode_batch(bytes(data)).records())
    with pytest.raises(CorruptError):
        list(rows_of(window_of(bytes(data), checks_crc=False)))


@pytest.mark.parametrize("size", [10, 13, 48])
def test_rb04_size_that_does_not_fit(size: int) -> None:
    data = bytearray(one(0, b"k"))
    data[8:12] = size.to_bytes(4, "big")
    with pytest.raises(CorruptError):
        decode_batch(bytes(data))
    with pytest.raises(CorruptError):
        list(windows_of(bytes(data)))


def test_rb05_wrong_checksum(tmp_path: Path) -> None:
    """Reading shows it; a round stops, which Kafka's does not (differences.md a)."""
    data = bytearray(one(0, b"k"))
    data[40] ^= 1
    assert not decode_batch(bytes(data)).is_valid
    directory = write_partition(tmp_path, {0: bytes(data), 1: one(1, b"k"), 2: b""})
    with pytest.raises(CorruptError) as caught:
        clean(clean_request(directory))
    assert (str(directory / f"{0:020d}.log"), 0) == (caught.value.path, caught.value.position)


def test_rb06_append_time_gives_every_record_the_batchs_time() -> None:
    records = [Record(i, i, b"k", b"v") for i in range(3)]
    batch = decode_batch(
        encode_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=15)
    )
    assert batch.is_valid
    assert [15, 15, 15] == [record.timestamp for record in batch.records()]


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [
        (0, 5, 5),
        (INT32_MAX - 5, 5, INT32_MAX),
        (INT32_MAX - 5, 6, 0),
        (INT32_MAX - 5, 10, 4),
        (INT32_MAX, 1, 0),
        (INT32_MAX, INT32_MAX, INT32_MAX - 1),
    ],
)
def test_rb07_sequence_arithmetic(sequence: int, increment: int, expected: int) -> None:
    assert expected == increment_sequence(sequence, increment)
