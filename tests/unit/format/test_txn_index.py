from __future__ import annotations

import pytest

from keeplast.errors import CorruptError
from keeplast.format.txn_index import ENTRY_BYTES, AbortedTransaction, decode, encode

ENTRIES = (AbortedTransaction(73, 100, 200, 150), AbortedTransaction(-1, 0, 1 << 62, -1))


@pytest.mark.parametrize(
    ("data", "entries"),
    [
        pytest.param(encode(ENTRIES), ENTRIES, id="in file order"),
        pytest.param(encode(ENTRIES) + bytes(ENTRY_BYTES - 1), ENTRIES, id="cut at the end"),
        pytest.param(b"", (), id="empty"),
    ],
)
def test_whole_entries_read_back(data: bytes, entries: tuple[AbortedTransaction, ...]) -> None:
    assert decode(data) == entries


@pytest.mark.parametrize("version", [b"\x00\x01", b"\x01\x00"])
def test_either_byte_of_the_version_counts(version: bytes) -> None:
    data = encode(ENTRIES)
    with pytest.raises(CorruptError) as caught:
        decode(data[:ENTRY_BYTES] + version + data[ENTRY_BYTES + 2 :])
    assert (caught.value.position, caught.value.expected) == (ENTRY_BYTES, 0)
