"""How many keys a key map of given size may hold.

A map that could hold none is refused before anything is read. Answers to ``SkimpyOffsetMap`` and
``log.cleaner.io.buffer.load.factor``.
"""

from __future__ import annotations

from keeplast.errors import RefusedError
from keeplast.model.offsets import INT32_MAX
from keeplast.survey.request import PartitionRequest


def key_slots(partition: PartitionRequest) -> int | None:
    """Return how many slots a bounded map has, None without a bound."""
    key_map_bytes = partition.cleaner.key_map_bytes
    return None if key_map_bytes is None else key_map_bytes // partition.topic.strategy.slot_bytes


def key_capacity(partition: PartitionRequest) -> int | None:
    """Return how many keys a bounded map may hold, None without a bound.

    RefusedError for a load factor outside (0, 1] and for a map without a usable slot.
    """
    cleaner = partition.cleaner
    if not 0 < cleaner.load_factor <= 1:
        raise RefusedError(
            "the load factor must be above 0 and at most 1. "
            f"log.cleaner.io.buffer.load.factor={cleaner.load_factor}"
        )
    slots = key_slots(partition)
    if slots is None:
        return None
    capacity = int(slots * cleaner.load_factor)
    if capacity < 1:
        raise RefusedError(
            "the key map has no usable slot; give it more bytes. "
            f"key_map_bytes={cleaner.key_map_bytes} load_factor={cleaner.load_factor}"
        )
    return min(capacity, INT32_MAX)
