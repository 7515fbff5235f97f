"""What the first pass has decompressed and the second one will want again, as far as there is room.

Nothing depends on what is found here: whoever does not find a payload decompresses it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
