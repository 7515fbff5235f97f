"""How the work of each partition of a call is cut, and why."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.cleaner.plan import RoundPlan
from keeplast.cleaner.shapes import (
    BUCKETS_MAX,
    SENT_MAP_BYTES_MAX,
    Ground,
    StageSeconds,
    Workload,
    bucket_count,
    choose_shapes,
    index_seconds,
    key_map_bytes,
    predict_seconds,
    rewrite_seconds,
)
from keeplast.model.partition import SegmentSummary, TopicPartition
from keeplast.model.topic_config import Shape
from tests.support.partition_maker import NOW_MS, SMALL_SEGMENTS

MIB = 1 << 20
GIB = 1 << 30
THREADS = Ground(2, None)
CLUSTER = Ground(8, GIB)


def plan(segments: int, segment_bytes: int, *, key_capacity: int | None = None) -> RoundPlan:
    closed = [SegmentSummary(i * 100, segment_bytes, NOW_MS, -1, 0, 0) for i in range(segments)]
    active = SegmentSummary(segments * 100, 1, NOW_MS, -1, 0, 0)
    return RoundPlan(
        partition=TopicPartition("t", 0),
        topic=SMALL_SEGMENTS,
        segments=(*closed, active),
        aborted=(),
        last_records=np.empty((0, 3), np.int64),
        log_start=0,
        first_dirty=0,
        bound=segments * 100,
        start_position=0,
        key_capacity=key_capacity,
        now_ms=NOW_MS,
    )


GIANT = Workload(plan(100, 100 * MIB), 10**8, 10**6)
SMALL = Workload(plan(3, MIB), 10**4, 10**3)


@pytest.mark.parametrize(
    ("first_dirty", "segment_bytes", "rows", "dirty_keys"),
    [
        (0, MIB, 300, 300),
        (250, MIB, 300, 50),
        (0, 10, 120, 120),
        (250, 10, 120, 40),
    ],
)
def test_there_are_no_more_keys_than_offsets_and_no_more_than_fit_the_bytes(
    first_dirty: int, segment_bytes: int, rows: int, dirty_keys: int
) -> None:
    dirty = replace(plan(3, segment_bytes), first_dirty=first_dirty)
    assert Workload(dirty, rows, dirty_keys) == Workload.at_most(dirty)


def shapes(workloads: list[Workload], ground: Ground, asked: Shape | None = None) -> list[Shape]:
    return [choice.shape for choice in choose_shapes(workloads, ground, asked=asked)]


def test_a_giant_among_small_ones_is_cut_and_they_are_not() -> None:
    expected = [Shape.PARTITION] * 50 + [Shape.BROADCAST] + [Shape.PARTITION] * 50
    assert expected == shapes([SMALL] * 50 + [GIANT] + [SMALL] * 50, THREADS)


def test_many_of_one_size_are_left_whole() -> None:
    assert [Shape.PARTITION] * 40 == shapes([GIANT] * 40, THREADS)


def test_a_key_map_that_fits_no_task_needs_buckets_however_small_the_share() -> None:
    bytes_per_key = key_map_bytes(GIANT.plan, 1)
    many_keys = replace(GIANT, dirty_keys=GIB // bytes_per_key + 1)
    assert [Shape.BUCKET] * 40 == shapes([many_keys] * 40, CLUSTER)
    assert [Shape.BROADCAST] == shapes([many_keys], THREADS)


def test_a_key_map_that_is_too_large_to_be_sent_to_every_task_does_not_travel() -> None:
    bytes_per_key = key_map_bytes(GIANT.plan, 1)
    heavy = in_stages(replace(GIANT, seconds=StageSeconds(100.0, 100.0)))
    fits, does_not = (
        replace(heavy, dirty_keys=SENT_MAP_BYTES_MAX // bytes_per_key + more) for more in (0, 1)
    )
    assert [Shape.BROADCAST] == shapes([fits], CLUSTER)
    (choice,) = choose_shapes([does_not], CLUSTER)
    assert (Shape.BUCKET, CLUSTER.slots) == (choice.shape, choice.buckets)
    assert "too many to send" in choice.why
    assert [Shape.BROADCAST] == shapes([does_not], THREADS)


def one_partition(size_gib: float, *, records_per_key: int = 9) -> Workload:
    """Return a log of 100 B values, as a sample shows it, in segments of 1 GiB or in eight."""
    size = int(size_gib * GIB)
    segments = max(8, round(size_gib))
    rows = size // 122
    keys = rows // records_per_key
    seconds = StageSeconds(
        index_seconds(size, rows, keys), rewrite_seconds(size, rows, size / records_per_key)
    )
    return Workload(plan(segments, size // segments), rows, keys, seconds)


def in_stages(workload: Workload) -> Workload:
    """Return a round whose stages are jobs of their own, as if there were transactions."""
    return replace(workload, plan=replace(workload.plan, expects_transactions=True))


@pytest.mark.parametrize(
    ("size_gib", "slots", "shape"),
    [
        (1, 2, Shape.PARTITION),
        (1, 16, Shape.PARTITION),
        (1, 256, Shape.PARTITION),
        (100, 2, Shape.PARTITION),
        (100, 16, Shape.BUCKET),
        (100, 64, Shape.BUCKET),
        (100, 256, Shape.BUCKET),
        (1024, 2, Shape.PARTITION),
        (1024, 16, Shape.BUCKET),
        (1024, 64, Shape.BUCKET),
        (1024, 256, Shape.BUCKET),
    ],
)
def test_one_large_partition_is_cut_from_the_cores_on_where_that_is_quicker(
    size_gib: float, slots: int, shape: Shape
) -> None:
    (choice,) = choose_shapes([in_stages(one_partition(size_gib))], Ground(slots, 1 << 50))
    assert shape is choice.shape, choice.why


@pytest.mark.parametrize(
    ("size_gib", "slots", "is_cut"),
    [(1, 2, True), (1, 256, True), (0.1, 2, False), (100, 2, False), (100, 16, True)],
)
def test_tasks_that_meet_are_ahead_while_each_can_note_all_of_its_records(
    size_gib: float, slots: int, is_cut: bool
) -> None:
    (choice,) = choose_shapes([one_partition(size_gib)], Ground(slots, 1 << 50))
    assert is_cut is (choice.shape is not Shape.PARTITION), choice.why


def test_what_tasks_that_meet_may_give_up_is_never_more_than_a_driver_can_send() -> None:
    (choice,) = choose_shapes([one_partition(100)], Ground(16, 1 << 50))
    assert Shape.BUCKET is choice.shape, choice.why


def test_tasks_that_meet_have_all_slots_or_are_none() -> None:
    alone, several = one_partition(1), [one_partition(1), one_partition(2)]
    ground = Ground(4, GIB)
    assert [Shape.BROADCAST] == shapes([alone], ground)
    assert [Shape.PARTITION] * 2 == shapes(several, ground)


def test_few_keys_are_sent_to_every_task_from_two_cores_on() -> None:
    few = in_stages(one_partition(10, records_per_key=1000))
    assert [Shape.BROADCAST] == shapes([few], Ground(2, GIB))
    assert [Shape.BROADCAST] == shapes([few], Ground(8, GIB))


def test_what_a_codec_takes_is_worth_sharing_out_sooner() -> None:
    plain = in_stages(one_partition(1))
    zstd = replace(plain, seconds=StageSeconds(8.0, 17.0))
    assert [Shape.PARTITION] == shapes([plain], Ground(2, GIB))
    assert [Shape.BROADCAST] == shapes([zstd], Ground(2, GIB))


def test_memory_cuts_whatever_the_time_says() -> None:
    assert [Shape.BUCKET] == shapes([one_partition(100)], Ground(2, GIB))


@pytest.mark.parametrize("slots", [2, 16, 64, 256])
@pytest.mark.parametrize("size_gib", [1, 100, 1024])
def test_nothing_is_chosen_that_is_predicted_to_take_longer_than_one_task(
    size_gib: float, slots: int
) -> None:
    workload = one_partition(size_gib)
    (choice,) = choose_shapes([workload], Ground(slots, 1 << 50))
    counts = workload.counts()
    chosen, whole = (
        predict_seconds(shape, counts, tasks=slots, buckets=max(slots, choice.buckets))
        for shape in (choice.shape, Shape.PARTITION)
    )
    assert chosen <= whole


def test_partitions_that_are_cut_share_the_slots() -> None:
    two = [one_partition(100), one_partition(100)]
    (first, second) = choose_shapes(two, Ground(64, 1 << 50))
    assert "by 32 tasks at once" in first.why
    assert first == second


@pytest.mark.parametrize("asked", [None, *Shape])
def test_a_bounded_map_is_one_task_whatever_is_asked(asked: Shape | None) -> None:
    bounded = Workload(plan(100, 100 * MIB, key_capacity=10))
    (choice,) = choose_shapes([bounded], CLUSTER, asked=asked)
    assert Shape.PARTITION is choice.shape
    assert "bounded key map" in choice.why


@pytest.mark.parametrize("asked", Shape)
def test_the_wanted_shape_is_given(asked: Shape) -> None:
    assert [asked, asked] == shapes([GIANT, SMALL], CLUSTER, asked)


def test_one_slot_is_not_cut_and_one_segment_by_threads_alone() -> None:
    segment = Workload(plan(1, GIB), 10**7, 10**6)
    assert [Shape.PARTITION] == shapes([GIANT], Ground(1, None))
    assert [Shape.PARTITION] == shapes([segment], CLUSTER)
    assert [Shape.PARTITION] * 2 == shapes([segment, segment], THREADS)
    (choice,) = choose_shapes([segment], THREADS)
    assert (Shape.BROADCAST, "too large for one task, in one segment") == (choice.shape, choice.why)


def test_threads_share_one_group_by_its_segments_and_tasks_do_not() -> None:
    topic = replace(SMALL_SEGMENTS, segment_bytes=GIB)
    joined = Workload(replace(plan(8, 100 * MIB), topic=topic), 10**7, 10**6)
    (choice,) = choose_shapes([joined], THREADS)
    assert Shape.BROADCAST is choice.shape
    assert choice.why.endswith("8 segments of one group")
    assert [Shape.PARTITION] == shapes([joined], CLUSTER)
    assert [Shape.PARTITION] == shapes([joined], Ground(1, None))


def test_buckets_grow_with_rows_and_shrink_with_memory() -> None:
    assert 1 == bucket_count(GIANT, None)
    counts = [bucket_count(GIANT, GIB >> i) for i in range(4)]
    assert counts == sorted(counts)
    assert 2 <= counts[0] < counts[3]
    assert BUCKETS_MAX == bucket_count(replace(GIANT, rows=10**15), MIB)


def test_every_choice_says_why() -> None:
    for ground in (THREADS, CLUSTER, Ground(1, None)):
        for choice in choose_shapes([GIANT, SMALL], ground):
            assert "" != choice.why
