"""Whole data directories with anything damaged in them; as long as one likes: tools/fuzz.py."""

from __future__ import annotations

from pathlib import Path

from tests.support.directory_fuzz import Tally, fuzz, run_case, write_data_directory
from tests.support.turns import Turn

CASES = 320


def test_damaged_directories_are_worked_on_or_reported(tmp_path: Path, turn: Turn) -> None:
    numbers = turn.seeds(CASES, 4)
    tally = fuzz(tmp_path, numbers)
    assert tally.cases == len(numbers)
    # A run in which nothing got through, or nothing was refused, would have tested little.
    assert tally.outcomes["clean: done"] > 0
    assert tally.outcomes["clean: CorruptError"] > 0


def test_a_sound_directory_passes_through_all_of_it(tmp_path: Path) -> None:
    tally = Tally()
    run_case(write_data_directory(tmp_path / "template"), tmp_path / "case", -1, tally)
    steps = ("inspect", "read", "select", "plan", "clean", "call")
    assert {f"{step}: done": 1 for step in steps} == dict(tally.outcomes)
