"""``python -m benchmarks.threads``: what two threads gain over one, and what several hold.

One partition whose records carry a version is cleaned by one thread and by two in turn, each time
from a fresh copy, and that several times over: by each strategy, as one group and as many as it has
segments. In every turn two processes clean a copy each side by side: what two cores that share
nothing reach here, and so the most that two threads can. A row shows the best counts by the clock
and, in brackets, of processor time. Then one,
two and eight threads clean it once more, each number in a process of its own that says its peak of
memory above what it held with all kernels loaded, next to the formula of
docs/contributing/architecture.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.machine import describe, machine
from benchmarks.options import positive
from benchmarks.pairs import PAIRS_MIN, compare, least
from benchmarks.strategies import MIB, RECORDS_PER_KEY, TOPICS, Row, count, write_log
from benchmarks.worker import read_peak, start_peak
from keeplast.clock import SystemClock
from keeplast.columns import kernel
from keeplast.format.compression import Codec
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

LOGS = (Row(100, Codec.NONE, 0.0), Row(1000, Codec.ZSTD, 0.0))
GROUPS = {"one": 1 << 30, "many": TOPICS[Strategy.OFFSET].segment_bytes}
"""The most that a cleaned segment may have, by how many groups that makes of a log."""
CORES = (1, 2)
HOLDERS = (1, 2, 8)
BYTES_A_KEY = 40
"""What the key map takes of memory at most, by offset."""

Counts = list[tuple[float, float]]
APART_SECONDS_MAX = 600


class Gain(Struct, frozen=True):
    """One log by one strategy, in one group or many: the counts by each number of threads.

    ``apart`` is what two processes took together for two logs.
    """

    row: Row
    strategy: Strategy
    groups: str
    taken: dict[int, Counts]
    apart: Counts

    def line(self) -> str:
        """Return its line of the table."""
        both = compare(ours=self.taken[2], theirs=self.taken[1])
        times = " | ".join(least(self.taken[cores]) for cores in CORES)
        reached = min(clock for clock, _ in self.apart) / 2 / min(both.by_clock.ours)
        return (
            f"| {self.row.value_bytes} B | {self.row.codec.name.lower()} | {self.strategy} "
            f"| {self.groups} | {times} | {least(self.apart)} | {both.by_clock.ratio:.2f} "
            f"| {reached:.2f} | {both.spreads} |"
        )


class Apart:
    """Two processes of one thread each, which begin at the same moment."""

    def __init__(self, log: Path) -> None:
        """Start both; each has its kernels loaded before :meth:`count` returns first."""
        self._log = log
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(2)
        self._pools = [
            ProcessPoolExecutor(1, context, _start_apart, (barrier,)) for _ in range(2)
        ]  # fmt: skip

    def count(self, topic: TopicConfig) -> tuple[float, float]:
        """Let each clean a copy of the log; return the seconds until both are done, and worked."""
        waits = [pool.submit(_count_apart, self._log, topic) for pool in self._pools]
        found = [each.result(APART_SECONDS_MAX) for each in waits]
        return max(seconds for seconds, _ in found), sum(worked for _, worked in found)

    def close(self) -> None:
        """End both."""
        for pool in self._pools:
            pool.shutdown()


def _start_apart(barrier: Barrier) -> None:
    kernel.load()
    _Together.barrier = barrier


class _Together:
    """What a process of :class:`Apart` waits at, so that both begin at once."""

    barrier: Barrier


def _count_apart(log: Path, topic: TopicConfig) -> tuple[float, float]:
    with LocalRunner(cores=1) as runner:
        coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
        ready = _Together.barrier
        return count(coordinator, log, topic, 0, before=lambda: ready.wait(APART_SECONDS_MAX))


def gains(row: Row, log: Path, repetitions: int) -> Iterator[Gain]:
    """Yield what two threads gain on one log, by each strategy and in one group or many."""
    with ExitStack() as stack:
        apart = stack.enter_context(closing(Apart(log)))
        runners = {cores: stack.enter_context(LocalRunner(cores=cores)) for cores in CORES}
        coordinators = {
            cores: Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
            for cores, runner in runners.items()
        }
        for strategy in Strategy:
            for groups, segment_bytes in GROUPS.items():
                topic = replace(TOPICS[strategy], segment_bytes=segment_bytes)
                taken: dict[int, Counts] = {cores: [] for cores in CORES}
                of_processes: Counts = []
                for repetition in range(repetitions + 1):
                    for cores, coordinator in coordinators.items():
                        found = count(coordinator, log, topic, 0)
                        if repetition:  # the first one warms up
                            taken[cores].append(found)
                    together = apart.count(topic)
                    if repetition:
                        of_processes.append(together)
                yield Gain(row, strategy, groups, taken, of_processes)


def hold(log: Path, cores: int) -> int:
    """Clean a copy of a log by so many threads; return the bytes held above the loaded process."""
    kernel.load()
    with LocalRunner(cores=cores) as runner:
        coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
        before = start_peak()
        count(coordinator, log, TOPICS[Strategy.OFFSET], 0)
        return read_peak() - before


def held(row: Row, log: Path, log_bytes: int) -> Iterator[str]:
    """Yield the line of each number of threads: what they held and what they may."""
    keys = log_bytes // (row.value_bytes + 40) // RECORDS_PER_KEY
    for cores in HOLDERS:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.threads", "--hold", str(log), "--cores", str(cores)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        limit = max(MEMORY_BYTES_DEFAULT, cores * MEMORY_BYTES_MIN) + BYTES_A_KEY * keys
        yield (
            f"| {row.value_bytes} B | {row.codec.name.lower()} | {cores} "
            f"| {int(done.stdout) / MIB:.0f} MiB | {limit / MIB:.0f} MiB |"
        )


def main() -> None:
    """Measure and print both tables; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=positive, default=128, help="size of each log")
    parser.add_argument("--repetitions", type=positive, default=PAIRS_MIN)
    parser.add_argument("--hold", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=positive, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold is not None:
        print(hold(arguments.hold, arguments.cores))
        return
    lines: list[str] = []
    print(describe(machine()))
    print(
        "\n| value | codec | strategy | groups | one | two | two processes, two logs | times "
        "| of two processes' | pairs differ by |"
    )
    print("|---|---|---|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as scratch:
        for number, row in enumerate(LOGS):
            log = Path(scratch) / str(number)
            write_log(row, arguments.mib * MIB, log)
            os.sync()
            for gain in gains(row, log, arguments.repetitions):
                print(gain.line(), flush=True)
            lines += held(row, log, arguments.mib * MIB)
    print("\n| value | codec | threads | held | may be |\n|---|---|--:|--:|--:|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
