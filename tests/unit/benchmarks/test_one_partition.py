"""One partition on Spark: what a shape takes of one task's time, and the choice of the best."""

from __future__ import annotations

from benchmarks.one_partition import Series

TAKEN = {
    "partition": [(2.0, 2.0)] * 5,
    "broadcast": [(1.4, 2.2)] * 5,
    "bucket": [(1.5, 3.8)] * 5,
    "choice": [(1.47, 2.3)] * 5,
}


def test_goals_are_of_the_clock_and_of_processors() -> None:
    lines = list(Series("log", "local[2]", False, TAKEN).lines())
    assert "| log | local[2] | warm | partition | 2.00 (2.00) s | 1.00 (1.00) |  |  |" == lines[0]
    assert "| 0.70 (1.10) | 0 % (0 %) | 0.75 (1.3): reached |" in lines[1]
    assert "| 0.75 (1.90) | 0 % (0 %) | 1.0 (1.8): **missed** |" in lines[2]
    assert "0.75, 1.05 of the best shape's (1.05): reached |" in lines[3]


def test_the_choice_must_be_near_the_best_and_ahead_of_one_task() -> None:
    slow = {**TAKEN, "choice": [(1.6, 2.3)] * 5}
    assert "(1.14): **missed** |" in list(Series("log", "local[2]", True, slow).lines())[3]
    few = {side: counts[:4] for side, counts in TAKEN.items()}
    assert "not judged: fewer than 5 pairs |" in list(Series("log", "x", True, few).lines())[1]
