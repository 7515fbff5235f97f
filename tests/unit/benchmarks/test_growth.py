"""Whether a series is a straight line is said by the table itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.growth import CORES, LOG_SIZE, Point, farthest_from_line, planned, table

MIB = 1 << 20
ONE = Point(LOG_SIZE, "1 MiB", MIB, 1000, 10, 1.0, 1.0, MIB, 100)


def series(*seconds: float) -> list[Point]:
    sizes = (1, 2, 4, 8)
    return [
        replace(ONE, label=f"{size} MiB", log_bytes=size * MIB, cpu_seconds=taken)
        for size, taken in zip(sizes, seconds, strict=True)
    ]


def test_a_fixed_part_is_no_bend() -> None:
    straight = series(1.1, 2.1, 4.1, 8.1)
    assert farthest_from_line(straight) == pytest.approx(0.0, abs=1e-9)
    assert "line: 0 % (goal: within 10 %): reached." in table(straight)


def test_a_bend_is_a_miss() -> None:
    bent = series(1.0, 4.0, 16.0, 64.0)
    assert farthest_from_line(bent) > 0.1
    assert "**missed**" in table(bent)


def test_cores_are_compared_by_the_clock() -> None:
    points = [
        replace(ONE, series=CORES, label=f"{cores}, {kind}", seconds=seconds)
        for cores, kind, seconds in (
            (1, "two partitions", 9.0), (2, "two partitions", 5.0), (1, "one partition", 9.0),
        )
    ]  # fmt: skip
    assert "(goal: 1.7x): two cores against one, two partitions: 1.80x." in table(points)


def test_no_point_is_planned_twice() -> None:
    points = list(planned(0.01))
    assert len(points) == len({(point.series, point.label) for point in points})
