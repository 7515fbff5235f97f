"""Decoding of KRaft metadata records."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeplast.errors import CorruptError
from keeplast.format.metadata_record import (
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
    TransactionEdge,
    decode,
)

ID = bytes(range(16))


def test_a_topic_record() -> None:
    assert TopicRecord("foo", ID) == decode(b"\x01\x02\x00\x04foo" + ID + b"\x00")


def test_a_remove_topic_record() -> None:
    assert RemoveTopicRecord(ID) == decode(b"\x01\x09\x00" + ID + b"\x00")


def test_a_config_record_with_and_without_a_value() -> None:
    assert ConfigRecord(2, "foo", "a", "b") == decode(b"\x01\x04\x00\x02\x04foo\x02a\x02b\x00")
    assert ConfigRecord(2, "foo", "a", None) == decode(b"\x01\x04\x00\x02\x04foo\x02a\x00\x00")
    assert ConfigRecord(2, "foo", "a", "") == decode(b"\x01\x04\x00\x02\x04foo\x02a\x01\x00")


def test_edges_of_transactions() -> None:
    assert TransactionEdge.BEGIN is decode(b"\x01\x17\x00\x00\x00")
    assert TransactionEdge.END is decode(b"\x01\x18\x00\x00")
    assert TransactionEdge.ABORT is decode(b"\x01\x19\x00\x00\x00")


def test_other_messages_and_unknown_versions_are_none() -> None:
    assert None is decode(b"\x01\x0c\x00\x01\x02")
    assert None is decode(b"\x01\x04\x01\x02\x04foo")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02\x04\x00",
        b"\x01\x02\x00\x04fo",
        b"\x01\x02\x00\x00" + ID,
        b"\x01\x02\x00\x04foo" + ID[:15],
        b"\x01\x04\x00\x02\x04foo\x02a\x02\xff\x00",
        b"\x01\x04\x00\x02\xff\xff\xff\xff\x0ffoo",
    ],
)
def test_damage_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decode(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_are_corrupt(data: bytes) -> None:
    with contextlib.suppress(CorruptError):
        decode(b"\x01" + data)
