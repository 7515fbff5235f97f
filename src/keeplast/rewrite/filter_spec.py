"""How a round on the tier uses filters, what they say, and what they let it leave out.

Values that travel: a task carries the first, a round in stages gathers the second from wherever
filters were asked, and the third is handed from wave to wave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keeplast.cleaner.plan import GroupPlan
from keeplast.rewrite.stats import FilterStats
from keeplast.tier.objects.filters import FILTER_BYTES_MAX, FilterKey, SegmentBytes

SMALL_BYTES = 4 << 10
"""A request costs more than reading so many bytes with it."""


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """How a round uses filters: the store's key, the rate, and what the log consists of.

    ``segments`` are the very bytes of each segment, by base offset. A filter that is larger than
    ``bytes_max``, or than the share ``share_max`` of its segment's bytes, is not written; one of
    up to :data:`SMALL_BYTES` is in any case.
    """

    key: FilterKey
    fpp: float
    segments: Mapping[int, SegmentBytes]
    bytes_max: int = FILTER_BYTES_MAX
    share_max: float = math.inf

    def takes(self, size_bytes: int, segment: SegmentBytes) -> bool:
        """Say whether a filter of this size is written for ``segment``."""
        return size_bytes <= min(
            self.bytes_max, max(self.share_max * segment.size_bytes, SMALL_BYTES)
        )


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
