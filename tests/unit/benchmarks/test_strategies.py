"""Strategies are judged by processor time, of the best counts."""

from __future__ import annotations

from benchmarks.strategies import ROWS, line
from keeplast.model.topic_config import Strategy

TAKEN = {
    Strategy.OFFSET: [(2.0, 1.0)] * 5,
    Strategy.TIMESTAMP: [(2.0, 1.25)] * 5,
    Strategy.HEADER: [(2.0, 1.6), *[(2.0, 1.4)] * 4],
}


def test_a_line_compares_header_with_offset() -> None:
    assert (
        "| 100 B | none | 0% | 2.00 (1.00) | 2.00 (1.25) | 2.00 (1.40) | 1.40 | 0 % (14 %) "
        "| reached |"
    ) == line(ROWS[0], TAKEN)


def test_more_than_half_as_much_again_is_a_miss() -> None:
    slow = [(2.0, 1.6)] * 5
    assert line(ROWS[0], TAKEN | {Strategy.HEADER: slow}).endswith(
        "| 1.60 | 0 % (0 %) | **missed** |"
    )


def test_repetitions_that_differ_are_neither() -> None:
    busy = [(2.0, 1.0), (2.0, 1.4), (2.0, 1.0), (2.0, 1.0), (2.0, 1.0)]
    held_up = [(3.0, 1.0), *[(2.0, 1.0)] * 4]
    for counts in (busy, held_up):
        assert "| not judged: the pairs differ" in line(ROWS[0], TAKEN | {Strategy.HEADER: counts})
