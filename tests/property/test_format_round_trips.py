"""decode(encode(x)) == x for everything that a partition directory holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keeplast.format import (
    leader_epoch,
    meta_properties,
    offset_index,
    partition_metadata,
    producer_snapshot,
    time_index,
    txn_index,
)
from keeplast.format.batch import TimestampType, encode_batch, encode_empty_batch
from keeplast.format.checkpoint import decode_offsets, encode_offsets
from keeplast.format.compression import Codec, compress, decompress
from keeplast.format.fields import (
    decode_unsigned,
    decode_varint,
    decode_varlong,
    encode_unsigned,
    encode_varint,
    encode_varlong,
)
from keeplast.format.filename import (
    PartitionDirectory,
    SegmentFile,
    parse_partition_directory,
    parse_segment_file,
)
from keeplast.format.identifier import decode_id, encode_id
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches, valid_bytes
from keeplast.format.meta_properties import MetaProperties
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.partition import TopicPartition
from tests.support.legacy_sets import encode_message_set

int16s = st.integers(-(1 << 15), (1 << 15) - 1)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
offsets = st.integers(0, 1 << 62)
relative = st.integers(0, (1 << 31) - 1)
texts = st.binary(max_size=40)
nullable = st.none() | texts
codecs = st.sampled_from(list(Codec))
topics = st.text("abcXYZ019._-", min_size=1, max_size=30).filter(lambda t: t not in (".", ".."))
partitions = st.builds(TopicPartition, topics, relative)
payloads = st.binary(max_size=300) | st.builds(
    lambda seed, times: seed * times, st.binary(min_size=1, max_size=200), st.integers(1, 1500)
)


@st.composite
def records(draw: st.DrawFn, *, with_headers: bool = True) -> list[Record]:
    """Records with ascending offsets and holes."""
    offset = draw(offsets)
    found = []
    for gap in draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=8)):
        offset += gap
        headers = draw(st.lists(st.tuples(texts, nullable), max_size=3)) if with_headers else []
        found.append(
            Record(offset, draw(int64s), draw(nullable), draw(nullable), tuple(headers)),
        )
    return found


@given(int32s)
def test_varints(value: int) -> None:
    for encode, decode in ((encode_varint, decode_varint), (encode_unsigned, decode_unsigned)):
        data = encode(value)
        assert (value, len(data)) == decode(data)


@given(int64s)
def test_varlongs(value: int) -> None:
    data = encode_varlong(value)
    assert (value, len(data)) == decode_varlong(data)


@given(codecs, payloads, st.integers(0, 2))
def test_compressed_data(codec: Codec, data: bytes, magic: int) -> None:
    payload = compress(codec, data, magic=magic)
    assert data == bytes(decompress(codec, payload, magic=magic, limit=len(data)))


@given(
    records(),
    st.fixed_dictionaries(
        {
            "codec": codecs,
            "delete_horizon_ms": st.none() | int64s,
            "leader_epoch": int32s,
            "producer_id": int64s,
            "producer_epoch": int16s,
            "base_sequence": int32s,
            "is_transactional": st.booleans(),
            "is_control": st.booleans(),
            "max_timestamp": int64s,
            "timestamp_type": st.sampled_from(
                [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]
            ),
        }
    ),
    st.integers(0, 1 << 16),
    st.integers(0, 1 << 16),
)
def test_batches(content: list[Record], fields: dict[str, object], before: int, after: int) -> None:
    first, last = content[0].offset - before, content[-1].offset + after
    data = encode_batch(content, base_offset=first, last_offset=last, **fields)  # type: ignore[arg-type]

    (batch,) = read_batches(data)

    assert len(data) == valid_bytes(data) == batch.size_bytes
    assert batch.is_valid
    assert fields == {name: getattr(batch, name) for name in fields}
    assert (first, last, len(content)) == (batch.base_offset, batch.last_offset, batch.count)
    found = list(batch.records())
    if fields["timestamp_type"] is TimestampType.LOG_APPEND_TIME:
        times = {record.timestamp for record in found}
        assert {fields["max_timestamp"]} == times
    else:
        assert content == found


@given(records(), codecs)
def test_empty_batches_are_emptied_to_themselves(content: list[Record], codec: Codec) -> None:
    (batch,) = read_batches(encode_batch(content, codec=codec))
    assert batch.magic == 2

    empty = encode_empty_batch(batch)  # type: ignore[arg-type]

    (again,) = read_batches(empty)
    assert (batch.base_offset, batch.last_offset) == (again.base_offset, again.last_offset)
    assert empty == encode_empty_batch(again)  # type: ignore[arg-type]


@given(
    records(with_headers=False),
    st.integers(0, 1),
    st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]),
)
def test_legacy_sets(content: list[Record], magic: int, codec: Codec) -> None:
    data = encode_message_set(content, magic=magic, codec=codec)

    batches = list(read_batches(data))

    assert len(data) == valid_bytes(data)
    assert all(batch.is_valid for batch in batches)
    assert content[0].offset == batches[0].base_offset
    assert content[-1].offset == batches[-1].last_offset
    assert len(content) == sum(batch.count for batch in batches)
    expected = [
        Record(record.offset, record.timestamp if magic else -1, record.key, record.value)
        for record in content
    ]
    assert expected == [record for batch in batches for record in batch.records()]


@given(st.lists(st.tuples(relative, relative)))
def test_offset_indexes(entries: list[tuple[int, int]]) -> None:
    data = offset_index.encode(entries)
    table = offset_index.decode(data)

    assert entries == [tuple(row) for row in table.tolist()]
    assert data == offset_index.encode(table)


@given(st.lists(st.tuples(relative, relative), max_size=20), relative)
def test_offset_index_lookup_is_the_greatest_entry_not_above(
    entries: list[tuple[int, int]], target: int
) -> None:
    ascending = sorted(dict(entries).items())
    table = np.array(ascending, np.int64).reshape(-1, 2)

    expected = [position for offset, position in ascending if offset <= target]
    assert (expected or [0])[-1] == offset_index.find_position(table, target)


@given(st.lists(st.tuples(int64s, relative)))
def test_time_indexes(entries: list[tuple[int, int]]) -> None:
    data = time_index.encode(entries)
    table = time_index.decode(data)

    assert entries == [tuple(row) for row in table.tolist()]
    assert data == time_index.encode(table)


@given(st.lists(st.builds(AbortedTransaction, int64s, int64s, int64s, int64s)).map(tuple))
def test_transaction_indexes(entries: tuple[AbortedTransaction, ...]) -> None:
    assert entries == txn_index.decode(txn_index.encode(entries))


producer_entries = st.builds(
    ProducerEntry, int64s, int16s, int32s, int64s, int32s, int64s, int32s, int64s
)


@given(st.lists(producer_entries).map(tuple))
def test_producer_snapshots(entries: tuple[ProducerEntry, ...]) -> None:
    assert entries == producer_snapshot.decode(producer_snapshot.encode(entries))


@given(st.dictionaries(partitions, int64s))
def test_offset_checkpoints(mapping: dict[TopicPartition, int]) -> None:
    assert mapping == decode_offsets(encode_offsets(mapping))


@given(st.lists(st.builds(LeaderEpoch, int32s, int64s)).map(tuple))
def test_leader_epochs(entries: tuple[LeaderEpoch, ...]) -> None:
    assert entries == leader_epoch.decode(leader_epoch.encode(entries))


@given(st.binary(min_size=16, max_size=16))
def test_ids(raw: bytes) -> None:
    assert raw == decode_id(encode_id(raw))


@given(st.binary(min_size=16, max_size=16).filter(any), st.integers(0, 999))
def test_partition_metadata(topic_id: bytes, version: int) -> None:
    metadata = PartitionMetadata(topic_id, version)
    assert metadata == partition_metadata.decode(partition_metadata.encode(metadata))


@given(
    st.builds(MetaProperties, st.just(1), st.text(max_size=30), int32s, st.none() | st.text())
    | st.builds(MetaProperties, st.just(0), st.none() | st.text(), st.none() | int32s)
)
def test_meta_properties(properties: MetaProperties) -> None:
    assert properties == meta_properties.decode(meta_properties.encode(properties))


@given(partitions)
def test_partition_directories(partition: TopicPartition) -> None:
    assert PartitionDirectory(partition) == parse_partition_directory(str(partition))


@given(
    st.builds(
        SegmentFile,
        st.integers(0, (1 << 63) - 1),
        st.sampled_from([".log", ".index", ".timeindex", ".txnindex", ".snapshot"]),
        st.sampled_from(["", ".cleaned", ".swap", ".deleted"]),
    )
    | st.builds(
        SegmentFile,
        st.integers(0, (1 << 63) - 1),
        st.sampled_from([".log", ".index", ".timeindex", ".txnindex", ".snapshot"]),
        st.just(".deleted"),
        st.text("abc019", min_size=1, max_size=12),
    )
)
def test_segment_files(file: SegmentFile) -> None:
    assert file == parse_segment_file(file.name)
