"""Re-reads what an attempt staged and compares it with the plan, before anybody may commit it.

Every batch must have a right CRC, lie inside the plan's range, and be indexed as the index files
say; the sizes must be those that were reported. Disagreement is our defect, not the user's data.
"""

from __future__ import annotations

import numpy as np

from keeplast.cleaner.plan import RoundPlan
from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError, invariant
from keeplast.format import offset_index, time_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import INDEX, LOG, TIME_INDEX
from keeplast.log.files import FileSystem, reading
from keeplast.log.index_builder import IndexBuilder
from keeplast.log.windows import read_windows
from keeplast.model.offsets import RELATIVE_OFFSET_MAX
from keeplast.rewrite.task import PartitionTask, StagedGroup
from keeplast.rewrite.workspace import Workspace


def check_group(
    task: PartitionTask, staged: StagedGroup, files: FileSystem, workspace: Workspace
) -> int | None:
    """Raise InvariantError or CorruptError unless the staged files are what was reported.

    Returns the CRC-32C of the log file as read again, where the task asks for it.
    """
    if not staged.files:
        return None
    paths = {file.kind: task.target / file.name for file in staged.files}
    for file in staged.files:
        found = files.stat(task.target / file.name).size_bytes
        invariant(found == file.size_bytes, f"staged size differs. name={file.name} found={found}")
    plan: RoundPlan = task.plan
    base = staged.base_offset
    builder = IndexBuilder(base, plan.topic.index_interval_bytes)
    batches = crc = end_offset = 0
    log_path = paths[LOG]
    with reading(files, log_path) as handle:
        for window in read_windows(handle, log_path, workspace.buffers):
            rows = np.ascontiguousarray(
                window.table[: window.batches, [t.SIZE, t.LAST_OFFSET, t.MAX_TIMESTAMP]]
            )
            lowest, highest = int(rows[:, 1].min()), int(rows[:, 1].max())
            if lowest < base or highest >= plan.bound or highest - base > RELATIVE_OFFSET_MAX:
                raise CorruptError(
                    "an offset lies outside the group", path=str(log_path),
                    position=window.position, expected=f"[{base}, {plan.bound})",
                    found=f"{lowest} to {highest}",
                )  # fmt: skip
            builder.add(rows)
            batches += window.batches
            end_offset = int(rows[-1, 1]) + 1
            if task.takes_crcs:
                crc = crc32c(window.data.data[: window.length], crc)
    invariant(batches == staged.batches, f"staged batches differ. path={log_path}")
    # A swap counts on it for what a start-up removes.
    invariant(end_offset == staged.end_offset, f"staged end differs. path={log_path}")
    offsets, times = builder.finish()
    made = {paths[INDEX]: offset_index.encode(offsets), paths[TIME_INDEX]: time_index.encode(times)}
    for path, expected in made.items():
        found_bytes = files.read_bytes(path, len(expected))
        invariant(found_bytes == expected, f"staged index differs. path={path}")
    return crc if task.takes_crcs else None
