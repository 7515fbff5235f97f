"""The cleaners under measurement: Kafka's, and keeplast three ways.

Each cleans a fresh copy of the same log.

The copy is written back to disk before the clock starts, so that neither side pays for the other's
dirty pages, and lies in the page cache for both. Kafka's time is the call of its ``Cleaner.clean``
alone, with the log already open; ours is the whole call, with survey, check and commit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from benchmarks.process_figures import busiest_thread_seconds, thread_seconds
from benchmarks.workload import FIRST_TIMESTAMP_MS, Workload, WrittenLog
from tests.kafka.oracle.driver import Oracle

NOW_MS = FIRST_TIMESTAMP_MS + 10**12
MIB = 1 << 20
KEY_MAP_BYTES_MIN = 128 * MIB
"""Kafka's default; more only when a log has more keys than it holds."""
BYTES_PER_KEY = 24
LOAD_FACTOR = 0.9


class Measure(Struct, frozen=True):
    """One cleaning of one log.

    ``held_bytes`` is the peak above the loaded process, ``cpu_seconds`` the processor time of the
    thread that cleaned, where they are known. On a machine that does other things as well, the
    latter is the fairer one to compare.
    """

    seconds: float
    index_seconds: float
    bytes_read: int
    bytes_written: int
    messages_read: int
    messages_written: int
    held_bytes: int | None = None
    cpu_seconds: float | None = None

    @property
    def mib_per_second(self) -> float:
        """MiB read in the cleaning pass over the whole time: how Kafka's log line counts."""
        return self.bytes_read / MIB / self.seconds


class Contestant(Protocol):
    """A cleaner that can be measured."""

    name: str

    def clean(self, partition: Path, workload: Workload, log: WrittenLog) -> Measure:
        """Clean the log at ``partition`` where it lies."""
        ...


class KafkaCleaner:
    """Kafka's own ``Cleaner`` with one thread, in a JVM that stays warm between logs."""

    name = "kafka"

    def __init__(self, oracle: Oracle) -> None:
        """Measure in the JVM of ``oracle``."""
        self._oracle = oracle

    def clean(self, partition: Path, workload: Workload, log: WrittenLog) -> Measure:
        """Clean the log at ``partition`` where it lies."""
        # Room for every key, so that one round reaches the end on both sides.
        needed = int(log.keys / LOAD_FACTOR * BYTES_PER_KEY * 1.02)
        before = thread_seconds(self._oracle.process_id)
        answer = self._oracle.demand(
            {
                "op": "clean",
                "out": str(partition),
                "no_digest": True,
                "params": {
                    "timed": True,
                    "config": {"segment.bytes": workload.segment_bytes},
                    "map_bytes": max(KEY_MAP_BYTES_MIN, needed),
                    "load_factor": LOAD_FACTOR,
                    "rounds": [{"now": NOW_MS, "first_dirty": log.first_dirty}],
                },
            }
        )
        cpu_seconds = busiest_thread_seconds(before, thread_seconds(self._oracle.process_id))
        done = answer["rounds"][0]
        if "total_seconds" not in done:
            raise RuntimeError(f"kafka did not clean {workload.name}: {done}")
        if done["end_offset"] != done["bound"]:
            raise RuntimeError(f"kafka's key map was too small for {workload.name}")
        stats = done["stats"]
        return Measure(
            seconds=done["total_seconds"],
            index_seconds=done["index_seconds"],
            bytes_read=stats["bytes_read"],
            bytes_written=stats["bytes_written"],
            messages_read=stats["messages_read"],
            messages_written=stats["messages_written"],
            cpu_seconds=cpu_seconds,
        )


class Keeplast:
    """keeplast in a fresh process for every log."""

    def __init__(self, name: str, memory_bytes: int, *, runner: str, cores: int) -> None:
        """Give ``cores`` of a ``local`` or ``spark`` runner ``memory_bytes`` and its key map."""
        self.name = name
        self._options = ["--memory-bytes", str(memory_bytes)]
        self._options += ["--runner", runner, "--cores", str(cores)]

    def clean(self, partition: Path, workload: Workload, log: WrittenLog) -> Measure:
        """Clean the log at ``partition`` where it lies."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.worker",
                str(partition.parent),
                *("--segment-bytes", str(workload.segment_bytes)),
                *("--value-bytes", str(workload.value_bytes)),
                *("--records-per-batch", str(workload.records_per_batch)),
                *("--codec", str(int(workload.codec))),
                *("--first-dirty", str(log.first_dirty)),
                *self._options,
            ],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        document = json.loads(done.stdout.splitlines()[-1])
        return Measure(
            seconds=document["seconds"],
            index_seconds=document["index_seconds"],
            bytes_read=document["bytes_read"],
            bytes_written=document["bytes_written"],
            messages_read=document["messages_read"],
            messages_written=document["messages_written"],
            held_bytes=document["peak_rss_bytes"] - document["rss_before_bytes"],
            cpu_seconds=document["cpu_seconds"],
        )


def measure(contestant: Contestant, log: WrittenLog, workload: Workload, scratch: Path) -> Measure:
    """Return what ``contestant`` took for a fresh copy of ``log`` below ``scratch``."""
    copy = scratch / "copy" / log.path.name
    shutil.copytree(log.path, copy)
    os.sync()
    try:
        return contestant.clean(copy, workload, log)
    finally:
        shutil.rmtree(copy.parent)
