"""How a round on the tier uses filters, what they say, and what they let it leave out.

Values that travel: a task carries the first, a round in stages gathers the second from wherever
filters were asked, and the third is handed from wave to wave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keeplast.cleaner.plan import GroupPlan
from keeplast.rewrite.stats import FilterStats
from keeplast.tier.objects.filters import FilterKey, SegmentBytes


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """How a round uses filters: the store's key, the rate, and what the log consists of.

    ``segments`` are the very bytes of each segment, by base offset.
    """

    key: FilterKey
    fpp: float
    segments: Mapping[int, SegmentBytes]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the filter of the clean segment at ``base_offset`` says of some of the dirty keys.

    ``size_bytes`` is the filter's own, 0 without a good one. ``stays`` and ``needs_no_ranking`` say
    that neither these keys nor time change the segment, and that it cannot hold a winner.
    """

    base_offset: int
    size_bytes: int = 0
    stays: bool = False
    needs_no_ranking: bool = False
    bytes_read: int = 0
    is_damaged: bool = False

    def __and__(self, other: Asked) -> Asked:
        """Return what the same filter says of the keys that either was asked for."""
        return Asked(
            self.base_offset,
            min(self.size_bytes, other.size_bytes),
            self.stays and other.stays,
            self.needs_no_ranking and other.needs_no_ranking,
            self.bytes_read + other.bytes_read,
            self.is_damaged or other.is_damaged,
        )


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
