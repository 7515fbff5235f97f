"""``python -m benchmarks.large_survey``: what the surveys of a 1 TiB data directory hold in memory.

No disk that is at hand has so much: the directory is made up. Its files have the sizes, indexes and
first headers that a broker leaves at an ``index.interval.bytes`` of 4096, and nothing else, which
is all that a survey reads. Every point runs in a process of its own; its surveys are kept until the
last is done, as a call keeps them. What grows is the peak of the resident memory, from before the
first survey on.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import resource
from pathlib import Path

import numpy as np
from msgspec import Struct

from benchmarks.contestants import MIB
from keeplast.format import offset_index, producer_snapshot, time_index
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, Kind, parse_segment_file
from keeplast.format.filename import segment_file as name_of
from keeplast.log.files import FileStat, LocalFiles, ReadHandle
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import Survey, survey_partition

ROOT = Path("/made-up")
NOW_MS = 1_700_000_000_000
INTERVAL_BYTES = 4096
RECORDS_PER_ENTRY = 32
SEGMENT_BYTES = 1 << 30
HEAD_BYTES = 61
TOPIC = TopicConfig(cleanup_policy=frozenset({"compact"}))


class Shape(Struct, frozen=True):
    """So many partitions of so many closed segments each, and an empty active one."""

    partitions: int
    segments: int
    segment_bytes: int = SEGMENT_BYTES

    @property
    def records_per_segment(self) -> int:
        """Return how many offsets a segment has."""
        return self.segment_bytes // INTERVAL_BYTES * RECORDS_PER_ENTRY

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all logs."""
        return self.partitions * self.segments * self.segment_bytes


SHAPES = (
    Shape(1, 256), Shape(1, 512), Shape(1, 1024),
    Shape(64, 16), Shape(1024, 1), Shape(4096, 16, 16 * MIB),
)  # fmt: skip
"""A quarter, a half and 1 TiB in one log; 1 TiB in 64 and in 1,024 logs; many small segments."""


class MadeUpFiles(LocalFiles):
    """The directory of a shape. ``opened`` counts the files of each kind that were opened."""

    def __init__(self, shape: Shape) -> None:
        """Make up the indexes, which are the same for every segment."""
        self._shape = shape
        self.opened: dict[str, int] = {}
        entries = np.arange(1, shape.segment_bytes // INTERVAL_BYTES, dtype=np.int64)
        offsets = entries * RECORDS_PER_ENTRY - 1
        offset_bytes = offset_index.encode(np.stack([offsets, entries * INTERVAL_BYTES], axis=1))
        time_bytes = time_index.encode(np.stack([NOW_MS + entries, offsets], axis=1))
        head = bytearray(HEAD_BYTES)
        head[8:12] = (INTERVAL_BYTES - 12).to_bytes(4, "big")
        head[16] = 2
        head[35:43] = NOW_MS.to_bytes(8, "big")
        snapshot = producer_snapshot.encode(())
        self._content = {
            INDEX: offset_bytes, TIME_INDEX: time_bytes, LOG: bytes(head), SNAPSHOT: snapshot,
        }  # fmt: skip
        bases = [n * shape.records_per_segment for n in range(shape.segments + 1)]
        self._active = bases[-1]
        kinds: tuple[Kind, ...] = (INDEX, LOG, TIME_INDEX)
        self._names = [name_of(base, kind) for base in bases for kind in kinds]
        self._names.append(name_of(self._active, SNAPSHOT))

    def _size_bytes(self, name: str) -> int:
        parsed = parse_segment_file(name)
        if parsed is None:
            raise FileNotFoundError(name)
        if parsed.kind == LOG:
            return 0 if parsed.base_offset == self._active else self._shape.segment_bytes
        return len(self._content[parsed.kind])

    def listdir(self, path: Path) -> list[str]:
        """Return the names of a partition."""
        return sorted(self._names)

    def is_directory(self, path: Path) -> bool:
        """Say that segment files are none."""
        return path.parent == ROOT

    def directories_in(self, path: Path) -> frozenset[str]:
        """Return none: a partition has files only."""
        return frozenset()

    def exists(self, path: Path) -> bool:
        """Say whether the shape has such a file."""
        return path.name in self._names

    def stat(self, path: Path) -> FileStat:
        """Return the size that the file would have."""
        return FileStat(self._size_bytes(path.name), NOW_MS * 1_000_000)

    def open_read(self, path: Path) -> ReadHandle:
        """Open what was made up."""
        size_bytes = self._size_bytes(path.name)
        self.opened[path.suffix] = self.opened.get(path.suffix, 0) + 1
        return _MadeUpHandle(self._content[path.suffix], size_bytes)


class _MadeUpHandle:
    """The beginning of a file; zeros follow to its end."""

    def __init__(self, beginning: bytes, size_bytes: int) -> None:
        self._beginning = beginning
        self.size_bytes = size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        count = max(0, min(len(buffer), self.size_bytes - position))
        part = self._beginning[position : position + count]
        buffer[:count] = part + bytes(count - len(part))
        return count

    def close(self) -> None:
        """Do nothing."""


def survey_all(shape: Shape, files: MadeUpFiles) -> list[Survey]:
    """Survey every partition as a plan does, the choice of its sample included."""
    surveys = []
    for number in range(shape.partitions):
        partition = TopicPartition("big", number)
        asked = PartitionRequest(partition, ROOT / str(partition), TOPIC)
        request = CleanRequest((asked,), now_ms=NOW_MS)
        checkpoints = load_checkpoints(files, ROOT)
        surveys.append(survey_partition(asked, request, checkpoints, files, NOW_MS))
    return surveys


class Held(Struct, frozen=True):
    """What the surveys of a shape took: memory that grew, and processor time."""

    grown_bytes: int
    cpu_seconds: float


def measure(shape: Shape) -> Held:
    """Survey a shape in this process, which should have surveyed nothing large before."""
    survey_all(Shape(1, 1), MadeUpFiles(Shape(1, 1)))
    files = MadeUpFiles(shape)
    before, started = _peak_bytes(), os.times()
    surveys = survey_all(shape, files)
    ended = os.times()
    assert all(each.plan is not None for each in surveys)
    spent = ended.user + ended.system - started.user - started.system
    return Held(_peak_bytes() - before, spent)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure every shape and print a table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| partitions | segments each | log | memory grown | processor time |")
    print("|--:|--:|--:|--:|--:|")
    context = multiprocessing.get_context("spawn")
    for shape in SHAPES:
        with context.Pool(1) as pool:
            held = pool.apply(functools.partial(measure, shape))
        print(
            f"| {shape.partitions:,} | {shape.segments:,} | {shape.size_bytes / (1 << 40):.2f} TiB "
            f"| {held.grown_bytes / MIB:.0f} MiB | {held.cpu_seconds:.1f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
