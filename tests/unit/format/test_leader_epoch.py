from __future__ import annotations

import pytest

from keeplast.errors import CorruptError
from keeplast.format.leader_epoch import LeaderEpoch, decode, encode


def test_epochs_read_back_in_file_order() -> None:
    epochs = (LeaderEpoch(0, 0), LeaderEpoch(1, 20))

    assert encode(epochs) == b"0\n2\n0 0\n1 20\n"
    assert epochs == decode(b"0\n2\n0 0\n1 20\n")


def test_entries_that_a_broker_would_drop_are_kept() -> None:
    assert (LeaderEpoch(3, 9), LeaderEpoch(1, 4)) == decode(b"0\n2\n3 9\n1 4\n")


def test_empty_file_has_no_epochs() -> None:
    assert decode(b"") == ()


@pytest.mark.parametrize("data", [b"0\n1\n0\n", b"0\n1\n0 0 0\n", b"0\n1\n2147483648 0\n"])
def test_malformed_line_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        decode(data)
    assert caught.value.position == 4
