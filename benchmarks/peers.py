"""``python -m benchmarks.peers``: the same directories cleaned by everything that can do it.

Kafka's own cleaner with one thread and with two, keeplast in one process on one core and on two,
keeplast on Spark, and Spark SQL as its users write it. Every contestant gets a fresh copy of each
directory, in turn, and so five times over. Results go to ``results/peers.json`` after each count,
the tables next to it, and bars to ``docs/images/peers.svg``. Start-up (Spark's session, kernels, a
warm-up) and the removal of replaced files are apart. ``--resume`` goes on where a run was ended,
and measures again where pairs differ by too much.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from benchmarks.contestants import LOAD_FACTOR, MIB, NOW_MS
from benchmarks.machine import is_same, machine
from benchmarks.options import positive
from benchmarks.pairs import PAIRS_MIN
from benchmarks.peer_report import Taken, bars, goal_table, tables, to_keep
from benchmarks.peer_worker import PARQUET
from benchmarks.process_figures import PeakMemory, busiest_thread_seconds, thread_seconds
from benchmarks.run import RESULTS
from benchmarks.workload import TOPIC, Workload, WrittenLog, write_log
from keeplast.clock import SystemClock
from keeplast.columns import kernel
from keeplast.format.compression import Codec
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape
from keeplast.pipeline.arrow_batches import arrow_schema, record_batch
from keeplast.read.log_view import ALL, load_reader_checkpoints, look_at_log, plan_splits
from keeplast.read.record_source import read_records
from keeplast.rewrite.workspace import Workspace
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from tests.kafka.oracle.driver import KAFKA_VERSION, LIKE_A_BROKER, Oracle

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "peers.svg"
GIB = 1 << 30
KAFKA_MAP_BYTES = 128 * MIB
"""``log.cleaner.dedupe.buffer.size``: what a broker's cleaner has, and so what it gets here."""
ROUNDS_MAX = 32
PARQUET_COLUMNS = ("partition", "key", "offset", "timestamp", "value")
SPLIT_BYTES = 1 << 40
SECONDS_MAX = 600
"""A contestant that takes longer for one directory is ended, and the table says so."""
CUT_PARTITIONS_MAX = 16
"""Shapes that cut a partition are only for directories of few; the planner picks them likewise."""


class Directory(Struct, frozen=True):
    """Logs to clean: ``partitions`` of one kind that together have the size of the workload."""

    workload: Workload
    partitions: int
    memory_bytes: int = MEMORY_BYTES_DEFAULT


def directories(scale: float) -> Iterator[Directory]:
    """Yield what issue and README name, their sizes multiplied by ``scale``."""

    def size(log_bytes: int) -> int:
        return max(16 * MIB, int(log_bytes * scale))

    none, zstd = Codec.NONE, Codec.ZSTD
    yield Directory(Workload("100 B, 140 a batch", 100, 140, none, size(GIB), records_per_key=9), 2)
    yield Directory(
        Workload("1 KB zstd", 1000, 140, zstd, size(360 * MIB)), 2, memory_bytes=4 * GIB
    )
    yield Directory(Workload("100 KB", 100_000, 1, none, size(GIB)), 2)
    yield Directory(
        Workload("one record a batch", 100, 1, none, size(GIB // 2), records_per_key=9), 2
    )
    count = max(8, int(1000 * scale))
    many = Workload(f"{count} partitions of 1 MiB", 100, 140, none, count * MIB, records_per_key=9)
    yield Directory(replace(many, segment_bytes=MIB // 2), count)
    keys = int(20_000_000 * scale)
    yield Directory(
        Workload(f"{keys / 1e6:g} M distinct keys", 20, 140, none, keys * 41, records_per_key=1), 1
    )


def write(directory: Directory, place: Path) -> list[WrittenLog]:
    """Write the logs, and next to them the same records as Parquet for Spark SQL."""
    share = replace(
        directory.workload, log_bytes=directory.workload.log_bytes // directory.partitions
    )
    logs = []
    files, clock = LocalFiles(), SystemClock()
    workspace = Workspace(64 * MIB)
    for number in range(directory.partitions):
        logs.append(write_log(share, place, number=number, seed=number + 1))
        partition = TopicPartition(TOPIC, number)
        view = look_at_log(
            partition, logs[-1].path, load_reader_checkpoints(files, place), files, clock
        )
        schema = arrow_schema(PARQUET_COLUMNS)
        with pq.ParquetWriter(place / f"{number}-{PARQUET}", schema) as writer:
            for split in plan_splits(view, ALL, files, split_bytes=SPLIT_BYTES):
                for columns in read_records(split, files, clock, workspace):
                    writer.write_batch(record_batch(columns, partition, PARQUET_COLUMNS))
    return logs


def measure_kafka(threads: int, directory: Directory, place: Path) -> dict[str, Any]:
    """Clean every partition with as many cleaners, a JVM each, that share the partitions."""
    started = time.perf_counter()
    oracles = [Oracle(LIKE_A_BROKER) for _ in range(threads)]
    try:
        return _kafka(oracles, directory, place, started)
    finally:
        for oracle in oracles:
            oracle.close()


def _kafka(
    oracles: list[Oracle], directory: Directory, place: Path, started: float
) -> dict[str, Any]:
    partitions = sorted(place.glob(f"{TOPIC}-*"))
    warm_up = replace(
        directory.workload, log_bytes=32 * MIB, segment_bytes=min(
            directory.workload.segment_bytes, 16 * MIB
        ),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        for number, oracle in enumerate(oracles):
            log = write_log(warm_up, Path(scratch), number=number)
            for turn in range(2):
                copy = Path(scratch) / f"copy{turn}" / log.path.name
                shutil.copytree(log.path, copy)
                _kafka_rounds(oracle, copy, warm_up.segment_bytes)
    ready = time.perf_counter()

    def work(share: int) -> list[dict[str, Any]]:
        mine = partitions[share :: len(oracles)]
        segment_bytes = directory.workload.segment_bytes
        return [d for path in mine for d in _kafka_rounds(oracles[share], path, segment_bytes)]

    before = [thread_seconds(oracle.process_id) for oracle in oracles]
    with ThreadPoolExecutor(len(oracles)) as pool:
        shares = list(pool.map(work, range(len(oracles))))
    # Of each process the thread that cleaned: neither the compiler nor the collector counts.
    worked = [
        busiest_thread_seconds(then, thread_seconds(oracle.process_id))
        for then, oracle in zip(before, oracles, strict=True)
    ]
    rounds = [done for share in shares for done in share]
    return {
        # The slowest thread's own clock: opening logs and talking to us is not cleaning.
        "seconds": max(sum(done["total_seconds"] for done in share) for share in shares),
        "cpu_seconds": sum(each for each in worked if each is not None),
        "startup_seconds": ready - started,
        "bytes_read": sum(
            d["stats"]["bytes_read"] + d["stats"]["map_bytes_read"] for d in rounds
        ),
        "bytes_written": sum(d["stats"]["bytes_written"] for d in rounds),
        "records_left": sum(d["stats"]["messages_written"] for d in rounds if d["is_last"]),
        "rounds": max(d["round"] for d in rounds),
    }  # fmt: skip


def _kafka_rounds(oracle: Oracle, path: Path, segment_bytes: int) -> list[dict[str, Any]]:
    answer = oracle.demand(
        {
            "op": "clean",
            "out": str(path),
            "no_digest": True,
            "params": {
                "timed": True,
                "config": {"segment.bytes": segment_bytes},
                "map_bytes": KAFKA_MAP_BYTES,
                "load_factor": LOAD_FACTOR,
                "rounds": [{"now": NOW_MS}] * ROUNDS_MAX,
            },
        }
    )
    done: list[dict[str, Any]] = []
    for found in answer["rounds"]:
        if "total_seconds" not in found:
            raise RuntimeError(f"kafka did not clean {path}: {found}")
        is_last = found["end_offset"] == found["bound"]
        done.append({**found, "round": len(done) + 1, "is_last": is_last})
        if is_last:
            return done
    raise RuntimeError(f"kafka's key map was too small for {path}")


def measure_worker(
    contestant: str, cores: int, directory: Directory, place: Path, shape: Shape | None = None
) -> dict[str, Any]:
    """Run :mod:`benchmarks.peer_worker` in a process of its own."""
    workload = to_builtins(directory.workload)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.peer_worker", contestant, str(place)),
            *("--cores", str(cores), "--memory-bytes", str(directory.memory_bytes)),
            *("--workload", json.dumps(workload)),
            *(() if shape is None else ("--shape", shape)),
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS_MAX,
    )
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def on_spark(shape: Shape, directory: Directory, place: Path) -> dict[str, Any]:
    """Clean with Spark on two cores, every partition cut alike."""
    return measure_worker("spark", 2, directory, place, shape)


CONTESTANTS = {
    "Kafka, two threads": lambda d, p: measure_kafka(2, d, p),
    "Kafka, one thread": lambda d, p: measure_kafka(1, d, p),
    "keeplast, one core": lambda d, p: measure_worker("local", 1, d, p),
    "keeplast, two cores": lambda d, p: measure_worker("local", 2, d, p),
    "keeplast on Spark, shape partition": lambda d, p: on_spark(Shape.PARTITION, d, p),
    "Spark SQL, two cores": lambda d, p: measure_worker("sql", 2, d, p),
    "keeplast on Spark, shape broadcast": lambda d, p: on_spark(Shape.BROADCAST, d, p),
    "keeplast on Spark, shape bucket": lambda d, p: on_spark(Shape.BUCKET, d, p),
}
"""In the order of a turn: what a goal compares stands side by side, and so near in time."""
CUTTING = ("keeplast on Spark, shape broadcast", "keeplast on Spark, shape bucket")


def run(
    chosen: list[Directory], names: list[str], pairs: int, scratch: Path, known: list[Taken]
) -> Iterator[Taken]:
    """Measure every contestant ``pairs`` times, in turn, but where the outcome is ``known``.

    Who fails on a directory is not tried on it again.
    """
    done = {(one.directory, one.contestant, one.turn) for one in known}
    for number, directory in enumerate(chosen):
        left = [
            (turn, name)
            for turn in range(pairs)
            for name in names
            if (directory.workload.name, name, turn) not in done
            and (name not in CUTTING or directory.partitions <= CUT_PARTITIONS_MAX)
        ]
        if not left:
            continue
        place = scratch / f"directory{number}" / "written"
        place.mkdir(parents=True)
        logs = write(directory, place)
        failed: set[str] = set()
        for turn, name in left:
            if name in failed:
                continue
            one = replace(_measured(name, directory, place, logs), turn=turn)
            if one.failure is not None:
                failed.add(name)
            yield one
        shutil.rmtree(place.parent)


def _measured(name: str, directory: Directory, place: Path, logs: list[WrittenLog]) -> Taken:
    """Measure one contestant on a fresh copy; a failure is a result too."""
    copy = place.parent / "copy"
    ignored = f"{TOPIC}-*" if name.startswith("Spark SQL") else f"*-{PARQUET}"
    shutil.copytree(place, copy, ignore=shutil.ignore_patterns(ignored))
    os.sync()
    taken = Taken(
        directory=directory.workload.name,
        contestant=name,
        log_bytes=sum(log.log_bytes for log in logs),
        records=sum(log.records for log in logs),
        keys=sum(log.keys for log in logs),
    )
    try:
        with PeakMemory(os.getpid()) as memory:
            own = _own_bytes()
            found = CONTESTANTS[name](directory, copy)
    except subprocess.TimeoutExpired:
        return replace(taken, failure=f"took more than {SECONDS_MAX} s")
    except (subprocess.CalledProcessError, RuntimeError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return replace(taken, failure="failed")
    finally:
        shutil.rmtree(copy)
    return replace(taken, peak_memory_bytes=max(0, memory.peak_bytes - own), **found)


def _own_bytes() -> int:
    """Return what this process holds itself, which is no contestant's."""
    fields = Path("/proc/self/statm")
    if not fields.exists():
        return 0
    return int(fields.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def document(taken: list[Taken], scale: float) -> dict[str, Any]:
    """Return the results as they are stored."""
    return {
        "version": 3,
        "scale": scale,
        "machine": machine(),
        "kafka": {"version": KAFKA_VERSION, "java_options": list(LIKE_A_BROKER),
                  "map_bytes": KAFKA_MAP_BYTES},
        "taken": to_builtins(taken),
    }  # fmt: skip


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every size")
    parser.add_argument("--only", default="", help="directories whose name contains this")
    parser.add_argument("--contestants", default="", help="contestants whose name contains this")
    parser.add_argument("--pairs", type=positive, default=PAIRS_MIN, help="counts of each")
    parser.add_argument("--scratch", type=Path, help="where logs are written; default: TMPDIR")
    parser.add_argument("--out", type=Path, default=RESULTS / "peers.json")
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--resume", action="store_true", help="keep what --out has already")
    arguments = parser.parse_args()
    chosen = [d for d in directories(arguments.scale) if arguments.only in d.workload.name]
    names = [name for name in CONTESTANTS if arguments.contestants in name]
    kernel.load()
    first = document([], arguments.scale)
    taken = known(arguments.out, first, names) if arguments.resume else []
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="keeplast-peers-") as scratch:
        for one in run(chosen, names, arguments.pairs, Path(scratch), list(taken)):
            taken.append(one)
            print(one.line(), flush=True)
            first["taken"] = to_builtins(taken)
            _store(first, taken, arguments.out, arguments.figure)
    print()
    print(tables(taken, first))


def known(out: Path, now: dict[str, Any], names: list[str]) -> list[Taken]:
    """Return the counts at ``out`` that can stay; none when of another machine or scale."""
    if not out.exists():
        return []
    found = json.loads(out.read_text())
    if any(found[key] != now[key] for key in ("version", "scale")):
        return []
    if not is_same(found["machine"], now["machine"]):
        return []
    return to_keep((Taken(**each) for each in found["taken"]), names)


def page(taken: list[Taken], results: dict[str, Any], figure: Path) -> str:
    """Return all tables and a link to the bars, for a page in a folder of docs/ next to theirs."""
    return (
        f"{tables(taken, results)}\n\n![MiB a second](../../{figure.parent.name}/{figure.name})\n"
    )


def _store(results: dict[str, Any], taken: list[Taken], out: Path, figure: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(page(taken, results, figure))
    out.with_name(f"{out.stem}_goals.md").write_text(goal_table(taken, results) + "\n")
    figure.parent.mkdir(parents=True, exist_ok=True)
    figure.write_text(bars(taken))


if __name__ == "__main__":
    main()
