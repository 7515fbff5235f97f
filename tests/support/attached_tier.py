"""A partition of a live cluster's remote tier without a cluster: a log's segments, copied.

What a leader would have uploaded of a directory lies in Kafka's own file layout, and was announced
to a fold of the metadata topic; ``Publisher`` here decides and publishes at once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from keeplast.attach.rules.swap import Swap
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.cluster.layouts.local_storage import SEGMENTS, LocalStorage
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.errors import UnavailableError
from keeplast.format import (
    leader_epoch,
    offset_index,
    producer_snapshot,
    time_index,
    txn_index,
)
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, segment_file
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    TopicIdPartition,
)
from keeplast.log.indexes import IndexBuilder
from tests.support.reader import Readable

PARTITION = TopicIdPartition("t", bytes(range(16)), 0)
MARK = -1001
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


@dataclass
class AttachedTier:
    """The remote tier below ``root``, and what brokers know of it."""

    root: Path
    lineage: tuple[LeaderEpoch, ...] = (LeaderEpoch(0, 0),)
    cache: PartitionCache = field(default_factory=PartitionCache)
    copied: int = 0
    partition: TopicIdPartition = PARTITION

    def __post_init__(self) -> None:
        """Make the plugin's folder."""
        (self.root / SEGMENTS).mkdir(parents=True)
        self.layout = LocalStorage(self.root)

    def copy(self, directory: Path) -> None:
        """Upload the closed segments of ``directory`` as its leader would."""
        bases = sorted(int(path.name[:20]) for path in directory.glob(f"*{LOG}"))
        for base, following in pairwise(bases):
            self.copy_one(directory, base, following - 1)

    def copy_over(self, directory: Path, first: int, last: int) -> RemoteLogSegment:
        """Upload ``[first, last]`` as a leader would that had rolled at ``first``; return it.

        ``first`` begins a batch, ``last`` ends a segment of ``directory``.
        """
        builder, rows, kept = IndexBuilder(first, 256), [], []
        aborted: list[txn_index.AbortedTransaction] = []
        for path in sorted(directory.glob(f"*{LOG}")):
            kept += [
                each
                for each in read_batches(path.read_bytes())
                if first <= each.base_offset <= last
            ]
            entries = path.with_suffix(TXN_INDEX)
            if entries.exists():
                aborted += txn_index.decode(entries.read_bytes())
        for each in kept:
            rows.append((each.size_bytes, each.last_offset, each.max_timestamp))
        builder.add(np.array(rows, np.int64))
        offsets, times = builder.finish()
        here = [each for each in aborted if first <= each.last_offset <= last]
        with tempfile.TemporaryDirectory() as made:
            for kind, content in (
                (LOG, b"".join(bytes(each.data) for each in kept)),
                (INDEX, offset_index.encode(offsets)),
                (TIME_INDEX, time_index.encode(times)),
                *(((TXN_INDEX, txn_index.encode(here)),) if here else ()),
            ):
                (Path(made) / segment_file(first, kind)).write_bytes(content)
            newest_ns = max(each.max_timestamp for each in kept) * 1_000_000
            os.utime(Path(made) / segment_file(first, LOG), ns=(newest_ns, newest_ns))
            snapshot = directory / segment_file(last + 1, SNAPSHOT)
            return self.copy_one(Path(made), first, last, snapshot)

    def copy_one(
        self, directory: Path, base: int, last: int, snapshot: Path | None = None
    ) -> RemoteLogSegment:
        """Upload one segment of ``directory``; ``snapshot`` is the one behind it."""
        self.copied += 1
        data = (directory / segment_file(base, LOG)).read_bytes()
        times = time_index.decode((directory / segment_file(base, TIME_INDEX)).read_bytes())
        stamp = directory / segment_file(base, LOG)
        snapshot = snapshot or directory / segment_file(last + 1, SNAPSHOT)
        segment = RemoteLogSegment(
            id=RemoteLogSegmentId(self.partition, self.copied.to_bytes(16, "big")),
            start_offset=base, end_offset=last, broker_id=1,
            max_timestamp_ms=int(times[-1, 0]) if len(times) else -1,
            event_timestamp_ms=stamp.stat().st_mtime_ns // 1_000_000,
            epochs=self._epochs(base, last), size_bytes=len(data), custom_metadata=None,
            state=STARTED,
        )  # fmt: skip
        files = {
            AuxiliaryFile.OFFSET_INDEX: (directory / segment_file(base, INDEX)).read_bytes(),
            AuxiliaryFile.TIME_INDEX: (directory / segment_file(base, TIME_INDEX)).read_bytes(),
            AuxiliaryFile.SNAPSHOT: snapshot.read_bytes()
            if snapshot.exists()
            else producer_snapshot.encode([]),
            AuxiliaryFile.LEADER_EPOCHS: leader_epoch.encode(
                each for each in self.lineage if each.start_offset <= last
            ),
        }
        aborted = directory / segment_file(base, TXN_INDEX)
        if aborted.exists():
            files[AuxiliaryFile.TXN_INDEX] = aborted.read_bytes()
        writer = self.layout.create_log(segment.id, base, segment)
        writer.write(data)
        self.layout.complete(segment, writer.close(), files, segment)
        self.upload(segment)
        return segment

    def _epochs(self, base: int, last: int) -> tuple[EpochStart, ...]:
        before = [each for each in self.lineage if each.start_offset <= base]
        later = [each for each in self.lineage if base < each.start_offset <= last]
        return tuple(
            EpochStart(each.epoch, max(each.start_offset, base)) for each in (*before[-1:], *later)
        )

    def upload(self, segment: RemoteLogSegment) -> None:
        """Let brokers know of a segment that is copied whole; nothing lies there."""
        self.announce(segment)
        self.announce(updated(segment, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))

    def announce(self, event: RemoteLogSegment | RemoteLogSegmentUpdate) -> None:
        """Let brokers read a record of the metadata topic; it must be one that they take."""
        assert self.cache.apply(event) is None

    def served(self) -> list[RemoteLogSegment]:
        """Return what brokers read from, by start offset."""
        found = {each.segment.id: each.segment for each in self.cache.served()}
        return sorted(found.values(), key=lambda each: each.start_offset)

    def log_of(self, segment: RemoteLogSegment) -> bytes:
        """Return a segment's log, whole."""
        return bytes(self.layout.open(segment).read_log(0, segment.size_bytes))

    def read(self) -> Readable:
        """Return what brokers read: of a segment what no later one lies over."""
        ends: dict[RemoteLogSegmentId, int] = {}
        for served in self.cache.served():
            name = served.segment.id
            ends[name] = max(ends.get(name, -1), served.end_offset)
        batches: list[Batch] = []
        aborted: list[txn_index.AbortedTransaction] = []
        for each in self.served():
            found = read_batches(self.log_of(each))
            batches += [batch for batch in found if batch.base_offset <= ends[each.id]]
            entries = self.layout.open(each).read_auxiliary(AuxiliaryFile.TXN_INDEX)
            aborted += txn_index.decode(entries or b"")
        return Readable(tuple(batches), tuple(dict.fromkeys(aborted)))

    def ids(self) -> set[bytes]:
        """Return the ids under which anything lies in the partition's place."""
        return {each.segment_id for each in self.layout.list(PARTITION)}

    def own(self) -> list[str]:
        """Return the names of keeplast's own objects that are files."""
        own = self.root / ".keeplast"
        return sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file())


@dataclass
class AtOnce:
    """Publishes what it is given; ``fails_at`` names the step before which it fails."""

    tier: AttachedTier
    cleaned_to: int = 0
    swaps: list[Swap] = field(default_factory=list)
    announced: list[RemoteLogSegment] = field(default_factory=list)
    discarded: list[bytes] = field(default_factory=list)
    registered: dict[bytes, int] = field(default_factory=dict)
    fails_at: str | None = None
    swaps_before_failure: int = 0

    @property
    def mark(self) -> int:
        """Return the mark of the first epoch."""
        return MARK

    def _step(self, name: str) -> None:
        if self.fails_at == name and len(self.swaps) >= self.swaps_before_failure:
            raise UnavailableError(f"the cluster has gone. step={name}")

    def anchor(self, line: bytes | None) -> None:
        """Keep nothing: there is no decision log."""

    def register(self, ids: Sequence[tuple[bytes, int]]) -> None:
        """Remember ids."""
        self._step("register")
        self.registered |= dict(ids)

    def announce_all(self, segments: Sequence[RemoteLogSegment]) -> None:
        """Let brokers know."""
        self._step("announce")
        for each in segments:
            assert each.id.segment_id in self.registered
            announced = replace(each, custom_metadata=None)
            self.tier.announce(announced)
            self.announced.append(announced)

    def decide_and_publish(self, swap: Swap) -> None:
        """Let brokers know of the swap as one batch would."""
        self._step("decide")
        for output in sorted(swap.outputs, key=lambda each: -each.start_offset):
            self.tier.announce(updated(output, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
        for source in swap.sources:
            self.tier.announce(updated(source, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
        self.swaps.append(swap)
        self.cleaned_to = swap.cleaned_to

    def discard_ids(self, segment_ids: Sequence[bytes]) -> None:
        """Take back what was registered, and announced or not."""
        known = {each.id.segment_id: each for each in self.announced}
        for found in list(self.tier.layout.list(PARTITION)):
            if found.segment_id in segment_ids:
                assert found.segment_id in self.registered
                self.tier.layout.delete_found(PARTITION, found)
        for each in (known[segment_id] for segment_id in segment_ids if segment_id in known):
            self.tier.announce(updated(each, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
            self.tier.announce(updated(each, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED))
        self.discarded += segment_ids

    def advance(self, cleaned_to: int) -> None:
        """Remember it."""
        self.cleaned_to = cleaned_to

    def collect(self) -> None:
        """Delete what was replaced."""
        for swap in self.swaps:
            for source in swap.sources:
                self.tier.layout.delete(source)
                self.tier.announce(updated(source, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED))
        self.swaps.clear()


def updated(segment: RemoteLogSegment, state: RemoteLogSegmentState) -> RemoteLogSegmentUpdate:
    """Return the record that gives brokers a segment's state."""
    return RemoteLogSegmentUpdate(
        id=segment.id, broker_id=segment.broker_id, event_timestamp_ms=segment.event_timestamp_ms,
        custom_metadata=segment.custom_metadata, state=state,
    )  # fmt: skip
