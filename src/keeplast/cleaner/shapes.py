"""Chooses how the work of one partition's round is cut: its *shape*.

    partition   one task does everything; nothing travels. Right for many partitions of one size.
    broadcast   every segment is indexed and every group rewritten by a task of its own; the key map
                is made once and every task has it. Right while the map fits a task.
    bucket      as broadcast, but keys travel to hash buckets and standings back, so that no task
                ever holds all keys. No ceiling on keys; costs two shuffles.

All give the same bytes. Cutting costs something, so a partition is cut only when it would keep
others waiting, or when its key map fits no task. Where tasks share no memory, it is cut only when
it is predicted to end sooner. Source: architecture, section 4.

The module also says what the stages of a round take, in seconds, and how long a round takes in each
shape.

What a reader must not break: these figures choose how work is cut and are shown to people. Nothing
that decides what stays of a log may look at them. They are slopes, measured in processor time of
one core of the machine in docs/contributing/design/spark.md, which says how. Another machine is
faster or slower as a whole, which moves a choice little: shapes are compared with each other on the
same machine. The disk is not in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.plan import RoundPlan, plan_groups
from keeplast.model.topic_config import Shape, Strategy

INDEX_SECONDS_A_BYTE = 0.13e-9
INDEX_SECONDS_A_RECORD = 55e-9
INDEX_SECONDS_A_KEY = 130e-9
"""The first pass: headers and keys are read, values stepped over; a new key makes the map grow."""

REWRITE_SECONDS_A_BYTE = 0.25e-9
REWRITE_SECONDS_A_RECORD = 22e-9
WRITE_SECONDS_A_BYTE = 1.1e-9
"""The second pass: every byte has its checksum proven; what is written is read once more."""

UNPACK_SECONDS_A_BYTE = (0.0, 3.1e-9, 0.9e-9, 0.6e-9, 1.25e-9)
PACK_SECONDS_A_BYTE = (0.0, 19e-9, 0.5e-9, 1.8e-9, 3.3e-9)
"""By codec, as bits 0 to 2 of a batch's attributes have it: none, gzip, snappy, lz4, zstd. A byte
is one of the records, before it is compressed."""

JOB_SECONDS = 0.08
TASK_SECONDS = 0.06
"""What Spark takes to start a job, and a task of a Python worker that runs already."""

COLLECT_SECONDS_A_BYTE = 8e-9
SEND_SECONDS_A_BYTE = 6e-9
"""From a task to the driver by way of two Java processes, and from it to all tasks."""

MERGE_SECONDS_A_ROW = 110e-9
"""A row of another map is put into the driver's: the one part that no core shares."""

NOTED_OFFSETS_MAX = 1 << 27
"""The driver notes the winners of so many dirty records, a byte each; what lies above is looked up.
"""

SHUFFLE_SECONDS_A_BYTE = 16e-9
ASK_SECONDS_A_ROW = 150e-9
RESOLVE_SECONDS_A_ROW = 150e-9
LOOK_UP_SECONDS_A_ROW = 170e-9
"""With buckets: a row is put with others of its bucket, travels, is answered, and is parsed and
hashed once more where the answer is wanted."""


JOINT_SECONDS = 0.02
EXCHANGE_SECONDS_A_ROW = 110e-9
"""Tasks that meet: two meetings; a row of one task is written, read, put into a map and found."""

JOINT_OFFSETS_MAX = 1 << 26
"""A task that meets others notes a byte an offset; more would not fit what most have."""


class StageSeconds(Struct, frozen=True):
    """Seconds of one core that both passes of a round take."""

    index: float
    rewrite: float

    @property
    def whole(self) -> float:
        """Return what one task takes."""
        return self.index + self.rewrite


class WorkCounts(Struct, frozen=True):
    """What the stages of a round are made of.

    ``dirty_rows`` of all ``rows`` are indexed and have ``dirty_keys``; a row is ``row_bytes`` where
    it travels. ``largest_part`` is the greatest share [0, 1] that one segment has of the bytes.
    ``is_joint`` where tasks that run at once may do the round in one job.
    """

    seconds: StageSeconds
    rows: int
    dirty_rows: int
    dirty_keys: int
    row_bytes: int
    map_bytes: int
    dirty_segments: int
    groups: int
    largest_part: float
    is_joint: bool = False

    @property
    def is_all_dirty(self) -> bool:
        """Say whether no row lies below the dirty section."""
        return self.dirty_rows >= self.rows


def index_seconds(size_bytes: float, records: float, keys: float) -> float:
    """Return what the first pass takes for plain records, ``keys`` of them new."""
    return (
        size_bytes * INDEX_SECONDS_A_BYTE
        + records * INDEX_SECONDS_A_RECORD
        + keys * INDEX_SECONDS_A_KEY
    )


def rewrite_seconds(size_bytes: float, records: float, written_bytes: float) -> float:
    """Return what the second pass takes for plain records, with the check of what it writes."""
    return (
        size_bytes * REWRITE_SECONDS_A_BYTE
        + records * REWRITE_SECONDS_A_RECORD
        + written_bytes * WRITE_SECONDS_A_BYTE
    )


def predict_seconds(shape: Shape, counts: WorkCounts, *, tasks: int, buckets: int = 1) -> float:
    """Return what a round takes by the clock on Spark when so many of its tasks run at once.

    What starts Spark and its workers is left out: it is the same for every shape.
    """
    seconds = counts.seconds
    if shape is Shape.PARTITION:
        return JOB_SECONDS + TASK_SECONDS + seconds.whole
    if counts.is_joint and min(tasks, counts.groups) > 1:
        return _joint_seconds(counts, min(tasks, counts.groups))
    staged = 2 * JOB_SECONDS
    at_once = min(tasks, counts.dirty_segments)
    indexing = _longest(counts.dirty_segments, tasks, counts.largest_part)
    rewriting = _longest(counts.groups, tasks, counts.largest_part)
    staged += seconds.index * indexing + seconds.rewrite * rewriting + TASK_SECONDS
    if shape is Shape.BROADCAST:
        staged += TASK_SECONDS
        sent = _distinct_sent(counts, at_once)
        staged += sent * (counts.row_bytes * COLLECT_SECONDS_A_BYTE + MERGE_SECONDS_A_ROW)
        unnoted = max(counts.dirty_rows - NOTED_OFFSETS_MAX, 0)
        staged += unnoted * LOOK_UP_SECONDS_A_ROW * rewriting
        is_asked = unnoted or not counts.is_all_dirty
        return staged + (counts.map_bytes * SEND_SECONDS_A_BYTE if is_asked else 0.0)
    sent = _distinct_sent(counts, counts.dirty_segments) + counts.rows - counts.dirty_rows
    travels = sent * counts.row_bytes * SHUFFLE_SECONDS_A_BYTE + counts.rows * ASK_SECONDS_A_ROW
    answers = sent * RESOLVE_SECONDS_A_ROW / min(tasks, buckets)
    looked_up = counts.rows * LOOK_UP_SECONDS_A_ROW
    # Units of a round with buckets share no task.
    starts = TASK_SECONDS * math.ceil(counts.groups / tasks)
    return staged + travels * indexing + answers + looked_up * rewriting + starts


def _joint_seconds(counts: WorkCounts, tasks: int) -> float:
    """Return what tasks that meet take, a run of groups each; whatever the shape."""
    starts = JOB_SECONDS + TASK_SECONDS + JOINT_SECONDS
    exchange = _distinct_sent(counts, tasks) * EXCHANGE_SECONDS_A_ROW / tasks
    return starts + counts.seconds.whole * _longest(counts.groups, tasks, 0.0) + exchange


def _longest(parts: int, tasks: int, largest_part: float) -> float:
    """Return the share of a stage that the task with most of it has."""
    return max(math.ceil(parts / tasks) / max(parts, 1), largest_part)


def _distinct_sent(counts: WorkCounts, parts: int) -> float:
    """Return how many rows leave so many parts of the dirty section, each key once a part.

    Keys are taken to recur anywhere; where they recur close together, fewer leave.
    """
    keys = max(counts.dirty_keys, 1)
    return parts * keys * -math.expm1(-counts.dirty_rows / max(parts, 1) / keys)


class ShapeChoice(Struct, frozen=True):
    """A shape, the number of hash buckets where it has any, and why, in words.

    ``task_memory_bytes`` bounds what a task of a round with buckets holds of the keys.
    """

    shape: Shape
    buckets: int = 0
    why: str = ""
    task_memory_bytes: int | None = None


WHOLE = ShapeChoice(Shape.PARTITION)

MAP_BYTES_PER_SLOT_BYTE = 1.5
"""Tables are between three fifths and five sixths full."""

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

WORTH_CUTTING = 0.9
SECONDS_WORTH_CUTTING, JOINT_SECONDS_WORTH_CUTTING = 1.0, 0.1
"""A partition is cut for its time alone only when less than this share of one task's remains.

That many seconds must be gained too: predictions are no better than that. Tasks that do all of a
round in one job are predicted better.
"""


class Workload(Struct, frozen=True):
    """What is known of a round before it runs.

    ``rows`` is how many records its segments may hold and ``dirty_keys`` how many distinct keys its
    dirty section may; both are estimates and may be None. ``seconds`` is what its passes take one
    core, None when that was not looked up: then the records are taken to be plain.
    """

    plan: RoundPlan
    rows: int | None = None
    dirty_keys: int | None = None
    seconds: StageSeconds | None = None

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
        """Return the bytes of the key map, None while it is not known how many keys there are."""
        return None if self.dirty_keys is None else key_map_bytes(self.plan, self.dirty_keys)

    @property
    def cost_bytes(self) -> int:
        """Return the bytes that both passes read."""
        return self.read_bytes + self.dirty_bytes

    @property
    def read_bytes(self) -> int:
        """Return the bytes that the second pass reads."""
        plan = self.plan
        return sum(s.size_bytes for s in plan.segments if s.base_offset < plan.bound)

    @property
    def dirty_bytes(self) -> int:
        """Return the bytes that the first pass reads."""
        return sum(s.size_bytes for s in self.plan.dirty_segments())

    def counts(self) -> WorkCounts:
        """Return what its stages are made of; nothing is known to be superseded without a look."""
        plan, size, dirty = self.plan, self.read_bytes, self.dirty_bytes
        rows = plan.bound - plan.segments[0].base_offset if self.rows is None else self.rows
        dirty_rows = round(rows * dirty / max(size, 1))
        keys = dirty_rows if self.dirty_keys is None else min(self.dirty_keys, dirty_rows)
        seconds = self.seconds
        if seconds is None:
            seconds = StageSeconds(
                index_seconds(dirty, dirty_rows, keys), rewrite_seconds(size, rows, 0)
            )
        slot_bytes = plan.topic.strategy.slot_bytes
        below = [s.size_bytes for s in plan.segments if s.base_offset < plan.bound]
        return WorkCounts(
            seconds, rows, dirty_rows, keys,
            row_bytes=slot_bytes, map_bytes=key_map_bytes(plan, keys),
            dirty_segments=len(plan.dirty_segments()), groups=len(plan_groups(plan, plan.bound)),
            largest_part=max(below) / max(size, 1),
            is_joint=plan.is_decided_by_notes and not plan.keeps_group_ends,
        )  # fmt: skip


class Ground(Struct, frozen=True):
    """What there is to run on.

    ``slots`` tasks run at once. ``task_memory_bytes`` is what one of them may hold on top of its
    windows and buffers; None where all share one memory, so that nothing is gained by buckets.
    """

    slots: int
    task_memory_bytes: int | None

    def has_room_for(self, workload: Workload) -> bool:
        """Say whether one task can hold the key map; False also when that is not known."""
        if self.task_memory_bytes is None or workload.plan.key_capacity is not None:
            return True
        needed = workload.map_bytes
        return needed is not None and needed <= self.task_memory_bytes


def share_of(workloads: Sequence[Workload], slots: int) -> int:
    """Return the bytes of a call that each of so many slots has to read."""
    return sum(workload.cost_bytes for workload in workloads) // max(slots, 1)


def choose_shapes(
    workloads: Sequence[Workload], ground: Ground, *, asked: Shape | None = None
) -> tuple[ShapeChoice, ...]:
    """Return a choice for each workload of a call, mixed as it takes.

    ``asked`` overrides where nothing stands against it.
    """
    share = share_of(workloads, ground.slots)
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
        return _cut(asked, buckets, "as asked for", ground)
    if not ground.has_room_for(workload):
        about = "unknown size" if workload.map_bytes is None else f"~{in_mib(workload.map_bytes)}"
        why = f"a key map of {about} does not fit a task of {in_mib(ground.task_memory_bytes or 0)}"
        return _cut(Shape.BUCKET, buckets, why, ground)
    whole = why_whole(workload, share, ground)
    if whole is not None:
        return ShapeChoice(Shape.PARTITION, why=whole)
    if ground.task_memory_bytes is None:
        groups = plan_groups(plan, plan.bound)
        parts = len(groups[0].sources)
        amount = f"{parts} segments of one group" if parts > 1 else "one segment"
        amount = f"{len(groups)} groups" if len(groups) > 1 else amount
        return ShapeChoice(Shape.BROADCAST, why=f"too large for one task, in {amount}")
    tasks = max(2, workload.cost_bytes // max(share, 1))
    return _quickest(workload, ground, min(tasks, ground.slots), buckets)


def why_whole(workload: Workload, share: int, ground: Ground) -> str | None:
    """Return why a round is one task whatever it takes.

    None when one task of it would keep others waiting, where there are any.
    """
    if ground.slots == 1:
        return "one task at a time"
    # What shares memory shares a group by its sources, too. A log of one is shared by its pieces
    # where it is alone, and only without transactions.
    plan, cost = workload.plan, workload.cost_bytes
    groups = plan_groups(plan, plan.bound)
    if len(groups) == 1 and (
        ground.task_memory_bytes is not None
        or (
            len(groups[0].sources) == 1
            and (plan.expects_transactions or cost < share * ground.slots)
        )
    ):
        return "one group, so there is nothing to share out"
    if cost < SMALLEST_CUT_BYTES or cost <= share:
        return "small enough for one task"
    return None


def _quickest(workload: Workload, ground: Ground, tasks: int, buckets: int) -> ShapeChoice:
    """Choose by predicted seconds, with so many tasks at once; one task unless it pays to cut."""
    counts = workload.counts()
    if tasks < ground.slots or counts.rows > tasks * JOINT_OFFSETS_MAX:
        counts = replace(counts, is_joint=False)
    buckets = min(max(buckets, tasks), BUCKETS_MAX)
    # Tasks that meet send nothing, but a round that they give up goes through its stages.
    can_be_sent = counts.map_bytes <= SENT_MAP_BYTES_MAX
    seconds = {
        shape: predict_seconds(shape, counts, tasks=tasks, buckets=buckets)
        for shape in Shape
        if can_be_sent or shape is not Shape.BROADCAST
    }
    whole = seconds.pop(Shape.PARTITION)
    cut = min(seconds, key=lambda shape: seconds[shape])
    why = f"one task takes ~{whole:.1f} s, {cut} ~{seconds[cut]:.1f} s by {tasks} tasks at once"
    if not can_be_sent:
        why += f"; ~{in_mib(counts.map_bytes)} of keys are too many to send to every task"
    gain = JOINT_SECONDS_WORTH_CUTTING if counts.is_joint else SECONDS_WORTH_CUTTING
    if seconds[cut] > min(WORTH_CUTTING * whole, whole - gain):
        return ShapeChoice(Shape.PARTITION, why=why)
    return _cut(cut, buckets, why, ground)


def _cut(shape: Shape, buckets: int, why: str, ground: Ground) -> ShapeChoice:
    if shape is not Shape.BUCKET:
        return ShapeChoice(shape, why=why)
    return ShapeChoice(shape, buckets, why, ground.task_memory_bytes)


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
