"""Whether what was removed from a live partition had to go: sources beside what is served instead.

Until they are collected, sources of published swaps lie in the remote tier, and are read again.
What is served of their offsets is an ordered sub-sequence of theirs, field by field; of each key
the record that ranks last is served. A tombstone or a marker may be gone when it was due: its
horizon had passed, and a swap that removes such things reached so far. And in what a compactor
wrote, and nothing came over, no key comes twice. The rule: **nothing of the cleaner decides here**:
keys are brought together by an external sort on a fingerprint of its own, so that memory does not
grow with the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keeplast.attach.rules.effective_log import Range
from keeplast.columns import batch_table as t
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.columns.versions import HAS_VERSION
from keeplast.errors import CorruptError
from keeplast.inspect.final_records import (
    IS_TOMBSTONE,
    OLDER_RIGHT,
    ON_LEFT,
    ON_RIGHT,
    final_records,
)
from keeplast.inspect.sorted_runs import (
    COLUMNS,
    FLAGS,
    HORIZON,
    KEY_HIGH,
    KEY_LOW,
    KEY_SHIFT,
    OFFSET,
    VERSION,
    Rows,
    SortedRuns,
)
from keeplast.inspect.verdicts import Findings
from keeplast.inspect.verified_log import VerifiedPart
from keeplast.read.transaction_outcomes import TransactionOutcome, TransactionOutcomes

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanGround:
    """What is judged; ranges ascend and do not overlap.

    ``covered`` are the offsets of the sources that are read again, ``compacted`` those that are
    clean. Below ``log_start`` nothing needs to be there; ``end`` is behind all that is served.
    Tombstones and markers below ``expires_below`` were due when their horizon is ``expired_ms`` or
    earlier.
    """

    log_start: int
    end: int
    expired_ms: int = -1
    expires_below: int = 0
    covered: Sequence[Range] = ()
    compacted: Sequence[Range] = ()


class KeyLaw:
    """One pass: parts of what is served in, in order; then :meth:`finish`."""

    def __init__(
        self,
        ground: CleanGround,
        sources: Iterator[tuple[VerifiedPart, int]],
        aborted: TransactionOutcomes,
        runs: tuple[SortedRuns, SortedRuns],
        keys: Findings,
        removed: Findings,
    ) -> None:
        """Take the components; ``runs`` sort clean records, and all.

        ``sources`` are parts of the sources, each with the first offset that is read of it.
        """
        self._ground = ground
        self._sources = sources
        self._aborted = aborted
        self._clean, self._all = runs
        self._keys = keys
        self._removed = removed
        self._part: VerifiedPart | None = None
        self._at = 0
        self._is_read = False
        self._is_broken = False
        self._has_gaps = False

    def add(self, part: VerifiedPart, first: int, last: int) -> None:
        """Compare a part of what is served, of which offsets ``[first, last]`` are read."""
        committed = self._committed(part, first, last)
        is_clean = _inside(part.offsets[committed], self._ground.compacted)
        self._clean.add(_rows(part, committed[is_clean], ON_RIGHT))
        if not self._ground.covered:
            return
        self._all.add(_rows(part, committed, ON_RIGHT))
        rows = np.flatnonzero((part.offsets >= first) & (part.offsets <= last))
        offsets, contents = part.offsets[rows], part.contents[rows]
        is_known = np.zeros(len(offsets), np.bool_)
        for source, chosen in self._sources_to(min(part.last_offset, last)):
            found = np.searchsorted(offsets, source.offsets[chosen])
            is_there = found < len(offsets)
            is_there[is_there] = offsets[found[is_there]] == source.offsets[chosen[is_there]]
            self._tell_markers(source, chosen[~is_there])
            found, chosen = found[is_there], chosen[is_there]
            is_known[found] = True
            differs = (contents[found] != source.contents[chosen]).any(axis=1)
            for offset in offsets[found[differs]].tolist():
                self._removed.add("a record is not what it was in its source", offset=offset)
        if self._is_broken:
            return  # Nobody knows what the sources had.
        for offset in offsets[~is_known & _inside(offsets, self._ground.covered)].tolist():
            self._removed.add("no source had such a record", offset=offset)

    def skip(self, last: int) -> None:
        """Say that what is served next, up to ``last``, cannot be read."""
        self._has_gaps = True
        for _ in self._sources_to(last):
            pass

    def finish(self) -> int:
        """Judge keys; return how many there are in what is clean."""
        for source, chosen in self._sources_to(self._ground.end):
            self._tell_markers(source, chosen)
        count = 0
        for rows in final_records(self._clean.merged()):
            count += len(rows)
            for row in rows[rows[:, OLDER_RIGHT] >= 0]:
                self._keys.add(
                    f"a record is served that the one at {row[OFFSET]} supersedes",
                    offset=int(row[OLDER_RIGHT]),
                )
        if self._has_gaps:
            reason = "a part of what is served cannot be read"
            self._keys.cannot_judge(reason)
            self._removed.cannot_judge(reason)
            return count
        for rows in final_records(self._all.merged()):
            self._judge_lost(rows[rows[:, FLAGS] & ON_RIGHT == 0])
        return count

    def _judge_lost(self, lost: NDArray[np.int64]) -> None:
        for row in lost:
            offset, older = int(row[OFFSET]), int(row[OLDER_RIGHT])
            is_due = row[FLAGS] & IS_TOMBSTONE and self._was_due(offset, int(row[HORIZON]))
            if is_due and older < 0:
                continue
            if row[FLAGS] & IS_TOMBSTONE and older >= 0:
                problem = f"a deleted key is back: its tombstone is gone, {older} is served"
            elif row[FLAGS] & IS_TOMBSTONE:
                problem = "the tombstone of a key is gone before its time"
            elif older >= 0:
                problem = f"the last record of a key is gone, {older} is served"
            else:
                problem = "the last record of a key is gone"
            self._removed.add(problem, offset=offset)

    def _was_due(self, offset: int, horizon_ms: int) -> bool:
        """Say whether what carried this horizon, -1 for none, might go."""
        ground = self._ground
        return 0 <= horizon_ms <= ground.expired_ms and offset < ground.expires_below

    def _sources_to(self, last: int) -> Iterator[tuple[VerifiedPart, Offsets]]:
        """Yield the rows of sources up to offset ``last``, inclusive, each once."""
        while not self._is_read:
            part = self._next_source() if self._part is None else self._part
            if part is None:
                self._is_read = True
                return
            stop = int(np.searchsorted(part.offsets, last, "right"))
            if stop > self._at:
                yield part, np.arange(self._at, stop)
            self._at = max(stop, self._at)
            if self._at < len(part.offsets) or part.last_offset > last:
                return
            self._part = None

    def _next_source(self) -> VerifiedPart | None:
        try:
            found = next(self._sources, None)
        except CorruptError as error:
            self._removed.cannot_judge(f"a source cannot be read any more: {error}")
            self._is_broken = True
            return None
        if found is None:
            return None
        self._part, first = found
        self._at = int(np.searchsorted(self._part.offsets, first))
        first = max(first, self._ground.log_start)
        committed = self._committed(self._part, first, self._ground.end)
        self._all.add(_rows(self._part, committed, ON_LEFT))
        return self._part

    def _tell_markers(self, source: VerifiedPart, missing: Offsets) -> None:
        """Tell of control records that are not served, and were not due."""
        is_control = source.table[source.batch_of[missing], t.ATTRIBUTES] & t.CONTROL != 0
        gone = missing[is_control]
        horizons = _horizons(source)[source.batch_of[gone]]
        for offset, horizon_ms in zip(
            source.offsets[gone].tolist(), horizons.tolist(), strict=True
        ):
            if offset >= self._ground.log_start and not self._was_due(offset, horizon_ms):
                self._removed.add(
                    "the marker of a transaction is gone before its time", offset=offset
                )

    def _committed(self, part: VerifiedPart, first: int, last: int) -> Offsets:
        """Return which rows from ``first`` to ``last`` have a key and are committed."""
        is_data = part.table[:, t.ATTRIBUTES] & t.CONTROL == 0
        is_data &= self._aborted.of_batches(part.table) == TransactionOutcome.COMMITTED
        wanted = is_data[part.batch_of] & (part.flags & HAS_KEY != 0)
        wanted &= (part.offsets >= first) & (part.offsets <= last)
        return np.flatnonzero(wanted)


def _rows(part: VerifiedPart, chosen: Offsets, side: int) -> Rows:
    rows = np.empty((len(chosen), COLUMNS), np.int64)
    rows[:, KEY_HIGH] = part.keys[chosen, 0]
    has_version = part.flags[chosen] & HAS_VERSION != 0
    rows[:, KEY_LOW] = (part.keys[chosen, 1] << KEY_SHIFT) | has_version
    rows[:, VERSION] = part.versions[chosen]
    rows[:, OFFSET] = part.offsets[chosen]
    rows[:, HORIZON] = _horizons(part)[part.batch_of[chosen]]
    rows[:, FLAGS] = side | (part.flags[chosen] & HAS_VALUE == 0) * IS_TOMBSTONE
    return rows


def _horizons(part: VerifiedPart) -> Offsets:
    """Return the delete horizon of each batch, -1 for none."""
    has_horizon = part.table[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0
    return np.where(has_horizon, part.table[:, t.BASE_TIMESTAMP], -1)


def _inside(offsets: Offsets, ranges: Sequence[Range]) -> NDArray[np.bool_]:
    """Say of each offset whether one of ``ranges``, which ascend, has it."""
    bounds = np.array(ranges, np.int64).reshape(-1, 2)
    place = np.searchsorted(bounds[:, 0], offsets, "right") - 1
    found: NDArray[np.bool_] = place >= 0
    found[found] = offsets[found] <= bounds[place[found], 1]
    return found
