"""``python -m benchmarks.tier``: what rounds in object storage read, with filters and without.

A log of many segments is copied and cleaned; then rounds follow whose updates are of keys of its
newest tenth (*local*) or of any (*scattered*). Counted are the bytes and requests that the object
store sees, which do not depend on who else uses the machine, and processor time. The local updates
are measured in every shape, on threads: what a round reads is the same on Spark.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.columns import kernel
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape, TopicConfig
from keeplast.run.local_runner import LocalRunner
from keeplast.store.look import RemoteHorizons
from keeplast.store.store_place import StorePlace, clean_remote
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.tier.copy.importing import import_segments, read_lineage, read_topic_id
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.filters import KEY_BYTES, KEY_FACT
from keeplast.tier.objects.object_store import ObjectStore, ObjectWriter, StoredObject
from keeplast.tier.objects.round_files import round_path
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.state.partition_state import PartitionState

PARTITION = TopicPartition("bench", 0)
START_MS = 1_700_000_000_000
MIB = 1 << 20
GIB = 1 << 30
BATCH_RECORDS = 20
RECORD_OVERHEAD = 30
ALL_DIRTY = 1 << 62
HOT_SHARE = 0.09
"""Of the keys: with the updates themselves they lie in the newest tenth of the log."""
WORKLOADS = ((True, None), (True, Shape.BROADCAST), (True, Shape.BUCKET), (False, None))
"""Whether updates are local, and how rounds are cut."""
DIRTY_SEGMENTS = 2
ROUNDS = 3
FPP = 0.01
RESULTS = Path(__file__).parent / "results"
MEMORY_BYTES = 256 * MIB


@dataclass(slots=True)
class Traffic:
    """What an object store was asked for."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class Metered:
    """An object store that counts; requests for one object's parts are one each."""

    def __init__(self, objects: ObjectStore) -> None:
        """Wrap ``objects``."""
        self._objects = objects
        self.traffic = Traffic()

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        """Read and count."""
        data = self._objects.read_range(key, start, end)
        self.traffic.requests += 1
        self.traffic.bytes_read += len(data)
        return data

    def stat(self, key: str) -> StoredObject:
        """Ask and count."""
        self.traffic.requests += 1
        return self._objects.stat(key)

    def open_write(self, key: str) -> ObjectWriter:
        """Count what the writer is given."""
        self.traffic.requests += 1
        return _MeteredWriter(self._objects.open_write(key), self.traffic)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Pass on."""
        self.traffic.requests += 1
        return self._objects.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """Pass on."""
        self._objects.delete(keys)


class _MeteredWriter:
    def __init__(self, writer: ObjectWriter, traffic: Traffic) -> None:
        self._writer = writer
        self._traffic = traffic

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._writer.write(data)
        self._traffic.bytes_written += len(data)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.abort()


class Measured(Struct, frozen=True):
    """The rounds of one workload; ``log_bytes`` is the live log before them, on average."""

    workload: str
    shape: str
    has_filters: bool
    rounds: int
    log_bytes: int
    requests: int
    bytes_read: int
    bytes_written: int
    cpu_seconds: float
    share_skipped: float
    filter_bytes: int
    share_of_segments: float


class Workload:
    """A log whose keys are written in order first, and then again, the hot ones or any."""

    def __init__(self, root: Path, *, segments: int, segment_bytes: int, value_bytes: int) -> None:
        """Write the first ``segments``."""
        self.directory = root / str(PARTITION)
        self._dice = random.Random(1)
        self._value_bytes = value_bytes
        self._segment_bytes = segment_bytes
        self._records = segment_bytes // (value_bytes + RECORD_OVERHEAD)
        self._keys = segments * self._records
        topic = TopicConfig(segment_bytes=2 * segment_bytes)
        self._log = LogAppender(self.directory, LocalFiles(), topic=topic)
        for first in range(0, self._keys, self._records):
            self._write_segment(range(first, first + self._records))

    def update(self, *, is_local: bool) -> None:
        """Append segments with updates."""
        first = round(self._keys * (1 - HOT_SHARE)) if is_local else 0
        for _ in range(DIRTY_SEGMENTS):
            self._write_segment(
                [self._dice.randrange(first, self._keys) for _ in range(self._records)]
            )

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def _write_segment(self, keys: Sequence[int]) -> None:
        for start in range(0, len(keys), BATCH_RECORDS):
            self._log.append(
                [
                    NewRecord(b"%012d" % key, self._dice.randbytes(self._value_bytes), START_MS)
                    for key in keys[start : start + BATCH_RECORDS]
                ]
            )
        self._log.roll()
        self._log.flush()


class Store:
    """One tier that takes in the log as it grows, and cleans it."""

    def __init__(self, root: Path, directory: Path, topic: TopicConfig) -> None:
        """Make an empty store below ``root``."""
        root.mkdir()
        self._clock = SystemClock()
        self._files = LocalFiles()
        self.objects = Metered(open_objects(f"file://{root / 'objects'}"))
        self._store = MetadataStore(open_database(f"sqlite:///{root / 'meta.db'}"), self._clock)
        # The same keys are false positives in every run.
        self._store.fact(KEY_FACT, lambda: "5a" * KEY_BYTES)
        self._directory = directory
        self._topic = topic
        topic_id = read_topic_id(self._files, directory)
        self._store.create(PARTITION, topic_id, log_start=0, settings={})
        self._store.take_over(
            PARTITION, epoch=1, owner="bench",
            lineage=read_lineage(self._files, directory), log_end=0,
        )  # fmt: skip

    @property
    def state(self) -> PartitionState:
        """Return what is live."""
        return self._store.load(PARTITION)

    def take_in(self) -> None:
        """Copy what the log has gained; its active segment is empty."""
        import_segments(
            self._store, self.objects, self._files, self._directory, self.state,
            topic=self._topic, clock=self._clock, progressed=lambda count: None,
        )  # fmt: skip

    def clean(self, chunk_bytes: int, shape: Shape | None) -> tuple[float, float, int, float]:
        """Do a round; returns processor seconds, share skipped, filter bytes and their share."""
        topic = replace(self._topic, tier_chunk_bytes=chunk_bytes)
        request = CleanRequest(
            (PartitionRequest(self.state.partition, round_path(self.state.partition), topic),),
            memory_bytes=MEMORY_BYTES, force=True, shape=shape,
        )  # fmt: skip

        def runner_for(files: FileSystem) -> LocalRunner:
            return LocalRunner(1, files=files, clock=self._clock)

        started = time.process_time()
        place = StorePlace(
            self._store, self.objects, self.state, request, self._clock, grace_ms=0,
            horizons=RemoteHorizons(self.objects),
        )  # fmt: skip
        report = clean_remote(place, runner_for, lambda count: None)
        seconds = time.process_time() - started
        stats = report.filters
        if stats is None:
            return seconds, 0.0, 0, 0.0
        share, of_segments = stats.share_skipped or 0.0, stats.share_of_segments or 0.0
        return seconds, share, stats.bytes_read, of_segments


def measure(root: Path, *, segments: int, segment_bytes: int, value_bytes: int) -> list[Measured]:
    """Measure both workloads with filters and without."""
    found: list[Measured] = []
    for is_local, shape in WORKLOADS:
        name = "local" if is_local else "scattered"
        cut = Shape.PARTITION if shape is None else shape
        place = root / f"{name}-{cut.value}"
        log = Workload(
            place, segments=segments, segment_bytes=segment_bytes, value_bytes=value_bytes
        )
        topic = TopicConfig(
            cleanup_policy=frozenset({"compact"}), segment_bytes=segment_bytes * 5 // 4
        )
        stores = [
            Store(place / str(fpp), log.directory, replace(topic, tier_filter_fpp=fpp))
            for fpp in (0.0, FPP)
        ]
        for store in stores:
            store.take_in()
            store.clean(ALL_DIRTY, None)
        log_bytes, totals = 0, [[0.0, 0.0, 0, 0.0] for _ in stores]
        traffics = [Traffic() for _ in stores]
        for _ in range(ROUNDS):
            log.update(is_local=is_local)
            for i, store in enumerate(stores):
                store.take_in()
                log_bytes += store.state.remote_bytes if i == 0 else 0
                store.objects.traffic = traffics[i]
                totals[i] = [a + b for a, b in zip(totals[i], store.clean(-1, shape), strict=True)]
                store.objects.traffic = Traffic()
        log.close()
        for has_filters, traffic, total in zip((False, True), traffics, totals, strict=True):
            seconds, skipped, filter_bytes, of_segments = total
            found.append(
                Measured(
                    name, cut.value, has_filters, ROUNDS, log_bytes // ROUNDS, traffic.requests,
                    traffic.bytes_read, traffic.bytes_written, round(seconds, 3),
                    round(skipped / ROUNDS, 4), int(filter_bytes), round(of_segments / ROUNDS, 5),
                )
            )  # fmt: skip
    return found


def table(rows: Sequence[Measured]) -> str:
    """Return the rows as Markdown; a saving is that of the row next to the one without filters."""
    lines = [
        "| updates | shape | filters | read, of the log | written | requests a round | "
        "processor s a GiB | clean bytes skipped | filters, of segments | reads less by |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    plain = {(row.workload, row.shape): row for row in rows if not row.has_filters}
    for row in rows:
        rounds_bytes = row.log_bytes * row.rounds
        saved = plain[row.workload, row.shape].bytes_read / row.bytes_read
        cells = [
            row.workload,
            row.shape,
            "yes" if row.has_filters else "no",
            f"{row.bytes_read / rounds_bytes:.1%}",
            f"{row.bytes_written / rounds_bytes:.1%}",
            f"{row.requests / row.rounds:,.0f}",
            f"{row.cpu_seconds / (rounds_bytes / GIB):.1f}",
            f"{row.share_skipped:.1%}" if row.has_filters else "",
            f"{row.share_of_segments:.2%}" if row.has_filters else "",
            f"{saved:.1f}×" if row.has_filters else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write ``results/tier.json`` and ``results/tier.md``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=120)
    parser.add_argument("--segment-mib", type=float, default=0.25)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    kernel.load()
    with tempfile.TemporaryDirectory(prefix="bench-tier-") as scratch:
        rows = measure(
            Path(scratch), segments=options.segments,
            segment_bytes=round(options.segment_mib * MIB), value_bytes=options.value_bytes,
        )  # fmt: skip
    document = {
        "segments": options.segments, "segment_mib": options.segment_mib,
        "value_bytes": options.value_bytes, "rounds": [to_builtins(row) for row in rows],
    }  # fmt: skip
    (options.results / "tier.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.results / "tier.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
