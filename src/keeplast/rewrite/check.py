"""Re-reads what an attempt staged and compares it with the plan, before anybody may commit it.

Every batch must have a right CRC, lie inside the plan's range, and be indexed as the index files
say; the sizes must be those that were reported. Disagreement is our defect, not the user's data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError, invariant
from keeplast.format import offset_index, time_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import INDEX, LOG, TIME_INDEX
from keeplast.log.child_path import child_path
from keeplast.log.files import FileSystem, reading
from keeplast.log.index_builder import IndexBuilder
from keeplast.log.windows import read_windows
from keeplast.model.offsets import RELATIVE_OFFSET_MAX
from keeplast.rewrite.task import PartitionTask, StagedGroup
from keeplast.rewrite.workspace import Workspace


class GroupCheck:
    """A staged output while it is read again: from its beginning to its end, in as many steps."""

    def __init__(self, task: PartitionTask, base_offset: int) -> None:
        """Begin; the log file at ``base_offset`` need not be complete."""
        self._task = task
        self._base = base_offset
        self._builder = IndexBuilder(base_offset, task.plan.topic.index_interval_bytes)
        self._batches = self._crc = self._end_offset = 0

    def read(self, path: Path, end: int, files: FileSystem, workspace: Workspace) -> None:
        """Read on to byte ``end`` of the log file at ``path``, where a batch ends.

        Raises CorruptError as :meth:`finish` does.
        """
        plan, base = self._task.plan, self._base
        with reading(files, path) as handle:
            for window in read_windows(
                handle, path, workspace.buffers, start=self._builder.size_bytes, end=end
            ):
                rows = np.ascontiguousarray(
                    window.table[: window.batches, [t.SIZE, t.LAST_OFFSET, t.MAX_TIMESTAMP]]
                )
                lowest, highest = int(rows[:, 1].min()), int(rows[:, 1].max())
                if lowest < base or highest >= plan.bound or highest - base > RELATIVE_OFFSET_MAX:
                    raise CorruptError(
                        "an offset lies outside the group", path=str(path),
                        position=window.position, expected=f"[{base}, {plan.bound})",
                        found=f"{lowest} to {highest}",
                    )  # fmt: skip
                self._builder.add(rows)
                self._batches += window.batches
                self._end_offset = int(rows[-1, 1]) + 1
                if self._task.takes_crcs:
                    self._crc = crc32c(window.data.data[: window.length], self._crc)

    def finish(self, staged: StagedGroup, files: FileSystem, workspace: Workspace) -> int | None:
        """Raise InvariantError or CorruptError unless the staged files are what was reported.

        Returns the CRC-32C of the log file as read again, where the task asks for it.
        """
        if not staged.files:
            return None
        paths = {file.kind: child_path(self._task.target, file.name) for file in staged.files}
        for file in staged.files:
            found = files.stat(paths[file.kind]).size_bytes
            what = f"staged size differs. name={file.name} found={found}"
            invariant(found == file.size_bytes, what)
        path = paths[LOG]
        self.read(path, staged.size_bytes, files, workspace)
        invariant(self._batches == staged.batches, f"staged batches differ. path={path}")
        # A swap counts on it for what a start-up removes.
        invariant(self._end_offset == staged.end_offset, f"staged end differs. path={path}")
        offsets, times = self._builder.finish()
        made = {
            paths[INDEX]: offset_index.encode(offsets),
            paths[TIME_INDEX]: time_index.encode(times),
        }
        for path, expected in made.items():
            found_bytes = files.read_bytes(path, len(expected))
            invariant(found_bytes == expected, f"staged index differs. path={path}")
        return self._crc if self._task.takes_crcs else None
