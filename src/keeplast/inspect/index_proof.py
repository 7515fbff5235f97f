"""Proves the indexes of a segment against its batches, by what they claim and not by a rule.

An offset index entry must name a batch that begins at its position and ends at its offset; a time
index entry a batch that is the first to reach its timestamp, and the last entry of a closed segment
the segment's greatest. How dense an index is, is nobody's claim.
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
from keeplast.log.partition_log import INDEX_BYTES_MAX, SegmentFiles


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
        self._next_offset = self._next_time = 0
        self._largest = -1

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
        if self._is_active:
            self._is_unusable = False
            return filled_entries(entries)
        problem = find_problem(entries, self._segment.size_bytes)
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
        self._add_offsets(starts, table)
        self._add_times(table)
        self._largest = max(self._largest, int(table[:, t.MAX_TIMESTAMP].max()))

    def _add_offsets(self, starts: NDArray[np.int64], table: NDArray[np.int64]) -> None:
        end = int(starts[-1] + table[-1, t.SIZE])
        while self._next_offset < len(self._offsets):
            relative, at = self._offsets[self._next_offset].tolist()
            if at >= end:
                return
            self._next_offset += 1
            i = int(np.searchsorted(starts, at))
            if i == len(starts) or starts[i] != at:
                self._say(INDEX, f"no batch begins at position {at}", self._base + relative)
            elif table[i, t.LAST_OFFSET] != self._base + relative:
                self._say(
                    INDEX,
                    f"the batch at position {at} ends at {table[i, t.LAST_OFFSET]}",
                    self._base + relative,
                )

    def _add_times(self, table: NDArray[np.int64]) -> None:
        lasts = table[:, t.LAST_OFFSET]
        reached = np.maximum.accumulate(np.maximum(table[:, t.MAX_TIMESTAMP], self._largest))
        while self._next_time < len(self._times):
            stamp, relative = self._times[self._next_time].tolist()
            offset = self._base + relative
            if offset > lasts[-1]:
                return
            self._next_time += 1
            i = int(np.searchsorted(lasts, offset))
            before = int(reached[i - 1]) if i else self._largest
            if table[i, t.MAX_TIMESTAMP] != stamp or before >= stamp:
                self._say(
                    TIME_INDEX,
                    f"the batch is not the first to reach {stamp}: its greatest timestamp is "
                    f"{table[i, t.MAX_TIMESTAMP]}, before it {before}",
                    offset,
                )

    def finish(self) -> None:
        """Account for entries that no batch has answered."""
        for relative, at in self._offsets[self._next_offset :].tolist():
            self._say(INDEX, f"no batch begins at position {at}", self._base + relative)
        for stamp, relative in self._times[self._next_time :].tolist():
            self._say(TIME_INDEX, f"no batch has timestamp {stamp}", self._base + relative)
        last = int(self._times[-1, 0]) if len(self._times) else -1
        is_told = self._is_active or self._is_unusable or self._next_time < len(self._times)
        if not is_told and last != self._largest:
            self._say(
                TIME_INDEX,
                f"the last entry is of {last}, the segment's greatest is {self._largest}",
                self._base,
            )
