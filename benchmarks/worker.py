"""Cleans one log in a process of its own and prints what it took, as JSON.

The kernels are loaded and small logs are cleaned before the clock starts, as Kafka's side gets
rounds to warm up too: on Spark one in a task and one by tasks that meet.
Memory is counted from there: the peak of the measured round minus what the
process held when it began, which is the interpreter, the libraries and the kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest

NOW_MS = FIRST_TIMESTAMP_MS + 10**12
WARM_UP_BYTES, WARM_UP_BYTES_OF_SPARK = 1 << 20, 32 << 20
PROCESS_STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")


def main() -> None:
    """Run one measured round; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_directory", type=Path)
    parser.add_argument("--segment-bytes", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, required=True)
    parser.add_argument("--records-per-batch", type=int, required=True)
    parser.add_argument("--codec", type=int, required=True)
    parser.add_argument("--first-dirty", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--runner", choices=("local", "spark"), required=True)
    parser.add_argument("--cores", type=int, required=True)
    arguments = parser.parse_args()
    kernel.load()
    warm_up_bytes = WARM_UP_BYTES if arguments.runner == "local" else WARM_UP_BYTES_OF_SPARK
    small = Workload(
        "warm-up",
        arguments.value_bytes,
        arguments.records_per_batch,
        Codec(arguments.codec),
        warm_up_bytes,
        segment_bytes=warm_up_bytes // 2,
    )
    files = LaterRemovals()
    with opened_runner(arguments.runner, arguments.cores, files) as runner:
        coordinator = Coordinator(runner, SystemClock(), files, NoEvents())
        for shape in (None,) if arguments.runner == "local" else (Shape.PARTITION, Shape.BUCKET):
            with tempfile.TemporaryDirectory() as scratch:
                write_log(small, Path(scratch))
                memory_bytes = arguments.memory_bytes
                clean_once(coordinator, Path(scratch), small.segment_bytes, memory_bytes, shape)
                files.remove()
        before_bytes = start_peak()
        worked = family_seconds(os.getpid())
        started = time.perf_counter()
        own = time.process_time()
        done = clean_once(
            coordinator,
            arguments.data_directory,
            arguments.segment_bytes,
            arguments.memory_bytes,
            first_dirty=arguments.first_dirty,
        )
        seconds = time.perf_counter() - started
        own = time.process_time() - own
        # Ticks are coarse, so the processes of a family are counted only where there are several.
        cpu_seconds = own if arguments.runner == "local" else family_seconds(os.getpid()) - worked
        peak_bytes = read_peak()
        files.remove()
    stats = done.stats
    assert stats is not None, done.error
    print(json.dumps(_measured(stats, seconds, cpu_seconds, before_bytes, peak_bytes)))


def _measured(
    stats: Stats, seconds: float, cpu_seconds: float, before_bytes: int, peak_bytes: int
) -> dict[str, object]:
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "index_seconds": stats.index_seconds,
        "clean_seconds": stats.clean_seconds,
        "bytes_read": stats.bytes_read,
        "bytes_written": stats.bytes_written,
        "messages_read": stats.messages_read,
        "messages_written": stats.messages_written,
        "distinct_keys": stats.distinct_keys,
        "rss_before_bytes": before_bytes,
        "peak_rss_bytes": peak_bytes,
    }


def clean_once(
    coordinator: Coordinator,
    data_directory: Path,
    segment_bytes: int,
    memory_bytes: int,
    shape: Shape | None = None,
    *,
    first_dirty: int = 0,
) -> RoundReport:
    """Clean the one log below ``data_directory``; return its last round."""
    partition = TopicPartition(TOPIC, 0)
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=segment_bytes)
    report = coordinator.clean(
        CleanRequest(
            partitions=(PartitionRequest(partition, data_directory / str(partition), config),),
            now_ms=NOW_MS,
            is_unsafe=True,
            memory_bytes=memory_bytes,
            force=True,
            shape=shape,
            first_dirty_offset=first_dirty,
        )
    )
    return report.partitions[0].rounds[-1]


def start_peak() -> int:
    """Forget the peak so far and return what is held now, in bytes."""
    if RESET_PEAK.exists():
        RESET_PEAK.write_text("5")
        return _status_bytes("VmRSS")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_peak() -> int:
    """Return the peak since :func:`start_peak`, in bytes."""
    if RESET_PEAK.exists():
        return _status_bytes("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(field: str) -> int:
    for line in PROCESS_STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


if __name__ == "__main__":
    main()
