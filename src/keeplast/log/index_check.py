"""Says whether the offset and the time index of a segment may be followed, as its batches pass.

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
from keeplast.log.index_walk import IndexWalk
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
        self._last = last_offset
        self._times = times
        self._walk = IndexWalk(base_offset, offsets, times)
        found: tuple[tuple[Kind, str | None], ...] = (
            (INDEX, offset_index.find_problem(offsets, size_bytes)),
            (TIME_INDEX, time_index.find_problem(times, size_bytes)),
        )
        for kind, problem in found:
            if problem is not None:
                self._tell(kind, problem, base_offset, "a sound index", "another")
        ends = base_offset + times[:, 1]
        for end in ends[ends > last_offset].tolist():
            self._tell(TIME_INDEX, "an entry lies behind the segment", end, last_offset, end)

    @property
    def latest_ms(self) -> int:
        """Return the greatest timestamp of the windows so far, -1 without one."""
        return self._walk.greatest_ms

    def add(self, window: Window) -> None:
        """Compare with the next window; the first one begins at 0."""
        rows = window.table[: window.batches]
        offsets, times = self._walk.add(
            rows[:, t.POSITION] + window.position, window.position + window.length,
            rows[:, t.LAST_OFFSET], rows[:, t.MAX_TIMESTAMP],
        )  # fmt: skip
        is_inside = offsets.starts != offsets.positions
        is_other = (offsets.offsets < offsets.floors) | (offsets.offsets > self._last)
        for i in np.flatnonzero(is_inside | is_other).tolist():
            offset = int(offsets.offsets[i])
            if is_inside[i]:
                self._tell(
                    INDEX, "an entry points inside a batch", offset, int(offsets.starts[i]),
                    int(offsets.positions[i]),
                )  # fmt: skip
            else:
                self._tell(
                    INDEX, "an entry has the offset of other batches", offset,
                    f"[{offsets.floors[i]}, {self._last}]", offset,
                )  # fmt: skip
        # Who looks for a later time begins behind the entry: nothing up to it may be later.
        for i in np.flatnonzero(times.stamps < times.through).tolist():
            self._tell(
                TIME_INDEX, "a batch before an entry is later than it", int(times.offsets[i]),
                f">= {times.through[i]}", int(times.stamps[i]),
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
