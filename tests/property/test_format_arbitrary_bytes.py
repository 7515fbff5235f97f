"""Whatever the bytes, a decoder gives a value or a located ``CorruptError``.

Random bytes seldom pass the first check, so most inputs are valid ones with some damage.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keeplast.errors import CorruptError
from keeplast.format import (
    consumer_offsets,
    leader_epoch,
    meta_properties,
    metadata_record,
    offset_index,
    partition_metadata,
    producer_snapshot,
    time_index,
    transaction_state,
    txn_index,
)
from keeplast.format.batch import decode_header, encode_batch
from keeplast.format.checkpoint import decode_offsets
from keeplast.format.compression import Codec, compress, decompress
from keeplast.format.fields import decode_unsigned, decode_varint, decode_varlong
from keeplast.format.filename import parse_partition_directory, parse_segment_file
from keeplast.format.identifier import decode_id
from keeplast.format.message_set import read_batches, valid_bytes
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import (
    Record,
    decode_control_type,
    decode_end_transaction,
    decode_record,
    encode_record,
)
from keeplast.format.txn_index import AbortedTransaction
from tests.support.bounded_work import bounded_work
from tests.support.legacy_sets import encode_message_set
from tests.support.turns import examples

Reader = Callable[[bytes], object]

LIMIT = 1 << 20
EFFORT = settings(max_examples=examples(300))

RECORDS = [
    Record(5, 10, b"key", b"value" * 20, ((b"h", b"v"), (b"n", None))),
    Record(6, 5, b"", None),
    Record(9, 20, None, b""),
]
PLAIN = [Record(record.offset, record.timestamp, record.key, record.value) for record in RECORDS]
TEXT = b'{"key": "value"}, ' * 500


def read_log(data: bytes) -> None:
    valid_bytes(data)
    for batch in read_batches(data):
        _ = batch.is_valid
        _ = (batch.base_offset, batch.last_offset, batch.count, batch.last_sequence)
        for record in batch.records(limit=LIMIT):
            assert isinstance(record, Record)


def read_record(data: bytes) -> None:
    decode_record(data, 0, base_offset=(1 << 63) - 2, base_timestamp=-(1 << 63))


def reading(codec: Codec, magic: int) -> Reader:
    def read(data: bytes) -> None:
        found = decompress(codec, data, magic=magic, limit=LIMIT)
        assert len(found) <= LIMIT

    return read


INTERNAL = {
    name: bytes.fromhex(text)
    for name, text in json.loads(
        (Path(__file__).parents[1] / "golden" / "internal_topics" / "records.json").read_text()
    ).items()
}


def vectors(*words: str) -> list[bytes]:
    return [data for name, data in INTERNAL.items() if all(word in name for word in words)]


def value_reader(key_type: int, type_name: str) -> Reader:
    key = consumer_offsets.CoordinatorKey(key_type, type_name)
    return lambda data: consumer_offsets.decode_value(key, data)


FILE_READERS: dict[str, tuple[Reader, list[bytes]]] = {
    "log": (
        read_log,
        [encode_batch(RECORDS, codec=codec) for codec in Codec]
        + [
            encode_message_set(PLAIN, magic=magic, codec=codec)
            for magic in (0, 1)
            for codec in Codec
            if codec != Codec.ZSTD
        ],
    ),
    "record": (read_record, [encode_record(RECORDS[0], base_offset=5, base_timestamp=10)]),
    "header": (decode_header, [encode_batch(RECORDS)]),
    "varint": (decode_varint, [b"\x80\x80\x80\x80\x01"]),
    "varlong": (decode_varlong, [b"\x80" * 9 + b"\x01"]),
    "unsigned": (decode_unsigned, [b"\x80\x80\x80\x80\x01"]),
    "offset index": (offset_index.decode, [offset_index.encode([(1, 70), (9, 5000)])]),
    "time index": (time_index.decode, [time_index.encode([(1, 70), (9, 5000)])]),
    "transaction index": (
        txn_index.decode,
        [txn_index.encode([AbortedTransaction(1, 2, 3, 4)] * 2)],
    ),
    "producer snapshot": (
        producer_snapshot.decode,
        [producer_snapshot.encode([ProducerEntry(1, 2, 3, 4, 5, 6, 7, 8)] * 2)],
    ),
    "offset checkpoint": (decode_offsets, [b"0\n2\nt 0 100\nu 1 200\n"]),
    "leader epochs": (leader_epoch.decode, [b"0\n2\n0 0\n1 20\n"]),
    "partition metadata": (
        partition_metadata.decode,
        [b"version: 0\ntopic_id: lZ6vvmajTWKDBUTV6SQAtQ"],
    ),
    "meta properties": (
        meta_properties.decode,
        [b"#\n#x\ncluster.id=c\\\n  d\nnode.id=1\nversion=1\n"],
    ),
    "offsets key": (consumer_offsets.decode_key, vectors("commit key") + vectors("group", "key")),
    "offset commit": (
        value_reader(1, consumer_offsets.OFFSET_COMMIT),
        vectors("offset commit value"),
    ),
    "classic group": (value_reader(2, consumer_offsets.GROUP), vectors("group metadata value")),
    "transaction key": (transaction_state.decode_key, vectors("transaction key")),
    "transaction state": (transaction_state.decode_value, vectors("transaction value")),
    "metadata record": (
        metadata_record.decode,
        [b"\x01\x02\x00\x02t" + bytes(range(16)) + b"\x00", b"\x01\x04\x00\x02\x02t\x02k\x02v\x00"],
    ),
    "control key": (decode_control_type, [b"\0\0\0\1"]),
    "marker": (lambda data: decode_end_transaction(data[:4], data[4:]), [bytes(10)]),
}
CODEC_READERS: dict[str, tuple[Reader, list[bytes]]] = {
    f"{codec.name} of magic {magic}": (
        reading(codec, magic),
        [compress(codec, data, magic=magic) for data in (b"", b"x", TEXT, TEXT * 10)],
    )
    for codec in Codec
    for magic in (0, 2)
}
READERS = FILE_READERS | CODEC_READERS


@st.composite
def damaged(draw: st.DrawFn, sound: list[bytes]) -> bytes:
    """A valid input with bytes changed, numbers overwritten, cut, repeated or extended."""
    data = bytearray(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        # The front holds the sizes and counts.
        at = draw(st.integers(0, len(data) - 1) | st.integers(0, min(len(data), 70) - 1))
        match draw(st.integers(0, 4)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                number = draw(st.sampled_from([-1, 0, 1, 1 << 30, (1 << 31) - 1, -(1 << 31)]))
                data[at : at + 4] = struct.pack(">i", number)
            case 3:
                del data[at:]
            case _:
                data += draw(st.sampled_from([bytes(20), bytes(data), b"\xff" * 30]))
    return bytes(data)


def failure(read: Reader, data: bytes) -> CorruptError | None:
    """Return how reading failed; any other exception goes through."""
    try:
        read(data)
    except CorruptError as error:
        return error
    return None


def check(name: str, data: bytes) -> None:
    with bounded_work():
        error = failure(READERS[name][0], data)
    if error is not None:
        assert None not in (error.position, error.expected, error.found)
        assert len(str(error)) < 1000


@pytest.mark.parametrize("name", READERS)
def test_sound_input_is_read(name: str) -> None:
    read, sound = READERS[name]
    for data in sound:
        read(data)


@EFFORT
@given(st.data())
@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_read_or_corrupt(name: str, data: st.DataObject) -> None:
    check(name, data.draw(damaged(READERS[name][1])))


@EFFORT
@given(data=st.binary(max_size=200))
@pytest.mark.parametrize("name", READERS)
def test_arbitrary_bytes_are_read_or_corrupt(name: str, data: bytes) -> None:
    check(name, data)


@EFFORT
@given(st.text())
def test_arbitrary_names_are_parsed_or_none(name: str) -> None:
    parse_segment_file(name)
    parse_partition_directory(name)
    failure(lambda _: decode_id(name), b"")
