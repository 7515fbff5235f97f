"""Lets the clean section take part where versions rank: a clean record may be a dirty key's winner.

Between the two passes, and before anything is written: afterwards the key map knows the winner of
every dirty key wherever it lies and is only read, so neither the order of groups nor what is
committed before a crash can change what remains. No clean key enters the map; what has no dirty
record stays as it is. cleaning.md section 9.3, rule 3, with architecture 5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import verdicts
from keeplast.columns.ranks import RankedKeyMap
from keeplast.format.filename import LOG, segment_file
from keeplast.log.child_path import child_path
from keeplast.log.files import FileSystem, reading
from keeplast.log.windows import read_windows
from keeplast.rewrite.decompressed_cache import DecompressedCache
from keeplast.rewrite.ranking import Ranking, VersionCounts
from keeplast.rewrite.task import PartitionTask, pass_start
from keeplast.rewrite.transaction_windows import AskMarkers, follow_window
from keeplast.rewrite.workspace import Workspace

Progressed = Callable[[int], None]
RaiseKnown = Callable[[NDArray[np.uint64], NDArray[np.int64]], None]


def raise_over_clean(
    task: PartitionTask,
    key_map: RankedKeyMap,
    ranking: Ranking,
    files: FileSystem,
    workspace: Workspace,
    cache: DecompressedCache,
    progressed: Progressed,
    ask_markers: AskMarkers,
    *,
    checks_crc: bool,
    unranked: frozenset[int] = frozenset(),
) -> VersionCounts:
    """Raise the keys of ``key_map`` to their clean winners; returns what had no version.

    Segments at the base offsets ``unranked`` have none of the keys, and no transactions.
    """
    plan = task.plan
    clean = [
        s
        for s in plan.segments
        if s.base_offset < plan.first_dirty and s.base_offset not in unranked
    ]
    if not len(key_map) or not clean:
        return VersionCounts()
    state = pass_start(plan, clean[0].base_offset)
    counts = VersionCounts()
    for segment in clean:
        counts += raise_over_extent(
            task, segment.base_offset, 0, segment.size_bytes, state, key_map.raise_known, ranking,
            files, workspace, cache, progressed, ask_markers, checks_crc=checks_crc,
        )  # fmt: skip
    return counts


def raise_over_extent(
    task: PartitionTask,
    base_offset: int,
    start: int,
    end: int,
    state: TransactionState,
    raise_known: RaiseKnown,
    ranking: Ranking,
    files: FileSystem,
    w: Workspace,
    cache: DecompressedCache,
    progressed: Progressed,
    ask_markers: AskMarkers,
    *,
    checks_crc: bool,
) -> VersionCounts:
    """Give the clean records in the bytes ``[start, end)`` of a segment to ``raise_known``."""
    plan = task.plan
    dirty = plan.dirty_segments()
    # The first pass has kept the payloads of the segment that is clean and dirty.
    keeps = base_offset != (dirty[0].base_offset if dirty else plan.first_dirty)
    path = child_path(task.path, segment_file(base_offset, LOG))
    counts = VersionCounts()
    with reading(files, path) as handle:
        for window in read_windows(
            handle, path, w.buffers, start=start, end=end, checks_crc=checks_crc
        ):
            follow_window(state, window, w, ask_markers)
            verdicts.select_indexed(window.table, 0, window.batches)
            for part in w.slices(window, base_offset, task.hash_key, cache, keeps=keeps):
                # What was deleted outranks nothing: nobody can read it, and its key would be lost.
                if verdicts.mark_indexed(
                    part.rows, plan.log_start, plan.first_dirty, w.offsets, w.flags, w.marks
                ):
                    counts += ranking.read_versions(window, part, w)
                    raise_known(ranking.block_of(part.rows, w), w.starts)
            progressed(window.length)
    return counts
