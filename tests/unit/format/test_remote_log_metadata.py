"""The codec of ``__remote_log_metadata``, by vectors of Kafka's own serde."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.errors import CorruptError
from keeplast.format.identifier import decode_id, metadata_partition, murmur2
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
    TopicIdPartition,
    decode,
    encode,
)

TOPIC_ID = decode_id("lZ6vvmajTWKDBUTV6SQAtQ")
SEGMENT_ID = decode_id("adh9f8BMS4anaUnD8KWfWg")
PARTITION = TopicIdPartition("topic1", TOPIC_ID, 42)
NAME = RemoteLogSegmentId(PARTITION, SEGMENT_ID)
SEGMENT = RemoteLogSegment(
    id=NAME,
    start_offset=0,
    end_offset=1000,
    broker_id=2,
    max_timestamp_ms=1_000_000_000,
    event_timestamp_ms=2_000_000_000,
    epochs=(EpochStart(0, 0), EpochStart(1, 200), EpochStart(2, 300)),
    size_bytes=100_500,
    custom_metadata=None,
    state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
)
UPDATE = RemoteLogSegmentUpdate(
    id=NAME,
    broker_id=2,
    event_timestamp_ms=2_000_000_001,
    custom_metadata=None,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)
DELETE = RemotePartitionDelete(
    partition=PARTITION,
    broker_id=2,
    event_timestamp_ms=2_000_000_002,
    state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
)
HEAD = "07746f70696331959eafbe66a34d62830544d5e92400b50000002a0069d87d7fc04c4b86a76949c3f0a59f5a00"
SEGMENT_HEX = (
    f"010000{HEAD}000000000000000000000000000003e800000002000000003b9aca000000000077359400"
    "0400000000000000000000000000000000010000000000"
    "0000c80000000002000000000000012c0000018894000000"
)
VECTORS: dict[str, tuple[RemoteLogEvent, str]] = {
    "segment": (SEGMENT, SEGMENT_HEX),
    "no transaction index": (replace(SEGMENT, tags=((0, b"\1"),)), SEGMENT_HEX[:-2] + "01000101"),
    "update": (UPDATE, f"010100{HEAD}000000020000000077359401000100"),
    "custom metadata": (
        replace(UPDATE, custom_metadata=b"\1\2"),
        f"010100{HEAD}00000002000000007735940103010201" + "00",
    ),
    "partition delete": (
        DELETE,
        "01020007746f70696331959eafbe66a34d62830544d5e92400b50000002a00"
        "0000000200000000773594020000",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_are_those_of_a_broker(name: str) -> None:
    event, text = VECTORS[name]
    assert text == encode(event).hex()
    assert event == decode(bytes.fromhex(text))


def test_fields_of_a_newer_broker_are_kept() -> None:
    """AT-36."""
    segment = replace(
        SEGMENT,
        id=RemoteLogSegmentId(
            dataclasses.replace(PARTITION, tags=((7, b"a"),)), SEGMENT_ID, ((9, b""),)
        ),
        epochs=(EpochStart(3, 0, ((1, b"xyz"),)),),
        tags=((0, b"\1"), (200, b"new")),
    )
    found = decode(encode(segment))
    assert encode(segment) == encode(found)
    assert isinstance(found, RemoteLogSegment)
    assert found.is_txn_index_empty
    assert (200, b"new") == found.tags[1]
    assert not SEGMENT.is_txn_index_empty


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not enough"),
        ("00" + SEGMENT_HEX[2:], "unknown frame version"),
        ("0103" + SEGMENT_HEX[4:], "unknown type"),
        ("010001" + SEGMENT_HEX[6:], "unknown version"),
        (SEGMENT_HEX + "00", "bytes left over"),
        (SEGMENT_HEX[:-4] + "0400", "unknown state"),
        (SEGMENT_HEX[:-8], "ends inside a field"),
        ("8100" + SEGMENT_HEX[2:], "as no broker writes it"),
    ],
)
def test_a_record_that_would_end_a_brokers_reader_is_refused(text: str, problem: str) -> None:
    with pytest.raises(CorruptError) as caught:
        decode(bytes.fromhex(text))
    if text:
        assert problem in str(caught.value)


def test_a_null_value_is_refused() -> None:
    with pytest.raises(CorruptError, match="null value"):
        decode(None)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SEGMENT, start_offset=-1),
        replace(SEGMENT, start_offset=5, end_offset=4),
        replace(SEGMENT, epochs=()),
    ],
)
def test_a_segment_that_brokers_cannot_construct_is_refused(
    wrong: RemoteLogSegment,
) -> None:
    with pytest.raises(CorruptError, match="no broker accepts"):
        decode(encode(wrong))


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TAGS = st.dictionaries(st.integers(0, 300), st.binary(max_size=9), max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)
IDS = st.binary(min_size=16, max_size=16)
NAMES = st.builds(
    RemoteLogSegmentId,
    st.builds(TopicIdPartition, st.text(max_size=20), IDS, INT32, TAGS),
    IDS,
    TAGS,
)
CUSTOM = st.none() | st.binary(max_size=200)
SEGMENTS = st.builds(
    RemoteLogSegment,
    id=NAMES,
    start_offset=st.integers(0, 2**62),
    end_offset=st.integers(2**62, 2**63 - 1),
    broker_id=INT32,
    max_timestamp_ms=INT64,
    event_timestamp_ms=INT64,
    epochs=st.lists(st.builds(EpochStart, INT32, INT64, TAGS), min_size=1, max_size=5).map(tuple),
    size_bytes=INT32,
    custom_metadata=CUSTOM,
    state=st.sampled_from(RemoteLogSegmentState),
    tags=TAGS,
)
UPDATES = st.builds(
    RemoteLogSegmentUpdate,
    id=NAMES,
    broker_id=INT32,
    event_timestamp_ms=INT64,
    custom_metadata=CUSTOM,
    state=st.sampled_from(RemoteLogSegmentState),
    tags=TAGS,
)


@given(SEGMENTS | UPDATES)
def test_every_event_comes_back(
    event: RemoteLogSegment | RemoteLogSegmentUpdate,
) -> None:
    raw = encode(event)
    assert event == decode(raw)
    assert raw == encode(decode(raw))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        event = decode(raw)
    except CorruptError:
        return
    assert raw == encode(event)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(text: bytes, expected: int) -> None:
    assert expected % 2**32 == murmur2(text)


@pytest.mark.parametrize(
    ("topic_id", "expected"),
    [
        ("AAAAAAAAAAAAAAAAAAAAAQ", (35, 6, 46, 0)),
        ("lZ6vvmajTWKDBUTV6SQAtQ", (9, 49, 43, 33)),
        ("MWJ6FHTfRYy67jzwZdeqSQ", (42, 45, 26, 24)),
    ],
)
def test_the_metadata_of_a_partition_is_where_brokers_look(
    topic_id: str, expected: tuple[int, ...]
) -> None:
    found = tuple(metadata_partition(decode_id(topic_id), each, 50) for each in (0, 1, 7, 42))
    assert expected == found
