"""Records of the brokers' own topics, as Kafka 4.3's generated classes write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeplast.errors import CorruptError, InvalidError
from keeplast.format import consumer_offsets, transaction_state
from keeplast.format.consumer_offsets import (
    ClassicGroup,
    CoordinatorKey,
    GroupMember,
    OffsetCommit,
    UnknownValue,
)
from keeplast.format.identifier import decode_id
from keeplast.format.transaction_state import TransactionStateValue, TransactionStatus, UnknownState
from keeplast.model.partition import INT32_MAX, INT64_MAX, TopicPartition
from tests.support.committed_offsets import commit_key, commit_value

GOLDEN = Path(__file__).parents[2] / "golden" / "internal_topics" / "records.json"
RECORDS = {name: bytes.fromhex(text) for name, text in json.loads(GOLDEN.read_text()).items()}
COMMIT = CoordinatorKey(1, "offset commit", "grüppe", "orders", 7)
GROUP = CoordinatorKey(2, "group", "readers")
IDS = st.one_of(st.none(), st.binary(min_size=16, max_size=16))
TEXTS = st.text(max_size=20)
LONGS = st.integers(-(1 << 63), INT64_MAX)


def decoded(name: str, data: bytes) -> object:
    """Decode ``data`` as what the vector ``name`` is."""
    if "transaction key" in name:
        return transaction_state.decode_key(data)
    if "transaction value" in name:
        return transaction_state.decode_value(data)
    if "key" in name:
        return consumer_offsets.decode_key(data)
    return consumer_offsets.decode_value(COMMIT if "commit" in name else GROUP, data)


def test_keys_say_what_a_record_is_about() -> None:
    decode = consumer_offsets.decode_key
    assert COMMIT == decode(RECORDS["offset commit key 1"])
    assert CoordinatorKey(0, "offset commit", "grüppe", "orders", 7) == decode(
        RECORDS["legacy offset commit key 0"]
    )
    assert GROUP == decode(RECORDS["group metadata key 2"])
    assert CoordinatorKey(5, "consumer group member", "readers", subject="m-2") == decode(
        RECORDS["consumer group member key 5"]
    )
    assert CoordinatorKey(
        16, "consumer group regular expression", "readers", subject="or.*"
    ) == decode(RECORDS["consumer group regex key 16"])


@given(TEXTS, TEXTS, st.integers(0, INT32_MAX), st.integers(0, 1))
def test_a_key_is_read_as_it_was_written(
    group: str, topic: str, partition: int, version: int
) -> None:
    key = commit_key(group, TopicPartition(topic, partition), version=version)
    expected = CoordinatorKey(version, "offset commit", group, topic, partition)
    assert expected == consumer_offsets.decode_key(key)


@given(st.integers(0, 4), LONGS, st.integers(-1, INT32_MAX), TEXTS, LONGS, LONGS, IDS)
def test_a_commit_is_read_as_it_was_written(
    version: int,
    offset: int,
    epoch: int,
    text: str,
    at_ms: int,
    until_ms: int,
    topic_id: bytes | None,
) -> None:
    commit = OffsetCommit(
        version, offset, epoch if version >= 3 else -1, text, at_ms,
        until_ms if version == 1 else -1, topic_id if version >= 4 else None,
    )  # fmt: skip
    assert commit == consumer_offsets.decode_value(COMMIT, commit_value(commit))


@pytest.mark.parametrize(
    ("group", "java_hash"),
    [
        ("abc", 96354),
        ("hello", 99162322),
        ("Hello World", -862545276),
        # The one number that has no counterpart above zero.
        ("polygenelubricants", -(1 << 31)),
        # Outside the first plane a character is two of Java's.
        ("\U0001f600", 31 * 0xD83D + 0xDE00),
    ],
)
def test_a_group_is_in_the_partition_of_its_hash(group: str, java_hash: int) -> None:
    magnitude = 0 if java_hash == -(1 << 31) else abs(java_hash)
    for partitions in (1, 3, 50):
        assert magnitude % partitions == consumer_offsets.home_partition(group, partitions)


@pytest.mark.parametrize("group", ["", "x" * (1 << 15), "\ud800"])
def test_what_no_key_can_have_is_no_group(group: str) -> None:
    with pytest.raises(InvalidError, match="not the name of a consumer group"):
        consumer_offsets.group_name(group)


def test_a_key_of_a_type_to_come_is_shown_as_unknown() -> None:
    assert CoordinatorKey(99, "unknown") == consumer_offsets.decode_key(b"\0\x63whatever")


@pytest.mark.parametrize("version", range(5))
def test_offset_commits_of_every_version(version: int) -> None:
    expected = OffsetCommit(
        version,
        1234567890123,
        5 if version >= 3 else -1,
        "note",
        1700000000001,
        1700000009999 if version == 1 else -1,
        decode_id("lZ6vvmajTWKDBUTV6SQAtQ") if version >= 4 else None,
    )
    found = consumer_offsets.decode_value(COMMIT, RECORDS[f"offset commit value {version}"])
    assert expected == found


def test_an_offset_commit_may_lack_its_topic_id() -> None:
    found = consumer_offsets.decode_value(COMMIT, RECORDS["offset commit value 4 without id"])
    assert OffsetCommit(4, 1, -1, "", 2) == found


@pytest.mark.parametrize("version", range(5))
def test_groups_of_every_version(version: int) -> None:
    member = GroupMember(
        "m-1",
        "static" if version >= 3 else None,
        "client",
        "/127.0.0.1",
        300000 if version >= 1 else -1,
        45000,
        3,
        1,
    )
    timestamp = 1700000000002 if version >= 2 else -1
    expected = ClassicGroup(version, "consumer", 3, "range", "m-1", timestamp, (member,))
    found = consumer_offsets.decode_value(GROUP, RECORDS[f"group metadata value {version}"])
    assert expected == found


def test_a_group_may_be_empty() -> None:
    found = consumer_offsets.decode_value(GROUP, RECORDS["group metadata value 3 empty"])
    assert ClassicGroup(3, "consumer", 4, None, None, 9, ()) == found


def test_tombstones_and_versions_to_come_are_no_errors() -> None:
    assert consumer_offsets.decode_value(COMMIT, None) is None
    assert UnknownValue(5, 4) == consumer_offsets.decode_value(COMMIT, b"\0\x05ab")
    member = consumer_offsets.decode_key(RECORDS["consumer group member key 5"])
    assert UnknownValue(0, 3) == consumer_offsets.decode_value(member, b"\0\0x")
    assert transaction_state.decode_value(None) is None
    assert UnknownState(2, 4) == transaction_state.decode_value(b"\0\x02ab")
    assert transaction_state.decode_key(b"\0\x07ab") is None


def test_transactions_of_every_version() -> None:
    assert "tx-1" == transaction_state.decode_key(RECORDS["transaction key 0"])
    partitions = (TopicPartition("orders", 0), TopicPartition("orders", 2))
    plain = TransactionStateValue(
        0, 42, 3, 60000, TransactionStatus.ONGOING, partitions, 1700000000003, 1700000000000
    )
    assert plain == transaction_state.decode_value(RECORDS["transaction value 0"])
    flexible = TransactionStateValue(
        1, 42, 3, 60000, TransactionStatus.ONGOING, partitions, 1700000000003, 1700000000000,
        previous_producer_id=41, next_producer_id=43, client_version=2, next_producer_epoch=0,
    )  # fmt: skip
    assert flexible == transaction_state.decode_value(RECORDS["transaction value 1"])
    complete = TransactionStateValue(0, 42, 3, 60000, TransactionStatus.COMPLETE_COMMIT, (), 5, 4)
    assert complete == transaction_state.decode_value(RECORDS["transaction value 0 complete"])


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_cut_or_too_long_is_corrupt(name: str) -> None:
    data = RECORDS[name]
    for damaged in (*(data[:end] for end in range(len(data))), data + b"\0"):
        with pytest.raises(CorruptError):
            decoded(name, damaged)
