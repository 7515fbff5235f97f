"""Strips: to scale as far as all that is there can be seen, and marks where the strip has them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from keeplast.model.partition import LogRegion
from keeplast.service.console.strip import (
    PART_MIN,
    PARTS_MAX,
    WIDENED_MAX,
    WIDTH,
    SegmentPart,
    StripPart,
    by_region,
    by_segment,
    in_tier,
    marks_of,
)
from keeplast.store.status import Place

GIB = 1 << 30
ROUNDED = 0.11
"""Places and widths are rounded to tenths."""


def parts_of(*zones: tuple[LogRegion, int, int]) -> tuple[SegmentPart, ...]:
    """Return segments of ten offsets each: zone, how many, and bytes of each."""
    found: list[SegmentPart] = []
    for zone, count, size in zones:
        for _ in range(count):
            start = len(found) * 10
            found.append(SegmentPart(zone, start, start + 10, size))
    return tuple(found)


def place(parts: tuple[SegmentPart, ...], offset: int) -> float:
    """Return where an offset is by bytes alone."""
    below = sum(
        min(max(offset - each.start, 0) / (each.end - each.start), 1.0) * each.size_bytes
        for each in parts
    )
    return WIDTH * below / sum(each.size_bytes for each in parts)


def end_of(shapes: tuple[StripPart, ...], zone: LogRegion) -> float:
    return max(each.x + each.width for each in shapes if each.region is zone)


def test_neighbours_of_one_region_share_a_part_where_segments_are_many() -> None:
    parts = parts_of((LogRegion.CLEAN, 1990, GIB), (LogRegion.DIRTY, 10, GIB // 100))
    shapes = by_segment(parts)
    assert PARTS_MAX < len(shapes) + 2 <= PARTS_MAX + 4
    assert {LogRegion.CLEAN: len(shapes) - 1, LogRegion.DIRTY: 1} == Counter(
        each.region for each in shapes
    )
    (first,) = marks_of(parts, [("first dirty", 19900)])
    assert abs(first.x - shapes[-1].x) <= ROUNDED
    # Regions that change with every segment are drawn side by side: a strip is bounded.
    mixed = parts_of(*[(zone, 1, GIB) for _ in range(500) for zone in list(LogRegion)[:3]])
    assert len(by_segment(mixed)) <= 2 * PARTS_MAX


def test_many_small_segments_after_large_ones_leave_the_strip_to_scale() -> None:
    parts = parts_of((LogRegion.CLEAN, 10, GIB), (LogRegion.DIRTY, 50, 1000))
    (first,) = marks_of(parts, [("first dirty", 100)])
    assert WIDTH - WIDENED_MAX - ROUNDED <= first.x <= WIDTH
    shapes = by_segment(parts)
    assert len(parts) == len(shapes)
    assert all(each.width > 0 for each in shapes)


def test_a_few_small_parts_have_the_least_that_can_be_seen() -> None:
    shapes = by_segment(
        parts_of((LogRegion.CLEAN, 1, GIB), (LogRegion.DIRTY, 3, 1), (LogRegion.ACTIVE, 1, 0))
    )
    assert [PART_MIN] * 4 == [each.width for each in shapes[1:]]
    assert abs(WIDTH - sum(each.width for each in shapes)) <= ROUNDED
    assert () == by_region(parts_of((LogRegion.ACTIVE, 2, 0)))
    assert [500.0, 500.0] == [each.width for each in by_segment(parts_of((LogRegion.ACTIVE, 2, 0)))]


SIZES = st.lists(
    st.tuples(st.sampled_from([1, 7, 1000]), st.integers(0, 1 << 40)), min_size=1, max_size=60
)


@given(SIZES, st.integers(0, 1_000), st.integers(0, 1_000), st.data())
def test_marks_lie_where_the_strip_shows_them_and_near_their_place(
    sizes: list[tuple[int, int]], clean: int, dirty: int, data: st.DataObject
) -> None:
    repeats = data.draw(st.sampled_from([1, 1, 1, 8]))
    every = [size * scale for size, scale in sizes for _ in range(repeats)]
    bounds = sorted((clean % (len(every) + 1), dirty % (len(every) + 1)))
    zones = [
        LogRegion.CLEAN
        if at < bounds[0]
        else LogRegion.DIRTY
        if at < bounds[1]
        else LogRegion.ACTIVE
        for at in range(len(every))
    ]
    parts = tuple(
        SegmentPart(zone, at * 10, at * 10 + 10, size)
        for at, (zone, size) in enumerate(zip(zones, every, strict=True))
    )
    shapes = by_segment(parts)
    assert abs(WIDTH - sum(each.width for each in shapes)) <= 0.06 * len(shapes) + ROUNDED
    offsets = [("first", bounds[0] * 10), ("bound", bounds[1] * 10), ("end", len(every) * 10)]
    marks = marks_of(parts, [*offsets, ("inside", data.draw(st.integers(0, len(every) * 10)))])
    for mark in marks:
        if sum(every):
            assert abs(place(parts, mark.offset) - mark.x) <= WIDENED_MAX + ROUNDED
    assert sorted(each.x for each in marks[:3]) == [each.x for each in marks[:3]]
    for zone, mark in ((LogRegion.CLEAN, marks[0]), (LogRegion.DIRTY, marks[1])):
        if any(each.region is zone for each in parts):
            assert abs(end_of(shapes, zone) - mark.x) <= 2 * ROUNDED
    assert WIDTH == marks[2].x


@given(st.lists(st.tuples(st.sampled_from(Place), st.integers(0, GIB)), min_size=1, max_size=300))
def test_both_lines_of_a_tier_together_show_all_at_one_scale(
    found: list[tuple[Place, int]],
) -> None:
    parts = tuple(
        SegmentPart(LogRegion.CLEAN, at * 10, at * 10 + 10, size, place=where.value)
        for at, (where, size) in enumerate(found)
    )
    every = {(each.x, each.width) for each in by_segment(parts)}
    remote, local = in_tier(parts, is_local=False), in_tier(parts, is_local=True)
    assert every == {(each.x, each.width) for each in (*remote, *local)}
    is_both = any(where is Place.BOTH for where, _ in found)
    assert is_both is bool(set(remote) & set(local))
