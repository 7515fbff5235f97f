"""When two sides' times may be compared: the one rule of every benchmark that has a goal.

The sides are measured in turn (ours, theirs, ours, theirs); what was measured in one turn is a
pair. Other work on the machine can only make a count longer, so each side's best count is what the
work takes. Whether the machine was quiet enough is seen from the pairs: where they differ by more
than a third among themselves, or are fewer than five, a goal is neither reached nor missed. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from msgspec import Struct

PAIRS_MIN = 5
SPREAD_MAX = 1 / 3


class Verdict(enum.Enum):
    """What may be said of a goal, in the words of the tables."""

    REACHED = "reached"
    MISSED = "**missed**"
    TOO_FEW = f"not judged: fewer than {PAIRS_MIN} pairs"
    DIFFER = "not judged: the pairs differ by more than a third"


class Pairs(Struct, frozen=True):
    """Seconds of two sides by one clock; those at one place were measured in the same turn."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` unless there is a pair and every time is above 0."""
        if not self.ours or len(self.ours) != len(self.theirs):
            raise ValueError(f"not pairs. ours={len(self.ours)} theirs={len(self.theirs)}")
        if min(self.ours + self.theirs) <= 0:
            raise ValueError(f"a time must be above 0. ours={self.ours} theirs={self.theirs}")

    @property
    def ratio(self) -> float:
        """Return how many times faster our best count is than theirs."""
        return min(self.theirs) / min(self.ours)

    @property
    def spread(self) -> float:
        """Return by which share the greatest ratio of a pair exceeds the least; 0 for one pair."""
        ratios = [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return max(ratios) / min(ratios) - 1


class Comparison(Struct, frozen=True):
    """Two sides by the clock and, where it is known, by processor time."""

    by_clock: Pairs
    by_work: Pairs | None = None

    def doubt(self) -> Verdict | None:
        """Return why nothing may be said of a goal, None where something may."""
        clocks = self._clocks()
        if min(len(pairs.ours) for pairs in clocks) < PAIRS_MIN:
            return Verdict.TOO_FEW
        if max(pairs.spread for pairs in clocks) > SPREAD_MAX:
            return Verdict.DIFFER
        return None

    def verdict(self, goal: float, *judged: Pairs) -> Verdict:
        """Return whether our side is ``goal`` times as fast by what is ``judged``: all, if nothing.

        Pairs must agree by the clock and by processor time, whichever of them is judged.
        """
        found = self.doubt()
        if found is not None:
            return found
        ratio = min(pairs.ratio for pairs in judged) if judged else self.least_ratio
        return Verdict.REACHED if ratio >= goal else Verdict.MISSED

    @property
    def least_ratio(self) -> float:
        """Return the ratio that a goal is held against: by the clock or by processor time."""
        return min(pairs.ratio for pairs in self._clocks())

    def _clocks(self) -> tuple[Pairs, ...]:
        return (self.by_clock,) if self.by_work is None else (self.by_clock, self.by_work)

    @property
    def ratios(self) -> str:
        """Return the ratio by the clock and, in brackets, by processor time."""
        return _both(f"{self.by_clock.ratio:.2f}x", self.by_work and f"{self.by_work.ratio:.2f}x")

    @property
    def spreads(self) -> str:
        """Return by how much the pairs differ by the clock and, in brackets, by processor time."""
        return _both(_percent(self.by_clock), self.by_work and _percent(self.by_work))


def compare(
    *,
    ours: Iterable[tuple[float, float | None]],
    theirs: Iterable[tuple[float, float | None]],
) -> Comparison:
    """Compare two sides; each count is seconds by the clock and of a processor, None if unknown.

    A processor time of 0 is one that the system's ticks were too coarse for: unknown as well.
    """
    mine, others = tuple(ours), tuple(theirs)
    my_work = tuple(worked for _, worked in mine if worked)
    their_work = tuple(worked for _, worked in others if worked)
    is_known = len(my_work) == len(mine) and len(their_work) == len(others)
    return Comparison(
        Pairs(tuple(clock for clock, _ in mine), tuple(clock for clock, _ in others)),
        Pairs(my_work, their_work) if is_known else None,
    )


def least(seconds: Iterable[tuple[float, float | None]]) -> str:
    """Return the best of some counts by the clock and, in brackets, of a processor."""
    counts = tuple(seconds)
    works = [worked for _, worked in counts if worked is not None]
    return _both(f"{min(clock for clock, _ in counts):.2f}", works and f"{min(works):.2f}")


def _both(clock: str, work: object) -> str:
    return f"{clock} ({work})" if work else clock


def _percent(pairs: Pairs) -> str:
    if len(pairs.ours) == 1:
        return "-"
    text = f"{100 * pairs.spread:.0f} %"
    return f"**{text}**" if pairs.spread > SPREAD_MAX else text
