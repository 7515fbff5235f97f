"""Holds the offset and the time index of a segment against its batches, as they pass.

An index is sound when whoever follows it misses nothing: its entries may be those of another rule,
or fewer, but none leads into a batch or behind what it says to lead to, and the last time is the
greatest. That a file's size and order are right says nothing: it may be of an earlier segment of
this name, or have lost its end. Kafka: ``OffsetIndex``, ``TimeIndex``; formats.md section 2.4 f.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.format import offset_index, time_index
from keeplast.format.filename import INDEX, TIME_INDEX, Kind
from keeplast.log.windows import Window

PROBLEMS_MAX = 100
"""Of one segment; an index that lies more often has nothing new to say."""


@dataclass(frozen=True, slots=True)
class IndexProblem:
    """Something that an index says and the batches do not."""

    kind: Kind
    problem: str
    offset: int
    expected: object
    found: object


class IndexCheck:
    """The indexes of one segment, window by window; ``problems`` are the first ones found."""

    def __init__(
        self,
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
        *,
        base_offset: int,
        last_offset: int,
        size_bytes: int,
    ) -> None:
        """Take decoded entries. ``last_offset``, inclusive, is where the segment's range ends."""
        self.problems: list[IndexProblem] = []
        self.latest_ms = -1
        self._base = base_offset
        self._last = last_offset
        self._offsets = offsets
        self._times = times
        self._at = base_offset
        found: tuple[tuple[Kind, str | None], ...] = (
            (INDEX, offset_index.find_problem(offsets, size_bytes)),
            (TIME_INDEX, time_index.find_problem(times, size_bytes)),
        )
        for kind, problem in found:
            if problem is not None:
                self._tell(kind, problem, base_offset, "a sound index", "another")
        ends = base_offset + times[:, 1]
        for k in np.flatnonzero(ends > last_offset).tolist():
            self._tell(
                TIME_INDEX, "an entry lies behind the segment", int(ends[k]), last_offset,
                int(ends[k]),
            )  # fmt: skip

    def add(self, window: Window) -> None:
        """Compare with the next window; the first one begins at 0."""
        rows = window.table[: window.batches]
        lasts = rows[:, t.LAST_OFFSET]
        floors = np.concatenate([[self._at], lasts[:-1] + 1])
        self._add_offsets(window, floors)
        # Who looks for a later time begins behind the entry: nothing up to it may be later.
        greatest = np.maximum.accumulate(
            np.concatenate([[self.latest_ms], rows[:, t.MAX_TIMESTAMP]])
        )
        ends = self._base + self._times[:, 1]
        here = np.flatnonzero((ends >= floors[0]) & (ends <= lasts[-1]))
        before = greatest[np.searchsorted(lasts, ends[here], "right")]
        for k, latest in zip(here.tolist(), before.tolist(), strict=True):
            if int(self._times[k, 0]) < latest:
                self._tell(
                    TIME_INDEX, "a batch before an entry is later than it", int(ends[k]),
                    f">= {latest}", int(self._times[k, 0]),
                )  # fmt: skip
        self.latest_ms = int(greatest[-1])
        self._at = int(lasts.max()) + 1

    def _add_offsets(self, window: Window, floors: NDArray[np.int64]) -> None:
        positions = window.table[: window.batches, t.POSITION] + window.position
        entries = self._offsets
        inside = entries[
            (entries[:, 1] >= window.position) & (entries[:, 1] < window.position + window.length)
        ]
        at = np.searchsorted(positions, inside[:, 1], "right") - 1
        for (relative, position), i in zip(inside.tolist(), at.tolist(), strict=True):
            offset = self._base + relative
            if int(positions[i]) != position:
                self._tell(
                    INDEX, "an entry points inside a batch", offset, int(positions[i]), position
                )
            elif not floors[i] <= offset <= self._last:
                self._tell(
                    INDEX, "an entry has the offset of other batches", offset,
                    f"[{floors[i]}, {self._last}]", offset,
                )  # fmt: skip

    def finish(self) -> None:
        """Compare the greatest timestamp of all windows with the last one of the time index."""
        said = int(self._times[-1, 0]) if len(self._times) else -1
        if said != max(self.latest_ms, -1):
            self._tell(
                TIME_INDEX, "the greatest timestamp is another", self._last, self.latest_ms, said
            )

    def _tell(self, kind: Kind, problem: str, offset: int, expected: object, found: object) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(IndexProblem(kind, problem, offset, expected, found))
