"""How a round on the tier uses filters, and what they let it leave out; values that travel.

A task carries the first and hands the second from wave to wave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keeplast.cleaner.plan import GroupPlan
from keeplast.engine.report import FilterStats
from keeplast.tier.filters import FilterKey, SegmentBytes


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """How a round uses filters: the store's key, the rate, and what the log consists of.

    ``segments`` are the very bytes of each segment, by base offset.
    """

    key: FilterKey
    fpp: float
    segments: Mapping[int, SegmentBytes]


@dataclass(frozen=True, slots=True)
class Skips:
    """Base offsets of the segments that stay as they are, of those that need no ranking, and of
    those whose filter is good."""

    staying: frozenset[int] = frozenset()
    unranked: frozenset[int] = frozenset()
    known: frozenset[int] = frozenset()
    stats: FilterStats = field(default_factory=FilterStats)

    def rest(self, groups: Sequence[GroupPlan]) -> tuple[GroupPlan, ...]:
        """Return the groups that must be read."""
        return tuple(
            group
            for group in groups
            if len(group.sources) > 1 or group.base_offset not in self.staying
        )


NO_SKIPS = Skips()
