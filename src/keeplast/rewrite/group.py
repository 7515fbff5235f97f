"""The second pass over one group: reads its sources, and gives what remains to an output.

The state at entry (transactions) is advanced along with the copy. Where an offset lies too far
from the output's base, the output ends and another one begins, which Kafka needs a second round
for: differences.md (k). Kafka: ``Cleaner.cleanInto``; cleaning.md 3.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from keeplast.cleaner.plan import GroupPlan
from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import batches as t
from keeplast.columns import rebuild, retained
from keeplast.columns.batches import CRC_IN_KERNEL_BYTES_MAX, HAS_EVENTS, HAS_GAPS, HAS_HIDDEN
from keeplast.columns.kernel import OK, PROBLEMS
from keeplast.columns.shortcuts import settle_batches, skim_batches
from keeplast.format.batch import BatchHeader, encode_empty_batch
from keeplast.format.checksum import crc32c
from keeplast.format.filename import LOG, segment_file
from keeplast.log.files import ReadHandle, reading
from keeplast.log.paths import child_path
from keeplast.log.windows import Window, read_windows
from keeplast.model.partition import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RELATIVE_OFFSET_MAX,
    SegmentSummary,
)
from keeplast.rewrite.output import GroupOutput, Outputs, PassContext
from keeplast.rewrite.transactions import follow_window
from keeplast.rewrite.workspace import CODECS, Slice


class EntryNeededError(Exception):
    """The group has transactions and the state at its entry is not known yet. Nothing is left."""


def rewrite_group(
    context: PassContext, group: GroupPlan, transactions: TransactionState
) -> Outputs:
    """Write one group; returns what was staged.

    One output, or several where the offsets do not fit one; the sources go with the first.

    IndexFullError when an index of the merged output overflows and the group has several
    sources; the caller restores ``transactions`` and the counters and tries fewer.
    """
    output = GroupOutput(context, group)
    reading_ = SourceReader(context, group, transactions, output)
    try:
        for number, source in enumerate(group.sources):
            output.number = number
            reading_.read(number, source)
        return output.finish()
    except BaseException:
        output.discard()
        raise


class SourceReader:
    """Reads sources of one group, in the order of the log."""

    def __init__(
        self,
        context: PassContext,
        group: GroupPlan,
        transactions: TransactionState,
        output: GroupOutput,
    ) -> None:
        """Begin; ``transactions`` is the state at the entry of the first source to be read."""
        self._c = context
        self._group = group
        self._transactions = transactions
        self._out = output

    def read(
        self, number: int, source: SegmentSummary, start: int = 0, end: int | None = None
    ) -> None:
        """Copy what remains of source ``number`` of the group, window by window.

        Where only the bytes ``[start, end)`` are asked for, the output is begun in any case.
        """
        c = self._c
        end = source.size_bytes if end is None else end
        path = child_path(c.task.path, segment_file(source.base_offset, LOG))
        old_kept_from = c.plan.old_tombstones_kept_from(source.mtime_ms)
        crc = 0
        is_last = number + 1 == len(self._group.sources)
        kept_end = self._next_base() if c.plan.keeps_group_ends and is_last else c.plan.bound
        self._finder = c.standings.of_segment(source.base_offset)
        # The filter of an output wants to see the keys of all that stays.
        noted = c.cache.notes_of(source.base_offset)[: 0 if c.task.filters else None]

        def skim(data: NDArray[np.uint8], length: int, table: NDArray[np.int64]) -> Any:
            return skim_batches(
                data, length, table, c.end_offset - 1, kept_end, c.plan.last_records,
                c.ledger.first_offset, c.ledger.standings, c.counters, CRC_IN_KERNEL_BYTES_MAX,
            )  # fmt: skip

        reached = source.base_offset
        with reading(c.files, path) as handle:
            for window in read_windows(
                handle, path, c.workspace.buffers, start=start, end=end, scan=skim
            ):  # fmt: skip
                if window.marks & HAS_GAPS:
                    self._out.start(handle)
                if not c.knows_entry and window.marks & HAS_EVENTS:
                    raise EntryNeededError
                self._out.aborted.extend(
                    follow_window(self._transactions, window, c.workspace, c.ask_markers)
                )
                retained.judge_batches(
                    window.table, 0, window.batches, c.plan.expiry_now_ms, c.plan.late_now_ms,
                    c.plan.passed_to, c.plan.expires_below, kept_end, c.plan.last_records,
                    c.counters,
                )  # fmt: skip
                if len(noted):
                    settle_batches(
                        window.table, window.batches, window.position, noted, c.end_offset - 1,
                        c.ledger.first_offset, c.ledger.standings, c.counters,
                    )  # fmt: skip
                for part in c.workspace.slices(
                    window, source.base_offset, c.task.hash_key, c.cache, keeps=False,
                    ledger=c.ledger,
                ):  # fmt: skip
                    self._write_slice(window, part, handle, old_kept_from=old_kept_from)
                if window.batches:
                    reached = int(window.table[window.batches - 1, t.LAST_OFFSET]) + 1
                if c.source_crcs is not None:
                    crc = crc32c(window.data.data[: window.length], crc)
                self._out.check_ahead(c.files, c.workspace)
                c.progressed(window.length)
            if c.source_crcs is not None:
                c.source_crcs[source.base_offset] = crc
            if len(self._group.sources) > 1 or end - start < source.size_bytes:
                self._out.start(handle)
            if is_last and c.plan.closing_epochs and reached < kept_end:
                self._close(handle, reached, kept_end)

    def _close(self, handle: ReadHandle, start: int, end: int) -> None:
        """Write an empty batch from ``start`` to ``end``, exclusive, without a producer.

        Its leader epoch is that of its last offset: a consumer that goes on after it is asked by
        the next leader where that epoch ended.
        """
        epoch = max((each for each, first in self._c.plan.closing_epochs if first < end), default=0)
        header = BatchHeader(
            base_offset=start, size_bytes=t.HEADER_BYTES, leader_epoch=epoch, crc=0, attributes=0,
            last_offset_delta=end - 1 - start, base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP, producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH, base_sequence=NO_SEQUENCE, count=0,
        )  # fmt: skip
        data = encode_empty_batch(header)
        self._out.start(handle)
        row = np.array([[len(data), end - 1, NO_TIMESTAMP]], np.int64)
        self._out.write(handle, [memoryview(data)], row)

    def _write_slice(
        self, window: Window, part: Slice, handle: ReadHandle, *, old_kept_from: int
    ) -> None:
        c, w, table = self._c, self._c.workspace, window.table
        first, last = part.first, part.last
        map_latest = c.end_offset - 1
        if part.hashed and retained.mark_looked_up(
            table, first, last, map_latest, c.ranking.has_versions, w.offsets, w.flags, w.standings,
            w.marks,
        ):  # fmt: skip
            c.ranking.read_versions(window, part, w)
            block = c.ranking.block_of(part.rows, w)
            self._finder.find(block, w.starts, w.block_rows, w.standings)
        keep = w.marks
        changed, packed = retained.judge_rows(
            table, first, last, map_latest, c.plan.expiry_now_ms, c.plan.late_now_ms,
            c.plan.passed_to, c.plan.expires_below, c.plan.horizon_ms, old_kept_from,
            c.plan.keeps_keyless, c.ranking.expiry, c.tombstones_expire_below, w.offsets,
            w.positions, w.flags, w.standings, keep, c.counters,
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
        offsets_end = self._out.base_offset + RELATIVE_OFFSET_MAX
        if not len(rows) or int(rows[:, t.LAST_OFFSET].max()) <= offsets_end:
            return None
        is_beyond = (rows[:, t.LAST_OFFSET] > offsets_end) & (rows[:, t.ACTION] != t.ACTION_DROP)
        found = np.flatnonzero(is_beyond)
        return first + int(found[0]) if len(found) else None

    def _split(self, window: Window, batch: int, handle: ReadHandle) -> None:
        """Begin the next output at this batch of the window."""
        base = int(window.table[batch, t.BASE_OFFSET])
        end = self._next_base()
        if not self._out.base_offset < base < end:
            raise window.corrupt(
                batch, "an offset lies outside its segment",
                f"({self._out.base_offset}, {end})", base,
            )  # fmt: skip
        self._out.split(handle, base)

    def _next_base(self) -> int:
        """Return the base offset of the segment after the group."""
        last = self._group.sources[-1].base_offset
        following = (s.base_offset for s in self._c.plan.segments if s.base_offset > last)
        return next(following, self._c.plan.bound)

    def _write_batches(
        self, window: Window, part: Slice, handle: ReadHandle, *, changed: int, packed: int
    ) -> None:
        """Write what stays of the batches, or only count them while nothing has changed."""
        self._out.note(window, part, self._c.workspace)
        if self._out.is_unchanged and not changed:
            rows = window.table[part.first : part.last]
            batches = np.ascontiguousarray(rows[:, [t.SIZE, t.LAST_OFFSET, t.MAX_TIMESTAMP]])
            self._check_range(window, batches)
            self._out.count(batches)
            return
        self._emit(window, part, handle, packs=packed > 0)

    def _emit(
        self,
        window: Window,
        part: Slice,
        handle: ReadHandle,
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
        written, view = list[memoryview](), out.data
        for kind, start, length in extents[:pieces].tolist():
            if kind == rebuild.EXTENT_OUTPUT:
                written.append(view[start : start + length])
            else:
                # To let the system copy it from file to file would read memory once more: the
                # bytes are here, in the cache, since their CRCs were checked.
                written.append(window.data.data[start : start + length])
                self._out.copied_bytes += length
        self._check_range(window, batches[:count])
        self._out.write(handle, written, batches[:count])

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
        facts = table[chosen][:, [t.PACKED_START, t.PACKED_SIZE, t.ATTRIBUTES]].tolist()
        pieces = [
            w.compress(CODECS[attributes & t.CODEC_MASK], view[start : start + size])
            for start, size, attributes in facts
        ]
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        table[chosen, t.PACKED_START] = np.cumsum(sizes) - sizes
        table[chosen, t.PACKED_SIZE] = sizes
        return np.frombuffer(bytearray().join(pieces), np.uint8)

    def _check_range(self, window: Window, batches: NDArray[np.int64]) -> None:
        """Raise CorruptError unless all last offsets lie inside the output."""
        if len(batches) and (
            int(batches[:, 1].min()) < self._out.base_offset
            or int(batches[:, 1].max()) >= self._c.plan.bound
        ):
            offsets = window.table[: window.batches, t.LAST_OFFSET]
            is_below = offsets < self._out.base_offset
            # Only the messages inside an old compressed set can stray where no batch does: then 0.
            batch = int(np.argmax(is_below | (offsets >= self._c.plan.bound)))
            raise window.corrupt(
                batch, "an offset lies outside its segment",
                f"[{self._out.base_offset}, {self._c.plan.bound})", int(offsets[batch]),
            )  # fmt: skip
