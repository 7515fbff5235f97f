"""What a caller asks of a run: plain values, no objects.

Nothing here has a default that reads the machine; ``None`` says "as the directory says".

A key map of given size holds a number of keys. A map that could hold none is refused before
anything is read. Answers to ``SkimpyOffsetMap`` and ``log.cleaner.io.buffer.load.factor``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from msgspec import Struct, field

from keeplast.cleaner.log_order import Order
from keeplast.cleaner.settings import check_internal
from keeplast.errors import InvalidError, RefusedError
from keeplast.model.partition import INT32_MAX, TopicPartition
from keeplast.model.topic_config import CleanerConfig, Shape, TopicConfig

MEMORY_BYTES_DEFAULT = 256 << 20
"""Windows, buffers and decompressed data kept between the passes; the key map comes on top."""

ROUNDS_MAX = 100_000

TASK_MEMORY_BYTES_DEFAULT = 1 << 30
"""What a Spark task may hold of keys; its windows and buffers come on top."""
TASK_MEMORY_BYTES_MIN = 1 << 20
"""The least of it that is worth a task."""


class PartitionRequest(Struct, frozen=True):
    """One partition to work on and its effective settings.

    RefusedError for a broker's own topic with settings that its readers do not share.
    """

    partition: TopicPartition
    path: Path
    topic: TopicConfig
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)

    def __post_init__(self) -> None:
        """Refuse settings that would make a broker's own topic lose what brokers need of it."""
        check_internal(self.partition.topic, self.topic)


class RoundWishes(TypedDict, total=False):
    """The fields of a :class:`CleanRequest` that a caller may set of a round in a store."""

    memory_bytes: int
    force: bool
    expired: bool
    shape: Shape | None
    task_memory_bytes: int


class CleanRequest(Struct, frozen=True):
    """A call of clean or plan, for logs in directories and for one in a store.

    ``rounds`` None means until ``end_offset`` reaches the bound, as always in a store, where a
    round has chunks. Offsets given here stand in place of what the directory says and apply to
    every partition of the call. Each may hold a round back, and so may a clock that is late. A
    writer refuses what would lift a limit, unless ``is_unsafe`` lets it stand as given
    (:mod:`keeplast.survey.bounds`). ``target`` None means in place; else a directory that receives
    the cleaned log while the source stays as it is. That is a new or empty one, unless
    ``overwrites`` gives up what lies at it. ``rolls_idle`` leaves an active segment before a round,
    when its first record is older than ``segment.ms`` or ``max.compaction.lag.ms``. Kafka does that
    only when it appends. ``expired`` asks for a round also where only tombstones or markers whose
    time has passed are left to go. ``order`` is the order in which partitions are begun.
    ``retention`` removes afterwards the segments that retention and the log start offset let go.
    ``shape`` None lets the planner choose. ``task_memory_bytes`` is what a task that shares its
    memory with no other may hold of keys. ``clean_elsewhere_to`` is for directories that hold a
    part of a log whose rest is clean below that offset. Tombstones and markers stay and get no
    horizon. An aborted transaction that ends at or above it stays with all later records.
    """

    partitions: tuple[PartitionRequest, ...]
    now_ms: int | None = None
    high_watermark: int | None = None
    log_start_offset: int | None = None
    first_dirty_offset: int | None = None
    uncleanable_offset: int | None = None
    is_unsafe: bool = False
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    rounds: int | None = 1
    roll_active: bool = False
    rolls_idle: bool = False
    retention: bool = False
    force: bool = False
    expired: bool = False
    order: Order = Order.OVERDUE_FIRST
    target: Path | None = None
    overwrites: bool = False
    receipt: Path | None = None
    shape: Shape | None = None
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    clean_elsewhere_to: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidError for a number of rounds that would do nothing, and say nothing."""
        if self.rounds is not None and self.rounds < 1:
            raise InvalidError(f"at least one round is needed. rounds={self.rounds}", code="K104")

    @property
    def rounds_max(self) -> int:
        """Return how many rounds of a partition there may be."""
        return ROUNDS_MAX if self.rounds is None else self.rounds

    @property
    def forgets_unreplicated_markers(self) -> bool:
        """Say whether a snapshot above the high watermark is believed about what has ended.

        A broker that has just started does so, and who insists on a high watermark gets what that
        broker's cleaner would do. Everybody else waits until the marker is on every replica.
        """
        return (
            self.is_unsafe and self.high_watermark is not None and self.clean_elsewhere_to is None
        )


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
            f"log.cleaner.io.buffer.load.factor={load_factor} source={source}",
            code="K132",
        )
    if map_bytes is None:
        return None
    slots = map_bytes // slot_bytes
    usable = int(slots * load_factor)
    if usable < 1:
        raise RefusedError(
            f"key map without a usable slot: no round would end; raise --key-map-bytes, "
            f"{slot_bytes} bytes a slot. key_map_bytes={map_bytes} slots={slots} "
            f"log.cleaner.io.buffer.load.factor={load_factor}",
            code="K132",
        )
    return usable
