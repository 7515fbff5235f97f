"""What a caller asks of a run: plain values, no objects.

Nothing here has a default that reads the machine; ``None`` says "as the directory tells".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from keeplast.cleaner.selection import Order
from keeplast.cleaner.shapes import Shape
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig

MEMORY_BYTES_DEFAULT = 256 << 20
"""Windows, buffers and decompressed data kept between the passes; the key map comes on top."""

TASK_MEMORY_BYTES_DEFAULT = 1 << 30
"""What a Spark task may hold of keys; its windows and buffers come on top."""


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """One partition to work on and its effective settings."""

    partition: TopicPartition
    path: Path
    topic: TopicConfig
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """A call of clean or plan.

    ``rounds`` None means until ``end_offset`` reaches the bound. Offsets given here override what
    the directory's checkpoints say and apply to every partition of the call. ``target`` None
    means in place; else a directory that receives the cleaned log while the source stays as it is.
    ``rolls_idle`` leaves an active segment whose first record is older than ``segment.ms`` or
    ``max.compaction.lag.ms`` before a round, which Kafka does only when it appends. ``expired``
    asks for a round also where only tombstones or markers whose time has passed are left to go.
    ``order`` is the order in which partitions are begun. ``retention`` removes
    afterwards the segments that retention and the log start offset let go.
    ``shape`` None lets the planner choose; ``task_memory_bytes`` is what a task that shares its
    memory with no other may hold of keys. ``clean_elsewhere_to`` is for directories that hold a
    part of a log, of which the rest is clean below that offset: tombstones and markers stay and get
    no horizon, and an aborted transaction that ends at or above it stays with what is behind it.
    """

    partitions: tuple[PartitionRequest, ...]
    now_ms: int | None = None
    high_watermark: int | None = None
    log_start_offset: int | None = None
    first_dirty_offset: int | None = None
    uncleanable_offset: int | None = None
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    rounds: int | None = 1
    roll_active: bool = False
    rolls_idle: bool = False
    retention: bool = False
    force: bool = False
    expired: bool = False
    order: Order = Order.OVERDUE_FIRST
    target: Path | None = None
    receipt: Path | None = None
    shape: Shape | None = None
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    clean_elsewhere_to: int | None = None
