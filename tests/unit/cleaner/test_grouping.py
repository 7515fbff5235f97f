"""Which segments become one. CT and X ids are those of cleaning.md section 8."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from keeplast.cleaner.plan import group_segments
from keeplast.model.partition import RELATIVE_OFFSET_MAX, SegmentSummary

NO_LIMIT = RELATIVE_OFFSET_MAX


def segment(
    base_offset: int, size: int = 100, offset_index: int = 8, time_index: int = 12
) -> SegmentSummary:
    """Return a segment that ends where the next one begins."""
    return SegmentSummary(base_offset, size, 0, -1, offset_index, time_index)


def groups(
    segments: Sequence[SegmentSummary],
    *,
    bound: int,
    size: int = NO_LIMIT,
    index: int = NO_LIMIT,
    count: int = NO_LIMIT,
) -> list[list[int]]:
    """Return the base offsets of the groups."""
    found = group_segments(
        segments, bound=bound, segment_bytes=size, segment_index_bytes=index, sources_max=count
    )
    return [[each.base_offset for each in group] for group in found]


TEN = [segment(base, size=100 + base, offset_index=80 + base, time_index=12) for base in range(10)]
ALL = [list(range(10))]
ALONE = [[base] for base in range(10)]


def test_ct35_without_limits_everything_is_one_group() -> None:
    assert ALL == groups(TEN, bound=10)


def test_a_group_begins_where_one_has_to() -> None:
    found = group_segments(
        TEN, bound=10, segment_bytes=NO_LIMIT, segment_index_bytes=NO_LIMIT, begins_at=(0, 4, 5, 77)
    )
    assert [[0, 1, 2, 3], [4], [5, 6, 7, 8, 9]] == [[e.base_offset for e in each] for each in found]


def test_ct35_with_the_least_size_every_segment_is_alone() -> None:
    assert ALONE == groups(TEN, bound=10, size=1)


def test_ct35_with_the_least_index_every_segment_is_alone() -> None:
    assert ALONE == groups(TEN, bound=10, index=1)


@pytest.mark.parametrize("limit", ["size", "index"])
def test_ct35_groups_of_three(limit: str) -> None:
    equal = [segment(base) for base in range(10)]
    triple = sum(s.size_bytes if limit == "size" else s.time_index_bytes for s in equal[:3])
    found = groups(equal, bound=10, **{limit: triple + 1})
    assert [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]] == found


def test_no_group_has_more_segments_than_it_may() -> None:
    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == groups(TEN, bound=10, count=4)
    assert ALONE == groups(TEN, bound=10, count=1)
    assert ALL == groups(TEN, bound=10, count=10)


def test_a_limit_may_be_reached_exactly() -> None:
    assert [[0, 1], [2]] == groups(TEN[:3], bound=3, size=100 + 101)
    assert [[0, 1], [2]] == groups(TEN[:3], bound=3, index=80 + 81)


def test_the_indexes_are_counted_apart() -> None:
    log = [segment(0, offset_index=40, time_index=8), segment(1, offset_index=8, time_index=40)]
    assert [[0, 1]] == groups(log, bound=2, index=48)


FAR = RELATIVE_OFFSET_MAX + 1


def test_ct36_only_empty_segments_join_over_any_distance() -> None:
    log = [segment(0), segment(FAR), segment(2 * FAR)]
    assert [[0], [FAR], [2 * FAR]] == groups(log, bound=3 * FAR)
    emptied = [segment(0, 0), segment(FAR, 0), segment(2 * FAR)]
    assert [[0, FAR], [2 * FAR]] == groups(emptied, bound=3 * FAR)


def test_ct37_a_group_may_span_every_relative_offset() -> None:
    assert [[0, 5]] == groups([segment(0), segment(5)], bound=FAR)
    assert [[0], [5]] == groups([segment(0), segment(5)], bound=FAR + 1)


def test_ct37_segments_after_a_gap_are_grouped_again() -> None:
    log = [segment(0), segment(5), segment(FAR + 2), segment(FAR + 6)]
    found = groups(log, bound=FAR + 9)
    assert [[0], [5], [FAR + 2, FAR + 6]] == found


def test_ct38_the_span_is_judged_by_bases_and_not_by_indexes() -> None:
    """The second segment holds an offset too far away, of which its index knows nothing."""
    middle = RELATIVE_OFFSET_MAX // 2
    log = [segment(0, offset_index=0), segment(middle, offset_index=0)]
    assert [[0], [middle]] == groups(log, bound=FAR + 1)


def test_x35_segments_larger_than_a_lowered_limit_are_alone() -> None:
    assert [[0], [1], [2]] == groups(TEN[:3], bound=3, size=99)


def test_no_segment_gives_no_group() -> None:
    assert [] == groups([], bound=0)
