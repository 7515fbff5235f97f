"""Turns of large matrices: nothing is left out for good, and nothing runs twice as often."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.turns import Turn

TODAY = 739_942


@pytest.mark.parametrize("shares", [1, 2, 3, 8])
def test_every_case_has_its_turn_once(shares: int) -> None:
    turns = [Turn(TODAY + day) for day in range(shares)]
    taken = [case for turn in turns for case in range(20) if turn.takes(case, shares)]
    assert list(range(20)) == sorted(taken)


@pytest.mark.parametrize(("count", "shares"), [(150, 10), (40, 4), (7, 3), (2, 3)])
def test_every_seed_has_its_turn_and_no_turn_is_empty(count: int, shares: int) -> None:
    turns = [Turn(TODAY + day).seeds(count, shares) for day in range(shares)]
    assert set(range(count)) == {seed for seeds in turns for seed in seeds}
    assert {-(-count // shares)} == {len(seeds) for seeds in turns}


def test_a_run_of_everything_takes_all() -> None:
    everything = Turn(None)
    assert all(everything.takes(case, 8) for case in range(20))
    assert range(40) == everything.seeds(40, 4)


def drawn() -> list[int]:
    found: list[int] = []

    @settings(max_examples=200)
    @given(number=st.integers())
    def draw(number: int) -> None:
        found.append(number)

    draw()
    return found


def test_a_test_draws_the_same_whatever_other_tests_have_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not settings().derandomize:
        pytest.skip("other examples are asked for")
    before = drawn()
    (tmp_path / "loaded.py").write_text(f"NUMBERS = {[10**9 + each for each in range(1000)]}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded")
    assert before == drawn()
