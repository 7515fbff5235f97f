from __future__ import annotations

import pytest

from keeplast.errors import CorruptError
from keeplast.format.record import (
    ControlType,
    EndTransactionMarker,
    decode_control_type,
    decode_end_transaction,
    encode_control_key,
    encode_end_transaction,
)


@pytest.mark.parametrize("control_type", [ControlType.ABORT, ControlType.COMMIT])
def test_marker_reads_back(control_type: ControlType) -> None:
    marker = EndTransactionMarker(control_type, 347)

    assert marker == decode_end_transaction(*encode_end_transaction(marker))


def test_abort_is_0_and_commit_is_1() -> None:
    assert encode_control_key(ControlType.ABORT) == b"\0\0\0\0"
    assert encode_control_key(ControlType.COMMIT) == b"\0\0\0\1"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("00000002", ControlType.LEADER_CHANGE),
        ("00000006", ControlType.KRAFT_VOTERS),
        ("00000007", ControlType.UNKNOWN),
        ("0000ffff", ControlType.UNKNOWN),
        ("00050001ffff", ControlType.COMMIT),
    ],
)
def test_type_of_a_key(key: str, expected: ControlType) -> None:
    assert expected is decode_control_type(bytes.fromhex(key))


def test_newer_and_longer_value_is_read_as_version_0() -> None:
    value = bytes.fromhex("00030000015bffff")
    assert decode_end_transaction(b"\0\0\0\1", value).coordinator_epoch == 347


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_bad_key_is_corrupt(key: bytes | None) -> None:
    with pytest.raises(CorruptError):
        decode_control_type(key)


@pytest.mark.parametrize("value", [None, b"", b"\0\0\0\0\0", b"\xff\xff\0\0\0\0"])
def test_bad_value_is_corrupt(value: bytes | None) -> None:
    with pytest.raises(CorruptError):
        decode_end_transaction(b"\0\0\0\0", value)


def test_other_control_records_are_no_markers() -> None:
    with pytest.raises(CorruptError) as caught:
        decode_end_transaction(b"\0\0\0\2", b"\0\0\0\0\0\0")
    assert caught.value.found == "LEADER_CHANGE"
