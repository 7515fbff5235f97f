"""What compactors told brokers of one partition: every swap, read out of the metadata topic again.

The rule: **a swap counts as found only when the records that it would be published by are those
that lie there, byte for byte**, in one piece. The metadata topic is never compacted, so that it
remembers what a decision log has lost: who decided, when, what took the place of what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from keeplast.attach.rules.batch import batch_of
from keeplast.attach.rules.swap import covered
from keeplast.cluster.facts import METADATA_TOPIC, OffsetRange
from keeplast.cluster.live_cluster import LiveCluster
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.status import COMPACTOR_BROKER_MAX
from keeplast.errors import RefusedError
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDelete,
    decode,
)
from keeplast.tier.state.attached import AttachedName, Decision, DecisionState, epoch_of_mark

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_ID_CHARS = 32


@dataclass(frozen=True, slots=True)
class _ToldUpdate:
    """An update in a batch, and its segment as it stood before."""

    offset: int
    value: bytes
    event: RemoteLogSegmentUpdate
    segment: RemoteLogSegment | None


@dataclass(slots=True)
class CompactorHistory:
    """The records of one partition up to :attr:`end`, exclusive, of the metadata topic.

    ``epoch`` is the newest that announced or moved anything, ``newest_ms`` when that was. ``known``
    has every segment that was ever announced, as it stood last; ``announced`` are the ids that a
    compactor announced. ``swaps`` are what was published, oldest first, by what is published.
    """

    name: AttachedName
    metadata_partition: int
    end: int = 0
    epoch: int = 0
    newest_ms: int = 0
    cache: PartitionCache = field(default_factory=PartitionCache)
    known: dict[RemoteLogSegmentId, RemoteLogSegment] = field(default_factory=dict)
    announced: set[RemoteLogSegmentId] = field(default_factory=set)
    swaps: dict[tuple[bytes, ...], Decision] = field(default_factory=dict)
    _batch: list[_ToldUpdate] = field(default_factory=list)

    def read(self, cluster: LiveCluster, end: int) -> None:
        """Read on to ``end``; RefusedError for an offset without a record, CorruptError as brokers.

        ``end`` is where the topic ended: no batch goes on behind it.
        """
        held = OffsetRange(self.end, end)
        for each in cluster.read_metadata(self.metadata_partition, held):
            if isinstance(each, int):
                raise RefusedError(
                    f"{METADATA_TOPIC} has no record at an offset; see keeplast place check. "
                    f"partition={self.metadata_partition} offset={each}"
                )
            self._add(each.offset, each.value)
        self._end_batch()
        self.end = max(self.end, end)

    def _add(self, offset: int, value: bytes | None) -> None:
        event = decode(value)
        assert value is not None
        if isinstance(event, RemotePartitionDelete) or event.id.partition != self.name.partition:
            self._end_batch()
            return
        if isinstance(event, RemoteLogSegmentUpdate):
            told = _ToldUpdate(offset, value, event, self.known.get(event.id))
            if not self._joins(told):
                self._end_batch()
            if event.broker_id <= COMPACTOR_BROKER_MAX and event.state in (_FINISHED, _DELETING):
                self._batch.append(told)
        else:
            self._end_batch()
            if event.broker_id <= COMPACTOR_BROKER_MAX:
                self.announced.add(event.id)
        if event.broker_id <= COMPACTOR_BROKER_MAX:
            self.epoch = max(self.epoch, epoch_of_mark(event.broker_id))
            self.newest_ms = max(self.newest_ms, event.event_timestamp_ms)
        self.cache.apply(event)
        found = self.cache.find(event.id)
        if found is not None:
            self.known[event.id] = found

    def _joins(self, told: _ToldUpdate) -> bool:
        """Say whether an update goes on what was begun: finished copies, then deletions."""
        if not self._batch:
            return False
        last = self._batch[-1]
        return (
            (last.event.broker_id, last.event.event_timestamp_ms, last.offset + 1)
            == (told.event.broker_id, told.event.event_timestamp_ms, told.offset)
            and told.event.state >= last.event.state
        )  # fmt: skip

    def _end_batch(self) -> None:
        batch, self._batch = self._batch, []
        finished = [each for each in batch if each.event.state is _FINISHED]
        replaced = [each for each in batch if each.event.state is _DELETING]
        outputs = [
            replace(each.segment, custom_metadata=each.event.custom_metadata)
            for each in reversed(finished) if each.segment is not None
        ]  # fmt: skip
        sources = [each.segment for each in replaced if each.segment is not None]
        if not finished or not replaced or len(outputs) + len(sources) != len(batch):
            return  # What was taken back, or a late record of segments that are long gone.
        count = _sources_of(outputs, sources)
        if not count or covered(sources[:count]) != covered(outputs):
            return
        batch, sources = batch[: len(finished) + count], sources[:count]
        values = tuple(each.value for each in batch)
        digest = hashlib.sha256(b"".join(values)).hexdigest()
        decision = Decision(
            id=digest[:_ID_CHARS], name=self.name, epoch=epoch_of_mark(batch[0].event.broker_id),
            state=DecisionState.PUBLISHED, sources=tuple(sources), outputs=tuple(outputs),
            cleaned_to=sources[0].start_offset, metadata_partition=self.metadata_partition,
            floor_offset=batch[0].offset, decided_ms=batch[0].event.event_timestamp_ms,
            first_offset=batch[0].offset, last_offset=batch[-1].offset,
        )  # fmt: skip
        if batch_of(decision).values == values:
            # Who publishes twice publishes the same: the first one counted.
            self.swaps.setdefault(values, decision)


def _sources_of(outputs: Sequence[RemoteLogSegment], deleted: Sequence[RemoteLogSegment]) -> int:
    """Return how many of ``deleted`` lie within what ``outputs`` cover, from the first one on.

    What was taken back in the same millisecond lies behind them, and is no source.
    """
    start, end = covered(outputs)
    for at, each in enumerate(deleted):
        if each.start_offset < start or each.end_offset > end:
            return at
        start = each.start_offset
    return len(deleted)
