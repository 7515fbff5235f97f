"""Proves the indexes of a segment against its batches, by what they claim and not by a rule.

An offset index entry must name a batch that begins at its position and ends at its offset; a time
index entry a batch that is the first to reach its timestamp, and the last entry of a closed segment
the segment's greatest. How dense an index is, is nobody's claim. What the batches say in place of
an entry is :mod:`keeplast.log.index_walk`'s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format import offset_index, time_index
from keeplast.format.filename import INDEX, TIME_INDEX, Kind, segment_file
from keeplast.format.index_bounds import filled_entries
from keeplast.inspect.verdicts import Findings
from keeplast.inspect.verified_log import VerifiedLog
from keeplast.log.index_walk import IndexWalk
from keeplast.log.partition_log import INDEX_BYTES_MAX, SegmentFiles
from keeplast.model.offsets import INT64_MAX

_NO_BATCH = "no batch begins at position {}"


class IndexProof:
    """The indexes of one segment while its batches go by."""

    def __init__(self, log: VerifiedLog, segment: SegmentFiles, findings: Findings) -> None:
        """Load both indexes; what cannot be loaded is a finding."""
        self._log, self._segment, self._findings = log, segment, findings
        self._base = segment.base_offset
        # The active segment's indexes may be cut, padded with zeros or not written yet.
        self._is_active = segment is log.listing.active
        self._is_unusable = False
        self._offsets = self._load(INDEX)
        self._times = self._load(TIME_INDEX)
        self._walk = IndexWalk(self._base, self._offsets, self._times)
        self._offset_answered = np.zeros(len(self._offsets), np.bool_)
        self._time_answered = np.zeros(len(self._times), np.bool_)

    def _load(self, kind: Kind) -> NDArray[np.int64]:
        decode = offset_index.decode if kind == INDEX else time_index.decode
        find_problem = offset_index.find_problem if kind == INDEX else time_index.find_problem
        path = self._segment.path(kind)
        self._is_unusable = True
        empty = np.empty((0, 2), np.int64)
        if not self._log.files.exists(path):
            if not self._is_active:
                self._findings.cannot_judge(f"there is no {path.name}; a broker rebuilds it")
            return empty
        try:
            entries = decode(self._log.files.read_bytes(path, INDEX_BYTES_MAX))
        except CorruptError as error:
            self._say(kind, str(error), self._base)
            return empty
        size_bytes = self._segment.size_bytes
        if self._is_active:
            # What lies behind its last batch is told of there, entry by entry.
            entries, size_bytes = filled_entries(entries), INT64_MAX
        problem = find_problem(entries, size_bytes)
        if problem is not None:
            self._say(kind, problem, self._base)
            return empty
        self._is_unusable = False
        return entries

    def _say(self, kind: Kind, problem: str, offset: int) -> None:
        name = segment_file(self._base, kind)
        self._findings.add(f"{name}: {problem}", offset=offset)

    def add(self, position: int, table: NDArray[np.int64]) -> None:
        """Hold the batches of one window against the entries that fall into it."""
        starts = table[:, t.POSITION] + position
        offsets, times = self._walk.add(
            starts, int(starts[-1] + table[-1, t.SIZE]), table[:, t.LAST_OFFSET],
            table[:, t.MAX_TIMESTAMP],
        )  # fmt: skip
        self._offset_answered[offsets.numbers] = True
        self._time_answered[times.numbers] = True
        is_inside = offsets.starts != offsets.positions
        for i in np.flatnonzero(is_inside | (offsets.lasts != offsets.offsets)).tolist():
            at = offsets.positions[i]
            problem = f"the batch at position {at} ends at {offsets.lasts[i]}"
            if is_inside[i]:
                problem = _NO_BATCH.format(at)
            self._say(INDEX, problem, int(offsets.offsets[i]))
        is_first = (times.owns == times.stamps) & (times.before < times.stamps)
        for i in np.flatnonzero(~is_first).tolist():
            self._say(
                TIME_INDEX,
                f"the batch is not the first to reach {times.stamps[i]}: its greatest timestamp is "
                f"{times.owns[i]}, before it {times.before[i]}",
                int(times.offsets[i]),
            )

    def finish(self) -> None:
        """Account for entries that no batch has answered."""
        for relative, at in self._offsets[~self._offset_answered].tolist():
            self._say(INDEX, _NO_BATCH.format(at), self._base + relative)
        for stamp, relative in self._times[~self._time_answered].tolist():
            self._say(TIME_INDEX, f"no batch has timestamp {stamp}", self._base + relative)
        last = int(self._times[-1, 0]) if len(self._times) else -1
        is_told = self._is_active or self._is_unusable or not self._time_answered.all()
        if not is_told and last != self._walk.greatest_ms:
            self._say(
                TIME_INDEX,
                f"the last entry is of {last}, the segment's greatest is {self._walk.greatest_ms}",
                self._base,
            )
