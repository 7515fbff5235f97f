"""The offset at which a log stood at a time: that of the first record with a later timestamp.

Producers set timestamps, and clocks differ: a record in front of that offset may be younger, and
one behind it older. So it is an approximation, unless the broker dates records (LogAppendTime).
Markers count, as brokers date them. Answers to ``UnifiedLog.fetchOffsetByTimestamp``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from keeplast.clock import Clock
from keeplast.columns import arrow_columns as a
from keeplast.columns import batch_table as t
from keeplast.log.files import FileSystem
from keeplast.log.windows import WindowBuffers
from keeplast.model.offsets import INT64_MAX
from keeplast.read.log_ranges import Split, Wanted, plan_splits
from keeplast.read.log_view import LogView
from keeplast.read.record_source import read_records, read_wanted
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace

SPLIT_BYTES = 128 << 20


def first_offset_from(view: LogView, time_ms: int, files: FileSystem, clock: Clock) -> int | None:
    """Return the offset of the first record with a timestamp of at least ``time_ms``.

    None when the log has none. Whole segments are passed over by their time indexes; of the rest
    headers are read, and the records of one batch. Records of open and aborted transactions count.
    """
    later = Wanted(view.log_start, INT64_MAX, first_ms=time_ms)
    for part in plan_splits(view, later, files, split_bytes=SPLIT_BYTES):
        first = part.wanted.first_offset
        for _, window, _, _ in read_wanted(part, files, clock, WindowBuffers(), checks_crc=False):
            rows = window.table[: window.batches]
            lasts = rows[:, t.LAST_OFFSET]
            later_here = (lasts >= first) & (rows[:, t.MAX_TIMESTAMP] >= time_ms)
            for i in np.flatnonzero(later_here).tolist():
                if rows[i, t.ATTRIBUTES] & t.CONTROL and rows[i, t.MAGIC] == 2:
                    return int(rows[i, t.BASE_OFFSET])
                # The wrapper of an old format says only where it ends.
                begins = max(first, int(lasts[i - 1]) + 1) if i else first
                batch = Wanted(begins, int(lasts[i]) + 1, first_ms=time_ms)
                found = first_record(replace(part, wanted=batch), files, clock)
                if found is not None:
                    return found
            first = max(first, int(lasts.max()) + 1)
    return None


def first_record(split: Split, files: FileSystem, clock: Clock) -> int | None:
    """Return the offset of the first record that is wanted of a split, aborted ones included.

    None when there is none: headers may promise more than their batch has.
    """
    every = replace(split, hides_aborted=False)
    for columns in read_records(every, files, clock, Workspace(MEMORY_BYTES_MIN)):
        return int(columns.longs[a.OFFSET, 0])
    return None
