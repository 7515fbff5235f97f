"""``python -m benchmarks.strategies``: what ranking by version costs next to ranking by offset.

One log whose records carry a version is cleaned by each strategy in turn, on one core, each time
from a fresh copy, and that several times over. A row shows the best counts by the clock and, in
brackets, of processor time. The goal of ``header`` is 1.5 times the processor time of ``offset`` at
most; what may be said of it is decided in :mod:`benchmarks.pairs`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.options import positive
from benchmarks.pairs import PAIRS_MIN, compare, least
from keeplast.clock import SystemClock
from keeplast.format.compression import Codec
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import CleanRequest, PartitionRequest

PARTITION = TopicPartition("bench", 0)
START_MS = 1_700_000_000_000
BATCH_RECORDS = 100
RECORDS_PER_KEY = 4
MIB = 1 << 20
WORDS = 5000
TEXT_WORDS = 2_000_000
HEADER = "ver"
HEADER_AT_MOST = 1.5
"""Times as much processor time as by offset."""
BY_OFFSET = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=16 * MIB)
TOPICS = {
    strategy: replace(BY_OFFSET, strategy=strategy, strategy_header=HEADER) for strategy in Strategy
}


class Row(Struct, frozen=True):
    """One log: bytes of a value, codec, and which part of it is clean already."""

    value_bytes: int
    codec: Codec
    clean_share: float


ROWS = tuple(
    Row(value_bytes, codec, clean_share)
    for value_bytes, codec in ((100, Codec.NONE), (1000, Codec.NONE), (1000, Codec.ZSTD))
    for clean_share in (0.0, 0.5, 0.9)
)


def _text(random: np.random.Generator) -> bytes:
    """Return text of made-up words: it packs as real text does, and does not repeat in a batch."""
    lengths = random.integers(3, 10, WORDS)
    words = [bytes(random.integers(97, 123, length, np.uint8)) for length in lengths]
    return b" ".join(words[i] for i in random.zipf(1.3, TEXT_WORDS) % WORDS)


def write_log(row: Row, log_bytes: int, data_directory: Path) -> int:
    """Write the log of ``row``; return where its dirty section is to begin."""
    random = np.random.default_rng(1)
    records = log_bytes // (row.value_bytes + 40)
    keys = random.integers(0, records // RECORDS_PER_KEY, records)
    versions = random.integers(0, records, records)
    text = _text(random)
    places = random.integers(0, len(text) - row.value_bytes, records)
    first_dirty = 0
    with LogAppender(data_directory / str(PARTITION), LocalFiles(), topic=BY_OFFSET) as log:
        for start in range(0, records, BATCH_RECORDS):
            if first_dirty == 0 and start >= records * row.clean_share > 0:
                log.roll()
                first_dirty = log.log_end_offset
            chosen = range(start, min(start + BATCH_RECORDS, records))
            log.append(
                [
                    NewRecord(
                        b"key-%012d" % keys[i],
                        text[places[i] : places[i] + row.value_bytes],
                        START_MS + i,
                        ((HEADER.encode(), int(versions[i]).to_bytes(8, "big")),),
                    )
                    for i in chosen
                ],
                codec=row.codec,
            )
        log.roll()
    return first_dirty


def count(
    coordinator: Coordinator, data_directory: Path, topic: TopicConfig, first_dirty: int, *,
    before: Callable[[], object] = lambda: None,
) -> tuple[float, float]:  # fmt: skip
    """Clean a copy of the log once; return seconds by the clock and of a processor.

    The clock starts behind ``before``.
    """
    with tempfile.TemporaryDirectory(dir=data_directory.parent) as scratch:
        partition = Path(scratch) / str(PARTITION)
        shutil.copytree(data_directory / str(PARTITION), partition)
        request = CleanRequest(
            (PartitionRequest(PARTITION, partition, topic),),
            now_ms=START_MS + 10**11,
            is_unsafe=True,
            first_dirty_offset=first_dirty,
            force=True,
        )
        before()
        began, started = time.perf_counter(), time.process_time()
        report = coordinator.clean(request).partitions[0].rounds[-1]
        seconds, worked = time.perf_counter() - began, time.process_time() - started
    if report.failure is not None:
        raise report.failure
    return seconds, worked


def measure(
    log_bytes: int, repetitions: int, scratch: Path
) -> Iterator[tuple[Row, dict[Strategy, list[tuple[float, float]]]]]:
    """Yield each row with the counts of every strategy, taken in turn."""
    with LocalRunner(cores=1) as runner:
        coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
        for number, row in enumerate(ROWS):
            place = scratch / str(number)
            first_dirty = write_log(row, log_bytes, place)
            taken: dict[Strategy, list[tuple[float, float]]] = {each: [] for each in Strategy}
            for repetition in range(repetitions + 1):
                for strategy, topic in TOPICS.items():
                    found = count(coordinator, place, topic, first_dirty)
                    if repetition:  # the first one warms up
                        taken[strategy].append(found)
            yield row, taken
            shutil.rmtree(place)


def line(row: Row, taken: dict[Strategy, list[tuple[float, float]]]) -> str:
    """Return the line of one log."""
    both = compare(ours=taken[Strategy.HEADER], theirs=taken[Strategy.OFFSET])
    times = " | ".join(least(counts) for counts in taken.values())
    judged = both.by_work or both.by_clock
    verdict = both.verdict(1 / HEADER_AT_MOST, judged)
    return (
        f"| {row.value_bytes} B | {row.codec.name.lower()} | {row.clean_share:.0%} | {times} "
        f"| {1 / judged.ratio:.2f} | {both.spreads} | {verdict.value} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=positive, default=128, help="size of each log")
    parser.add_argument("--repetitions", type=positive, default=PAIRS_MIN)
    arguments = parser.parse_args()
    print(
        "| value | codec | clean | offset | timestamp | header | header / offset "
        f"| pairs differ by | at most {HEADER_AT_MOST} |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(arguments.mib * MIB, arguments.repetitions, Path(scratch))
        for row, taken in rows:
            print(line(row, taken), flush=True)


if __name__ == "__main__":
    main()
