"""Estimates how many distinct keys a log has from how often keys recur in a sample of it.

The sample consists of windows. A key counts once a window, so that keys that are written again and
again within a moment do not pass for keys that are rare everywhere. From the numbers of keys that
occur in one window, in two, and so on follows how many are still unseen. The rates of keys are
taken for gamma distributed. That covers keys of equal rates, long tails and, near a shape of -1,
growth by a power. Only keys seen in at most ``RARE_MAX`` windows are fitted; of hotter ones none is
unseen. With few recurrences the fit falls back to equal rates, so it says too few rather than too
many.

Wrong, and not noticed, where time decides more than the key does. Keys that live longer than a
window but shorter than the distance to the next one seem to be more than they are. So do keys that
all recur in turn after a long time.

Source: Efron and Thisted, "Estimating the number of unseen species" (1976).
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

RARE_MAX = 10
REPEATS_MIN = 10
"""With fewer recurrences the number of keys can be anything above a lower bound."""
CERTAIN_SHARE = 0.8
"""That bound says enough when it is this part of the occurrences: hardly anything recurs."""

_SPREADS = np.array(
    (
        *(1e-4, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99),
        *(1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0),
    )
)
"""1 / (shape + 1): 0 for equal rates, 1 for a logarithmic series, more for powers."""
_SPREAD_PENALTY = 1.0
"""What a unit of spread must gain in log-likelihood, lest noise be taken for a long tail."""
_RATES = np.logspace(-8, 5, 400)


class DistinctKeys(Struct, frozen=True):
    """How the number of distinct keys grows beyond a sample in which ``seen`` were found."""

    seen: int
    singles: int
    occurrences: int
    shape: float
    theta: float

    def unseen_per_single(self, more: float) -> float:
        """Return how many new keys ``more`` samples of this size bring for each single one."""
        if self.theta * more < 1e-12:
            return more
        growth = math.log1p(self.theta * more)
        if abs(self.shape) < 1e-9:
            return growth / self.theta
        return -math.expm1(-self.shape * growth) / (self.shape * self.theta)

    def after(self, more: float) -> float:
        """Return the distinct keys of the sample and ``more`` samples of its size."""
        return self.seen + self.singles * self.unseen_per_single(more)

    def is_known(self, more: float) -> bool:
        """Say whether the sample is large enough to say anything about ``more`` of its size."""
        if more <= 0 or self.occurrences - self.seen >= REPEATS_MIN:
            return True
        keys_min = self.occurrences**2 / (2 * REPEATS_MIN)
        total = self.occurrences * (1 + more)
        return keys_min > 0 and -math.expm1(-total / keys_min) * keys_min >= CERTAIN_SHARE * total


def fit_distinct(windows_of_keys: NDArray[np.int64]) -> DistinctKeys:
    """Fit the growth curve; ``windows_of_keys`` says in how many windows each seen key occurs."""
    found = np.bincount(np.minimum(windows_of_keys, RARE_MAX + 1), minlength=RARE_MAX + 2)
    rare = found[1 : RARE_MAX + 1]
    seen, singles = len(windows_of_keys), int(rare[0])
    occurrences = int(windows_of_keys.sum())
    if singles == rare.sum():
        # Nothing rare recurs: every further sample is as new as this one.
        return DistinctKeys(seen, singles, occurrences, 1.0, 0.0)
    shapes = 1 / _SPREADS - 1
    j = np.arange(1, RARE_MAX + 1)
    weights = np.array(
        [[math.lgamma(k + a) - math.lgamma(k + 1) - math.lgamma(1 + a) for k in j] for a in shapes]
    )
    # Where rates are nearly equal it is shape * theta that the data give, else theta.
    rates = np.minimum(_RATES[None, :] / np.maximum(shapes, 1)[:, None], 1e8)
    thetas = rates / (1 + rates)
    terms = weights[:, None, :] + (j - 1) * np.log(thetas)[:, :, None]
    peak = terms.max(axis=2, keepdims=True)
    totals = peak[:, :, 0] + np.log(np.exp(terms - peak).sum(axis=2))
    score = (terms * rare).sum(axis=2) - rare.sum() * totals
    score -= _SPREAD_PENALTY * _SPREADS[:, None]
    best, at = np.unravel_index(int(np.argmax(score)), score.shape)
    return DistinctKeys(
        seen, singles, occurrences, float(shapes[best]),
        _refine(weights[best], rare, thetas[best], int(at)),
    )  # fmt: skip


def _refine(
    weights: NDArray[np.float64], rare: NDArray[np.int64], thetas: NDArray[np.float64], at: int
) -> float:
    """Return the best theta between the neighbours of ``thetas[at]``."""
    low, high = thetas[max(at - 1, 0)], thetas[min(at + 1, len(thetas) - 1)]
    fine = np.linspace(low, high, 64)
    terms = weights + np.arange(RARE_MAX) * np.log(fine)[:, None]
    totals = np.log(np.exp(terms - terms.max(axis=1, keepdims=True)).sum(axis=1))
    score = (terms * rare).sum(axis=1) - rare.sum() * (totals + terms.max(axis=1))
    return float(fine[int(np.argmax(score))])
