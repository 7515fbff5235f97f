"""The arrays one worker works in, reused from window to window, and how a window becomes rows.

``memory_bytes`` is shared out once: windows and tables, scratch for decompressed and converted
payloads, rows, output; what is left keeps decompressed batches from the first pass to the second.
An array grows only for a single batch that does not fit, and stays grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.columns import legacy, rows, winners
from keeplast.columns.kernel import OK, PROBLEMS, TOO_MANY
from keeplast.columns.scan import HAS_HIDDEN
from keeplast.errors import CorruptError, InvalidError
from keeplast.format.compression import Codec, decompress
from keeplast.log.windows import WINDOW_BYTES_DEFAULT, Window, WindowBuffers

MEMORY_BYTES_MIN = 32 << 20
WINDOW_SHARE = 32
"""A window is this part of the memory, and at most 8 MiB: larger ones leave the caches."""

SCRATCH_WINDOWS = 4
"""Scratch holds this many windows: compressed batches grow about so much."""

ARRAYS_PER_WINDOW = 14
"""All arrays together take about so many windows; the rest of the memory is the cache's."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Batches ``[first, last)`` of a window whose records are parsed: rows ``[0, rows)``."""

    first: int
    last: int
    rows: int


class DecompressedCache:
    """Payloads of compressed batches, kept from the first pass for the second, up to a limit."""

    __slots__ = ("_bytes_max", "_bytes_used", "_payloads")

    def __init__(self, bytes_max: int) -> None:
        """Keep at most ``bytes_max`` bytes."""
        self._bytes_max = bytes_max
        self._bytes_used = 0
        self._payloads: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def keep(self, base_offset: int, position: int, payload: NDArray[np.uint8]) -> None:
        """Remember the payload of the batch at ``position`` of a segment, if there is room."""
        if self._bytes_used + payload.nbytes <= self._bytes_max:
            self._payloads[base_offset, position] = payload
            self._bytes_used += payload.nbytes

    def take(self, base_offset: int, position: int) -> NDArray[np.uint8] | None:
        """Return a remembered payload and forget it."""
        payload = self._payloads.pop((base_offset, position), None)
        if payload is not None:
            self._bytes_used -= payload.nbytes
        return payload


class Workspace:
    """All arrays of one worker. Not shared between threads."""

    def __init__(self, memory_bytes: int) -> None:
        """Share out ``memory_bytes``; InvalidError below 32 MiB."""
        if memory_bytes < MEMORY_BYTES_MIN:
            raise InvalidError(
                f"memory is less than a worker can work in; give at least 32m. "
                f"memory_bytes={memory_bytes}"
            )
        window_bytes = min(memory_bytes // WINDOW_SHARE, WINDOW_BYTES_DEFAULT)
        self.buffers = WindowBuffers(window_bytes)
        self.scratch = np.empty(SCRATCH_WINDOWS * window_bytes, np.uint8)
        self.starts = np.zeros(winners.SHARDS + 1, np.int64)
        self._make_rows(window_bytes // 64)
        self.out = np.empty(window_bytes, np.uint8)
        self.cache_bytes = max(0, memory_bytes - ARRAYS_PER_WINDOW * window_bytes)

    def _make_rows(self, count: int) -> None:
        self.offsets = np.empty(count, np.int64)
        self.hashes = np.empty((count, 2), np.uint64)
        self.positions = np.empty(count, np.int32)
        self.flags = np.empty(count, np.uint8)
        self.marks = np.empty(count, np.uint8)
        self.winners = np.empty(count, np.int64)
        self.block = np.empty((count, 3), np.uint64)
        self.block_rows = np.empty(count, np.int32)

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
    ) -> Iterator[Slice]:
        """Parse the records of a window whose VERDICTs are set, in as many slices as it takes.

        ``keeps`` stores decompressed payloads in ``cache``; otherwise they are taken from it.
        CorruptError names the batch that does not parse.
        """
        first = 0
        k0, k1 = np.uint64(hash_key[0]), np.uint64(hash_key[1])
        table = window.table[: window.batches]
        has_hidden = window.marks & HAS_HIDDEN
        while first < window.batches:
            last = window.batches
            if has_hidden:
                last = self._uncover(window, first, base_offset, cache, keeps=keeps)
            stop, count, code = rows.parse_rows(
                window.data, self.scratch, table, first, last, k0, k1,
                self.offsets, self.hashes, self.positions, self.flags,
            )  # fmt: skip
            if code == TOO_MANY and stop == first:
                self._make_rows(int(table[first, t.COUNT]))
                continue
            if code not in (OK, TOO_MANY):
                expected = f"{int(table[stop, t.COUNT])} records that fill the batch"
                raise window.corrupt(stop, PROBLEMS[code], expected, "something else")
            yield Slice(first, stop, count)
            first = stop

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
        for i in (hidden + first).tolist():
            size = int(table[i, t.SIZE])
            attributes = int(table[i, t.ATTRIBUTES])
            if attributes & t.CODEC_MASK == 0:
                # A converted message is a little larger than its entry.
                if not self._has_room(at, size + legacy.MESSAGE_GROWTH_MAX):
                    return i
                at, code = legacy.convert_message(window.data, table, i, self.scratch, at)
                if code != OK:
                    raise window.corrupt(i, PROBLEMS[code], "a message", "something else")
                continue
            position = window.position + int(table[i, t.POSITION])
            payload = None if keeps else cache.take(base_offset, position)
            if payload is None:
                payload = self._decompress(window, i, attributes)
            if int(table[i, t.MAGIC]) < 2:
                room = len(payload) + legacy.MESSAGE_GROWTH_MAX * (len(payload) // 26 + 1)
                if not self._has_room(at, room):
                    return i
                inner = payload if payload.flags.writeable else payload.copy()
                at, code = legacy.convert_set(table, i, inner, len(inner), self.scratch, at)
                if code != OK:
                    raise window.corrupt(i, PROBLEMS[code], "a set of messages", "something else")
            else:
                if not self._has_room(at, len(payload)):
                    cache.keep(base_offset, position, payload)
                    return i
                self.scratch[at : at + len(payload)] = payload
                table[i, t.PAYLOAD_IN] = 1
                table[i, t.PAYLOAD_START] = at
                at += len(payload)
                table[i, t.PAYLOAD_END] = at
            if keeps:
                cache.keep(base_offset, position, payload)
        return window.batches

    def _has_room(self, at: int, size: int) -> bool:
        if at + size <= len(self.scratch):
            return True
        if at == 0:
            self.scratch = np.empty(size + (size >> 3), np.uint8)
            return True
        return False

    def _decompress(self, window: Window, i: int, attributes: int) -> NDArray[np.uint8]:
        table = window.table
        magic = int(table[i, t.MAGIC])
        start = int(table[i, t.POSITION])
        end = start + int(table[i, t.SIZE])
        payload_at = start + t.HEADER_BYTES
        if magic < 2:
            payload_at = start + (26 if magic == 1 else 18)
            payload_at += 4 + max(_int32(window, payload_at), 0)
            value_length = _int32(window, min(payload_at, end - 4))
            payload_at += 4
            if value_length != end - payload_at:
                raise window.corrupt(
                    i, "compressed message set has no value", end - payload_at, value_length
                )
        view = window.data.data[payload_at:end]
        try:
            raw = decompress(Codec(attributes & t.CODEC_MASK), view, magic=magic)
        except CorruptError as error:
            raise window.corrupt(i, error.problem, error.expected, error.found) from error
        return np.frombuffer(raw, np.uint8)

    def uncover_control(self, window: Window, i: int) -> None:
        """Make the record of one compressed control batch readable, at the start of scratch."""
        payload = self._decompress(window, i, int(window.table[i, t.ATTRIBUTES]))
        self._has_room(0, len(payload))
        self.scratch[: len(payload)] = payload
        window.table[i, t.PAYLOAD_IN] = 1
        window.table[i, t.PAYLOAD_START] = 0
        window.table[i, t.PAYLOAD_END] = len(payload)


def _int32(window: Window, at: int) -> int:
    return int.from_bytes(window.data[at : at + 4].tobytes(), "big", signed=True)
