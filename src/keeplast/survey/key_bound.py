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
    cleaner, slot_bytes = partition.cleaner, partition.topic.strategy.slot_bytes
    slots = usable_slots(
        cleaner.key_map_bytes, slot_bytes, cleaner.load_factor, source=str(partition.partition)
    )
    return None if slots is None else min(slots, INT32_MAX)


def usable_slots(
    map_bytes: int | None, slot_bytes: int, load_factor: float, *, source: str
) -> int | None:
    """Return how many slots of a map may be used, at least one; None without a bound.

    RefusedError for a load factor outside (0, 1] and for a map without a usable slot. ``source``
    is who gave the factor.
    """
    if not 0 < load_factor <= 1:
        raise RefusedError(
            f"load factor outside (0, 1]: a full map would never end a search; use 0.9. "
            f"log.cleaner.io.buffer.load.factor={load_factor} source={source}"
        )
    if map_bytes is None:
        return None
    slots = map_bytes // slot_bytes
    usable = int(slots * load_factor)
    if usable < 1:
        raise RefusedError(
            f"key map without a usable slot: no round would end; raise --key-map-bytes, "
            f"{slot_bytes} bytes a slot. key_map_bytes={map_bytes} slots={slots} "
            f"log.cleaner.io.buffer.load.factor={load_factor}"
        )
    return usable
