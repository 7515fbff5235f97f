"""``python -m benchmarks.growth``: how time and memory grow with the log, its keys and partitions.

One dimension is varied at a time and the others are held. What grows with the log must grow in
proportion: the table says by how many per cent the dearest and the cheapest MiB differ. The slopes
that it prints are what the cost model in ``docs/design/spark.md`` is fed with. Processor time is
what is compared, so that a machine with other work to do says the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.contestants import MIB, Measure, OneCore, measure
from benchmarks.peers import Directory, measure_worker
from benchmarks.run import RESULTS
from benchmarks.workload import Workload, write_log
from keeplast.engine.request import MEMORY_BYTES_DEFAULT
from keeplast.format.compression import Codec

BASE = Workload("base", 100, 140, Codec.NONE, 256 * MIB, segment_bytes=64 * MIB, records_per_key=9)
RUNS = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One log of a series; ``cpu_seconds`` is the least of several runs."""

    series: str
    label: str
    log_bytes: int
    records: int
    keys: int
    cpu_seconds: float
    index_seconds: float
    held_bytes: int | None
    bytes_written: int

    @property
    def milliseconds_per_mib(self) -> float:
        """Return processor time over size."""
        return 1000 * self.cpu_seconds * MIB / self.log_bytes


def series(scale: float) -> Iterator[tuple[str, str, Workload]]:
    """Yield series, label and log; ``scale`` multiplies the sizes."""
    for quarter in (1, 2, 4, 8):
        size = int(256 * MIB * quarter * scale)
        yield "log size", f"{size / MIB:.0f} MiB", replace(BASE, log_bytes=size)
    fixed = int(512 * MIB * scale)
    for per_key in (1, 3, 9, 81):
        log = replace(BASE, log_bytes=fixed, records_per_key=per_key)
        yield "distinct keys", f"{per_key} records a key", log
    for value in (100, 1000, 10_000):
        log = replace(BASE, log_bytes=fixed, value_bytes=value, records_per_batch=14)
        yield "record size", f"{value} B", log


def run(scale: float, scratch: Path, tell: Callable[[Point], None]) -> list[Point]:
    """Measure every log; the same seed gives the same log on every machine."""
    points: list[Point] = []
    for number, (name, label, workload) in enumerate(series(scale)):
        place = scratch / f"log{number}"
        log = write_log(workload, place / "log")
        contestant = OneCore("keeplast", MEMORY_BYTES_DEFAULT)
        taken = [measure(contestant, log, workload, place) for _ in range(RUNS)]
        best = min(taken, key=lambda one: one.cpu_seconds or one.seconds)
        points.append(
            Point(
                name, label, log.log_bytes, log.records, log.keys,
                best.cpu_seconds or best.seconds, best.index_seconds, _held(taken),
                best.bytes_written,
            )
        )  # fmt: skip
        tell(points[-1])
        for file in log.path.iterdir():
            file.unlink()
    return points


def run_partitions(scale: float, scratch: Path, tell: Callable[[Point], None]) -> list[Point]:
    """Measure one size of logs cut into more and more partitions."""
    points: list[Point] = []
    for count in (1, 16, 256):
        share = replace(BASE, log_bytes=int(256 * MIB * scale) // count)
        place = scratch / f"partitions{count}"
        place.mkdir(parents=True)
        logs = [write_log(share, place, number=number, seed=number) for number in range(count)]
        taken = measure_worker("local", 1, Directory(share, count), place)
        points.append(
            Point(
                "partitions", f"{count}", sum(log.log_bytes for log in logs),
                sum(log.records for log in logs), sum(log.keys for log in logs),
                taken["cpu_seconds"], 0.0, None, taken["bytes_written"],
            )
        )  # fmt: skip
        tell(points[-1])
        shutil.rmtree(place)
    return points


def _held(taken: list[Measure]) -> int:
    return max((one.held_bytes or 0) for one in taken)


def _memory(point: Point) -> str:
    return "-" if point.held_bytes is None else f"{point.held_bytes / MIB:.0f} MiB"


def _tell(point: Point) -> None:
    print(f"{point.series}, {point.label}: {point.cpu_seconds:.2f} s", file=sys.stderr)


def table(points: list[Point]) -> str:
    """Return the points as Markdown, a table a series, and how far from linear each is."""
    lines: list[str] = []
    for name in dict.fromkeys(point.series for point in points):
        some = [point for point in points if point.series == name]
        lines += [
            f"| {name} | records | keys | processor time | ms a MiB | ns a record | memory held |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {p.label} | {p.records} | {p.keys} | {p.cpu_seconds:.2f} s "
            f"| {p.milliseconds_per_mib:.2f} | {1e9 * p.cpu_seconds / p.records:.0f} "
            f"| {_memory(p)} |"
            for p in some
        ]
        rates = [p.milliseconds_per_mib for p in some]
        if name == "log size":
            lines.append(f"\nFrom linear: {100 * (max(rates) / min(rates) - 1):.0f} %")
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every size")
    parser.add_argument("--scratch", type=Path, help="where logs are written; default: TMPDIR")
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="keeplast-growth-") as scratch:
        points = run(arguments.scale, Path(scratch), _tell)
        points += run_partitions(arguments.scale, Path(scratch), _tell)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"version": 1, "scale": arguments.scale, "points": [asdict(p) for p in points]}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(table(points) + "\n")
    print(table(points))


if __name__ == "__main__":
    main()
