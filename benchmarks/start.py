"""``python -m benchmarks.start``: the first command of a host, and commands over many partitions.

What a user waits for where logs are small: kernels that are compiled, and what each partition costs
however little lies in it. Each command is a process of its own, so its start is in every figure; of
several turns the best counts, by the clock and by processor time (user and system, of all processes
that it began). Logs are of three closed segments of 24 KiB at most, and an empty active one.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from benchmarks.machine import describe, machine
from benchmarks.options import positive
from benchmarks.workload import TOPIC, Workload, write_log
from keeplast.format.compression import Codec

LOG = Workload("start", 100, 14, Codec.NONE, 48 << 10, segment_bytes=24 << 10, records_per_key=3)
WRITTEN = 20
"""Logs that differ; the others are copies."""
PARTITIONS = 3000
TURNS = 5
SETTINGS = ("--topic", TOPIC, "--config", "cleanup.policy=compact")
COMMAND_SECONDS_MAX = 900


class Taken(Struct, frozen=True):
    """Seconds of one command."""

    clock: float
    work: float


def run(words: tuple[str, ...], cache: Path) -> Taken:
    """Run a command and return what it took; CalledProcessError when it fails."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "keeplast", *words, *SETTINGS],
        env={**os.environ, "KEEPLAST_CACHE_DIR": str(cache)},
        capture_output=True, check=True, timeout=COMMAND_SECONDS_MAX,
    )  # fmt: skip
    clock, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def write_partitions(place: Path, count: int, log: Workload = LOG) -> Path:
    """Write ``count`` logs below ``place``."""
    for number in range(min(count, WRITTEN)):
        write_log(log, place, number=number, seed=number)
    for number in range(WRITTEN, count):
        shutil.copytree(place / f"{TOPIC}-{number % WRITTEN}", place / f"{TOPIC}-{number}")
    return place


def first_commands(scratch: Path) -> Iterator[tuple[str, Taken]]:
    """Clean one log with an empty cache of kernels, on one core and on two, then with a full one.

    What Python compiles of the packages themselves is there already.
    """
    log = write_partitions(scratch / "one", 1)
    for cores in ("1", "2"):
        for what in ("first", "second"):
            copy = shutil.copytree(log, scratch / f"copy-{cores}-{what}")
            taken = run(("clean", str(copy), "--cores", cores), scratch / f"cache-{cores}")
            yield f"{what} clean of one log, --cores {cores}", taken
            shutil.rmtree(copy)
        shutil.rmtree(scratch / f"cache-{cores}")


def many_partitions(logs: Path, scratch: Path, cache: Path) -> Iterator[tuple[str, Taken]]:
    """Look at all ``logs``, plan and clean a copy of them."""
    count = sum(1 for _ in logs.iterdir())
    for command in ("status", "plan"):
        yield f"{command} of {count:,} partitions", run((command, str(logs)), cache)
    copy = shutil.copytree(logs, scratch / "copy")
    os.sync()
    yield f"clean of {count:,} partitions", run(("clean", str(copy)), cache)
    shutil.rmtree(copy)


def table(best: Mapping[str, Taken], partitions: int) -> str:
    """Return the figures as Markdown."""
    lines = ["| command | clock | processor time | a partition |", "|---|--:|--:|--:|"]
    for name, taken in best.items():
        each = f"{1000 * taken.work / partitions:.2f} ms" if "partitions" in name else ""
        lines.append(f"| {name} | {taken.clock:.1f} s | {taken.work:.1f} s | {each} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=positive, default=PARTITIONS)
    parser.add_argument("--turns", type=positive, default=TURNS, help="counts of each command")
    parser.add_argument("--scratch", type=Path, help="where logs are written; default: TMPDIR")
    arguments = parser.parse_args()
    best: dict[str, Taken] = {}
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="keeplast-start-") as name:
        scratch = Path(name)
        logs = write_partitions(scratch / "many", arguments.partitions)
        cache = scratch / "cache"
        run(("clean", str(write_partitions(scratch / "warm", 1))), cache)
        for _ in range(arguments.turns):
            for what, taken in (
                *first_commands(scratch),
                *many_partitions(logs, scratch, cache),
            ):
                known = best.get(what, taken)
                best[what] = Taken(min(known.clock, taken.clock), min(known.work, taken.work))
            shutil.rmtree(scratch / "one")
    print(describe(machine()))
    print()
    print(table(best, arguments.partitions))


if __name__ == "__main__":
    main()
