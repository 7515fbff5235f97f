"""Every vector of ``tests/golden/formats_vectors.json`` that concerns this room."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keeplast.format import producer_snapshot, txn_index
from keeplast.format.batch import RecordBatch, TimestampType, encode_batch, encode_empty_batch
from keeplast.format.checksum import crc32c
from keeplast.format.compression import Codec
from keeplast.format.fields import (
    decode_unsigned,
    decode_varint,
    decode_varlong,
    encode_unsigned,
    encode_varint,
    encode_varlong,
)
from keeplast.format.message_set import Batch, LegacyBatch, read_batches, valid_bytes
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import Record
from keeplast.format.txn_index import AbortedTransaction
from tests.support.legacy_sets import encode_message_set

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "formats_vectors.json").read_text()
)
ENTRIES: list[bytes] = [bytes.fromhex(text) for text in VECTORS["entries"]]

TESTED = {"uvarint", "varint", "varlong", "crc32c", "entries", "producer_snapshot", "aborted_txn"}
OF_TIERED_STORAGE = {"murmur2", "metadata_partition_50", "rlmm", "aiven"}
"""Out of scope here: remote-log metadata records and their partitioner, and a plugin's objects."""

PAIR = (Record(0, 283843, b"key1", b"value1"), Record(1, 1234, b"key2", b"value2"))
KEPT = Record(1, 10, b"1", None)
HORIZON = (Record(0, 5, b"0", b"0"), KEPT, Record(2, 15, b"2", b"2"))
MS = 1_700_000_000_000
ABORT = (b"\0\0\0\0", b"\0\0\0\0\x01\x5b")
COMMIT = (b"\0\0\0\1", b"\0\0\0\0\x01\x5b")
LETTERS = tuple(Record(at, at + 1, b"abc"[at : at + 1], b"123"[at : at + 1]) for at in range(3))
APPENDED = tuple(Record(record.offset, 15, record.key, record.value) for record in LETTERS)
UNTIMED = tuple(Record(record.offset, -1, record.key, record.value) for record in PAIR)

EXPECTED_RECORDS: list[tuple[Record, ...]] = [
    (Record(0, 1000, b"k", b"v"),),
    LETTERS,
    APPENDED,
    PAIR,
    PAIR,
    PAIR,
    PAIR,
    PAIR,
    (),
    (),
    (Record(983, MS, *COMMIT),),
    (Record(983, MS, *ABORT),),
    (Record(983, MS, *COMMIT),),
    HORIZON,
    HORIZON,
    UNTIMED,
    PAIR,
    UNTIMED,
    PAIR,
]


def batches(entry: int) -> list[Batch]:
    return list(read_batches(ENTRIES[entry]))


def v2(entry: int) -> RecordBatch:
    (batch,) = batches(entry)
    assert isinstance(batch, RecordBatch)
    return batch


def test_no_vector_is_forgotten() -> None:
    assert set(VECTORS) == TESTED | OF_TIERED_STORAGE
    assert len(ENTRIES) == len(EXPECTED_RECORDS)


@pytest.mark.parametrize(
    ("encode", "decode", "number", "text"),
    [
        (encode, decode, number, text)
        for kind, encode, decode in (
            ("uvarint", encode_unsigned, decode_unsigned),
            ("varint", encode_varint, decode_varint),
            ("varlong", encode_varlong, decode_varlong),
        )
        for number, text in VECTORS[kind].items()
    ],
)
def test_varints(
    encode: Callable[[int], bytes], decode: Callable[[bytes], tuple[int, int]],
    number: str, text: str,
) -> None:  # fmt: skip
    assert bytes.fromhex(text) == encode(int(number))
    assert (int(number), len(text) // 2) == decode(bytes.fromhex(text))


@pytest.mark.parametrize(("data", "crc"), VECTORS["crc32c"].items())
def test_crc32c(data: str, crc: str) -> None:
    assert int(crc, 16) == crc32c(bytes.fromhex(data))


@pytest.mark.parametrize("entry", range(len(ENTRIES)))
def test_entry_is_read_as_kafka_reads_it(entry: int) -> None:
    found = batches(entry)

    assert all(batch.is_valid for batch in found)
    assert len(ENTRIES[entry]) == valid_bytes(ENTRIES[entry])
    records = tuple(record for batch in found for record in batch.records())
    assert EXPECTED_RECORDS[entry] == records


@pytest.mark.parametrize(
    ("entry", "codec"),
    [(3, Codec.NONE), (4, Codec.GZIP), (5, Codec.SNAPPY), (6, Codec.LZ4), (7, Codec.ZSTD)],
)
def test_pair_is_written_as_kafka_writes_it_with_every_codec(entry: int, codec: Codec) -> None:
    # The last offset, and with it the CRC, is as Kafka's builder sets it.
    assert ENTRIES[entry] == encode_batch(PAIR, codec=codec)


@pytest.mark.parametrize("entry", [index for index, data in enumerate(ENTRIES) if data[16] == 2])
def test_v2_entry_is_written_again_from_its_fields(entry: int) -> None:
    batch = v2(entry)

    again = encode_batch(
        list(batch.records()),
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        codec=batch.codec,
        timestamp_type=batch.timestamp_type,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        delete_horizon_ms=batch.delete_horizon_ms,
        leader_epoch=batch.leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
    )

    # LogAppendTime set in place keeps the client's deltas; a rebuilt batch loses them.
    is_switched_in_place = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert is_switched_in_place or ENTRIES[entry] == again


def test_empty_header_keeps_producer_offsets_epoch_and_timestamp() -> None:
    batch = v2(8)

    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (23423, 145, 983)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (15, 37, 15)
    assert (batch.base_timestamp, batch.max_timestamp) == (-1, MS)
    assert batch.last_sequence == 983 + 22
    assert ENTRIES[8] == encode_empty_batch(batch)


@pytest.mark.parametrize("entry", [10, 11])
def test_marker_has_its_fields(entry: int) -> None:
    batch = v2(entry)

    assert batch.size_bytes == 78
    assert (batch.is_control, batch.is_transactional) == (True, True)
    assert (
        batch.base_offset,
        batch.leader_epoch,
        batch.producer_id,
        batch.producer_epoch,
    ) == (983, 29, 73, 13)


def test_horizon_of_a_rewritten_marker() -> None:
    assert None is v2(10).delete_horizon_ms
    assert v2(12).delete_horizon_ms == 1_700_086_401_000


def test_horizon_moves_deltas_and_not_timestamps() -> None:
    assert (v2(13).delete_horizon_ms, v2(14).delete_horizon_ms) == (None, 1_073_741_823)
    assert list(v2(13).records()) == list(v2(14).records())


@pytest.mark.parametrize(("entry", "magic"), [(15, 0), (16, 1)])
def test_legacy_messages_are_written_as_kafka_wrote_them(entry: int, magic: int) -> None:
    assert ENTRIES[entry] == encode_message_set(PAIR, magic=magic)


@pytest.mark.parametrize(("entry", "magic"), [(17, 0), (18, 1)])
def test_legacy_wrappers_are_written_as_kafka_wrote_them(entry: int, magic: int) -> None:
    (batch,) = batches(entry)

    assert isinstance(batch, LegacyBatch)
    assert (batch.base_offset, batch.last_offset, batch.count) == (0, 1, 2)
    assert ENTRIES[entry] == encode_message_set(PAIR, magic=magic, codec=Codec.LZ4)


def test_producer_snapshots() -> None:
    entry = ProducerEntry(23423, 145, 983, 37, 22, MS, -1, -1)
    for name, entries in (("empty", ()), ("one", (entry,))):
        data = bytes.fromhex(VECTORS["producer_snapshot"][name])
        assert entries == producer_snapshot.decode(data)
        assert data == producer_snapshot.encode(entries)


def test_aborted_transactions() -> None:
    for fields, text in VECTORS["aborted_txn"].items():
        entry = AbortedTransaction(*map(int, fields.split(",")))
        assert (entry,) == txn_index.decode(bytes.fromhex(text))
        assert bytes.fromhex(text) == txn_index.encode([entry])
