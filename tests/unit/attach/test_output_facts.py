"""What an announcement says of a log does not depend on the pieces that it was written in."""

from __future__ import annotations

import numpy as np
import pytest

from keeplast.attach.held.outputs import OutputFacts
from keeplast.errors import CorruptError
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record


def batch(offset: int, timestamp: int, *, is_empty: bool = False, value_bytes: int = 10) -> bytes:
    record = Record(offset, timestamp, b"k", bytes(value_bytes), ())
    if is_empty:
        return encode_batch([], base_offset=offset, base_timestamp=5000, max_timestamp=5000)
    return encode_batch([record])


LOG = b"".join(
    (batch(0, 7), batch(1, 40), batch(2, 0, is_empty=True), batch(3, 9, value_bytes=300))
)


@pytest.mark.parametrize("step", [1, 60, 79, 80, 158, len(LOG)])
@pytest.mark.parametrize("is_writable", [True, False])
def test_facts_are_those_of_the_log(step: int, is_writable: bool) -> None:
    facts = OutputFacts()
    for at in range(0, len(LOG), step):
        part = LOG[at : at + step]
        facts.add(memoryview(bytearray(part) if is_writable else part))
    facts.finish()
    assert (len(LOG), 40) == (facts.size_bytes, facts.max_timestamp_ms)


def test_pieces_larger_than_what_is_kept_and_cut_anywhere_are_taken() -> None:
    log = b"".join(batch(at, at % 977, value_bytes=700_000) for at in range(5))
    for cuts in ([len(log)], [10, 1_500_000], [800_000, 900_000, 2_000_001]):
        facts = OutputFacts()
        for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
            facts.add(np.frombuffer(bytearray(log[start:end]), np.uint8).data)
        facts.finish()
        assert (len(log), 4) == (facts.size_bytes, facts.max_timestamp_ms)


def facts_of(log: bytes, *, is_writable: bool) -> OutputFacts:
    facts = OutputFacts()
    facts.add(bytearray(log) if is_writable else log)
    facts.finish()
    return facts


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("log", [LOG[:-1], LOG + bytes(100)])
def test_a_part_that_ends_inside_a_batch_or_is_none_is_damage(
    log: bytes, is_writable: bool
) -> None:
    with pytest.raises(CorruptError):
        facts_of(log, is_writable=is_writable)
