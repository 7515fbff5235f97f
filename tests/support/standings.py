"""Asks a key map for what it remembers through what it answers: how a record would stand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.winners import LOSES, UNKNOWN
from keeplast.model.partition import INT64_MAX

ABSENT = -1

Standings = Callable[[NDArray[np.int64]], NDArray[np.uint8]]
"""Returns how one record of each key would stand, given their offsets."""


def winning_offsets(keys: int, standings: Standings) -> list[int]:
    """Return each key's winner: the least offset that does not lose. ABSENT for unknown keys."""
    low = np.zeros(keys, np.int64)
    high = np.full(keys, INT64_MAX)
    is_known = standings(high) != UNKNOWN
    while (low < high).any():
        middle = low + (high - low) // 2
        loses = standings(middle) == LOSES
        low, high = np.where(loses, middle + 1, low), np.where(loses, high, middle)
    return [int(at) if known else ABSENT for at, known in zip(low, is_known, strict=True)]
