"""The output of one group while it is written, and those before it that are complete.

Nothing is written as long as everything of the first source stays: an output that would equal its
single source, indexes included, is not written at all. What comes in is appended in the order of
the log; indexes are a function of the batches that were appended. Kafka: ``Cleaner.cleanSegments``;
cleaning.md 3.3.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.cleaner.plan import GroupPlan, RoundPlan
from keeplast.columns import batches as t
from keeplast.columns import retained
from keeplast.columns.winners import NO_LEDGER, ReasonLedger
from keeplast.errors import CorruptError, UnavailableError, invariant
from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import INDEX, LOG, TIME_INDEX, TXN_INDEX, Kind, segment_file
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import (
    FileSystem,
    LocalWriteHandle,
    ReadHandle,
    WriteHandle,
    reading,
    write_at_once,
)
from keeplast.log.indexes import IndexBuilder
from keeplast.log.paths import child_path
from keeplast.log.windows import Window, read_windows
from keeplast.model.partition import RELATIVE_OFFSET_MAX
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.skipping import ContentsBuilder
from keeplast.rewrite.standings import Standings
from keeplast.rewrite.task import PartitionTask, Progressed, StagedFile, StagedGroup
from keeplast.rewrite.transactions import AskMarkers
from keeplast.rewrite.workspace import DecompressedCache, Slice, Workspace

_INDEX_KINDS: tuple[Kind, ...] = (INDEX, TIME_INDEX, TXN_INDEX)


class IndexFullError(Exception):
    """The merged output needs more index entries than fit; ``sources`` of the group do fit."""

    def __init__(self, sources: int) -> None:
        """Remember how many leading sources fit into one output."""
        super().__init__(sources)
        self.sources = sources


class PassContext(Struct, frozen=True):
    """What every group of a pass shares.

    ``knows_entry`` False makes a group with transactions end in :class:`EntryNeededError`.
    ``known_filters`` are the base offsets of the segments that have a good one.
    """

    task: PartitionTask
    end_offset: int
    standings: Standings
    files: FileSystem
    workspace: Workspace
    cache: DecompressedCache
    counters: NDArray[np.int64]
    progressed: Progressed
    ranking: Ranking
    ask_markers: AskMarkers
    source_crcs: dict[int, int] | None = None
    ledger: ReasonLedger = NO_LEDGER
    knows_entry: bool = True
    known_filters: frozenset[int] = frozenset()

    @property
    def plan(self) -> RoundPlan:
        """Return the round's plan."""
        return self.task.plan

    @property
    def tombstones_expire_below(self) -> int:
        """Return the offset from which on tombstones stay where versions rank; exclusive.

        0 when the map filled: a record that was not indexed may be what a tombstone holds down.
        """
        return self.plan.first_dirty if self.end_offset >= self.plan.bound else 0


def staged_name(base_offset: int, kind: Kind, attempt: str) -> str:
    """Return the name under which an attempt leaves a file; a broker removes it at start."""
    return f"{segment_file(base_offset, kind)}.{attempt}.deleted"


class GroupCheck:
    """A staged output while it is read again: from its beginning to its end, in as many steps."""

    def __init__(self, task: PartitionTask, base_offset: int) -> None:
        """Begin; the log file at ``base_offset`` need not be complete."""
        self._task = task
        self._base = base_offset
        self._builder = IndexBuilder(base_offset, task.plan.topic.index_interval_bytes)
        self._batches = self._crc = self._end_offset = 0

    @property
    def size_bytes(self) -> int:
        """Return how much of the log file has been read."""
        return self._builder.size_bytes

    def read(
        self, path: Path, end: int, files: FileSystem, workspace: Workspace, *, leaves: int = 0
    ) -> None:
        """Read on to byte ``end`` of the log file at ``path``, where a batch ends.

        Less than ``leaves`` bytes may stay unread. Raises CorruptError as :meth:`finish` does.
        """
        plan, base = self._task.plan, self._base
        with reading(files, path) as handle:
            for window in read_windows(
                handle, path, workspace.buffers, start=self.size_bytes, end=end
            ):
                rows = np.ascontiguousarray(
                    window.table[: window.batches, [t.SIZE, t.LAST_OFFSET, t.MAX_TIMESTAMP]]
                )
                lowest, highest = int(rows[:, 1].min()), int(rows[:, 1].max())
                if lowest < base or highest >= plan.bound or highest - base > RELATIVE_OFFSET_MAX:
                    raise CorruptError(
                        "an offset lies outside the group", path=str(path),
                        position=window.position, expected=f"[{base}, {plan.bound})",
                        found=f"{lowest} to {highest}", code="K215",
                    )  # fmt: skip
                self._builder.add(rows)
                self._batches += window.batches
                self._end_offset = int(rows[-1, 1]) + 1
                if self._task.takes_crcs:
                    self._crc = crc32c(window.data.data[: window.length], self._crc)
                if end - self.size_bytes < leaves:
                    break

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


class Outputs(Struct, frozen=True):
    """What a group became, each output with the check that is under way.

    ``contents`` are what filters are to know of each output, where the task has filters.
    ``copied_bytes`` were copied without being looked into.
    """

    staged: Sequence[StagedGroup]
    checks: Sequence[GroupCheck]
    contents: Sequence[ContentsBuilder]
    copied_bytes: int


class GroupOutput:
    """What one group becomes: an output, or several where its offsets do not fit one."""

    def __init__(self, context: PassContext, group: GroupPlan) -> None:
        self._c = context
        self._group = group
        self.number = 0
        """The source that is read."""
        self.aborted: list[AbortedTransaction] = []
        self.copied_bytes = 0
        self._made: list[Path] = []
        self._staged: list[StagedGroup] = []
        self._checks: list[GroupCheck] = []
        self._checking = threading.Lock()
        self._contents: list[ContentsBuilder] = []
        self._begin_output(group.base_offset)

    def _begin_output(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._indexes = IndexBuilder(base_offset, self._c.plan.topic.index_interval_bytes)
        self._handle: WriteHandle | None = None
        self._unchanged_bytes = 0
        self._batches = self._end_offset = 0
        task = self._c.task
        self._checks.append(GroupCheck(task, base_offset))
        if task.filters is not None and task.writes:
            self._contents.append(ContentsBuilder(task.filters, task.memory_bytes))

    @property
    def is_unchanged(self) -> bool:
        """Say whether nothing was written, as nothing of the first source has changed."""
        return self._handle is None and self.number == 0

    def check_ahead(self, files: FileSystem, workspace: Workspace) -> None:
        """Read again what was written, a window at a time, while it is in the processor's caches.

        Unless another thread does. ``workspace`` loses its window. What lies in a store can be read
        when it is complete.
        """
        if not isinstance(self._handle, LocalWriteHandle):
            return
        window_bytes, path, check = workspace.buffers.window_bytes, self._made[-1], self._checks[-1]
        # What was written is whole batches before it is added to the indexes.
        end = self._indexes.size_bytes
        is_due = end - check.size_bytes >= window_bytes and self._c.task.files.is_on_disk(path)
        if is_due and self._checking.acquire(blocking=False):
            try:
                check.read(path, end, files, workspace, leaves=window_bytes)
            finally:
                self._checking.release()

    def start(self, handle: ReadHandle) -> None:
        """Create the staged log with what was unchanged so far of the source, if there is none."""
        if self._handle is not None:
            return
        if not self._c.task.writes:
            self._handle = _Discard()
            return
        path = child_path(
            self._c.task.target, staged_name(self.base_offset, LOG, self._c.task.attempt)
        )
        self._handle = self._c.files.open_write(path)
        self._made.append(path)
        if self._unchanged_bytes:
            self._handle.copy_from(handle, 0, self._unchanged_bytes)
            self.copied_bytes += self._unchanged_bytes

    def note(self, window: Window, part: Slice, workspace: Workspace) -> None:
        """Note for the filter what stays of a slice, where there is to be one."""
        if self._contents:
            self._contents[-1].add(window, part, workspace)

    def count(self, batches: NDArray[np.int64]) -> None:
        """Take batches that lie where they lay; (n, 3): size, last offset, greatest timestamp."""
        self._unchanged_bytes += int(batches[:, 0].sum())
        self._add_to_indexes(batches)

    def write(
        self, handle: ReadHandle, pieces: Sequence[memoryview], batches: NDArray[np.int64]
    ) -> None:
        """Append the bytes of ``batches`` (as for :meth:`count`), which ``pieces`` are."""
        self.start(handle)
        self.append(pieces, batches)

    def append(self, pieces: Sequence[memoryview], batches: NDArray[np.int64]) -> None:
        """Append whole batches and note them in the indexes; ``batches`` has a row for each."""
        invariant(self._handle is not None, "an output is appended to that was not started")
        output = cast(WriteHandle, self._handle)
        for piece in pieces:
            output.write(piece)
        self._add_to_indexes(batches)

    def split(self, handle: ReadHandle, base_offset: int) -> None:
        """Complete the output, and begin the next one."""
        self.start(handle)
        later = [entry for entry in self.aborted if entry.last_offset >= base_offset]
        self.aborted = [entry for entry in self.aborted if entry.last_offset < base_offset]
        self._finish_output()
        self.aborted = later
        self._begin_output(base_offset)
        self.start(handle)

    def _add_to_indexes(self, batches: NDArray[np.int64]) -> None:
        count = len(batches)
        if not count:
            return
        plan = self._c.plan
        self._c.counters[retained.BYTES_WRITTEN] += int(batches[:, 0].sum())
        self._batches += count
        self._end_offset = int(batches[-1, 1]) + 1
        self._indexes.add(batches)
        # Kafka's append fails here each time (F4): docs/explanation/differences.md (c). A time
        # index counts as full one entry early. A lone source may exceed: there is nothing to split.
        limit = plan.topic.segment_index_bytes
        if self.number > 0 and (
            self._indexes.offset_entries > limit // offset_index.ENTRY_BYTES
            or self._indexes.time_entries > limit // time_index.ENTRY_BYTES - 1
        ):
            raise IndexFullError(self.number)

    def finish(self) -> Outputs:
        """Complete the last output; returns all of them."""
        self._finish_output()
        return Outputs(self._staged, self._checks, self._contents, self.copied_bytes)

    def _finish_output(self) -> None:
        """Write the indexes, set times, make everything durable."""
        c, source = self._c, self._group.sources[-1]
        offsets, times = self._indexes.finish()
        size = self._indexes.size_bytes
        contents: dict[Kind, bytes] = {
            INDEX: offset_index.encode(offsets),
            TIME_INDEX: time_index.encode(times),
        }
        if self.aborted:
            bases = {each.base_offset for each in self._group.sources}
            contents[TXN_INDEX] = txn_index.encode(c.plan.as_indexed(self.aborted, bases))
        staged: list[StagedFile] = []
        if self._handle is None and not self._same_indexes(contents):
            with reading(
                c.files, child_path(c.task.path, segment_file(self.base_offset, LOG))
            ) as handle:
                self.start(handle)
        if self._handle is not None and c.task.writes:
            self._handle.fsync()
            self._handle.close()
            name = staged_name(self.base_offset, LOG, c.task.attempt)
            staged.append(StagedFile(LOG, name, size))
            for kind, content in contents.items():
                name = staged_name(self.base_offset, kind, c.task.attempt)
                path = child_path(c.task.target, name)
                self._made.append(path)
                write_at_once(c.files.open_write(path), content)
                staged.append(StagedFile(kind, name, len(content)))
            origin = child_path(c.task.path, segment_file(self._group.base_offset, LOG))
            for file in staged:
                path = child_path(c.task.target, file.name)
                c.files.copy_owner_and_mode(origin, path)
                c.files.set_mtime(path, source.mtime_ms * 1_000_000)
        is_first = not self._staged
        self._staged.append(
            StagedGroup(
                base_offset=self.base_offset,
                sources=tuple(s.base_offset for s in self._group.sources) if is_first else (),
                files=tuple(staged),
                size_bytes=size,
                batches=self._batches,
                end_offset=self._end_offset,
            )
        )

    def _same_indexes(self, contents: dict[Kind, bytes]) -> bool:
        """Say whether the single, unchanged source already has these indexes."""
        c = self._c
        for kind in _INDEX_KINDS:
            path = child_path(c.task.path, segment_file(self.base_offset, kind))
            found = c.files.read_bytes(path, 1 << 30) if c.files.exists(path) else None
            if found != contents.get(kind):
                return False
        return True

    def discard(self) -> None:
        """Close what is open and remove what was staged; recovery removes what stays."""
        if self._handle is not None:
            self._handle.close()
        # A disk that refuses does not hide why we are here; the coordinator tries once more.
        with contextlib.suppress(OSError, UnavailableError):
            for path in self._made:
                if self._c.files.exists(path):
                    self._c.files.unlink(path)


class _Discard:
    """A write handle that keeps nothing, for runs that only count."""

    def write(self, data: object) -> None:
        """Drop it."""

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        """Drop it."""

    def fsync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
