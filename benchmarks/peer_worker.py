"""One contestant of the peers' benchmark in a process of its own; prints what it took, as JSON.

Everything before the clock starts counts as start-up: interpreter, kernels, Spark's session, and a
small log of the same kind that is cleaned twice before. Its seconds are printed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from benchmarks.later_removals import LaterRemovals
from benchmarks.opened_runner import opened_runner
from benchmarks.process_figures import family_seconds
from benchmarks.workload import FIRST_TIMESTAMP_MS, TOPIC, Workload, write_log
from keeplast.clock import SystemClock
from keeplast.columns import kernel
from keeplast.format.compression import Codec
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape, TopicConfig
from keeplast.rewrite.stats import Stats
from keeplast.rewrite.task import Runner
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.survey.request import CleanRequest, PartitionRequest

NOW_MS = FIRST_TIMESTAMP_MS + 10**12
WARM_UP_BYTES = 1 << 20
PARQUET = "records.parquet"
SPARK_MEMORY = "4g"


def main() -> None:
    """Run one contestant; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", choices=("local", "spark", "sql"))
    parser.add_argument("data_directory", type=Path)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--shape", type=Shape, help="how to cut the work; the planner's choice")
    parser.add_argument("--workload", type=json.loads, required=True)
    arguments = parser.parse_args()
    started = time.perf_counter()
    kernel.load()
    if arguments.contestant == "sql":
        document = _query(arguments.data_directory, arguments.cores, started)
    else:
        with opened_runner(arguments.contestant, arguments.cores) as runner:
            document = _clean_all(runner, arguments, started)
    print(json.dumps(document))


def _clean_all(runner: Runner, arguments: argparse.Namespace, started: float) -> dict[str, object]:
    workload: dict[str, int] = arguments.workload
    small = Workload(
        "warm-up",
        workload["value_bytes"],
        workload["records_per_batch"],
        Codec(workload["codec"]),
        WARM_UP_BYTES,
        segment_bytes=WARM_UP_BYTES // 2,
    )
    files = LaterRemovals()
    coordinator = Coordinator(runner, SystemClock(), files, NoEvents())
    # Twice, as Kafka is warmed up.
    for _ in range(2):
        with tempfile.TemporaryDirectory() as scratch:
            for number in range(arguments.cores):
                write_log(small, Path(scratch), number=number)
            _clean(
                coordinator,
                Path(scratch),
                small.segment_bytes,
                arguments.memory_bytes,
                arguments.shape,
            )
            files.remove()
    worked = family_seconds(os.getpid())
    ready = time.perf_counter()
    rounds = _clean(
        coordinator,
        arguments.data_directory,
        workload["segment_bytes"],
        arguments.memory_bytes,
        arguments.shape,
    )
    seconds = time.perf_counter() - ready
    worked = family_seconds(os.getpid()) - worked
    files.remove()
    return {
        "seconds": seconds,
        "cpu_seconds": worked,
        "startup_seconds": ready - started,
        "bytes_read": sum(s.bytes_read + s.map_bytes_read for stats in rounds for s in stats),
        "bytes_written": sum(s.bytes_written for stats in rounds for s in stats),
        "records_left": sum(stats[-1].messages_written for stats in rounds),
        "rounds": max(len(stats) for stats in rounds),
        "task_memory_bytes": max(s.peak_rss_bytes for stats in rounds for s in stats),
    }


def _clean(
    coordinator: Coordinator,
    data_directory: Path,
    segment_bytes: int,
    memory_bytes: int,
    shape: Shape | None,
) -> list[list[Stats]]:
    """Clean every partition until done; returns the rounds of each."""
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=segment_bytes)
    requests = tuple(
        PartitionRequest(TopicPartition(TOPIC, int(path.name.rpartition("-")[2])), path, config)
        for path in sorted(data_directory.glob(f"{TOPIC}-*"))
    )
    report = coordinator.clean(
        CleanRequest(
            requests,
            now_ms=NOW_MS,
            is_unsafe=True,
            memory_bytes=memory_bytes,
            force=True,
            shape=shape,
        )
    )
    found: list[list[Stats]] = []
    for partition in report.partitions:
        stats = [done.stats for done in partition.rounds if done.stats is not None]
        if len(stats) < len(partition.rounds):
            raise RuntimeError(f"not cleaned: {partition.rounds[-1]}")
        found.append(stats)
    return found


def _query(directory: Path, cores: int, started: float) -> dict[str, object]:
    """Keep the last record of every key as users of Spark SQL write it, to Parquet again."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = (
        SparkSession.Builder()
        .master(f"local[{cores}]")
        .config("spark.driver.memory", SPARK_MEMORY)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )

    def last_of_each_key(source: str, target: Path) -> None:
        records = spark.read.parquet(source)
        newest = F.max_by(F.struct("offset", "timestamp", "value"), "offset").alias("last")
        kept = records.groupBy("partition", "key").agg(newest)
        kept.select("partition", "key", "last.*").where("value is not null").write.mode(
            "overwrite"
        ).parquet(str(target))

    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        target = Path(scratch) / "kept"
        some = str(sorted(directory.glob(f"*-{PARQUET}"))[0])
        sample = Path(scratch) / "sample"
        spark.read.parquet(some).limit(1000).write.parquet(str(sample))
        for _ in range(2):
            last_of_each_key(str(sample), target)
        worked = family_seconds(os.getpid())
        ready = time.perf_counter()
        last_of_each_key(f"{directory}/*-{PARQUET}", target)
        seconds = time.perf_counter() - ready
        worked = family_seconds(os.getpid()) - worked
        left = spark.read.parquet(str(target)).count()
        written = sum(file.stat().st_size for file in target.glob("*.parquet"))
    read = [file.stat().st_size for file in directory.glob(f"*-{PARQUET}")]
    spark.stop()
    return {
        "seconds": seconds,
        "cpu_seconds": worked,
        "startup_seconds": ready - started,
        "bytes_read": sum(read),
        "bytes_written": written,
        "records_left": left,
        "rounds": 1,
    }


if __name__ == "__main__":
    main()
