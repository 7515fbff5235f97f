"""The text of a lease in the metadata."""

from __future__ import annotations

import json

import pytest

from keeplast.tier.state.holder import LEASE_MS_MAX, LEASE_MS_MIN, Lease

LEASE = Lease(3, "ab", 5000, 17, 4)


def test_a_lease_is_read_as_it_was_written() -> None:
    assert LEASE == Lease.decode(LEASE.encode())


def test_a_renewed_lease_has_another_number_and_no_lower_high_watermark() -> None:
    assert (5, 20) == (LEASE.renewed(20).number, LEASE.renewed(20).acknowledged)
    assert (5, 17) == (LEASE.renewed(2).number, LEASE.renewed(2).acknowledged)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "3"}, {"epoch": -1}, {"epoch": True}, {"number": None}, {"acknowledged": -1},
        {"lease_ms": LEASE_MS_MIN - 1}, {"lease_ms": LEASE_MS_MAX + 1},
    ],
)  # fmt: skip
def test_a_text_that_no_lease_has_is_none(change: dict[str, object]) -> None:
    assert Lease.decode(json.dumps(json.loads(LEASE.encode()) | change)) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000, "7"])
def test_a_text_that_is_no_lease_is_none(text: str) -> None:
    assert Lease.decode(text) is None
