"""How many distinct keys there are, from how often they occur in a sample."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from keeplast.cleaner.distinct import REPEATS_MIN, fit_distinct

MORE = 19.0
"""The population is this many samples larger than the sample."""


def counts_of(rates: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how often each key that occurs does, when keys occur at these rates."""
    drawn = np.random.default_rng(3).poisson(rates).astype(np.int64)
    return drawn[drawn > 0]


@pytest.mark.parametrize(
    ("rates", "factor"),
    [
        (np.full(20_000, 0.5), 1.05),
        (np.full(200_000, 0.02), 1.1),
        (np.full(2000, 15.0), 1.01),
        (np.concatenate([np.full(50, 30.0), np.full(100_000, 0.03)]), 1.15),
        (np.random.default_rng(5).gamma(0.5, 0.2, 100_000), 1.2),
        (np.random.default_rng(5).lognormal(-4, 1.5, 200_000), 1.3),
        (20_000 / np.arange(1, 200_001) ** 1.2, 1.5),
    ],
    ids=["equal", "rare", "known", "hot and rare", "gamma", "lognormal", "power"],
)
def test_estimate_is_near_the_truth(rates: NDArray[np.float64], factor: float) -> None:
    estimate = fit_distinct(counts_of(rates)).after(MORE)
    truth = float((1 - np.exp(-rates * (1 + MORE))).sum())
    assert truth / factor <= estimate <= truth * factor


def test_a_whole_sample_has_what_was_seen() -> None:
    assert 300.0 == fit_distinct(np.ones(300, np.int64)).after(0.0)
    assert 3.0 == fit_distinct(np.array([1, 2, 40])).after(0.0)
    assert fit_distinct(np.array([1, 1, 2])).is_known(0.0)


def test_growth_never_falls_and_never_exceeds_one_new_key_an_occurrence() -> None:
    for counts in (counts_of(np.full(5000, 0.1)), np.ones(50, np.int64), np.array([1, 1, 9, 64])):
        curve = fit_distinct(counts)
        steps = [curve.after(more) for more in (0.0, 0.5, 1.0, 10.0, 1e6)]
        assert sorted(steps) == steps
        assert all(
            step <= curve.seen + curve.singles * more * (1 + 1e-9)
            for step, more in zip(steps, (0.0, 0.5, 1.0, 10.0, 1e6), strict=True)
        )


def test_keys_seen_in_many_windows_leave_nothing_unseen() -> None:
    assert 100.0 == fit_distinct(np.full(100, 60)).after(1e6)


def test_no_key_at_all_stays_none() -> None:
    curve = fit_distinct(np.empty(0, np.int64))
    assert 0.0 == curve.after(100.0)
    assert not curve.is_known(100.0)


def test_too_few_repeats_say_nothing_unless_hardly_anything_can_repeat() -> None:
    few = fit_distinct(np.concatenate([np.ones(80, np.int64), np.full(REPEATS_MIN - 1, 2)]))
    assert not few.is_known(MORE)
    enough = fit_distinct(np.concatenate([np.ones(80, np.int64), np.full(REPEATS_MIN, 2)]))
    assert enough.is_known(MORE)
    assert fit_distinct(np.ones(20_000, np.int64)).is_known(MORE)
