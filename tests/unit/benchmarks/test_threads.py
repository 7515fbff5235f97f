"""What several threads gain is measured by the clock, each side's best."""

from __future__ import annotations

from benchmarks.threads import LOGS, Gain
from keeplast.model.topic_config import Strategy


def test_a_line_says_how_many_times_as_fast_two_threads_are_and_on_which_machine() -> None:
    taken = {1: [(3.0, 2.0), (4.0, 2.0)], 2: [(2.0, 2.5), (2.0, 2.4)]}
    apart = [(3.6, 4.2), (4.0, 4.1)]
    assert (
        "| 100 B | none | header | many | 3.00 (2.00) | 2.00 (2.40) | 3.60 (4.10) | 1.50 | 0.90 "
        "| 33 % (4 %) |" == Gain(LOGS[0], Strategy.HEADER, "many", taken, apart).line()
    )
