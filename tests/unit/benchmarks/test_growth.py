"""Whether a series is a straight line is said by the table itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.growth import (
    BASE,
    CORES,
    LOG_SIZE,
    Count,
    Planned,
    Point,
    doubted,
    farthest_from_line,
    measure_series,
    planned,
    table,
)
from benchmarks.machine import machine
from benchmarks.workload import WrittenLog

MIB = 1 << 20
ONE = Point(LOG_SIZE, "1 MiB", MIB, 1000, 10, (1.0,) * 5, (1.0,) * 5, MIB, 100)
HERE = machine()


def series(*seconds: float) -> list[Point]:
    sizes = (1, 2, 4, 8)
    return [
        replace(ONE, label=f"{size} MiB", log_bytes=size * MIB, work=(taken,) * 5)
        for size, taken in zip(sizes, seconds, strict=True)
    ]


def test_a_fixed_part_is_no_bend() -> None:
    straight = series(1.1, 2.1, 4.1, 8.1)
    assert farthest_from_line(straight) == pytest.approx(0.0, abs=1e-9)
    assert "line: 0 % (goal: within 10 %): reached." in table(straight, HERE)


def test_a_bend_is_a_miss() -> None:
    bent = series(1.0, 4.0, 16.0, 64.0)
    assert farthest_from_line(bent) > 0.1
    assert "**missed**" in table(bent, HERE)


def test_cores_are_compared_by_the_clock() -> None:
    points = [
        replace(ONE, series=CORES, label=f"{cores}, {kind}", clock=(seconds,) * 5)
        for cores, kind, seconds in (
            (1, "two partitions", 9.0), (2, "two partitions", 5.0), (1, "one partition", 9.0),
        )
    ]  # fmt: skip
    assert "(goal: 1.7x): two cores against one, two partitions: 1.80x, reached." in table(
        points, HERE
    )


def test_no_point_is_planned_twice() -> None:
    points = list(planned(0.01))
    assert len(points) == len({(point.series, point.label) for point in points})


def test_turns_that_differ_say_nothing_of_a_line_or_of_cores() -> None:
    straight = series(1.1, 2.1, 4.1, 8.1)
    busy = [*straight[:3], replace(straight[3], work=(8.1, 8.1, 12.0, 8.1, 8.1))]
    assert "not judged: the pairs differ by more than a third" == doubted(busy)
    assert "10 %): not judged: the pairs differ by more than a third." in table(busy, HERE)
    assert "10 %): not judged: fewer than 5 pairs." in table(
        [replace(p, clock=p.clock[:3], work=p.work[:3]) for p in straight], HERE
    )
    held_up = replace(straight[0], clock=(1.0, 1.0, 1.4, 1.0, 1.0))
    assert "not judged: the pairs differ by more than a third" == doubted([held_up, *straight[1:]])
    assert doubted(straight) is None


def test_points_of_a_series_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [Planned(LOG_SIZE, str(kib), replace(BASE, log_bytes=kib << 10)) for kib in (64, 128)]
    asked: list[str] = []

    def count(planned: Planned, logs: list[WrittenLog], place: Path) -> Count:
        asked.append(planned.label)
        return Count(3.0 - len(asked) / 10, 2.0 - len(asked) / 10, len(asked), 7)

    monkeypatch.setattr(Planned, "count", count)
    points = measure_series(small, turns=3, scratch=tmp_path)
    assert ["64", "128"] * 3 == asked
    assert [(2.5, 1.5, 5), (2.4, 1.4, 6)] == [
        (point.seconds, point.cpu_seconds, point.held_bytes) for point in points
    ]
    assert [] == list(tmp_path.iterdir())
