"""The arrays one worker works in, reused from window to window, and how a window becomes rows.

``memory_bytes`` is shared out once: windows and tables, scratch for decompressed and converted
payloads, rows, output. What is left keeps decompressed batches from the first pass to the second.
An array grows only for a single batch that does not fit, and stays grown.

A cache has what the first pass has decompressed and the second one will want again. It takes memory
while there is room and while keeping is measured to save time. It also has notes of batches that
the second pass need not decompress. Nothing depends on what is found there: a pass that finds
neither decompresses the batch. So what remains never depends on memory or on a clock.
"""

from __future__ import annotations

import contextlib
import mmap
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns import rows, shortcuts, unpack, version_ranks, winners
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

CHUNK_BYTES = 4 << 20
"""So much is touched to find out that memory costs too much: a few ms at the worst."""
COPIES = 1.25
"""A payload is copied once more when it is taken, without page faults."""

NOTES_SHARE = 8
"""What is noted of batches has this part of the room to itself."""

_NO_NOTES = np.empty((0, 2), np.int32)
_NO_CHUNK = np.empty(0, np.uint8)
_IDLE: list[NDArray[np.uint8]] = []
_LOCK = threading.Lock()


def _new_chunk(size: int) -> NDArray[np.uint8]:
    """Return memory that has not been touched; huge pages cost a fifth of small ones to touch."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # where the system has none
        memory.madvise(getattr(mmap, "MADV_HUGEPAGE", mmap.MADV_NORMAL))
    return np.frombuffer(memory, np.uint8)


class DecompressedCache:
    """Payloads of compressed batches, kept from the first pass for the second, up to a limit.

    With them lie notes of batches that may need none. The threads that share a round share it.

    Payloads lie in *chunks*, which a process touches once and gives from round to round. Memory
    that was never touched can cost more than a payload is worth. So one more chunk is taken only
    while the last one gained. To fill it, page faults included, took less time by ``clock`` than to
    decompress what is in it.
    """

    __slots__ = (
        "_bytes_max",
        "_chunks",
        "_filled",
        "_notes",
        "_payloads",
        "_saved",
        "_spent",
        "clock",
    )

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.thread_time) -> None:
        self._bytes_max = bytes_max
        self.clock = clock
        self._payloads: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._notes: dict[int, list[NDArray[np.int32]]] = {}
        self._chunks = [_NO_CHUNK]
        self._filled = 0
        self._saved = self._spent = 0.0
        """Seconds of the last chunk: of decompressing what is in it, and of filling it."""
        self.give_up(0)

    def __del__(self) -> None:
        """Leave the chunks to the caches to come."""
        _IDLE.extend(each for each in self._chunks if len(each) == CHUNK_BYTES)

    @property
    def is_empty(self) -> bool:
        """Say whether nothing is kept now."""
        return not self._payloads

    def give_up(self, size: int) -> None:
        """Leave ``size`` bytes of this room to something else, for the rest of the task."""
        self._bytes_max -= size
        with _LOCK:
            if self._bytes_max > 0:
                del _IDLE[self._bytes_max // CHUNK_BYTES :]

    @property
    def left(self) -> int:
        """Return how many bytes are still to be had."""
        return self._bytes_max - sum(map(len, self._chunks))

    def keep(
        self, base_offset: int, rows: NDArray[np.int64], data: NDArray[np.uint8], pace: float
    ) -> None:
        """Keep copies of payloads of a segment, as far as there is room.

        ``rows`` (n, 3) has their positions in the segment, and where they begin and end in
        ``data``. To decompress them took ``pace`` seconds a byte.
        """
        for position, start, end in rows.tolist():
            began = self.clock()
            room = self._room(end - start)
            if room is None:
                break
            room[:] = data[start:end]
            with _LOCK:
                self._payloads[base_offset, position] = room
                self._saved += pace * (end - start)
                self._spent += self.clock() - began

    def _room(self, size: int) -> NDArray[np.uint8] | None:
        """Return memory for one payload, None when there is none or it would cost too much."""
        with _LOCK:
            if self._filled + size > len(self._chunks[-1]):
                rest = self.left - self._bytes_max // NOTES_SHARE
                is_idle = _IDLE and size <= CHUNK_BYTES <= rest
                if size > rest or (not is_idle and COPIES * self._spent > self._saved):
                    return None
                fresh = max(size, min(rest, CHUNK_BYTES))
                self._chunks.append(_IDLE.pop() if is_idle else _new_chunk(fresh))
                self._filled, self._saved, self._spent = 0, 0.0, 0.0
            self._filled += size
            return self._chunks[-1][self._filled - size : self._filled]

    def note(self, base_offset: int, notes: NDArray[np.int32]) -> None:
        """Keep what :func:`shortcuts.note_batches` noted of a segment, if there is room."""
        with _LOCK:
            if len(notes) and notes.nbytes <= self.left:
                self._bytes_max -= notes.nbytes
                self._notes.setdefault(base_offset, []).append(notes)

    def notes_of(self, base_offset: int) -> NDArray[np.int32]:
        """Return all that was noted of a segment, by ascending position."""
        notes = np.concatenate([_NO_NOTES, *self._notes.get(base_offset, ())])
        return notes[np.argsort(notes[:, 0], kind="stable")]

    def first_kept(self, base_offset: int, positions: Sequence[int]) -> int:
        """Return the index of the first of ``positions`` whose payload is kept, or their number."""
        kept = self._payloads
        found = (n for n, at in enumerate(positions) if (base_offset, at) in kept)
        return next(found, len(positions))

    def take_row(
        self, base_offset: int, positions: Sequence[int], bytes_max: int
    ) -> list[NDArray[np.uint8]]:
        """Return and forget the payloads at the first ``positions``, while there are any.

        Together they have ``bytes_max`` at most; what goes beyond stays.
        """
        row: list[NDArray[np.uint8]] = []
        size = 0
        with _LOCK:
            for position in positions:
                payload = self._payloads.get((base_offset, position))
                if payload is None or size + payload.nbytes > bytes_max:
                    break
                size += payload.nbytes
                row.append(payload)
                del self._payloads[base_offset, position]
        return row


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

LEDGER_SHARE = 4
"""The ledger of the first pass may take this part of what the cache has."""


class Slice(Struct, frozen=True):
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
        self.make_rows(_row_count(memory_bytes))
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

    def make_rows(self, count: int) -> None:
        """Have ``count`` rows; what they held is lost."""
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
            block = np.empty((rows, version_ranks.RANK_WORDS), np.uint64)
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
                self.make_rows(int(table[first, t.COUNT]))
                continue
            if code not in (OK, TOO_MANY):
                expected = f"{int(table[stop, t.COUNT])} records that fill the batch"
                raise window.corrupt(stop, PROBLEMS[code], expected, "something else")
            if keeps and has_hidden and cache.left > 0:
                noted = shortcuts.note_batches(
                    table[first:stop], window.position, self.offsets, self.flags
                )
                cache.note(base_offset, noted)
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
        table, last = window.table, window.batches
        rest = table[first:last]
        # What an earlier, shorter slice uncovered and did not parse is no longer in scratch.
        rest[rest[:, t.PAYLOAD_IN] == 1, t.PAYLOAD_IN] = -1
        hidden = np.flatnonzero((rest[:, t.PAYLOAD_IN] < 0) & (rest[:, t.VERDICT] > t.DELETE))
        hidden += first
        if not (keeps or cache.is_empty):
            positions = (table[hidden, t.POSITION] + window.position).tolist()
            row = cache.take_row(base_offset, positions, len(self.scratch))
            if row:
                self._place_row(table, hidden[: len(row)], row)
                return int(hidden[len(row)]) if len(row) < len(hidden) else last
            # The first one was not taken: it is not kept, or is larger than this scratch.
            kept_at = 1 + cache.first_kept(base_offset, positions[1:])
            if kept_at < len(hidden):
                hidden, last = hidden[:kept_at], int(hidden[kept_at])
        began = cache.clock()
        count = self._unpack_row(window, hidden)
        if count:
            full_at = int(hidden[count]) if count < len(hidden) else last
        else:
            full_at = self._unpack_each(window, first, last, hidden)
        done = table[hidden[hidden < full_at]]
        done = done[done[:, t.MAGIC] == 2]
        size = int((done[:, t.PAYLOAD_END] - done[:, t.PAYLOAD_START]).sum())
        self._payloads += Payloads(len(done), size)
        if keeps and size:
            pace = (cache.clock() - began) / size
            rows = done[done[:, t.SIZE] > unpack.SMALL_BYTES_MAX]
            rows[:, t.POSITION] += window.position
            rows = rows[:, [t.POSITION, t.PAYLOAD_START, t.PAYLOAD_END]]
            cache.keep(base_offset, rows, self.scratch, pace)
        return full_at

    def _unpack_each(self, window: Window, first: int, last: int, hidden: NDArray[np.int64]) -> int:
        """Put ``hidden`` batches of ``[first, last)`` into scratch; return where it was full."""
        at = 0
        is_small = _is_small(window.table[hidden])
        unpacked = first if is_small.any() else last
        for i in hidden[~is_small].tolist():
            if unpacked < i:
                unpacked, at = self._unpack(window, unpacked, i, at)
                if unpacked < i:
                    return unpacked
            is_old = window.table[i, t.MAGIC] < 2
            end = self._convert(window, i, at) if is_old else self.decompress_at(window, i, at)
            if end is None:
                last = i
                break
            at = end
        return self._unpack(window, unpacked, last, at)[0] if unpacked < last else last

    def _unpack_row(self, window: Window, hidden: NDArray[np.int64]) -> int:
        """Decompress the first of the ``hidden`` batches to scratch with one call.

        Returns how many; 0 where they are not zstd, or one of them needs a look of its own.
        """
        facts = window.table[hidden][:, [t.POSITION, t.SIZE, t.ATTRIBUTES, t.MAGIC]]
        codecs = facts[:, 2] & t.CODEC_MASK
        if np.any((codecs != Codec.ZSTD) | (facts[:, 3] != 2)):
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
        self, table: NDArray[np.int64], chosen: NDArray[np.int64], row: list[NDArray[np.uint8]]
    ) -> None:
        """Put payloads that were kept into scratch: those of the ``chosen`` batches."""
        sizes = [len(payload) for payload in row]
        ends = np.cumsum(sizes)
        np.concatenate(row, out=self.scratch[: int(ends[-1])])
        table[chosen, t.PAYLOAD_IN] = 1
        table[chosen, t.PAYLOAD_START] = ends - sizes
        table[chosen, t.PAYLOAD_END] = ends
        self._payloads += Payloads(0, 0, len(row), sum(sizes))

    def _unpack(self, window: Window, first: int, last: int, at: int) -> tuple[int, int]:
        """Decompress the small batches of ``[first, last)`` to scratch.

        Returns ``last``, or the batch before which scratch was full, and the end in scratch.
        """
        while first < last:
            first, at, code = unpack.unpack_small(
                window.data, window.table, first, last, self.scratch, at
            )
            if code == OK:
                break
            if code == unpack.FULL and at > 0:
                return first, at
            filled = self.decompress_at(window, first, at)
            if filled is None:
                return first, at
            first, at = first + 1, filled
        return last, at

    def decompress_at(self, window: Window, i: int, at: int) -> int | None:
        """Decompress a batch to scratch; returns where it ends, None when scratch is full."""
        row = window.table[i]
        start, size, attributes = row[[t.POSITION, t.SIZE, t.ATTRIBUTES]].tolist()
        data = window.data.data[start + t.HEADER_BYTES : start + size]
        codec = CODECS[attributes & t.CODEC_MASK]
        try:
            filled = decompress_into(codec, data, self.scratch.data[at:])
            if filled is None:
                if at > 0 and len(self.scratch) - at < len(self.scratch) // NEARLY_FULL:
                    return None  # it would most likely be decompressed in vain
                payload = decompress(codec, data)
                filled = len(payload)
                if not self._has_room(at, filled):
                    return None
                self.scratch.data[at : at + filled] = payload
        except CorruptError as error:
            raise window.corrupt(i, error.problem, error.expected, error.found) from error
        row[[t.PAYLOAD_IN, t.PAYLOAD_START, t.PAYLOAD_END]] = 1, at, at + filled
        return at + filled

    def _convert(self, window: Window, i: int, at: int) -> int | None:
        """Convert an old message or set to records; None when scratch is full."""
        table = window.table
        if int(table[i, t.ATTRIBUTES]) & t.CODEC_MASK == 0:
            # A converted message is a little larger than its entry.
            if not self._has_room(at, int(table[i, t.SIZE]) + unpack.MESSAGE_GROWTH_MAX):
                return None
            end, code = unpack.convert_message(window.data, table, i, self.scratch, at)
        else:
            inner = self._decompress_set(window, i)
            size = len(inner)
            if not self._has_room(at, size + unpack.MESSAGE_GROWTH_MAX * (size // 26 + 1)):
                return None
            self._payloads += Payloads(1, size)
            end, code = unpack.convert_set(table, i, inner, size, self.scratch, at)
        if code != OK:
            raise window.corrupt(i, PROBLEMS[code], "messages that fill their set", "others")
        return int(end)

    def _has_room(self, at: int, size: int) -> bool:
        if at == 0 and size > len(self.scratch):
            self.scratch = np.empty(size + (size >> 3), np.uint8)
        return at + size <= len(self.scratch)

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


def _is_small(hidden: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say of each of the ``hidden`` batches whether a kernel decompresses it."""
    codecs = hidden[:, t.ATTRIBUTES] & t.CODEC_MASK
    is_small: NDArray[np.bool_] = (codecs == unpack.LZ4) | (codecs == unpack.SNAPPY)
    is_small &= (hidden[:, t.MAGIC] == 2) & (hidden[:, t.SIZE] <= unpack.SMALL_BYTES_MAX)
    return is_small


def _int32(window: Window, at: int) -> int:
    return int.from_bytes(window.data[at : at + 4].tobytes(), "big", signed=True)
