"""``python -m benchmarks.stages``: where the time of one core goes, stage by stage, and the limit.

Each of the benchmark's logs is cleaned by one thread, several times over from a fresh copy; a row
has the best count of each stage, in nanoseconds a record that was read. Next to them stands what
each reader of a log with a key map needs: **one read** of its bytes from the page cache,
**one CRC** over them and **one access** of a map of that size a record, each measured by itself in
the same run. What the stages take above that is work that is ours to explain.

With ``--small`` it is what a round costs before and after its bytes: logs of 1, 6 and 64 segments
and directories of 1, 250 and 3,000 partitions, in milliseconds a partition, by what the place of
the rounds was asked and by what the file system was. Each row is a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.options import positive
from benchmarks.run import marks
from benchmarks.start import LOG, write_partitions
from benchmarks.workload import TOPIC, Workload, WrittenLog, write_log
from keeplast.cli.frame.ahead import ROUND
from keeplast.clock import SystemClock
from keeplast.columns import kernel
from keeplast.format.checksum import crc32c
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest

MIB = 1 << 20
REPETITIONS = 5
SLOT_BYTES = 24
PARTITION = TopicPartition(TOPIC, 0)


class Stages(Struct, frozen=True):
    """The seconds of one round, by the clock: both passes, and the rest of the call."""

    index: float
    rewrite: float
    rest: float


class Limit(Struct, frozen=True):
    """The least seconds of one read, one CRC and one map access a record, each by itself."""

    read: float
    crc: float
    access: float

    @property
    def seconds(self) -> float:
        """Return all three, one after the other."""
        return self.read + self.crc + self.access


def best(repetitions: int, work: Callable[[], float]) -> float:
    """Return the least of what ``work`` returns, once to warm up and then ``repetitions`` times."""
    work()
    return min(work() for _ in range(repetitions))


def timed(work: Callable[[], object]) -> float:
    """Return how long ``work`` takes, in seconds by the clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def limit_of(log: WrittenLog, repetitions: int) -> Limit:
    """Measure what a log's bytes and its map cost at the least."""
    window = bytearray(MIB)
    paths = sorted(log.path.glob("*.log"))

    def read() -> None:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while file.readinto(window):
                    pass

    def check() -> None:
        for _ in range(-(-log.log_bytes // MIB)):
            crc32c(window)

    slots = np.zeros(log.keys * SLOT_BYTES // 8, np.int64)
    rows = np.random.default_rng(1).integers(0, len(slots), min(log.records, 4_000_000))
    share = log.records / len(rows)
    return Limit(
        best(repetitions, lambda: timed(read)),
        best(repetitions, lambda: timed(check)),
        share * best(repetitions, lambda: timed(lambda: slots[rows].sum())),
    )


def clean_once(coordinator: Coordinator, log: WrittenLog) -> Stages:
    """Clean a copy of a log; the copy is written back before the clock starts."""
    with tempfile.TemporaryDirectory(dir=log.path.parent.parent) as scratch:
        copy = Path(scratch) / str(PARTITION)
        shutil.copytree(log.path, copy)
        os.sync()
        topic = TopicConfig(cleanup_policy=frozenset({"compact"}))
        request = CleanRequest(
            (PartitionRequest(PARTITION, copy, topic),), now_ms=SystemClock().now_ms(),
            is_unsafe=True, force=True,
        )  # fmt: skip
        started = time.perf_counter()
        report = coordinator.clean(request).partitions[0].rounds[-1]
        seconds = time.perf_counter() - started
    if report.failure is not None:
        raise report.failure
    assert report.stats is not None
    index, rewrite = report.stats.index_seconds, report.stats.clean_seconds
    return Stages(index, rewrite, seconds - index - rewrite)


def measure(
    log_bytes: int, repetitions: int, scratch: Path
) -> Iterator[tuple[Workload, WrittenLog, Stages, Limit]]:
    """Yield each log with the best counts of its stages, and the limit."""
    with LocalRunner(cores=1) as runner:
        coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
        for number, row in enumerate(marks(log_bytes)):
            if row.memory_bytes != MEMORY_BYTES_DEFAULT:
                continue
            workload = replace(row.workload, log_bytes=log_bytes)
            log = write_log(workload, scratch / str(number))
            clean_once(coordinator, log)
            taken = [clean_once(coordinator, log) for _ in range(repetitions)]
            stages = Stages(
                min(each.index for each in taken), min(each.rewrite for each in taken),
                min(each.rest for each in taken),
            )  # fmt: skip
            yield workload, log, stages, limit_of(log, repetitions)
            shutil.rmtree(log.path.parent)


def line(workload: Workload, log: WrittenLog, stages: Stages, limit: Limit) -> str:
    """Return the line of one log, in nanoseconds a record."""

    def each(seconds: float) -> str:
        return f"{seconds / log.records * 1e9:,.0f}"

    total = stages.index + stages.rewrite + stages.rest
    return (
        f"| {workload.name} | {each(stages.index)} | {each(stages.rewrite)} | {each(stages.rest)} "
        f"| {each(total)} | {each(limit.read)} | {each(limit.crc)} | {each(limit.access)} "
        f"| {limit.seconds / total:.0%} |"
    )


SMALL = tuple(
    (f"{segments} segments of 256 KiB", 1, segments * (256 << 10), 256 << 10)
    for segments in (1, 6, 64)
) + tuple(
    (f"{partitions:,} partitions", partitions, LOG.log_bytes, LOG.segment_bytes)
    for partitions in (1, 250, 3000)
)
"""Rows of small rounds: a name, partitions, and the bytes of a log and of a segment."""
ASKED = ("survey", "announce", "publish", "checkpoint", "abandon")
CALLED = ("fsync_directory", "rename", "unlink", "listdir", "open_read", "stat")


class Timed:
    """Adds up how long each of some methods takes in all, and how often it is called."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time the block for ``name``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started
            self.calls[name] += 1

    def watch(self, subject: Any, names: tuple[str, ...]) -> None:
        """Time these methods of ``subject`` from now on."""
        for name in names:
            setattr(subject, name, self._timed(name, getattr(subject, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with self.of(name):
                return method(*given, **named)

        return call


def small_rounds(logs: Path, segment_bytes: int) -> str:
    """Clean all logs below ``logs`` by one thread; return the cells of their line."""
    timed, files = Timed(), LocalFiles()
    topic = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=segment_bytes)
    partitions = tuple(
        PartitionRequest(TopicPartition(TOPIC, int(path.name.rpartition("-")[2])), path, topic)
        for path in sorted(logs.iterdir())
    )
    request = CleanRequest(
        partitions, now_ms=SystemClock().now_ms(), is_unsafe=True, force=True,
        receipt=logs.with_suffix(".receipt"),
    )  # fmt: skip
    with timed.of("kernels"):
        for name in ROUND:
            kernel.make_ready(name)
    timed.watch(files, CALLED)
    timed.watch(os, ("fsync",))
    with LocalRunner(cores=1) as runner:
        coordinator = Coordinator(runner, SystemClock(), files, NoEvents())
        place_of = coordinator._place

        def place(*given: Any, **named: Any) -> Any:
            found = place_of(*given, **named)
            timed.watch(found, ASKED)
            return found

        coordinator._place = place  # type: ignore[method-assign]
        with timed.of("all"):
            report = coordinator.clean(request)
    stats = [each.rounds[-1].stats for each in report.partitions]
    timed.seconds["first pass"] = sum(each.index_seconds for each in stats if each is not None)
    timed.seconds["second pass"] = sum(each.clean_seconds for each in stats if each is not None)
    assert None not in stats, [each.rounds[-1].error for each in report.partitions]
    cells = [
        f"{1000 * timed.seconds[name] / len(partitions):.2f}"
        + (f" ({timed.calls[name] / len(partitions):.1f})" if name in (*CALLED, "fsync") else "")
        for name in SMALL_COLUMNS
    ]
    return " | ".join(cells)


SMALL_COLUMNS = (
    "all", *ASKED, "first pass", "second pass", "fsync", *CALLED, "kernels",
)  # fmt: skip


def print_small(only: str) -> None:
    """Print the table of small rounds; a row is measured where ``only`` is in its name."""
    print(
        f"| ms a partition (calls) | {' | '.join(SMALL_COLUMNS)} |\n"
        f"|---|{'--:|' * len(SMALL_COLUMNS)}"
    )
    for name, count, log_bytes, segment_bytes in SMALL:
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            log = replace(LOG, log_bytes=log_bytes, segment_bytes=segment_bytes)
            logs = write_partitions(Path(scratch) / "logs", count, log)
            os.sync()
            words = ("--cleaned", str(logs), "--segment-bytes", str(segment_bytes))
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.stages", *words],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
        print(f"| {name} | {done.stdout.strip()} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=positive, default=256, help="size of each log")
    parser.add_argument("--repetitions", type=positive, default=REPETITIONS)
    parser.add_argument("--small", action="store_true", help="what small rounds cost, by stage")
    parser.add_argument("--only", default="", help="rows of small rounds with this in their names")
    parser.add_argument("--cleaned", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--segment-bytes", type=positive, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cleaned is not None:
        print(small_rounds(arguments.cleaned, arguments.segment_bytes))
        return
    if arguments.small:
        print_small(arguments.only)
        return
    print(
        "| ns a record | first pass | second pass | rest of the call | all | one read | one CRC "
        "| one map access | limit / all |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for found in measure(arguments.mib * MIB, arguments.repetitions, Path(scratch)):
            print(line(*found), flush=True)


if __name__ == "__main__":
    main()
