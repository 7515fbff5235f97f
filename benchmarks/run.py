"""``python -m benchmarks.run``: keeplast next to Kafka's own cleaner, on the same logs.

Every log is cleaned by all in turn (one core, Kafka, all cores, Spark, one core, ...), each time
from a fresh copy. MB/s is Kafka's: MiB read in the cleaning pass over the total time. The marks are
the rows with a goal; the matrix is for seeing where time goes. Results are stored after each row;
``--resume`` keeps the rows that may be published and measures the others again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants import (
    BYTES_PER_KEY,
    LOAD_FACTOR,
    MIB,
    Contestant,
    KafkaCleaner,
    Keeplast,
    Measure,
    measure,
)
from benchmarks.machine import is_same, machine
from benchmarks.options import positive
from benchmarks.pairs import PAIRS_MIN
from benchmarks.report import SIDES, VERSION, Result, Row, chart, plain, results_of, stored, table
from benchmarks.workload import Workload, WrittenLog, write_log
from keeplast.format.compression import Codec
from tests.kafka.oracle.driver import KAFKA_VERSION, LIKE_A_BROKER, Oracle

RESULTS = Path(__file__).resolve().parent / "results"
CHART = RESULTS.parent.parent / "docs" / "images" / "speed.svg"
"""README's chart; the table of the matrix has none."""
LARGE_MEMORY_BYTES = 4 << 30
WARM_UP_BYTES = 32 * MIB


def marks(mark_bytes: int) -> Iterator[Row]:
    """Yield the rows that have a goal."""
    small = 100
    # Nine records a key: a gibibyte of the first row has some 9 million records and a million keys.
    for name, per_batch, goal in (("140 a batch", 140, 8.0), ("one a batch", 1, 9.0)):
        log = Workload(
            f"100 B, {name}", small, per_batch, Codec.NONE, mark_bytes, records_per_key=9
        )
        yield Row(log, goal=goal)
    yield Row(Workload("100 KB", 100_000, 1, Codec.NONE, mark_bytes), goal=2.5)
    zstd = Workload("1 KB zstd", 1000, 140, Codec.ZSTD, mark_bytes)
    yield Row(zstd, goal=1.5, goal_of_all_cores=2.8)
    skewed = Workload("1 KB zstd, skewed", 1000, 16, Codec.ZSTD, mark_bytes, is_skewed=True)
    yield Row(skewed, goal=2.0)
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
    """Measure ``rows`` one after another; ``sides`` is ``all``, ``kafka`` or ``keeplast``."""
    if not rows:
        return
    with Oracle(LIKE_A_BROKER) as oracle:
        kafka = KafkaCleaner(oracle)
        for index, row in enumerate(rows):
            place = scratch / f"row{index}"
            log = write_log(row.workload, place / "log")
            contestants: list[Contestant] = []
            if sides != "kafka":
                contestants += keeplast(row.memory_bytes)
            if sides != "keeplast":
                # In the middle, so that each of ours is near in time.
                contestants.insert(1, kafka)
                _warm_up(kafka, row.workload, place)
            yield measure_row(row, log, contestants, pairs=pairs, place=place)
            for file in log.path.iterdir():
                file.unlink()


def keeplast(memory_bytes: int) -> list[Contestant]:
    """Return keeplast on one core, on all cores, and on Spark with all cores."""
    cores = os.cpu_count() or 1
    return [
        Keeplast("keeplast", memory_bytes, runner="local", cores=1),
        Keeplast("all_cores", memory_bytes, runner="local", cores=cores),
        Keeplast("spark", memory_bytes, runner="spark", cores=cores),
    ]


def measure_row(
    row: Row, log: WrittenLog, contestants: Sequence[Contestant], *, pairs: int, place: Path
) -> Result:
    """Let ``contestants`` clean fresh copies of ``log`` below ``place``, in turn, ``pairs`` times.

    Raises :class:`RuntimeError` when they do not leave the same.
    """
    measured: dict[str, list[Measure]] = {side: [] for side in SIDES}
    for _ in range(pairs):
        for contestant in contestants:
            measured[contestant.name].append(measure(contestant, log, row.workload, place))
    _check_agreement(row, [one for side in SIDES for one in measured[side]])
    return Result(
        row,
        kafka=tuple(measured["kafka"]),
        keeplast=tuple(measured["keeplast"]),
        all_cores=tuple(measured["all_cores"]),
        spark=tuple(measured["spark"]),
        keys=log.keys,
        records=log.records,
        largest_batch_bytes=log.largest_batch_bytes,
    )


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


def document(results: list[Result], conditions: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored; ``conditions`` are those of :func:`benchmarks.machine.machine`."""
    return {
        "version": VERSION,
        "machine": conditions,
        "kafka": {
            "version": KAFKA_VERSION,
            "java_options": list(LIKE_A_BROKER),
            "load_factor": LOAD_FACTOR,
            "map_bytes_per_key": BYTES_PER_KEY,
        },
        "results": stored(results),
    }


def known(out: Path, conditions: dict[str, Any]) -> dict[Row, Result]:
    """Return the results at ``out``; none when they are of another machine."""
    if not out.exists():
        return {}
    found = json.loads(out.read_text())
    if found["version"] != VERSION or not is_same(found["machine"], conditions):
        return {}
    return {result.row: result for result in results_of(found)}


def is_settled(result: Result) -> bool:
    """Whether a goal is reached or missed by these counts, so that they can stay."""
    found = (result.comparison, result.by_clock(result.all_cores), result.by_clock(result.spark))
    return all(one is not None and one.doubt() is None for one in found)


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("marks", "matrix"), default="marks")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--sides", choices=("all", "kafka", "keeplast"), default="all")
    parser.add_argument("--mark-mib", type=positive, default=512, help="size of a log with a goal")
    parser.add_argument("--cell-mib", type=positive, default=128, help="size of one of the matrix")
    parser.add_argument("--pairs", type=positive, default=PAIRS_MIN, help="counts of each side")
    parser.add_argument("--scratch", type=Path, help="where logs are written; default: TMPDIR")
    parser.add_argument("--out", type=Path, help="default: latest.json, for the matrix its own")
    parser.add_argument("--resume", action="store_true", help="keep the rows that may be published")
    arguments = parser.parse_args()
    if arguments.set == "marks":
        rows, out = list(marks(arguments.mark_mib * MIB)), arguments.out or RESULTS / "latest.json"
    else:
        rows, out = list(matrix(arguments.cell_mib * MIB)), arguments.out or RESULTS / "matrix.json"
    conditions = machine()
    found = known(out, conditions) if arguments.resume else {}
    results = {row: found[row] for row in rows if row in found}
    chosen = [row for row in rows if arguments.only in row.workload.name]
    if not chosen:
        raise SystemExit(f"no row has this in its name. only={arguments.only}")
    left = [row for row in chosen if not (row in results and is_settled(results[row]))]
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="keeplast-bench-") as scratch:
        for result in run(
            left, pairs=arguments.pairs, sides=arguments.sides, scratch=Path(scratch)
        ):
            results[result.row] = result
            print(plain(result), flush=True)
            in_order = [results[row] for row in rows if row in results]
            _store(document(in_order, conditions), out)
    print(f"the table: {out.with_suffix('.md')}")


def _store(found: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    out.with_suffix(".md").write_text(table(found) + "\n")
    if out == RESULTS / "latest.json":
        CHART.write_text(chart(found))


if __name__ == "__main__":
    main()
