"""``python -m benchmarks.growth``: how time and memory grow with the log, its keys and partitions.

One dimension is varied at a time and the others are held. What grows with the log must grow in
proportion to it, apart from a fixed part: the table says how far the series is from its straight
line at most, and whether that is within the goal. The slopes are what the cost model in
``docs/design/spark.md`` is fed with. Processor time is what is compared, so that a machine with
other work to do says nearly the same; only for the series over cores it is the clock.

Every point is stored as soon as it is measured; ``--resume`` goes on where a run was ended.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.contestants import MIB, Measure, OneCore, measure
from benchmarks.peers import Directory, measure_worker
from benchmarks.run import RESULTS
from benchmarks.workload import Workload, write_log
from keeplast.engine.request import MEMORY_BYTES_DEFAULT
from keeplast.format.compression import Codec

BASE = Workload("base", 100, 140, Codec.NONE, 256 * MIB, segment_bytes=64 * MIB, records_per_key=9)
RUNS = 3
VERSION = 2
LINEAR_WITHIN = 0.10
CORES_RATIO = 1.7
LOG_SIZE, PARTITIONS, CORES = "log size", "partitions", "cores"


@dataclass(frozen=True, slots=True)
class Point:
    """One log of a series; both times are the least of several runs.

    ``seconds`` are by the clock and without the removal of replaced files.
    """

    series: str
    label: str
    log_bytes: int
    records: int
    keys: int
    seconds: float
    cpu_seconds: float
    held_bytes: int | None
    bytes_written: int

    @property
    def milliseconds_per_mib(self) -> float:
        """Return processor time over size."""
        return 1000 * self.cpu_seconds * MIB / self.log_bytes


@dataclass(frozen=True, slots=True)
class Planned:
    """A point to measure: one log in a process of its own, or a directory of equal ones."""

    series: str
    label: str
    workload: Workload
    partitions: int | None = None
    cores: int = 1

    def take(self, place: Path) -> Point:
        """Measure in an empty folder; the same seed gives the same logs on every machine."""
        return self._take_log(place) if self.partitions is None else self._take_directory(place)

    def _take_log(self, place: Path) -> Point:
        log = write_log(self.workload, place / "log")
        contestant = OneCore("keeplast", MEMORY_BYTES_DEFAULT)
        taken = [measure(contestant, log, self.workload, place) for _ in range(RUNS)]
        return Point(
            self.series, self.label, log.log_bytes, log.records, log.keys,
            min(one.seconds for one in taken),
            min(one.cpu_seconds or one.seconds for one in taken),
            _held(taken), taken[0].bytes_written,
        )  # fmt: skip

    def _take_directory(self, place: Path) -> Point:
        directory = Directory(self.workload, self.partitions or 1)
        written = place / "written"
        written.mkdir()
        logs = [
            write_log(self.workload, written, number=number, seed=number)
            for number in range(directory.partitions)
        ]
        taken = []
        for _ in range(RUNS):
            copy = place / "copy"
            shutil.copytree(written, copy)
            os.sync()
            taken.append(measure_worker("local", self.cores, directory, copy))
            shutil.rmtree(copy)
        return Point(
            self.series, self.label, sum(log.log_bytes for log in logs),
            sum(log.records for log in logs), sum(log.keys for log in logs),
            min(one["seconds"] for one in taken), min(one["cpu_seconds"] for one in taken),
            None, taken[0]["bytes_written"],
        )  # fmt: skip


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


def _held(taken: list[Measure]) -> int:
    return max((one.held_bytes or 0) for one in taken)


def farthest_from_line(points: Sequence[Point]) -> float:
    """Return the greatest share by which a point misses the straight line through the series."""
    sizes = np.array([point.log_bytes for point in points], float)
    taken = np.array([point.cpu_seconds for point in points])
    # Relative misses are made small, not absolute ones, which only the largest log would decide.
    slope, fixed = np.polyfit(sizes, taken, 1, w=1 / taken)
    return float(np.abs((slope * sizes + fixed) / taken - 1).max())


def _memory(point: Point) -> str:
    return "-" if point.held_bytes is None else f"{point.held_bytes / MIB:.0f} MiB"


def _tell(point: Point) -> None:
    print(f"{point.series}, {point.label}: {point.cpu_seconds:.2f} s", file=sys.stderr)


def table(points: Sequence[Point]) -> str:
    """Return the points as Markdown, a table a series, and what was to be reached."""
    lines: list[str] = []
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
    if name == LOG_SIZE and len(points) > 2:
        miss = farthest_from_line(points)
        verdict = "reached" if miss <= LINEAR_WITHIN else "**missed**"
        return [
            f"Farthest from a straight line: {100 * miss:.0f} % "
            f"(goal: within {100 * LINEAR_WITHIN:.0f} %): {verdict}.",
            "",
        ]
    if name == CORES:
        of = {point.label: point.seconds for point in points}
        found = [
            f"two cores against one, {kind}: {of[f'1, {kind}'] / of[f'2, {kind}']:.2f}x"
            for kind in ("two partitions", "one partition")
            if f"1, {kind}" in of and f"2, {kind}" in of
        ]
        if found:
            return [f"By the clock (goal: {CORES_RATIO}x): {'; '.join(found)}.", ""]
    return []


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every size")
    parser.add_argument("--scratch", type=Path, help="where logs are written; default: TMPDIR")
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    parser.add_argument("--resume", action="store_true", help="keep what --out has already")
    arguments = parser.parse_args()
    points = _known(arguments.out, arguments.scale) if arguments.resume else []
    done = {(point.series, point.label) for point in points}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="keeplast-growth-") as scratch:
        for number, point in enumerate(planned(arguments.scale)):
            if (point.series, point.label) in done:
                continue
            place = Path(scratch) / f"point{number}"
            place.mkdir()
            points.append(point.take(place))
            shutil.rmtree(place)
            _tell(points[-1])
            document = {
                "version": VERSION,
                "scale": arguments.scale,
                "points": [asdict(p) for p in points],
            }
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")
            arguments.out.with_suffix(".md").write_text(table(points) + "\n")
    print(table(points))


def _known(out: Path, scale: float) -> list[Point]:
    if not out.exists():
        return []
    document = json.loads(out.read_text())
    if (document["version"], document["scale"]) != (VERSION, scale):
        return []
    return [Point(**point) for point in document["points"]]


if __name__ == "__main__":
    main()
