"""The arrays one worker works in, reused from window to window, and how a window becomes rows.

``memory_bytes`` is shared out once: windows and tables, scratch for decompressed and converted
payloads, rows, output. What is left keeps decompressed batches from the first pass to the second.
An array grows only for a single batch that does not fit, and stays grown.

A cache has what the first pass has decompressed and the second one will want again, as far as there
is room. Nothing depends on what is found there: a pass that does not find a payload decompresses
it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns import ranks, rows, unpack, winners
from keeplast.columns.batches import HAS_HIDDEN
from keeplast.columns.kernel import OK, PROBLEMS, TOO_MANY
from keeplast.columns.winners import NO_LEDGER, ReasonLedger
from keeplast.errors import CorruptError, InvalidError
from keeplast.format import frames
from keeplast.format.compression import (
    Codec,
    ZstdReader,
    ZstdWriter,
    compress,
    decompress,
    decompress_into,
)
from keeplast.log.windows import WINDOW_BYTES_DEFAULT, Window, WindowBuffers
from keeplast.rewrite.task import Payloads


class DecompressedCache:
    """Payloads of compressed batches, kept from the first pass for the second, up to a limit.

    The threads that share a round share it.
    """

    __slots__ = ("_bytes_max", "_bytes_used", "_lock", "_payloads")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_used = 0
        self._payloads: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """Say whether nothing is kept now."""
        return not self._payloads

    def give_up(self, size: int) -> None:
        """Leave ``size`` bytes of this room to something else, for the rest of the task."""
        self._bytes_max -= size

    def keep(self, base_offset: int, position: int, payload: NDArray[np.uint8]) -> None:
        """Remember the payload of the batch at ``position`` of a segment, if there is room."""
        with self._lock:
            if self._bytes_used + payload.nbytes <= self._bytes_max:
                self._payloads[base_offset, position] = payload
                self._bytes_used += payload.nbytes

    def keep_copy(
        self, base_offset: int, position: int, data: NDArray[np.uint8], start: int, end: int
    ) -> bool:
        """Remember a copy of ``data[start:end]``, made only when there is room; say whether."""
        has_room = self._bytes_used + end - start <= self._bytes_max
        if has_room:
            self.keep(base_offset, position, data[start:end].copy())
        return has_room

    def take_row(
        self, base_offset: int, positions: Sequence[int], bytes_max: int
    ) -> list[NDArray[np.uint8]]:
        """Return and forget the payloads at the first ``positions``, while there are any.

        Together they have ``bytes_max`` at most; what goes beyond stays.
        """
        row: list[NDArray[np.uint8]] = []
        size = 0
        with self._lock:
            for position in positions:
                payload = self._payloads.get((base_offset, position))
                if payload is None or size + payload.nbytes > bytes_max:
                    break
                size += payload.nbytes
                row.append(payload)
                del self._payloads[base_offset, position]
            self._bytes_used -= size
        return row

    def take(self, base_offset: int, position: int) -> NDArray[np.uint8] | None:
        """Return a remembered payload and forget it."""
        with self._lock:
            payload = self._payloads.pop((base_offset, position), None)
            if payload is not None:
                self._bytes_used -= payload.nbytes
        return payload


NOT_HERE = (-1, -1)
"""Stands for a span that the conversion kernel has written to the table itself."""

CODECS = tuple(Codec)
"""By number: looking a codec up in the enumeration costs more than decoding a small batch."""

MEMORY_BYTES_MIN = 32 << 20
WINDOW_SHARE = 32
"""A window is this part of the memory, and at most 1 MiB: larger ones leave the caches."""

ROWS_SHARE = 2048
ROWS_MAX = 1 << 17
ROW_BYTES = 60
"""There is a row for so many bytes of memory; the first pass gives the key map many at a time."""

SCRATCH_WINDOWS = 4
"""Scratch holds this many windows: compressed batches grow about so much."""

NEARLY_FULL = 8
"""Scratch with less than this part left takes nothing more whose size is not known."""

ARRAYS_PER_WINDOW = 18
"""All other arrays take about so many windows; the rest of the memory is the cache's."""

ROW_BATCHES_MIN = 2
"""So many zstd batches are decompressed by one call, with marks between them."""

LEDGER_SHARE = 4
"""The ledger of the first pass may take this part of what the cache has."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Batches ``[first, last)`` of a window whose records are parsed: rows ``[first_row, rows)``.

    ``hashed`` of the rows have no note in the ledger.
    """

    first: int
    last: int
    rows: int
    first_row: int = 0
    hashed: int = 0


def cache_bytes_of(memory_bytes: int) -> int:
    """Return what is left for decompressed batches in a workspace of this size."""
    arrays_bytes = ARRAYS_PER_WINDOW * _window_bytes(memory_bytes)
    return max(0, memory_bytes - arrays_bytes - ROW_BYTES * _row_count(memory_bytes))


def _window_bytes(memory_bytes: int) -> int:
    return min(memory_bytes // WINDOW_SHARE, WINDOW_BYTES_DEFAULT)


def _row_count(memory_bytes: int) -> int:
    return min(memory_bytes // ROWS_SHARE, ROWS_MAX)


class Workspace:
    """All arrays of one worker. Not shared between threads."""

    def __init__(self, memory_bytes: int) -> None:
        """Share out ``memory_bytes``; InvalidError below 32 MiB."""
        if memory_bytes < MEMORY_BYTES_MIN:
            raise InvalidError(
                f"memory is less than a worker can work in; give at least 32m. "
                f"memory_bytes={memory_bytes}",
                code="K104",
            )
        window_bytes = _window_bytes(memory_bytes)
        self.buffers = WindowBuffers(window_bytes)
        self.scratch = np.empty(SCRATCH_WINDOWS * window_bytes, np.uint8)
        self.starts = np.zeros(winners.SHARDS + 1, np.int64)
        self._make_rows(_row_count(memory_bytes))
        self.rows_held = 0
        self.out = np.empty(window_bytes, np.uint8)
        self._payload = np.empty(0, np.uint8)
        self._zstd = ZstdWriter()
        self._zstd_reader = ZstdReader()
        mark = secrets.token_bytes(unpack.MARK_BYTES)
        self._mark_frame = frames.raw_frame(mark)
        self._marks = (
            np.uint64(int.from_bytes(mark[:8], "little")),
            np.uint64(int.from_bytes(mark[8:], "little")),
        )
        self._payloads = Payloads()
        self.cache_bytes = cache_bytes_of(memory_bytes)
        self.ledger_bytes_max = self.cache_bytes // LEDGER_SHARE

    @property
    def rows_wanted(self) -> int:
        """Return how many rows are enough to give them away; a window's worth must still fit."""
        return len(self.offsets) // 2

    def _make_rows(self, count: int) -> None:
        self.offsets = np.empty(count, np.int64)
        self.hashes = np.empty((count, 2), np.uint64)
        self.positions = np.empty(count, np.int32)
        self.flags = np.empty(count, np.uint8)
        self.marks = np.empty(count, np.uint8)
        self.standings = np.empty(count, np.uint8)
        self.block = np.empty((count, 3), np.uint64)
        self.block_rows = np.empty(count, np.int32)
        self._ranks: tuple[NDArray[np.int64], NDArray[np.uint64]] | None = None

    def take_payloads(self) -> Payloads:
        """Return what was decompressed and what was not for it, since this was last called."""
        taken, self._payloads = self._payloads, Payloads()
        return taken

    def compress(self, codec: Codec, payload: memoryview) -> bytes:
        """Return a batch's records as its codec packs them."""
        return self._zstd.compress(payload) if codec is Codec.ZSTD else compress(codec, payload)

    def room_for_ranks(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return a version for each row, and a block of ranks; made when first asked for."""
        if self._ranks is None:
            rows = len(self.offsets)
            block = np.empty((rows, ranks.RANK_WORDS), np.uint64)
            self._ranks = np.empty(rows, np.int64), block
        return self._ranks

    def room_for_payload(self, size: int) -> NDArray[np.uint8]:
        """Return the array for records to be compressed, at least ``size`` bytes long."""
        if self._payload.shape[0] < size:
            self._payload = np.empty(size + (size >> 3), np.uint8)
        return self._payload

    def room_for_output(self, size: int) -> NDArray[np.uint8]:
        """Return the output array, at least ``size`` bytes long."""
        if self.out.shape[0] < size:
            self.out = np.empty(size + (size >> 3), np.uint8)
        return self.out

    def slices(
        self,
        window: Window,
        base_offset: int,
        hash_key: tuple[int, int],
        cache: DecompressedCache,
        *,
        keeps: bool,
        ledger: ReasonLedger = NO_LEDGER,
        appends: bool = False,
    ) -> Iterator[Slice]:
        """Parse the records of a window whose VERDICTs are set, in as many slices as it takes.

        ``keeps`` stores decompressed payloads in ``cache``; otherwise they are taken from it. Rows
        that ``ledger`` has a note of get their standing from it, and no hash. ``appends`` leaves
        the first ``rows_held`` rows as they are; a slice without batches then means that there is
        no room until they are taken. CorruptError names the batch that does not parse.
        """
        first = 0
        k0, k1 = np.uint64(hash_key[0]), np.uint64(hash_key[1])
        table = window.table[: window.batches]
        has_hidden = window.marks & HAS_HIDDEN
        while first < window.batches:
            last = window.batches
            if has_hidden:
                last = self._uncover(window, first, base_offset, cache, keeps=keeps)
            held = self.rows_held if appends else 0
            stop, count, hashed, code = rows.parse_rows(
                window.data, self.scratch, window.table, first, last, held, k0, k1,
                self.offsets, self.hashes, self.positions, self.flags,
                ledger.first_offset, ledger.standings, self.standings,
            )  # fmt: skip
            if code == TOO_MANY and stop == first and not held:
                self._make_rows(int(table[first, t.COUNT]))
                continue
            if code not in (OK, TOO_MANY):
                expected = f"{int(table[stop, t.COUNT])} records that fill the batch"
                raise window.corrupt(stop, PROBLEMS[code], expected, "something else")
            yield Slice(first, stop, count, held, hashed)
            first = stop

    def uncovered(self, window: Window) -> Iterator[tuple[int, int]]:
        """Yield runs of batches [first, last) whose records can be read, VERDICTs being set.

        What is compressed or of an old format lies in ``scratch`` until the next run is asked for.
        """
        nothing_kept = DecompressedCache(0)
        first = 0
        while first < window.batches:
            last = window.batches
            if window.marks & HAS_HIDDEN:
                last = self._uncover(window, first, 0, nothing_kept, keeps=True)
            yield first, last
            first = last

    def _uncover(
        self, window: Window, first: int, base_offset: int, cache: DecompressedCache, *, keeps: bool
    ) -> int:
        """Put hidden payloads from batch ``first`` on into scratch; return where it was full."""
        table = window.table
        rest = table[first : window.batches]
        # What an earlier, shorter slice uncovered and did not parse is no longer in scratch.
        rest[rest[:, t.PAYLOAD_IN] == 1, t.PAYLOAD_IN] = -1
        at = 0
        hidden = np.flatnonzero((rest[:, t.PAYLOAD_IN] < 0) & (rest[:, t.VERDICT] != t.DELETE))
        hidden += first
        reused = [] if keeps else self._place_row(window, hidden, base_offset, cache)
        count = len(reused) or self._unpack_row(window, hidden)
        if count:
            if keeps:
                self._keep_row(window, hidden[:count], base_offset, cache)
            self._tally(table[hidden[:count]], reused)
            return int(hidden[count]) if count < len(hidden) else window.batches
        is_small = _is_small(table[hidden])
        others = hidden[~is_small] if is_small.any() else hidden
        unpacked = first if len(others) < len(hidden) else window.batches
        facts = table[others][:, [t.POSITION, t.SIZE, t.ATTRIBUTES, t.MAGIC]].tolist()
        spans: list[tuple[int, int]] = []
        full_at = window.batches
        view = window.data.data
        for i, (start, size, attributes, magic) in zip(others.tolist(), facts, strict=True):
            if unpacked < i:
                unpacked, at = self._unpack(window, unpacked, i, at)
                if unpacked < i:
                    full_at = unpacked
                    break
            if magic < 2:
                end = self._convert(window, i, at, base_offset, cache, keeps=keeps)
                if end is None:
                    full_at = i
                    break
                at = end
                spans.append(NOT_HERE)
                continue
            position = window.position + start
            is_kept = size > unpack.SMALL_BYTES_MAX
            payload = None if keeps or not is_kept else cache.take(base_offset, position)
            if payload is None:
                data = view[start + t.HEADER_BYTES : start + size]
                codec = CODECS[attributes & t.CODEC_MASK]
                end = self._decompress_at(window, i, codec, data, at)
            else:
                end = self._place(payload, at)
            if end is None:
                if payload is not None:
                    cache.keep(base_offset, position, payload)
                full_at = i
                break
            if payload is not None:
                reused.append(end - at)
            if keeps and is_kept:
                cache.keep_copy(base_offset, position, self.scratch, at, end)
            spans.append((at, end))
            at = end
        if unpacked < full_at:
            full_at, at = self._unpack(window, unpacked, full_at, at)
        done = others[: len(spans)]
        done = done[table[done, t.MAGIC] == 2]
        table[done, t.PAYLOAD_IN] = 1
        found = np.array([span for span in spans if span is not NOT_HERE], np.int64).reshape(-1, 2)
        table[done, t.PAYLOAD_START] = found[:, 0]
        table[done, t.PAYLOAD_END] = found[:, 1]
        self._tally(table[hidden[hidden < full_at]], reused)
        return full_at

    def _unpack_row(self, window: Window, hidden: NDArray[np.int64]) -> int:
        """Decompress the first of the ``hidden`` batches to scratch with one call.

        Returns how many; 0 where they are not zstd, or one of them needs a look of its own.
        """
        facts = window.table[hidden][:, [t.POSITION, t.SIZE, t.ATTRIBUTES, t.MAGIC]]
        codecs = facts[:, 2] & t.CODEC_MASK
        if len(facts) < ROW_BATCHES_MIN or np.any((codecs != Codec.ZSTD) | (facts[:, 3] != 2)):
            return 0
        view, mark = window.data.data, self._mark_frame
        frames: list[memoryview | bytes] = []
        for start, size in facts[:, :2].tolist():
            frames += (view[start + t.HEADER_BYTES : start + size], mark)
        filled = self._zstd_reader.read_row(b"".join(frames), self.scratch.data)
        if filled is None:
            return 0
        return int(unpack.find_payloads(window.table, hidden, self.scratch, filled, *self._marks))

    def _place_row(
        self, window: Window, hidden: NDArray[np.int64], base_offset: int, cache: DecompressedCache
    ) -> list[int]:
        """Put the first of the ``hidden`` batches into scratch from ``cache``; returns their sizes.

        None of what is old or small, nor of what comes after the first that is not kept.
        """
        table = window.table
        if cache.is_empty:
            return []
        is_other = (table[hidden, t.MAGIC] != 2) | (table[hidden, t.SIZE] <= unpack.SMALL_BYTES_MAX)
        others = np.flatnonzero(is_other)
        chosen = hidden[: int(others[0])] if len(others) else hidden
        positions = (table[chosen, t.POSITION] + window.position).tolist()
        row = cache.take_row(base_offset, positions, len(self.scratch))
        sizes = [len(payload) for payload in row]
        if row:
            ends = np.cumsum(sizes)
            np.concatenate(row, out=self.scratch[: int(ends[-1])])
            chosen = chosen[: len(row)]
            table[chosen, t.PAYLOAD_IN] = 1
            table[chosen, t.PAYLOAD_START] = ends - sizes
            table[chosen, t.PAYLOAD_END] = ends
        return sizes

    def _keep_row(
        self, window: Window, done: NDArray[np.int64], base_offset: int, cache: DecompressedCache
    ) -> None:
        """Keep the payloads of batches that are large enough, as far as there is room."""
        rows = window.table[done][:, [t.POSITION, t.SIZE, t.PAYLOAD_START, t.PAYLOAD_END]]
        rows = rows[rows[:, 1] > unpack.SMALL_BYTES_MAX]
        for position, _, start, end in rows.tolist():
            if not cache.keep_copy(
                base_offset, window.position + position, self.scratch, start, end
            ):
                break

    def _tally(self, uncovered: NDArray[np.int64], reused: list[int]) -> None:
        """Count batches whose records are in scratch now; ``reused`` are the sizes of some."""
        rows = uncovered[uncovered[:, t.MAGIC] == 2]
        size = int((rows[:, t.PAYLOAD_END] - rows[:, t.PAYLOAD_START]).sum())
        self._payloads += Payloads(
            len(rows) - len(reused), size - sum(reused), len(reused), sum(reused)
        )

    def _unpack(self, window: Window, first: int, last: int, at: int) -> tuple[int, int]:
        """Decompress the small batches of ``[first, last)`` to scratch.

        Returns ``last``, or the batch before which scratch was full, and the end in scratch.
        """
        table = window.table
        while first < last:
            first, at, code = unpack.unpack_small(window.data, table, first, last, self.scratch, at)
            if code == OK:
                break
            if code == unpack.FULL and at > 0:
                return first, at
            start, end = int(table[first, t.POSITION]), int(table[first, t.SIZE])
            data = window.data.data[start + t.HEADER_BYTES : start + end]
            codec = CODECS[int(table[first, t.ATTRIBUTES]) & t.CODEC_MASK]
            filled = self._decompress_at(window, first, codec, data, at)
            if filled is None:
                return first, at
            table[first, t.PAYLOAD_IN] = 1
            table[first, t.PAYLOAD_START], table[first, t.PAYLOAD_END] = at, filled
            first, at = first + 1, filled
        return last, at

    def _decompress_at(
        self, window: Window, i: int, codec: Codec, data: memoryview, at: int
    ) -> int | None:
        """Decompress a batch to scratch; returns where it ends, None when scratch is full."""
        if codec is Codec.ZSTD:
            content = self._zstd_reader.read(data)
            if content is not None:
                return self._place(content, at)
        try:
            filled = decompress_into(codec, data, self.scratch.data[at:])
            if filled is not None:
                return at + filled
            if at > 0 and len(self.scratch) - at < len(self.scratch) // NEARLY_FULL:
                return None  # it would most likely be decompressed in vain
            return self._place(np.frombuffer(decompress(codec, data), np.uint8), at)
        except CorruptError as error:
            raise window.corrupt(i, error.problem, error.expected, error.found) from error

    def _place(self, payload: NDArray[np.uint8] | bytes, at: int) -> int | None:
        end = at + len(payload)
        if not self._has_room(at, len(payload)):
            return None
        # There are many small ones: an assignment of numpy's costs several times a view's.
        self.scratch.data[at:end] = payload.data if isinstance(payload, np.ndarray) else payload
        return end

    def _convert(
        self,
        window: Window,
        i: int,
        at: int,
        base_offset: int,
        cache: DecompressedCache,
        *,
        keeps: bool,
    ) -> int | None:
        """Convert an old message or set to records; None when scratch is full."""
        table = window.table
        if int(table[i, t.ATTRIBUTES]) & t.CODEC_MASK == 0:
            # A converted message is a little larger than its entry.
            if not self._has_room(at, int(table[i, t.SIZE]) + unpack.MESSAGE_GROWTH_MAX):
                return None
            end, code = unpack.convert_message(window.data, table, i, self.scratch, at)
        else:
            position = window.position + int(table[i, t.POSITION])
            inner = None if keeps else cache.take(base_offset, position)
            is_reused = inner is not None
            if inner is None:
                inner = self._decompress_set(window, i)
            room = len(inner) + unpack.MESSAGE_GROWTH_MAX * (len(inner) // 26 + 1)
            if not self._has_room(at, room):
                cache.keep(base_offset, position, inner)
                return None
            if keeps:
                cache.keep(base_offset, position, inner)
            size = len(inner)
            self._payloads += Payloads(0, 0, 1, size) if is_reused else Payloads(1, size)
            end, code = unpack.convert_set(table, i, inner, len(inner), self.scratch, at)
        if code != OK:
            raise window.corrupt(i, PROBLEMS[code], "messages that fill their set", "others")
        return int(end)

    def _has_room(self, at: int, size: int) -> bool:
        if at + size <= len(self.scratch):
            return True
        if at == 0:
            self.scratch = np.empty(size + (size >> 3), np.uint8)
            return True
        return False

    def _decompress_set(self, window: Window, i: int) -> NDArray[np.uint8]:
        """Return the inner messages of a compressed wrapper of magic 0 or 1."""
        table = window.table
        magic = int(table[i, t.MAGIC])
        start = int(table[i, t.POSITION])
        end = start + int(table[i, t.SIZE])
        payload_at = start + (26 if magic == 1 else 18)
        payload_at += 4 + max(_int32(window, payload_at), 0)
        value_length = _int32(window, min(payload_at, end - 4))
        payload_at += 4
        if value_length != end - payload_at:
            raise window.corrupt(
                i, "compressed message set has no value", end - payload_at, value_length
            )
        codec = CODECS[int(table[i, t.ATTRIBUTES]) & t.CODEC_MASK]
        try:
            raw = decompress(codec, window.data.data[payload_at:end], magic=magic)
        except CorruptError as error:
            raise window.corrupt(i, error.problem, error.expected, error.found) from error
        return np.frombuffer(bytearray(raw), np.uint8)

    def uncover_control(self, window: Window, i: int) -> None:
        """Make the record of one compressed control batch readable, at the start of scratch."""
        row = window.table[i]
        start = int(row[t.POSITION])
        data = window.data.data[start + t.HEADER_BYTES : start + int(row[t.SIZE])]
        end = self._decompress_at(window, i, CODECS[int(row[t.ATTRIBUTES]) & t.CODEC_MASK], data, 0)
        row[t.PAYLOAD_IN] = 1
        row[t.PAYLOAD_START] = 0
        row[t.PAYLOAD_END] = end


def _is_small(hidden: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say of each of the ``hidden`` batches whether a kernel decompresses it."""
    codecs = hidden[:, t.ATTRIBUTES] & t.CODEC_MASK
    is_small: NDArray[np.bool_] = hidden[:, t.SIZE] <= unpack.SMALL_BYTES_MAX
    is_small &= (hidden[:, t.MAGIC] == 2) & ((codecs == unpack.LZ4) | (codecs == unpack.SNAPPY))
    return is_small


def _int32(window: Window, at: int) -> int:
    return int.from_bytes(window.data[at : at + 4].tobytes(), "big", signed=True)
