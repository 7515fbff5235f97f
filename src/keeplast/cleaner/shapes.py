"""Chooses how the work of one partition's round is cut: its *shape*.

    partition   one task does everything; nothing travels. Right for many partitions of one size.
    broadcast   every segment is indexed and every group rewritten by a task of its own; the key map
                is made once and every task has it. Right while the map fits a task.
    bucket      as broadcast, but keys travel to hash buckets and standings back, so that no task
                ever holds all keys. No ceiling on keys; costs two shuffles.

All give the same bytes. Cutting costs something, so a partition is cut only when it would keep
others waiting, or when its key map fits no task. Source: architecture, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keeplast.cleaner.plan import RoundPlan, plan_groups
from keeplast.model.shape import Shape
from keeplast.model.strategy import Strategy


@dataclass(frozen=True, slots=True)
class ShapeChoice:
    """A shape, the number of hash buckets where it has any, and why, in words."""

    shape: Shape
    buckets: int = 0
    why: str = ""


WHOLE = ShapeChoice(Shape.PARTITION)

MAP_BYTES_PER_SLOT_BYTE = 1.5
"""Tables are between two thirds and five sixths full."""

BUCKET_BYTES_PER_ROW = 64
"""A row of a bucket: 24 bytes, twice while they arrive, and its answer."""

RECORDS_PER_BYTE_MAX = 4
"""More records do not fit: a million distinct eight-byte keys that count up, without values, take
0.46 bytes each as one zstd batch. Only sections full of gaps are bounded by this rather than by
their offsets."""

BUCKETS_MAX = 1 << 14
SENT_MAP_BYTES_MAX = 128 << 20
"""A larger key map does not travel by way of Spark's driver, which has a gigabyte by default and
holds several copies of what it collects and sends."""

SMALLEST_CUT_BYTES = 64 << 20
"""Below this the stages cost more than their parallelism brings."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is known of a round before it runs.

    ``rows`` is how many records its segments may hold and ``dirty_keys`` how many distinct keys
    its dirty section may; both are estimates and may be None.
    """

    plan: RoundPlan
    rows: int | None = None
    dirty_keys: int | None = None

    @classmethod
    def at_most(cls, plan: RoundPlan) -> Workload:
        """Return a round with as many records and keys as it can have, however well compressed.

        Every record has an offset of its own, so there are no more than offsets.
        """
        start = plan.segments[0].base_offset
        below = sum(s.size_bytes for s in plan.segments if s.base_offset < plan.bound)
        dirty = sum(s.size_bytes for s in plan.dirty_segments())
        return cls(
            plan,
            min(plan.bound - start, below * RECORDS_PER_BYTE_MAX),
            min(plan.bound - max(plan.first_dirty, start), dirty * RECORDS_PER_BYTE_MAX),
        )

    @property
    def map_bytes(self) -> int | None:
        """Return the bytes of the key map, None while nobody knows how many keys there are."""
        return None if self.dirty_keys is None else key_map_bytes(self.plan, self.dirty_keys)

    @property
    def cost_bytes(self) -> int:
        """Return the bytes that both passes read."""
        plan = self.plan
        below = sum(s.size_bytes for s in plan.segments if s.base_offset < plan.bound)
        return below + sum(s.size_bytes for s in plan.dirty_segments())


@dataclass(frozen=True, slots=True)
class Ground:
    """What there is to run on.

    ``slots`` tasks run at once. ``task_memory_bytes`` is what one of them may hold beside its
    windows and buffers; None where all share one memory, so that nothing is gained by buckets.
    """

    slots: int
    task_memory_bytes: int | None

    def has_room_for(self, workload: Workload) -> bool:
        """Say whether one task can hold the key map; False also when nobody knows."""
        if self.task_memory_bytes is None or workload.plan.key_capacity is not None:
            return True
        needed = workload.map_bytes
        return needed is not None and needed <= self.task_memory_bytes


def choose_shapes(
    workloads: Sequence[Workload], ground: Ground, *, asked: Shape | None = None
) -> tuple[ShapeChoice, ...]:
    """Return a choice for each workload of a call, mixed as it takes.

    ``asked`` overrides where nothing stands against it.
    """
    total = sum(workload.cost_bytes for workload in workloads)
    share = total // max(ground.slots, 1)
    return tuple(_choose(workload, share, ground, asked) for workload in workloads)


def _choose(workload: Workload, share: int, ground: Ground, asked: Shape | None) -> ShapeChoice:
    plan = workload.plan
    if plan.key_capacity is not None:
        return ShapeChoice(
            Shape.PARTITION, why="a bounded key map ends the round at the record that fills it"
        )
    if plan.is_expired_round or not plan.dirty_segments():
        return ShapeChoice(Shape.PARTITION, why="nothing to index")
    buckets = bucket_count(workload, ground.task_memory_bytes)
    if asked is not None:
        return ShapeChoice(asked, buckets if asked is Shape.BUCKET else 0, "as asked for")
    if not ground.has_room_for(workload):
        about = "unknown size" if workload.map_bytes is None else f"~{in_mib(workload.map_bytes)}"
        why = f"a key map of {about} does not fit a task of {in_mib(ground.task_memory_bytes or 0)}"
        return ShapeChoice(Shape.BUCKET, buckets, why)
    groups = plan_groups(plan, plan.bound)
    if ground.slots == 1:
        return ShapeChoice(Shape.PARTITION, why="one task at a time")
    # What shares memory shares a group by its sources, too.
    shared = groups if ground.task_memory_bytes is not None else groups[0].sources
    if len(groups) == 1 and len(shared) == 1:
        return ShapeChoice(Shape.PARTITION, why="one group, so there is nothing to share out")
    cost = workload.cost_bytes
    if cost < SMALLEST_CUT_BYTES or cost <= share:
        return ShapeChoice(Shape.PARTITION, why="small enough for one task")
    if ground.task_memory_bytes is not None and (workload.map_bytes or 0) > SENT_MAP_BYTES_MAX:
        why = f"too large for one task; ~{in_mib(workload.map_bytes or 0)} of keys"
        return ShapeChoice(Shape.BUCKET, min(max(buckets, ground.slots), BUCKETS_MAX), why)
    parts = f"{len(groups)} groups" if len(groups) > 1 else f"{len(shared)} segments of one group"
    return ShapeChoice(Shape.BROADCAST, why=f"too large for one task, in {parts}")


def key_map_bytes(plan: RoundPlan, keys: int) -> int:
    """Return about what a round's key map takes with so many keys."""
    return map_bytes(plan.topic.strategy, keys)


def map_bytes(strategy: Strategy, keys: int) -> int:
    """Return about what a key map of so many keys takes."""
    return round(keys * strategy.slot_bytes * MAP_BYTES_PER_SLOT_BYTE)


def bucket_count(workload: Workload, task_memory_bytes: int | None) -> int:
    """Return how many buckets it takes for each to fit a task."""
    if task_memory_bytes is None or workload.rows is None:
        return 1
    keys = workload.rows if workload.dirty_keys is None else workload.dirty_keys
    needed = workload.rows * BUCKET_BYTES_PER_ROW + key_map_bytes(workload.plan, keys)
    return buckets_for(needed, task_memory_bytes)


def buckets_for(needed_bytes: int, task_memory_bytes: int) -> int:
    """Return how many buckets it takes for each to fit a task, of what all need together."""
    # Buckets are not of one size: an eighth more room than the mean takes.
    buckets = -(-needed_bytes * 9 // 8 // max(task_memory_bytes, 1))
    return min(max(buckets, 1), BUCKETS_MAX)


def in_mib(size: int) -> str:
    """Return a size in bytes as whole MiB, for a reason."""
    return f"{size / (1 << 20):.0f} MiB"
