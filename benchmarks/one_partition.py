"""``python -m benchmarks.one_partition``: one partition on Spark, by shape and as planned.

One log of eight segments, plain and of zstd, is cleaned on two cores: by one task, by each shape
that cuts a partition, and as the planner chooses. A **cold** count is the first job of a session
(the session's own start is apart), a **warm** one comes behind jobs of its kind. The sides take
turns. ``local[2]`` has two threads of one executor, ``local-cluster[2,1,...]`` two executors of one
core. Results: ``results/one_partition.json``, and the table next to it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from benchmarks.later_removals import LaterRemovals
from benchmarks.machine import describe, machine
from benchmarks.options import positive
from benchmarks.pairs import PAIRS_MIN, Verdict, compare, least
from benchmarks.process_figures import family_seconds
from benchmarks.run import RESULTS
from benchmarks.worker import clean_once
from benchmarks.workload import TOPIC, Workload, write_log
from keeplast.clock import SystemClock
from keeplast.columns import kernel
from keeplast.format.compression import Codec
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

MIB = 1 << 20
GROUPS = 8
CHOICE = "choice"
SIDES = (*(str(each) for each in Shape), CHOICE)
"""Each shape, and what the planner takes without an order."""
MASTERS = ("local[2]", "local-cluster[2,1,4096]")
WARM_UP_BYTES = 32 * MIB
CHOICE_OF_BEST, OF_ONE_TASK = 1.05, 0.75
"""The planner's choice takes so much of the best shape's time at most, and of one task's."""
GOALS = {str(Shape.BROADCAST): (0.75, 1.3), str(Shape.BUCKET): (1.0, 1.8)}
"""So much of one task's time at most, by the clock and of processors."""
SECONDS_MAX = 900

Counts = list[tuple[float, float]]


class Series(Struct, frozen=True):
    """The counts of one log on one master, of cold sessions or warm ones, by side."""

    log: str
    master: str
    is_cold: bool
    taken: Mapping[str, Counts]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table."""
        one_task = self.taken[Shape.PARTITION]
        best = min((each for each in Shape), key=lambda each: min(self.taken[each])[0])
        for side in SIDES:
            counts = self.taken[side]
            ours = compare(ours=one_task, theirs=counts)
            work = ours.by_work.ratio if ours.by_work else 0.0
            goal = ""
            if side == CHOICE:
                of_best = compare(ours=self.taken[best], theirs=counts).by_clock.ratio
                is_reached = of_best <= CHOICE_OF_BEST and ours.by_clock.ratio <= OF_ONE_TASK
                goal = (
                    f"{OF_ONE_TASK}, {CHOICE_OF_BEST} of the best shape's ({of_best:.2f}): "
                    f"{_verdict(ours.doubt(), is_reached)}"
                )
            elif side in GOALS:
                clock, most = GOALS[side]
                is_reached = ours.by_clock.ratio <= clock and work <= most
                goal = f"{clock} ({most}): {_verdict(ours.doubt(), is_reached)}"
            spreads = "" if side == Shape.PARTITION else ours.spreads
            yield (
                f"| {self.log} | {self.master} | {'cold' if self.is_cold else 'warm'} | {side} "
                f"| {least(counts)} s | {ours.by_clock.ratio:.2f} ({work:.2f}) | {spreads} "
                f"| {goal} |"
            )


def _verdict(doubt: Verdict | None, is_reached: bool) -> str:
    if doubt is not None:
        return str(doubt.value)
    return str((Verdict.REACHED if is_reached else Verdict.MISSED).value)


def logs(mib: int) -> Iterator[Workload]:
    """Yield the logs: ``mib`` of plain records, a quarter of that as it is stored of zstd."""
    plain = Workload("100 B, 140 a batch", 100, 140, Codec.NONE, mib * MIB, records_per_key=9)
    zstd = Workload("1 KB zstd", 1000, 140, Codec.ZSTD, mib * MIB // 4)
    for each in (plain, zstd):
        yield replace(each, segment_bytes=each.log_bytes // GROUPS)


def work(place: Path, workload: Workload, master: str, first: str, warm: int) -> dict[str, Any]:
    """Start a session, clean by ``first``, then by every side ``warm`` times; return the counts."""
    from keeplast.pipeline.runner import SparkRunner

    kernel.load()
    files = LaterRemovals()
    with SparkRunner(master) as runner:
        coordinator = Coordinator(runner, SystemClock(), files, NoEvents())
        assert runner.slots > 0  # the session has started when it is asked for
        cold = _count(coordinator, files, place, workload, first)
        taken: dict[str, Counts] = {side: [] for side in SIDES}
        if warm:
            with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
                small = replace(
                    workload, log_bytes=WARM_UP_BYTES, segment_bytes=WARM_UP_BYTES // GROUPS
                )
                write_log(small, Path(scratch))
                for side in SIDES:
                    _count(coordinator, files, Path(scratch), small, side)
        for _ in range(warm):
            for side in SIDES:
                taken[side].append(_count(coordinator, files, place, workload, side))
    return {"cold": cold, "warm": taken}


def _count(
    coordinator: Coordinator, files: LaterRemovals, place: Path, workload: Workload, side: str
) -> tuple[float, float]:
    """Clean a fresh copy; return the seconds by the clock and of all processes."""
    name = str(TopicPartition(TOPIC, 0))
    shape = None if side == CHOICE else Shape(side)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        copied = Path(scratch)
        shutil.copytree(place / name, copied / name)
        os.sync()
        worked, started = family_seconds(os.getpid()), time.perf_counter()
        report = clean_once(
            coordinator, copied, workload.segment_bytes, MEMORY_BYTES_DEFAULT, shape
        )
        found = time.perf_counter() - started, family_seconds(os.getpid()) - worked
        files.remove()
    if report.failure is not None:
        raise report.failure
    return found


def measure(
    workload: Workload, master: str, turns: int, scratch: Path, *, is_cold: bool
) -> Iterator[Series]:
    """Yield what one log takes on one master: warm, and cold where that is asked for."""
    place = scratch / "written"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    write_log(workload, place)
    if is_cold:
        cold: dict[str, Counts] = {side: [] for side in SIDES}
        for _ in range(turns):
            for side in SIDES:
                found = _session(place, workload, master, side, 0)
                cold[side].append(found["cold"])
        yield Series(workload.name, master, True, cold)
    warm = _session(place, workload, master, CHOICE, turns)["warm"]
    yield Series(workload.name, master, False, warm)


def _session(place: Path, workload: Workload, master: str, first: str, warm: int) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.one_partition", "--work", str(place)),
            *("--workload", json.dumps(_fields(workload)), "--master", master),
            *("--first", first, "--turns", str(warm)),
        ],
        check=True, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def _fields(workload: Workload) -> dict[str, Any]:
    found: dict[str, Any] = to_builtins(workload)
    return found


def _workload(text: str) -> Workload:
    fields = json.loads(text)
    return Workload(**{**fields, "codec": Codec(fields["codec"])})


def page(document: Mapping[str, Any]) -> str:
    """Return the table of stored results."""
    lines = [
        describe(document["machine"]),
        f"One partition, {document['mib']} MiB of plain records or a quarter of that of zstd, "
        f"{GROUPS} segments. In brackets: processor time of all processes.",
        "",
        "| log | master | session | shape | best | of one task's | pairs differ by | at most |",
        "|---|---|---|---|--:|--:|--:|---|",
    ]
    for each in document["series"]:
        taken = {side: [tuple(count) for count in counts] for side, counts in each["taken"].items()}
        lines += Series(each["log"], each["master"], each["is_cold"], taken).lines()
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=positive, default=1024, help="size of the plain log")
    parser.add_argument("--turns", type=int, default=PAIRS_MIN)
    parser.add_argument("--only", default="", help="logs whose name contains this")
    parser.add_argument("--master", help="one of these alone, or another one")
    parser.add_argument("--no-cold", action="store_true", help="leave cold sessions out")
    parser.add_argument("--out", type=Path, default=RESULTS / "one_partition.json")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workload", type=_workload, help=argparse.SUPPRESS)
    parser.add_argument("--first", choices=SIDES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work is not None:
        found = work(chosen.work, chosen.workload, chosen.master, chosen.first, chosen.turns)
        print(json.dumps(found))
        return
    document: dict[str, Any] = {"machine": machine(), "mib": chosen.mib, "series": []}
    with tempfile.TemporaryDirectory() as scratch:
        for workload in logs(chosen.mib):
            if chosen.only not in workload.name:
                continue
            for master in MASTERS if chosen.master is None else (chosen.master,):
                is_cold = not chosen.no_cold and master == MASTERS[0]
                for series in measure(
                    workload, master, chosen.turns, Path(scratch), is_cold=is_cold
                ):
                    document["series"].append(
                        {"log": series.log, "master": series.master, "is_cold": series.is_cold,
                         "taken": series.taken}
                    )  # fmt: skip
                    print("\n".join(series.lines()), flush=True)
                    chosen.out.write_text(json.dumps(document, indent=1) + "\n")
    chosen.out.with_suffix(".md").write_text(page(document))


if __name__ == "__main__":
    main()
