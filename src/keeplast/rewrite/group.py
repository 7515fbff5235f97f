"""The second pass over one group: writes what remains of its sources to staged files.

The state at entry (transactions) is advanced along with the copy. Nothing is written as long as
everything of the first source stays: an output that would equal its single source, indexes
included, is not written at all. Where an offset lies too far from the output's base, the output
ends and another one begins, which Kafka needs a second round for: differences.md (k). Kafka:
``Cleaner.cleanSegments``, ``cleanInto``; cleaning.md 3.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.cleaner.plan import GroupPlan, RoundPlan
from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import batch_table as t
from keeplast.columns import rebuild, verdicts
from keeplast.columns.kernel import OK, PROBLEMS
from keeplast.columns.ledger import NO_LEDGER, ReasonLedger
from keeplast.columns.scan import CRC_IN_KERNEL_BYTES_MAX, HAS_EVENTS, HAS_GAPS, HAS_HIDDEN
from keeplast.columns.skim import skim_batches
from keeplast.errors import CorruptError, UnavailableError
from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import INDEX, LOG, TIME_INDEX, TXN_INDEX, Kind, segment_file
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem, ReadHandle, WriteHandle, reading
from keeplast.log.index_builder import IndexBuilder
from keeplast.log.windows import Window, read_windows
from keeplast.model.offsets import RELATIVE_OFFSET_MAX
from keeplast.model.segment import SegmentSummary
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.skipping import ContentsBuilder
from keeplast.rewrite.standings import Standings
from keeplast.rewrite.task import PartitionTask, StagedFile, StagedGroup
from keeplast.rewrite.transaction_windows import AskMarkers, follow_window
from keeplast.rewrite.workspace import CODECS, DecompressedCache, Slice, Workspace

Progressed = Callable[[int], None]

_INDEX_KINDS: tuple[Kind, ...] = (INDEX, TIME_INDEX, TXN_INDEX)


class IndexFullError(Exception):
    """The merged output needs more index entries than fit; ``sources`` of the group do fit."""

    def __init__(self, sources: int) -> None:
        """Remember how many leading sources fit into one output."""
        super().__init__(sources)
        self.sources = sources


class EntryNeededError(Exception):
    """The group has transactions and the state at its entry is not known yet. Nothing is left."""


@dataclass(frozen=True, slots=True)
class PassContext:
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


def rewrite_group(
    context: PassContext, group: GroupPlan, transactions: TransactionState
) -> tuple[tuple[StagedGroup, ...], int, tuple[ContentsBuilder, ...]]:
    """Write one group; returns what was staged and the bytes copied without being looked into.

    Where the task has filters, the contents of each output come with them.

    One output, or several where the offsets do not fit one; the sources go with the first.

    IndexFullError when an index of the merged output overflows and the group has several
    sources; the caller restores ``transactions`` and the counters and tries fewer.
    """
    writing = _Writing(context, group, transactions)
    try:
        for number, source in enumerate(group.sources):
            writing.read_source(number, source)
        return writing.finish()
    except BaseException:
        writing.discard()
        raise


class _Writing:
    """The output of one group while it is written, and those before it that are complete."""

    def __init__(
        self, context: PassContext, group: GroupPlan, transactions: TransactionState
    ) -> None:
        self._c = context
        self._group = group
        self._transactions = transactions
        self._aborted: list[AbortedTransaction] = []
        self._copied_bytes = 0
        self._number = 0
        self._made: list[Path] = []
        self._staged: list[StagedGroup] = []
        self._contents: list[ContentsBuilder] = []
        self._begin_output(group.base_offset)

    def _begin_output(self, base_offset: int) -> None:
        self._base = base_offset
        self._indexes = IndexBuilder(base_offset, self._c.plan.topic.index_interval_bytes)
        self._handle: WriteHandle | None = None
        self._unchanged_bytes = 0
        self._batches = 0
        task = self._c.task
        if task.filters is not None and task.writes:
            self._contents.append(ContentsBuilder(task.filters, task.memory_bytes))

    def read_source(self, number: int, source: SegmentSummary) -> None:
        """Copy what remains of one source."""
        c = self._c
        self._number = number
        path = c.task.path / segment_file(source.base_offset, LOG)
        keeps_old = source.mtime_ms > c.plan.old_format_horizon_ms
        crc = 0
        is_last = number + 1 == len(self._group.sources)
        kept_end = self._next_base() if c.plan.keeps_group_ends and is_last else c.plan.bound
        self._finder = c.standings.of_segment(source.base_offset)

        def skim(
            data: NDArray[np.uint8], length: int, table: NDArray[np.int64]
        ) -> tuple[int, int, int, int, int]:
            found: tuple[int, int, int, int, int] = skim_batches(
                data, length, table, c.end_offset - 1, kept_end, c.plan.last_records,
                c.ledger.first_offset, c.ledger.standings, c.counters, CRC_IN_KERNEL_BYTES_MAX,
            )  # fmt: skip
            return found

        with reading(c.files, path) as handle:
            for window in read_windows(
                handle, path, c.workspace.buffers, end=source.size_bytes, scan=skim
            ):  # fmt: skip
                if window.marks & HAS_GAPS:
                    self._started(handle)
                if not c.knows_entry and window.marks & HAS_EVENTS:
                    raise EntryNeededError
                self._aborted.extend(
                    follow_window(self._transactions, window, c.workspace, c.ask_markers)
                )
                verdicts.judge_batches(
                    window.table, 0, window.batches, c.plan.expiry_now_ms, kept_end,
                    c.plan.last_records, c.counters,
                )  # fmt: skip
                for part in c.workspace.slices(
                    window, source.base_offset, c.task.hash_key, c.cache, keeps=False,
                    ledger=c.ledger,
                ):  # fmt: skip
                    self._write_slice(window, part, handle, keeps_old=keeps_old)
                if c.source_crcs is not None:
                    crc = crc32c(window.data.data[: window.length], crc)
                c.progressed(window.length)
            if c.source_crcs is not None:
                c.source_crcs[source.base_offset] = crc
            is_only = len(self._group.sources) == 1
            if not is_only:
                self._started(handle)

    def _write_slice(
        self, window: Window, part: Slice, handle: ReadHandle, *, keeps_old: bool
    ) -> None:
        c, w, table = self._c, self._c.workspace, window.table
        first, last = part.first, part.last
        map_latest = c.end_offset - 1
        if part.hashed and verdicts.mark_looked_up(
            table, first, last, map_latest, w.offsets, w.flags, w.standings, w.marks
        ):
            c.ranking.read_versions(window, part, w)
            block = c.ranking.block_of(part.rows, w)
            self._finder.find(block, w.starts, w.block_rows, w.standings)
        keep = w.marks
        changed, packed = verdicts.judge_rows(
            table, first, last, map_latest, c.plan.expiry_now_ms, c.plan.horizon_ms,
            keeps_old, c.ranking.expiry, c.tombstones_expire_below,
            w.offsets, w.positions, w.flags, w.standings, keep, c.counters,
        )  # fmt: skip
        while (beyond := self._find_beyond(table, first, last)) is not None:
            if beyond > first:
                fitting = Slice(first, beyond, part.rows)
                self._write_batches(window, fitting, handle, changed=changed, packed=packed)
            self._split(window, beyond, handle)
            first = beyond
        rest = Slice(first, last, part.rows)
        self._write_batches(window, rest, handle, changed=changed, packed=packed)

    def _find_beyond(self, table: NDArray[np.int64], first: int, last: int) -> int | None:
        """Return the first batch of ``[first, last)`` to write whose last offset does not fit."""
        rows = table[first:last]
        offsets_end = self._base + RELATIVE_OFFSET_MAX
        if not len(rows) or int(rows[:, t.LAST_OFFSET].max()) <= offsets_end:
            return None
        is_beyond = (rows[:, t.LAST_OFFSET] > offsets_end) & (rows[:, t.ACTION] != t.ACTION_DROP)
        found = np.flatnonzero(is_beyond)
        return first + int(found[0]) if len(found) else None

    def _split(self, window: Window, batch: int, handle: ReadHandle) -> None:
        """Complete the output, and begin the next one at this batch of the window."""
        base = int(window.table[batch, t.BASE_OFFSET])
        end = self._next_base()
        if not self._base < base < end:
            raise window.corrupt(
                batch, "an offset lies outside its segment", f"({self._base}, {end})", base
            )  # fmt: skip
        self._started(handle)
        later = [entry for entry in self._aborted if entry.last_offset >= base]
        self._aborted = [entry for entry in self._aborted if entry.last_offset < base]
        self._finish_output()
        self._aborted = later
        self._begin_output(base)
        self._started(handle)

    def _next_base(self) -> int:
        """Return the base offset of the segment behind the group."""
        last = self._group.sources[-1].base_offset
        following = (s.base_offset for s in self._c.plan.segments if s.base_offset > last)
        return next(following, self._c.plan.bound)

    def _write_batches(
        self, window: Window, part: Slice, handle: ReadHandle, *, changed: int, packed: int
    ) -> None:
        """Write what stays of the batches, or only count them while nothing has changed."""
        if self._contents:
            self._contents[-1].add(window, part, self._c.workspace)
        if self._handle is None and self._number == 0 and not changed:
            rows = window.table[part.first : part.last]
            batches = np.ascontiguousarray(rows[:, [t.SIZE, t.LAST_OFFSET, t.MAX_TIMESTAMP]])
            self._unchanged_bytes += int(batches[:, 0].sum())
            self._add_to_indexes(window, batches, len(batches))
            return
        self._emit(window, part, self._started(handle), packs=packed > 0)

    def _started(self, handle: ReadHandle) -> WriteHandle:
        """Return the staged log; created with what was unchanged so far."""
        if self._handle is not None:
            return self._handle
        if not self._c.task.writes:
            self._handle = _Discard()
            return self._handle
        path = self._c.task.target / staged_name(self._base, LOG, self._c.task.attempt)
        self._handle = self._c.files.open_write(path)
        self._made.append(path)
        if self._unchanged_bytes:
            self._handle.copy_from(handle, 0, self._unchanged_bytes)
            self._copied_bytes += self._unchanged_bytes
        return self._handle

    def _emit(
        self,
        window: Window,
        part: Slice,
        output: WriteHandle,
        *,
        packs: bool,
    ) -> None:
        w, table = self._c.workspace, window.table
        first, last = part.first, part.last
        keep = w.marks
        code, bad = rebuild.describe_rebuilt(
            window.data, w.scratch, table, first, last, w.offsets, w.positions, keep
        )
        if code != OK:
            raise window.corrupt(bad, PROBLEMS[code], "a batch that can be rebuilt", "another")
        packed = self._pack(window, part) if packs else np.empty(0, np.uint8)
        # An upper bound: everything copied, every header written, every kept record grown; what
        # does not lie in the window comes on top.
        size = window.length + t.HEADER_BYTES * (last - first) + len(packed)
        if window.marks & HAS_HIDDEN:
            size += int(rebuild.payload_bytes_max(table, first, last, w.positions, keep, False))
        else:
            size += rebuild.RECORD_GROWTH_MAX * part.rows
        out = w.room_for_output(size)
        batches = np.empty((last - first, 3), np.int64)
        extents = np.empty((last - first, 3), np.int64)
        _written, count, pieces = rebuild.emit(
            window.data, w.scratch, table, first, last, w.offsets, w.positions, w.flags, keep,
            packed, out, batches, extents,
        )  # fmt: skip
        view = out.data
        for kind, start, length in extents[:pieces].tolist():
            if kind == rebuild.EXTENT_OUTPUT:
                output.write(view[start : start + length])
            else:
                # To let the system copy it from file to file would read memory once more: the
                # bytes are here, in the cache, since their CRCs were checked.
                output.write(window.data.data[start : start + length])
                self._copied_bytes += length
        self._add_to_indexes(window, batches, count)

    def _pack(self, window: Window, part: Slice) -> NDArray[np.uint8]:
        """Compress the payloads of the compressed batches to rebuild; returns them joined."""
        w, table = self._c.workspace, window.table
        rows = table[part.first : part.last]
        is_compressed = rows[:, t.ATTRIBUTES] & t.CODEC_MASK != 0
        is_packed = (rows[:, t.ACTION] == t.ACTION_REBUILD) & is_compressed
        chosen = np.flatnonzero(is_packed) + part.first
        keep = w.marks
        room = rebuild.payload_bytes_max(table, part.first, part.last, w.positions, keep, True)
        payload = w.room_for_payload(room)
        rebuild.pack_payloads(
            window.data, w.scratch, table, part.first, part.last, w.offsets, w.positions, w.flags,
            keep, payload,
        )  # fmt: skip
        view = payload.data
        pieces: list[bytes] = []
        at = 0
        for i in chosen.tolist():
            start = int(table[i, t.PACKED_START])
            end = start + int(table[i, t.PACKED_SIZE])
            codec = CODECS[int(table[i, t.ATTRIBUTES]) & t.CODEC_MASK]
            piece = w.compress(codec, view[start:end])
            table[i, t.PACKED_START], table[i, t.PACKED_SIZE] = at, len(piece)
            at += len(piece)
            pieces.append(piece)
        return np.frombuffer(bytearray().join(pieces), np.uint8)

    def _add_to_indexes(self, window: Window, batches: NDArray[np.int64], count: int) -> None:
        if not count:
            return
        plan = self._c.plan
        sizes = batches[:count, 0]
        self._c.counters[verdicts.BYTES_WRITTEN] += int(sizes.sum())
        self._batches += count
        lowest, highest = int(batches[:count, 1].min()), int(batches[:count, 1].max())
        if lowest < self._base or highest >= plan.bound:
            raise self._outside(window)
        self._indexes.add(batches[:count])
        # Kafka's append fails here for ever (F4): docs/reference/differences.md (c). A time index
        # counts as full one entry early. A lone source may exceed: there is nothing to split.
        limit = plan.topic.segment_index_bytes
        if self._number > 0 and (
            self._indexes.offset_entries > limit // offset_index.ENTRY_BYTES
            or self._indexes.time_entries > limit // time_index.ENTRY_BYTES - 1
        ):
            raise IndexFullError(self._number)

    def _outside(self, window: Window) -> CorruptError:
        """Return the error for a batch that belongs to another segment than the one it lies in."""
        offsets = window.table[: window.batches, t.LAST_OFFSET]
        strays = np.flatnonzero((offsets < self._base) | (offsets >= self._c.plan.bound))
        # Only the messages inside an old compressed set can stray where no batch does.
        batch = int(strays[0]) if len(strays) else 0
        return window.corrupt(
            batch, "an offset lies outside its segment",
            f"[{self._base}, {self._c.plan.bound})", int(offsets[batch]),
        )  # fmt: skip

    def finish(self) -> tuple[tuple[StagedGroup, ...], int, tuple[ContentsBuilder, ...]]:
        """Complete the last output; returns what :func:`rewrite_group` does."""
        self._finish_output()
        return tuple(self._staged), self._copied_bytes, tuple(self._contents)

    def _finish_output(self) -> None:
        """Write the indexes, set times, make everything durable."""
        c, source = self._c, self._group.sources[-1]
        offsets, times = self._indexes.finish()
        size = self._indexes.size_bytes
        contents: dict[Kind, bytes] = {
            INDEX: offset_index.encode(offsets),
            TIME_INDEX: time_index.encode(times),
        }
        if self._aborted:
            bases = {each.base_offset for each in self._group.sources}
            contents[TXN_INDEX] = txn_index.encode(c.plan.as_indexed(self._aborted, bases))
        staged: list[StagedFile] = []
        if self._handle is None and not self._same_indexes(contents):
            with reading(c.files, c.task.path / segment_file(self._base, LOG)) as handle:
                self._started(handle)
        if self._handle is not None and c.task.writes:
            self._handle.fsync()
            self._handle.close()
            name = staged_name(self._base, LOG, c.task.attempt)
            staged.append(StagedFile(LOG, name, size))
            for kind, content in contents.items():
                name = staged_name(self._base, kind, c.task.attempt)
                path = c.task.target / name
                self._made.append(path)
                handle_ = c.files.open_write(path)
                try:
                    handle_.write(content)
                    handle_.fsync()
                finally:
                    handle_.close()
                staged.append(StagedFile(kind, name, len(content)))
            origin = c.task.path / segment_file(self._group.base_offset, LOG)
            for file in staged:
                path = c.task.target / file.name
                c.files.copy_owner_and_mode(origin, path)
                c.files.set_mtime(path, source.mtime_ms * 1_000_000)
        is_first = not self._staged
        self._staged.append(
            StagedGroup(
                base_offset=self._base,
                sources=tuple(s.base_offset for s in self._group.sources) if is_first else (),
                files=tuple(staged),
                size_bytes=size,
                batches=self._batches,
            )
        )

    def _same_indexes(self, contents: dict[Kind, bytes]) -> bool:
        """Say whether the single, unchanged source already has these indexes."""
        c = self._c
        for kind in _INDEX_KINDS:
            path = c.task.path / segment_file(self._base, kind)
            found = c.files.read_bytes(path, 1 << 30) if c.files.exists(path) else None
            if found != contents.get(kind):
                return False
        return True

    def discard(self) -> None:
        """Remove what was staged so far."""
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
