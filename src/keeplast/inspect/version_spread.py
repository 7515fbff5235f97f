"""How the versions of a log are spread, and which of them are far ahead of the rest.

A version is *far ahead* when it lies above the 99th percentile by more than ten times the distance
between the 1st and the 99th: a clock a century off, nanoseconds among milliseconds, a counter that
wrapped. Such a record wins against everything to come until somebody writes a greater version. The
percentiles are of a sample, every so many-th version in log order; the greatest versions are kept
exactly. Memory is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SAMPLE_MAX = 1 << 17
GREATEST_MAX = 1 << 12
LOW_SHARE, HIGH_SHARE = 0.01, 0.99
SPANS = 10
COUNT_MIN = 10
"""Of fewer versions nobody can say what is usual."""


@dataclass(slots=True)
class VersionSpread:
    """Versions that were added part by part, in any order."""

    count: int = 0
    _stride: int = 1
    _sample: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _greatest: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    _least: int = 0

    def add(self, offsets: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Count records that have a version; keeps every so many of them as a sample."""
        if not len(versions):
            return
        least = int(versions.min())
        self._least = least if self.count == 0 else min(self._least, least)
        chosen = versions[-self.count % self._stride :: self._stride]
        self.count += len(versions)
        self._sample = np.concatenate([self._sample, chosen])
        while len(self._sample) > SAMPLE_MAX:
            self._sample = self._sample[::2]
            self._stride *= 2
        together = np.concatenate([self._greatest, np.stack([versions, offsets], axis=1)])
        if len(together) > GREATEST_MAX:
            order = np.lexsort((together[:, 1], together[:, 0]))
            together = together[order[-GREATEST_MAX:]]
        self._greatest = together

    @property
    def least(self) -> int | None:
        """Return the lowest version; None without any."""
        return self._least if self.count else None

    @property
    def greatest(self) -> int | None:
        """Return the highest version; None without any."""
        return int(self._greatest[:, 0].max()) if self.count else None

    @property
    def usual(self) -> tuple[int, int] | None:
        """Return the 1st and the 99th percentile; None without any."""
        if not self.count:
            return None
        ordered = np.sort(self._sample)
        low, high = (int(share * (len(ordered) - 1)) for share in (LOW_SHARE, HIGH_SHARE))
        return int(ordered[low]), int(ordered[high])

    @property
    def limit(self) -> int | None:
        """Return the greatest version that is not far ahead; None with too few to tell."""
        usual = self.usual if self.count >= COUNT_MIN else None
        return None if usual is None else usual[1] + SPANS * max(usual[1] - usual[0], 1)

    @property
    def far_ahead_count(self) -> int:
        """Return how many versions are far ahead, at most ``GREATEST_MAX``."""
        limit = self.limit
        return 0 if limit is None else sum(v > limit for v in self._greatest[:, 0].tolist())

    def far_ahead(self, first: int) -> list[tuple[int, int]]:
        """Return offset and version of the ``first`` greatest that are far ahead."""
        limit = self.limit
        pairs = sorted(self._greatest.tolist(), key=lambda pair: (-pair[0], pair[1]))
        return [(at, v) for v, at in pairs if limit is not None and v > limit][:first]
