"""``python -m benchmarks.run``: the table of keeplast beside Kafka's own cleaner.

Every log is cleaned in turn by both, pair after pair, each time from a fresh copy; a row shows the
median of the pairs. MB/s is Kafka's: MiB read in the cleaning pass over the total time. The marks
are the rows with a goal; the matrix is for seeing where time goes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.contestants import (
    BYTES_PER_KEY,
    LOAD_FACTOR,
    MIB,
    Contestant,
    KafkaCleaner,
    Measure,
    OneCore,
    measure,
)
from benchmarks.workload import Workload, write_log
from keeplast.engine.request import MEMORY_BYTES_DEFAULT
from keeplast.format.compression import Codec
from tests.kafka.oracle.driver import KAFKA_VERSION, LIKE_A_BROKER, Oracle

RESULTS = Path(__file__).resolve().parent / "results"
LARGE_MEMORY_BYTES = 4 << 30
WARM_UP_BYTES = 32 * MIB
BYTES_PER_KEY_MAX = 40
"""What a distinct dirty key may cost us in memory."""
LARGEST_BATCHES_MAX = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One log to measure. ``goal`` is the ratio to reach; None where there is no mark."""

    workload: Workload
    goal: float | None = None
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    is_memory_row: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A row and what was measured, pair by pair; a list is empty when its side did not run."""

    row: Row
    kafka: list[Measure]
    keeplast: list[Measure]
    keys: int
    records: int
    largest_batch_bytes: int

    @property
    def ratios(self) -> list[float]:
        """How many times faster keeplast was, a pair each."""
        pairs = zip(self.kafka, self.keeplast, strict=False)
        return [ours.mib_per_second / theirs.mib_per_second for theirs, ours in pairs]

    @property
    def cpu_ratio(self) -> float | None:
        """How many times less processor time keeplast's thread took; None where unknown."""
        theirs = [m.cpu_seconds for m in self.kafka if m.cpu_seconds is not None]
        ours = [m.cpu_seconds for m in self.keeplast if m.cpu_seconds is not None]
        if not theirs or not ours:
            return None
        return statistics.median(theirs) / statistics.median(ours)

    @property
    def memory_limit_bytes(self) -> int:
        """What the peak above the loaded process may be."""
        return (
            BYTES_PER_KEY_MAX * self.keys
            + self.row.memory_bytes
            + LARGEST_BATCHES_MAX * self.largest_batch_bytes
        )


def marks(mark_bytes: int) -> Iterator[Row]:
    """Yield the rows that have a goal."""
    small = 100
    # Nine records a key: a gibibyte of the first row has some 9 million records and a million keys.
    for name, per_batch, goal in (("140 a batch", 140, 6.0), ("one a batch", 1, 9.0)):
        log = Workload(
            f"100 B, {name}", small, per_batch, Codec.NONE, mark_bytes, records_per_key=9
        )
        yield Row(log, goal=goal)
    yield Row(Workload("100 KB", 100_000, 1, Codec.NONE, mark_bytes), goal=2.5)
    zstd = Workload("1 KB zstd", 1000, 140, Codec.ZSTD, mark_bytes)
    yield Row(zstd, goal=1.3)
    roomy = Workload("1 KB zstd, memory 4g", 1000, 140, Codec.ZSTD, mark_bytes)
    yield Row(roomy, goal=1.9, memory_bytes=LARGE_MEMORY_BYTES)
    every_key_once = Workload(
        "memory: 100 B, all keys distinct", small, 140, Codec.NONE, mark_bytes, records_per_key=1
    )
    yield Row(every_key_once, is_memory_row=True)


def matrix(cell_bytes: int) -> Iterator[Row]:
    """Yield every cell of batch size x codec x value size, and the large values."""
    for value_bytes, text in ((100, "100 B"), (1000, "1 KB")):
        for per_batch in (1, 100, 1000):
            for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY, Codec.GZIP):
                name = f"{text}, {per_batch} a batch, {codec.name.lower()}"
                yield Row(Workload(name, value_bytes, per_batch, codec, cell_bytes))
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY, Codec.GZIP):
        name = f"100 KB, 1 a batch, {codec.name.lower()}"
        yield Row(Workload(name, 100_000, 1, codec, cell_bytes))


def run(rows: list[Row], *, pairs: int, sides: str, scratch: Path) -> Iterator[Result]:
    """Measure ``rows`` one after another; ``sides`` is ``both``, ``kafka`` or ``keeplast``."""
    with Oracle(LIKE_A_BROKER) as oracle:
        kafka = KafkaCleaner(oracle)
        for index, row in enumerate(rows):
            place = scratch / f"row{index}"
            workload = row.workload
            log = write_log(workload, place / "log")
            contestants: list[Contestant] = []
            if sides != "keeplast":
                contestants.append(kafka)
                _warm_up(kafka, workload, place)
            if sides != "kafka":
                contestants.append(OneCore("keeplast", row.memory_bytes))
            measured: dict[str, list[Measure]] = {"kafka": [], "keeplast": []}
            for _ in range(pairs):
                for contestant in contestants:
                    taken = measure(contestant, log, workload, place)
                    measured[contestant.name].append(taken)
            _check_agreement(row, measured["kafka"] + measured["keeplast"])
            yield Result(
                row,
                measured["kafka"],
                measured["keeplast"],
                log.keys,
                log.records,
                log.largest_batch_bytes,
            )
            for file in log.path.iterdir():
                file.unlink()


def _check_agreement(row: Row, measures: list[Measure]) -> None:
    """A cleaner that leaves something else has not done the same work."""
    outcomes = {(m.bytes_read, m.messages_read, m.messages_written) for m in measures}
    if len(outcomes) > 1:
        raise RuntimeError(f"the cleaners disagree on {row.workload.name}: {outcomes}")


def _warm_up(kafka: KafkaCleaner, workload: Workload, place: Path) -> None:
    """Let the JVM compile what this kind of log needs."""
    small = Workload(
        "warm-up",
        workload.value_bytes,
        workload.records_per_batch,
        workload.codec,
        WARM_UP_BYTES,
        segment_bytes=WARM_UP_BYTES // 2,
    )
    log = write_log(small, place / "warm")
    for _ in range(2):
        measure(kafka, log, small, place)


def _speed(measures: list[Measure]) -> str:
    if not measures:
        return "-"
    return f"{statistics.median(m.mib_per_second for m in measures):.0f}"


def table(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| log | records | Kafka MB/s | keeplast MB/s | ratio | of processor time | goal |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for result in results:
        ratios = result.ratios
        ratio = f"{statistics.median(ratios):.2f}x" if ratios else "-"
        goal = _verdict(result.row.goal, ratios, result.cpu_ratio)
        cpu = "-" if result.cpu_ratio is None else f"{result.cpu_ratio:.2f}x"
        lines.append(
            f"| {result.row.workload.name} | {result.records} | {_speed(result.kafka)} "
            f"| {_speed(result.keeplast)} | {ratio} | {cpu} | {goal} |"
        )
    for result in results:
        held = [m.held_bytes for m in result.keeplast if m.held_bytes is not None]
        if result.row.is_memory_row and held:
            lines.append(
                f"\nMemory, {result.row.workload.name}: {result.keys} keys, peak "
                f"{max(held) / MIB:.0f} MiB above the loaded process; "
                f"limit {result.memory_limit_bytes / MIB:.0f} MiB"
            )
    return "\n".join(lines)


def _verdict(goal: float | None, ratios: list[float], cpu_ratio: float | None) -> str:
    """Return the goal and whether it is reached by both clocks."""
    if goal is None:
        return ""
    if not ratios:
        return f"{goal:.1f}x"
    is_reached = min(statistics.median(ratios), cpu_ratio or goal) >= goal
    return f"{goal:.1f}x: {'reached' if is_reached else 'missed'}"


def document(results: list[Result]) -> dict[str, object]:
    """Return the results as the JSON document that is stored."""
    return {
        "version": 1,
        "machine": {
            "cpus": os.cpu_count(),
            "processor": processor(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "kafka": {
            "version": KAFKA_VERSION,
            "java_options": list(LIKE_A_BROKER),
            "load_factor": LOAD_FACTOR,
            "map_bytes_per_key": BYTES_PER_KEY,
        },
        "rows": [
            {
                "name": result.row.workload.name,
                "workload": asdict(result.row.workload),
                "memory_bytes": result.row.memory_bytes,
                "goal": result.row.goal,
                "keys": result.keys,
                "records": result.records,
                "largest_batch_bytes": result.largest_batch_bytes,
                "memory_limit_bytes": result.memory_limit_bytes,
                "kafka": [_measured(m) for m in result.kafka],
                "keeplast": [_measured(m) for m in result.keeplast],
                "ratios": result.ratios,
                "cpu_ratio": result.cpu_ratio,
            }
            for result in results
        ],
    }


def _measured(taken: Measure) -> dict[str, object]:
    return {**asdict(taken), "mib_per_second": taken.mib_per_second}


def processor() -> str:
    """Return the name of the processor."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("marks", "matrix", "all"), default="all")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--sides", choices=("both", "kafka", "keeplast"), default="both")
    parser.add_argument("--mark-mib", type=int, default=512, help="size of a log with a goal")
    parser.add_argument("--cell-mib", type=int, default=128, help="size of a log of the matrix")
    parser.add_argument("--pairs", type=int, default=3, help="measurements per row and side")
    parser.add_argument("--scratch", type=Path, help="where logs are written; default: TMPDIR")
    parser.add_argument("--out", type=Path, default=RESULTS / "latest.json")
    arguments = parser.parse_args()
    rows: list[Row] = []
    if arguments.set in ("marks", "all"):
        rows += marks(arguments.mark_mib * MIB)
    if arguments.set in ("matrix", "all"):
        rows += matrix(arguments.cell_mib * MIB)
    rows = [row for row in rows if arguments.only in row.workload.name]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="keeplast-bench-") as scratch:
        for result in run(
            rows, pairs=arguments.pairs, sides=arguments.sides, scratch=Path(scratch)
        ):
            results.append(result)
            print(table([result]).splitlines()[2], flush=True)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(document(results), indent=1) + "\n")
            arguments.out.with_suffix(".md").write_text(table(results) + "\n")
    print()
    print(table(results))


if __name__ == "__main__":
    main()
