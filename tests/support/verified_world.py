"""A partition of a model cluster whose segments lie on a disk, compacted by real rounds, and read.

Consumers are a model of their own: they go through what brokers' fold serves, and know aborted
transactions by the transaction indexes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from keeplast.attach.proof.verification import AttachedVerifier, AttachedVerifySettings, ReadCluster
from keeplast.attach.rounds.round import RoundWish, clean_attached
from keeplast.attach.upkeep.replaced_segments import collect, repair
from keeplast.cluster.live_cluster import OffsetRange
from keeplast.cluster.topic_records import ConsumedRecord
from keeplast.errors import CorruptError
from keeplast.format.batch import RecordBatch
from keeplast.format.checksum import crc32c
from keeplast.format.compression import Codec
from keeplast.format.identifier import encode_id
from keeplast.format.message_set import read_batches
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
)
from keeplast.inspect.verified_log import VerificationReport
from keeplast.model.document import Verdict
from keeplast.model.topic_config import Shape, TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.run.receipt import Receipt
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.report import RoundReport
from tests.support.attached_tier import AttachedTier
from tests.support.attached_world import PARTITION, AttachedWorld, ModelCluster

Given = list[ConsumedRecord]
Changes = Callable[[Given, bool], Given]


@dataclass
class _AnnouncingTier(AttachedTier):
    """A tier whose announcements the model cluster hears."""

    cluster: ModelCluster = field(default_factory=ModelCluster)

    def announce(self, event: RemoteLogSegment | RemoteLogSegmentUpdate) -> None:
        super().announce(event)
        self.cluster.announce(event)


class Consumers:
    """The cluster as ``verify`` asks it; ``changes`` edit what consumers are given."""

    def __init__(self, world: VerifiedWorld) -> None:
        """Begin with consumers that are given what lies there."""
        self._world = world
        self.changes: Changes = lambda given, is_committed: given
        self.before_reading: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.cluster, name)

    def read_records(
        self, topic: str, partition: int, held: OffsetRange, *, is_committed: bool
    ) -> Generator[ConsumedRecord]:
        """Yield what a consumer is given of ``held``."""
        assert (PARTITION.topic, PARTITION.partition) == (topic, partition)
        self.before_reading()
        try:
            readable = self._world.tier.read()
        except FileNotFoundError as error:
            raise CorruptError("brokers do not serve an offset", path=topic) from error
        if is_committed:
            records = list(readable.records(held.start))
        else:
            records = [
                record
                for batch in readable.batches
                if not batch.is_control
                for record in batch.records()
                if record.offset >= held.start
            ]
        given = [
            ConsumedRecord(
                each.offset, each.timestamp, each.key, each.value,
                tuple((name.decode(), value) for name, value in each.headers),
            )
            for each in records
            if each.offset < held.end
        ]  # fmt: skip
        yield from self.changes(given, is_committed)


class VerifiedWorld:
    """A log directory, copied as its leader would, and who compacts and judges it."""

    def __init__(
        self, root: Path, directory: Path, lineage: Iterable[Any], *, left: int = 0,
        url: str | None = None,
    ) -> None:  # fmt: skip
        """Copy the closed segments of ``directory``, but for the last ``left`` ones.

        ``url`` is the decision log's; a SQLite file below ``root`` without one.
        """
        self.world = AttachedWorld(root, segments=0, url=url)
        self.directory = directory
        self.cluster = self.world.cluster
        self.tier = _AnnouncingTier(
            root / "tier", tuple(lineage), partition=PARTITION, cluster=self.cluster
        )  # fmt: skip
        self.bases = sorted(int(path.name[:20]) for path in directory.glob("*.log"))
        for base, following in pairwise(self.bases[: len(self.bases) - left]):
            self.tier.copy_one(directory, base, following - 1)
        self.world.tier = cast(Any, self.tier.layout)
        self.cluster.log = OffsetRange(0, self.bases[-1] + 10)
        self.consumers = Consumers(self)

    def close(self) -> None:
        """Close the decision log."""
        self.world.close()

    def clean(
        self, topic: TopicConfig, *, margin: int = 8000, receipt: Receipt | None = None,
        runner: Runner | None = None, shape: Shape | None = None, force: bool = True,
    ) -> RoundReport:  # fmt: skip
        """Do one round, as a process of its own; without a ``runner`` on one thread of this one.

        On two where it has a ``shape``.
        """
        publisher = self.world.claim()
        repair(publisher)
        wish = RoundWish(
            topic=topic, margin_bytes=margin, force=force, memory_bytes=MEMORY_BYTES_MIN,
            shape=shape,
        )  # fmt: skip
        clock = self.world.clock
        try:
            cores = 1 if shape is None else 2
            chosen = LocalRunner(cores, clock=clock) if runner is None else nullcontext(runner)
            with chosen as works:
                return clean_attached(
                    publisher, wish, lambda _: nullcontext(works), clock,
                    progressed=lambda _: None, receipt=receipt,
                )  # fmt: skip
        finally:
            publisher.close()
            self.tier.cache = self.cluster.cache()

    def collect(self) -> None:
        """Let the grace pass, and collect."""
        publisher = self.world.claim()
        self.world.clock.advance(1000)
        collect(publisher, 1000)
        publisher.close()
        self.tier.cache = self.cluster.cache()

    def verify(
        self, topic: TopicConfig, receipts: Sequence[RoundReceipt] = ()
    ) -> VerificationReport:
        """Judge the partition, and name which of ``receipts`` that is of."""
        verifier = AttachedVerifier(
            cast(ReadCluster, self.consumers), self.world.log(), self.tier.layout
        )
        settings = AttachedVerifySettings(
            topic=topic, memory_bytes=MEMORY_BYTES_MIN, receipts=tuple(receipts)
        )
        return verifier.verify(self.cluster.topic, PARTITION.partition, settings)

    def file_of(self, segment: RemoteLogSegment) -> Path:
        """Return where a segment's log lies."""
        name = f"{segment.start_offset:020d}-{encode_id(segment.id.segment_id)}.log"
        (found,) = self.tier.root.glob(f"kafka-tiered-storage/*/{name}")
        return found

    def replaced(self) -> list[RemoteLogSegment]:
        """Return what waits to be collected, by start offset."""
        deleting = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        return [each for each in self.cluster.cache().segments if each.state is deleting]

    def compacted(self) -> list[RemoteLogSegment]:
        """Return what a compactor wrote and brokers serve, by start offset."""
        return [each for each in self.tier.served() if each.broker_id < 0]


def broken(report: VerificationReport) -> list[str]:
    """Return the names of the checks that are broken."""
    return [each.name for each in report.checks if each.verdict is Verdict.BROKEN]


def edit(path: Path, old: bytes, new: bytes) -> bool:
    """Replace ``old`` once in a plain batch of a log, checksum and all; False when none has it."""
    assert len(old) == len(new)
    data = bytearray(path.read_bytes())
    for batch in read_batches(bytes(data)):
        if not isinstance(batch, RecordBatch) or batch.codec is not Codec.NONE:
            continue
        start, end = batch.position, batch.position + batch.size_bytes
        at = data.find(old, start + 61, end)
        if at < 0:
            continue
        data[at : at + len(old)] = new
        data[start + 17 : start + 21] = crc32c(data[start + 21 : end]).to_bytes(4, "big")
        path.write_bytes(data)
        return True
    return False


def without(offset: int) -> Changes:
    """Let consumers not be given one record."""
    return lambda given, _: [each for each in given if each.offset != offset]


def with_value(offset: int, value: bytes) -> Changes:
    """Let consumers be given another value."""
    return lambda given, _: [
        replace(each, value=value) if each.offset == offset else each for each in given
    ]
