"""``python -m benchmarks.growth``: how time and memory grow with the log, its keys and partitions.

One dimension is varied at a time and the others are held. What grows with the log must grow in
proportion to it, apart from a fixed part: the table says how far the series is from its straight
line at most, and whether that is within the goal. The slopes are what the cost model in
``docs/contributing/design/spark.md`` is fed with. Processor time is what is compared, so that a
machine with other work to do says nearly the same; only for the series over cores it is the clock.
The points of a series are measured in turn, five times over, and of each the best counts: where
turns differ by more than :mod:`benchmarks.pairs` allows, nothing is said of a goal.

Every series is stored as soon as it is measured; ``--resume`` keeps those that allow a
judgement.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from benchmarks.contestants import MIB, Keeplast, measure
from benchmarks.machine import describe, is_same, machine
from benchmarks.options import positive
from benchmarks.pairs import PAIRS_MIN, Comparison, Pairs
from benchmarks.peers import Directory, measure_worker
from benchmarks.run import RESULTS
from benchmarks.workload import Workload, WrittenLog, write_log
from keeplast.format.compression import Codec
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

BASE = Workload("base", 100, 140, Codec.NONE, 256 * MIB, segment_bytes=64 * MIB, records_per_key=9)
VERSION = 3
LINEAR_WITHIN = 0.10
CORES_RATIO = 1.7
LOG_SIZE, PARTITIONS, CORES = "log size", "partitions", "cores"


class Point(Struct, frozen=True):
    """One log of a series. ``clock`` and ``work`` are seconds, a count each turn, in order.

    Those by the clock are without the removal of replaced files; ``held_bytes`` is the most of all.
    """

    series: str
    label: str
    log_bytes: int
    records: int
    keys: int
    clock: tuple[float, ...]
    work: tuple[float, ...]
    held_bytes: int | None
    bytes_written: int

    @property
    def seconds(self) -> float:
        """Return the best count by the clock."""
        return min(self.clock)

    @property
    def cpu_seconds(self) -> float:
        """Return the best count of processor time."""
        return min(self.work)

    @property
    def milliseconds_per_mib(self) -> float:
        """Return processor time over size."""
        return 1000 * self.cpu_seconds * MIB / self.log_bytes


class Count(Struct, frozen=True):
    """What one cleaning took."""

    seconds: float
    cpu_seconds: float
    held_bytes: int | None
    bytes_written: int


class Planned(Struct, frozen=True):
    """A point to measure: one log in a process of its own, or a directory of equal ones."""

    series: str
    label: str
    workload: Workload
    partitions: int | None = None
    cores: int = 1

    def write(self, place: Path) -> list[WrittenLog]:
        """Write the logs below ``place``; the same seed gives the same ones on every machine."""
        if self.partitions is None:
            return [write_log(self.workload, place / "written")]
        return [
            write_log(self.workload, place / "written", number=number, seed=number)
            for number in range(self.partitions)
        ]

    def count(self, logs: list[WrittenLog], place: Path) -> Count:
        """Clean a copy of the logs once."""
        if self.partitions is None:
            contestant = Keeplast("keeplast", MEMORY_BYTES_DEFAULT, runner="local", cores=1)
            one = measure(contestant, logs[0], self.workload, place)
            worked = one.cpu_seconds or one.seconds
            return Count(one.seconds, worked, one.held_bytes, one.bytes_written)
        copy = place / "copy"
        shutil.copytree(place / "written", copy)
        os.sync()
        directory = Directory(self.workload, self.partitions)
        found = measure_worker("local", self.cores, directory, copy)
        shutil.rmtree(copy)
        return Count(found["seconds"], found["cpu_seconds"], None, found["bytes_written"])


def measure_series(series: Sequence[Planned], *, turns: int, scratch: Path) -> list[Point]:
    """Measure the points of a series in turn, ``turns`` times; all its logs lie there at once."""
    places = [scratch / f"point{number}" for number in range(len(series))]
    written = [one.write(place) for one, place in zip(series, places, strict=True)]
    counts: list[list[Count]] = [[] for _ in series]
    for _ in range(turns):
        for number, one in enumerate(series):
            counts[number].append(one.count(written[number], places[number]))
    for place in places:
        shutil.rmtree(place)
    return [
        Point(
            series=one.series,
            label=one.label,
            log_bytes=sum(log.log_bytes for log in logs),
            records=sum(log.records for log in logs),
            keys=sum(log.keys for log in logs),
            clock=tuple(count.seconds for count in taken),
            work=tuple(count.cpu_seconds for count in taken),
            held_bytes=max((c.held_bytes for c in taken if c.held_bytes is not None), default=None),
            bytes_written=taken[0].bytes_written,
        )
        for one, logs, taken in zip(series, written, counts, strict=True)
    ]


def planned(scale: float) -> Iterator[Planned]:
    """Yield every point; ``scale`` multiplies the sizes."""
    for quarter in (1, 2, 4, 8):
        size = int(256 * MIB * quarter * scale)
        yield Planned(LOG_SIZE, f"{size / MIB:.0f} MiB", replace(BASE, log_bytes=size))
    fixed = int(512 * MIB * scale)
    for per_key in (1, 3, 9, 81):
        log = replace(BASE, log_bytes=fixed, records_per_key=per_key)
        yield Planned("distinct keys", f"{per_key} records a key", log)
    for value in (100, 1000, 10_000):
        log = replace(BASE, log_bytes=fixed, value_bytes=value, records_per_batch=14)
        yield Planned("record size", f"{value} B", log)
    for count in (1, 16, 256):
        share = replace(BASE, log_bytes=int(256 * MIB * scale) // count)
        yield Planned(PARTITIONS, f"{count}", share, count)
    for count, kind in ((2, "two partitions"), (1, "one partition")):
        share = replace(BASE, log_bytes=int(1024 * MIB * scale) // count)
        for cores in (1, 2):
            yield Planned(CORES, f"{cores}, {kind}", share, count, cores)


def farthest_from_line(points: Sequence[Point]) -> float:
    """Return the greatest share by which a point misses the straight line through the series."""
    sizes = np.array([point.log_bytes for point in points], float)
    taken = np.array([point.cpu_seconds for point in points])
    # Relative misses are made small, not absolute ones, which only the largest log would decide.
    slope, fixed = np.polyfit(sizes, taken, 1, w=1 / taken)
    return float(np.abs((slope * sizes + fixed) / taken - 1).max())


def _memory(point: Point) -> str:
    return "-" if point.held_bytes is None else f"{point.held_bytes / MIB:.0f} MiB"


def table(points: Sequence[Point], conditions: Mapping[str, Any]) -> str:
    """Return the points as Markdown, a table a series, and what was to be reached."""
    lines = [describe(conditions), ""]
    for name in dict.fromkeys(point.series for point in points):
        some = [point for point in points if point.series == name]
        lines += [
            f"| {name} | records | keys | seconds | processor time | ms a MiB | ns a record "
            "| memory held |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {p.label} | {p.records} | {p.keys} | {p.seconds:.2f} | {p.cpu_seconds:.2f} s "
            f"| {p.milliseconds_per_mib:.2f} | {1e9 * p.cpu_seconds / p.records:.0f} "
            f"| {_memory(p)} |"
            for p in some
        ]
        lines += ["", *_verdicts(name, some)]
    return "\n".join(lines).rstrip()


def _verdicts(name: str, points: Sequence[Point]) -> list[str]:
    said = doubted(points)
    if name == LOG_SIZE and len(points) > 2:
        far = farthest_from_line(points)
        verdict = said or ("reached" if far <= LINEAR_WITHIN else "**missed**")
        goal = f"goal: within {100 * LINEAR_WITHIN:.0f} %"
        return [f"Farthest from a straight line: {100 * far:.0f} % ({goal}): {verdict}.", ""]
    if name == CORES:
        of = {point.label: point for point in points}
        found = [
            f"two cores against one, {kind}: {_of_cores(of[f'1, {kind}'], of[f'2, {kind}'])}"
            for kind in ("two partitions", "one partition")
            if f"1, {kind}" in of and f"2, {kind}" in of
        ]
        return [f"By the clock (goal: {CORES_RATIO}x): {'; '.join(found)}.", ""] if found else []
    return [] if said is None else [f"Slopes of this series: {said}.", ""]


def doubted(points: Sequence[Point]) -> str | None:
    """Return why nothing may be said of a series, None where something may.

    Its first point is next to each of the others.
    """
    for each in points:
        found = _compared(points[0], each).doubt()
        if found is not None:
            return found.value
    return None


def _of_cores(one: Point, two: Point) -> str:
    both = _compared(two, one)
    return f"{both.by_clock.ratio:.2f}x, {both.verdict(CORES_RATIO, both.by_clock).value}"


def _compared(ours: Point, theirs: Point) -> Comparison:
    return Comparison(Pairs(ours.clock, theirs.clock), Pairs(ours.work, theirs.work))


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every size")
    parser.add_argument("--turns", type=positive, default=PAIRS_MIN, help="counts of each point")
    parser.add_argument("--scratch", type=Path, help="where logs are written; default: TMPDIR")
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    parser.add_argument("--resume", action="store_true", help="keep what --out has already")
    arguments = parser.parse_args()
    conditions = machine()
    points = _known(arguments.out, arguments.scale, conditions) if arguments.resume else []
    done = {point.series for point in points}
    wanted = list(planned(arguments.scale))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="keeplast-growth-") as scratch:
        for name in dict.fromkeys(one.series for one in wanted):
            if name in done:
                continue
            series = [one for one in wanted if one.series == name]
            points += measure_series(series, turns=arguments.turns, scratch=Path(scratch))
            print(f"{name}: {len(series)} points", file=sys.stderr)
            document = {
                "version": VERSION,
                "scale": arguments.scale,
                "machine": conditions,
                "points": to_builtins(points),
            }
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")
            arguments.out.with_suffix(".md").write_text(table(points, conditions) + "\n")
    print(table(points, conditions))


def points_of(document: Mapping[str, Any]) -> list[Point]:
    """Return the points of a results file."""
    return [
        Point(**{**each, "clock": tuple(each["clock"]), "work": tuple(each["work"])})
        for each in document["points"]
    ]


def _known(out: Path, scale: float, conditions: Mapping[str, Any]) -> list[Point]:
    if not out.exists():
        return []
    document = json.loads(out.read_text())
    if (document["version"], document["scale"]) != (VERSION, scale):
        return []
    if not is_same(document["machine"], conditions):
        return []
    points = points_of(document)
    names = dict.fromkeys(point.series for point in points)
    series = [[point for point in points if point.series == name] for name in names]
    return [point for some in series if doubted(some) is None for point in some]


if __name__ == "__main__":
    main()
