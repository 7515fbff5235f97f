"""``python -m benchmarks.attached``: a round in a live cluster's remote tier next to a local one.

One log is cleaned by one thread where it lies, and again from each layout that brokers may have
it in, in turn, and that several times over. Both sides read every record twice, and what they
wrote once more. Seconds are for each MiB of log that a round read, since the newest segments stay
out of a remote one. Requests and bytes are those that a layout makes of its calls, and the
metadata topic's growth is that of its records without their batches. Then a metadata topic of many
segments is folded, and the fold brought back from its checkpoint. No broker takes part, and the
object store is the local disk: how long its answers take is not in these figures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from Crypto.PublicKey import RSA
from msgspec import Struct

from benchmarks.machine import describe, machine
from benchmarks.options import positive
from benchmarks.pairs import PAIRS_MIN, compare
from benchmarks.run import RESULTS
from benchmarks.workload import TOPIC, Workload, write_log
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.attach.rounds.attached_place import AttachedPlace, AttachedState
from keeplast.attach.rounds.missing_aborts import measure_sources
from keeplast.attach.rounds.round import do_round
from keeplast.attach.rules.sources import choose_sources
from keeplast.clock import SystemClock
from keeplast.cluster.layouts.aiven_encryption import KeyPair, KeyRing
from keeplast.cluster.layouts.paced import PacedLayout, PaceLimits, RequestPace
from keeplast.cluster.metadata_cache import ClusterCache
from keeplast.cluster.metadata_log import (
    FoldCheckpoint,
    FoldPoint,
    decode_checkpoint,
    digest_of,
    encode_checkpoint,
)
from keeplast.columns import kernel
from keeplast.errors import InvariantError
from keeplast.format.compression import Codec
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    TopicIdPartition,
    decode,
    encode,
)
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.attached_tier import PARTITION, AtOnce, AttachedTier
from tests.support.plugin_tier import Variant, keep_as

MIB = 1 << 20
SEGMENT_BYTES = 32 * MIB
CHUNK_BYTES = 4 * MIB
"""What the plugin's users set most: a chunk is one fetch of a consumer."""
LINEAGE = (LeaderEpoch(0, 0),)
NOW_MS = 1_800_000_000_000
GOAL = 0.6
"""Of a local round's MiB a second of processor time."""
FOLDED, FOLDED_BYTES = 100_000, 64 * MIB
FREE = PaceLimits(requests_per_second=1e12, bytes_per_second=1e15, pause_ms=1)
LOCAL, KAFKA = "a directory", "Kafka's local tiered storage"
VARIANTS: dict[str, Variant | None] = {
    KAFKA: None,
    "plugin, plain": (False, False, CHUNK_BYTES),
    "plugin, zstd": (True, False, CHUNK_BYTES),
    "plugin, encrypted": (False, True, CHUNK_BYTES),
    "plugin, zstd and encrypted": (True, True, CHUNK_BYTES),
}
LOGS = ((100, 140, Codec.NONE), (1000, 14, Codec.ZSTD))
"""Bytes of a value, records of a batch, codec."""


class Counted(Struct, frozen=True):
    """One round: what it read of the log, and took; requests and bytes of its remote tier."""

    log_bytes: int
    seconds: float
    cpu_seconds: float
    requests: int = 0
    moved_bytes: int = 0
    swaps: int = 0
    metadata_records: int = 0
    metadata_bytes: int = 0

    @property
    def times(self) -> tuple[float, float]:
        """Return seconds a MiB by the clock and of a processor."""
        mib = self.log_bytes / MIB
        return self.seconds / mib, self.cpu_seconds / mib


@dataclass(slots=True)
class MeteredTier(AttachedTier):
    """A tier that adds up the events of its metadata topic."""

    announced_records: int = 0
    announced_bytes: int = 0

    def announce(self, event: RemoteLogSegment | RemoteLogSegmentUpdate) -> None:
        """Announce and count."""
        AttachedTier.announce(self, event)
        self.announced_records += 1
        self.announced_bytes += len(encode(event))


@dataclass(slots=True)
class Kind:
    """One kind of log, and the rounds of every place it may lie in."""

    name: str
    counts: dict[str, list[Counted]] = field(default_factory=dict)


def topic_of() -> TopicConfig:
    """Return the settings of both sides."""
    return TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=4 * SEGMENT_BYTES)


def request_for(name: TopicPartition, path: Path) -> CleanRequest:
    """Return what is asked of both sides."""
    partition = PartitionRequest(name, path, topic_of())
    return CleanRequest((partition,), now_ms=NOW_MS, is_unsafe=True, force=True)


def log_bytes_of(report: RoundReport) -> int:
    """Return how much of a log a round has read in its second pass."""
    if report.failure is not None:
        raise report.failure
    if report.stats is None:
        raise InvariantError(f"a round did nothing. report={report}")
    return report.stats.bytes_read


def clean_local(log: Path, scratch: Path) -> Counted:
    """Clean a copy of a log where it lies."""
    with tempfile.TemporaryDirectory(dir=scratch) as place, LocalRunner(cores=1) as runner:
        copy = Path(place) / log.name
        copy.mkdir()
        for path in log.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
        began, worked = time.perf_counter(), time.process_time()
        report = coordinator.clean(request_for(TopicPartition(TOPIC, 0), copy))
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        return Counted(log_bytes_of(report.partitions[0].rounds[-1]), seconds, cpu)


def clean_remote(log: Path, scratch: Path, variant: Variant | None, ring: KeyRing) -> Counted:
    """Copy a log into a tier, and do a round there."""
    with tempfile.TemporaryDirectory(dir=scratch) as place, LocalRunner(cores=1) as runner:
        tier = MeteredTier(Path(place) / "tier", LINEAGE)
        tier.copy(log)
        layout = (
            tier.layout if variant is None else keep_as(tier, Path(place) / "own", ring, [variant])
        )
        tier.announced_records = tier.announced_bytes = 0
        pace = RequestPace(FREE)
        paced = PacedLayout(layout, pace)
        publisher, clock = AtOnce(tier), SystemClock()
        began, worked = time.perf_counter(), time.process_time()
        found = choose_sources(
            tier.cache, log_start=0, margin_bytes=1, lineage=LINEAGE, now_ms=clock.now_ms()
        )
        state = AttachedState(measure_sources(paced, found), 0, 0)
        name = TopicPartition(PARTITION.topic, PARTITION.partition)
        request = request_for(name, attached_path(PARTITION))
        attached = AttachedPlace(paced, state, publisher, request, clock)
        report = do_round(attached, lambda _: nullcontext(runner), clock, lambda _: None)
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        swaps = len(publisher.swaps)
        publisher.collect()
        return Counted(
            log_bytes_of(report), seconds, cpu, pace.requests, pace.bytes, swaps,
            tier.announced_records, tier.announced_bytes,
        )  # fmt: skip


def measure(mib: int, turns: int, scratch: Path) -> Iterator[Kind]:
    """Yield every kind of log with its rounds, taken in turn."""
    pem = scratch / "key.pem"
    pem.write_bytes(RSA.generate(2048).export_key("PEM", pkcs=8))
    ring = KeyRing((KeyPair("k", None, pem),), "k")
    for number, (value_bytes, per_batch, codec) in enumerate(LOGS):
        name = f"{value_bytes} B, {codec.name.lower()}"
        workload = Workload(name, value_bytes, per_batch, codec, mib * MIB, SEGMENT_BYTES)
        log = write_log(workload, scratch / str(number)).path
        kind = Kind(name, {each: [] for each in (LOCAL, *VARIANTS)})
        for turn in range(turns + 1):
            for place in kind.counts:
                counted = (
                    clean_local(log, scratch)
                    if place == LOCAL
                    else clean_remote(log, scratch, VARIANTS[place], ring)
                )
                if turn:  # the first one warms up
                    kind.counts[place].append(counted)
        yield kind


def rounds_table(kinds: Sequence[Kind]) -> str:
    """Return a line for every kind of log in every place."""
    lines = [
        "| log | lies in | MiB a second of a processor | of a directory's | goal | pairs differ by "
        "| | requests a GiB | moved a GiB | P, records and bytes a swap |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    for kind in kinds:
        for place, counts in kind.counts.items():
            rate = 1 / min(each.times[1] for each in counts)
            cells = [kind.name, place, f"{rate:,.0f}"]
            if place == LOCAL:
                cells += [""] * 7
            else:
                both = compare(
                    ours=[each.times for each in counts],
                    theirs=[each.times for each in kind.counts[LOCAL]],
                )
                work = both.by_work or both.by_clock
                one = counts[-1]
                of_gib = (1 << 30) / one.log_bytes
                cells += [
                    f"{work.ratio:.2f}", f"{GOAL}", both.spreads, both.verdict(GOAL, work).value,
                    f"{one.requests * of_gib:,.0f}",
                    f"{one.moved_bytes * of_gib / (1 << 30):.2f} GiB",
                    f"{one.metadata_records / one.swaps:.0f}, "
                    f"{one.metadata_bytes / one.swaps:,.0f} B",
                ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def fold(segments: int) -> tuple[float, float, int]:
    """Return seconds of a processor for a cold fold and one that was kept, and its bytes.

    ``segments`` were announced and finished; reading them from brokers is not counted.
    """
    partition = TopicIdPartition("orders", bytes(range(16)), 0)
    values: list[bytes] = []
    for number in range(segments):
        segment = RemoteLogSegment(
            id=RemoteLogSegmentId(partition, number.to_bytes(16, "big")),
            start_offset=1000 * number, end_offset=1000 * number + 999, broker_id=1,
            max_timestamp_ms=NOW_MS, event_timestamp_ms=NOW_MS,
            epochs=(EpochStart(number // 1000, 1000 * number),), size_bytes=FOLDED_BYTES,
            custom_metadata=None, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )  # fmt: skip
        update = RemoteLogSegmentUpdate(
            id=segment.id, broker_id=1, event_timestamp_ms=NOW_MS, custom_metadata=None,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )  # fmt: skip
        values += (encode(segment), encode(update))
    worked = time.process_time()
    cache = ClusterCache()
    for value in values:
        cache.apply(decode(value))
    cold = time.process_time() - worked
    point = FoldPoint(
        cluster_id="a-cluster", topic_id=bytes(16), partition_count=1, partition=0,
        offset=len(values), leader_epoch=0, record_epoch=0, digest=digest_of(values[-1]),
    )  # fmt: skip
    kept = encode_checkpoint(FoldCheckpoint(point, cache, len(values)))
    if kept is None:
        raise InvariantError(f"a fold is too large to be kept. segments={segments}")
    worked = time.process_time()
    found = decode_checkpoint(kept)
    again = time.process_time() - worked
    if found.segment_count != segments:
        raise InvariantError(f"a fold has lost segments. found={found.segment_count}")
    return cold, again, len(kept)


def page(document: Mapping[str, Any]) -> str:
    """Return the tables of the stored results."""
    kinds = [
        Kind(each["name"], {p: [Counted(**one) for one in c] for p, c in each["counts"].items()})
        for each in document["kinds"]
    ]
    found = document["fold"]
    return (
        f"{describe(document['machine'])} Logs of {document['mib']} MiB, segments of "
        f"{SEGMENT_BYTES // MIB} MiB, chunks of {CHUNK_BYTES // MIB} MiB, one thread.\n\n"
        f"{rounds_table(kinds)}\n"
        f"A fold of {found['segments']:,} segments: {found['cold']:.1f} s of a processor from "
        f"their records, {found['kept']:.2f} s from what was kept "
        f"({found['bytes'] / MIB:.1f} MiB).\n"
    )


def main() -> None:
    """Measure and write ``results/attached.json`` and ``results/attached.md``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=positive, default=256, help="size of each log")
    parser.add_argument("--turns", type=positive, default=PAIRS_MIN, help="counts of each place")
    parser.add_argument("--segments", type=positive, default=FOLDED, help="of the fold")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    kernel.load()
    conditions = machine()
    with tempfile.TemporaryDirectory(prefix="bench-attached-") as scratch:
        kinds = list(measure(options.mib, options.turns, Path(scratch)))
    cold, kept, size = fold(options.segments)
    document = {
        "machine": conditions, "mib": options.mib,
        "fold": {"segments": options.segments, "cold": cold, "kept": kept, "bytes": size},
        "kinds": [asdict(kind) for kind in kinds],
    }  # fmt: skip
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "attached.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.results / "attached.md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main()
