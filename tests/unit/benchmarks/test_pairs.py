"""A ratio is judged only by enough pairs that agree; each side is shown by its best count."""

from __future__ import annotations

import pytest

from benchmarks.pairs import Comparison, Pairs, Verdict, compare, least

OURS = (1.0, 1.1, 1.2, 1.0, 1.3)
FIVE_TIMES = Pairs(OURS, tuple(5 * seconds for seconds in OURS))


def test_the_best_counts_are_compared_and_not_those_of_one_pair() -> None:
    assert 4.0 == Pairs((2.0, 1.0), (4.0, 6.0)).ratio


def test_a_machine_that_slows_both_sides_alike_is_no_doubt() -> None:
    assert 0.0 == pytest.approx(FIVE_TIMES.spread)
    assert Verdict.REACHED is Comparison(FIVE_TIMES).verdict(5.0)
    assert Verdict.MISSED is Comparison(FIVE_TIMES).verdict(5.1)


@pytest.mark.parametrize("goal", [0.1, 100.0])
def test_pairs_that_differ_by_more_than_a_third_are_neither_a_hit_nor_a_miss(goal: float) -> None:
    one_held_up = Pairs((1.0,) * 5, (5.0, 5.0, 6.7, 5.0, 5.0))
    assert Verdict.DIFFER is Comparison(one_held_up).verdict(goal)
    assert Verdict.DIFFER is Comparison(FIVE_TIMES, one_held_up).verdict(goal, FIVE_TIMES)
    assert Verdict.DIFFER is Comparison(one_held_up, FIVE_TIMES).verdict(goal, FIVE_TIMES)


def test_a_third_is_still_agreement() -> None:
    assert Comparison(Pairs((3.0,) * 5, (6.0, 6.0, 7.99, 6.0, 6.0))).doubt() is None


@pytest.mark.parametrize("count", [1, 4])
def test_fewer_than_five_pairs_say_nothing(count: int) -> None:
    assert Verdict.TOO_FEW is Comparison(Pairs((1.0,) * count, (2.0,) * count)).verdict(1.0)


@pytest.mark.parametrize(
    ("ours", "theirs"), [((), ()), ((1.0,), (1.0, 2.0)), ((0.0,), (1.0,)), ((1.0,), (-1.0,))]
)
def test_unequal_or_impossible_times_are_refused(
    ours: tuple[float, ...], theirs: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match=r"ours="):
        Pairs(ours, theirs)


def test_processor_time_stands_next_to_the_clock_and_counts_as_well() -> None:
    both = compare(ours=[(1.0, 1.0)] * 5, theirs=[(6.0, 3.0)] * 5)
    assert "6.00x (3.00x)" == both.ratios
    assert "0 % (0 %)" == both.spreads
    assert Verdict.MISSED is both.verdict(4.0)
    assert Verdict.REACHED is both.verdict(4.0, both.by_clock)


@pytest.mark.parametrize("worked", [None, 0.0])
def test_processor_time_that_is_not_known_is_not_shown(worked: float | None) -> None:
    both = compare(ours=[(1.0, 1.0)] * 2, theirs=[(6.0, 1.0), (6.0, worked)])
    assert both.by_work is None
    assert "6.00x" == both.ratios
    assert "1.50 (0.50)" == least([(1.5, 0.5), (2.0, worked or None)])


def test_a_spread_above_a_third_stands_out_and_one_pair_has_none() -> None:
    assert "**50 %**" == Comparison(Pairs((1.0, 1.0), (1.0, 1.5))).spreads
    assert "-" == Comparison(Pairs((1.0,), (1.5,))).spreads
