"""Rows on their way to hash buckets: they wait by cell until there are enough of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from keeplast.rewrite.standings import cells_of, parts_of

ROWS_MIN = 1 << 16
ROW_BYTES = 32


class WaitingRows:
    """The rows of an extent that have not been sent yet, in their order within each cell."""

    def __init__(self, buckets: int, memory_bytes: int) -> None:
        """Begin with none, in the memory of a worker that has ``memory_bytes``."""
        self._parts = parts_of(buckets)
        self._cells: dict[int, list[NDArray[np.uint64]]] = {}
        self._count = 0
        # Rows wait in a quarter of the worker's memory; reducing them takes about as much again.
        self._count_max = max(memory_bytes // 4 // ROW_BYTES, ROWS_MIN)

    @property
    def is_full(self) -> bool:
        """Say whether the rows should be taken."""
        return self._count >= self._count_max

    def add(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Take copies of the rows of a block."""
        for cell, chosen in cells_of(block, starts, self._parts):
            self._cells.setdefault(cell, []).append(block[chosen].copy())
        self._count += int(starts[-1])

    def take(self) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Yield each cell with its rows, which wait no longer."""
        cells, self._cells, self._count = self._cells, {}, 0
        for cell, waiting in sorted(cells.items()):
            yield cell, np.concatenate(waiting)
