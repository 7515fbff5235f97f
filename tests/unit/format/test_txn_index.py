from __future__ import annotations

import pytest

from keeplast.errors import CorruptError
from keeplast.format.txn_index import ENTRY_BYTES, AbortedTransaction, decode, encode

ENTRIES = (AbortedTransaction(73, 100, 200, 150), AbortedTransaction(-1, 0, 1 << 62, -1))


def test_entries_read_back_in_file_order() -> None:
    assert decode(encode(ENTRIES)) == ENTRIES


def test_cut_entry_at_the_end_is_ignored() -> None:
    assert decode(encode(ENTRIES) + bytes(ENTRY_BYTES - 1)) == ENTRIES


def test_empty_file_has_no_entries() -> None:
    assert decode(b"") == ()


@pytest.mark.parametrize("version", [b"\x00\x01", b"\x01\x00"])
def test_either_byte_of_the_version_counts(version: bytes) -> None:
    data = encode(ENTRIES)
    with pytest.raises(CorruptError) as caught:
        decode(data[:ENTRY_BYTES] + version + data[ENTRY_BYTES + 2 :])
    assert caught.value.position == ENTRY_BYTES
    assert caught.value.expected == 0
