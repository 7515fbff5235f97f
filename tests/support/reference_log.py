"""A partition directory as plain values, for the reference cleaner: slow, obvious, all in memory.

What Kafka knows of a log apart from its bytes is worked out here the long way: producers by reading
the newest snapshot and replaying what follows it, the last stable offset from open transactions.

Answers to ``ProducerStateManager``, ``ProducerAppendInfo`` and ``UnifiedLog``; cleaning.md 0, 3.4.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.format import offset_index, producer_snapshot, time_index, txn_index
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, segment_file
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType, decode_control_type
from keeplast.format.txn_index import AbortedTransaction

NONE = -1


class Segment(Struct, frozen=True):
    """One segment with everything decoded; index entries hold relative offsets."""

    base_offset: int
    data: bytes
    mtime_ns: int
    batches: tuple[Batch, ...]
    index: tuple[tuple[int, int], ...]
    times: tuple[tuple[int, int], ...]
    aborted: tuple[AbortedTransaction, ...]

    @property
    def mtime_ms(self) -> int:
        """Modification time of the ``.log`` file in milliseconds."""
        return self.mtime_ns // 10**6

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch; the base offset when there is none."""
        return self.batches[-1].last_offset + 1 if self.batches else self.base_offset

    @property
    def largest_timestamp(self) -> int:
        """The last entry of the time index, or the file's time when no record has a timestamp."""
        largest = self.times[-1][0] if self.times else NONE
        return self.mtime_ms if largest < 0 else largest


class Producer(Struct, frozen=True):
    """What is known of one producer; ``last_data_offset`` None when only markers are."""

    epoch: int
    last_data_offset: int | None
    timestamp: int
    open_since: int | None


class Log(Struct, frozen=True):
    """One partition's log. The last segment is the active one."""

    segments: tuple[Segment, ...]
    producers: dict[int, Producer]

    @property
    def active_base(self) -> int:
        """Base offset of the active segment."""
        return self.segments[-1].base_offset

    @property
    def end_offset(self) -> int:
        """The next offset that would be assigned."""
        return self.segments[-1].next_offset

    def last_stable_offset(self, high_watermark: int) -> int:
        """The lower of high watermark and first offset of an open transaction."""
        opened = [p.open_since for p in self.producers.values() if p.open_since is not None]
        return min([high_watermark, *opened])

    def between(self, start: int, end: int) -> tuple[Segment, ...]:
        """Return segments with base < ``end``, from the one that contains ``start``."""
        if start == end:
            return ()
        floor = max(
            (s.base_offset for s in self.segments if s.base_offset <= start),
            default=self.segments[0].base_offset,
        )
        return tuple(s for s in self.segments if floor <= s.base_offset < end)

    def non_active_from(self, start: int) -> tuple[Segment, ...]:
        """Return the segments before the active one, from the one that contains ``start``."""
        return () if start > self.active_base else self.between(start, self.active_base)


def read_log(partition: Path, *, now_ms: int, expiration_ms: int, log_start: int) -> Log:
    """Return the log in the directory ``partition`` as a broker would know it at ``now_ms``."""
    segments = tuple(_read_segment(partition, path) for path in sorted(partition.glob(f"*{LOG}")))
    producers = _read_producers(partition, segments, now_ms, expiration_ms, log_start)
    return Log(segments, producers)


def _read_segment(partition: Path, path: Path) -> Segment:
    base_offset = int(path.stem)

    def content(kind: str) -> bytes:
        file = partition / f"{path.stem}{kind}"
        return file.read_bytes() if file.exists() else b""

    data = path.read_bytes()
    return Segment(
        base_offset=base_offset,
        data=data,
        mtime_ns=path.stat().st_mtime_ns,
        batches=tuple(read_batches(data)),
        index=tuple((int(a), int(b)) for a, b in offset_index.decode(content(INDEX))),
        times=tuple((int(a), int(b)) for a, b in time_index.decode(content(TIME_INDEX))),
        aborted=txn_index.decode(content(TXN_INDEX)),
    )


def _read_producers(
    partition: Path,
    segments: tuple[Segment, ...],
    now_ms: int,
    expiration_ms: int,
    log_start: int,
) -> dict[int, Producer]:
    end_offset = segments[-1].next_offset
    offsets = [int(path.stem) for path in partition.glob(f"*{SNAPSHOT}")]
    usable = [offset for offset in offsets if log_start < offset <= end_offset]
    producers: dict[int, Producer] = {}

    def is_expired(producer: Producer) -> bool:
        return producer.open_since is None and now_ms - producer.timestamp >= expiration_ms

    # A log that was closed in order and has no snapshot has no producers: nothing is replayed.
    if not usable:
        return producers
    newest = max(usable)
    for entry in producer_snapshot.decode(
        (partition / segment_file(newest, SNAPSHOT)).read_bytes()
    ):
        producers[entry.producer_id] = Producer(
            entry.epoch,
            entry.last_offset if entry.last_offset >= 0 else None,
            entry.timestamp,
            entry.current_txn_first_offset if entry.current_txn_first_offset >= 0 else None,
        )
    producers = {key: value for key, value in producers.items() if not is_expired(value)}
    for segment in segments:
        for batch in segment.batches:
            if batch.base_offset >= newest and batch.producer_id >= 0:
                _replay(producers, batch)
    return {key: value for key, value in producers.items() if not is_expired(value)}


def _replay(producers: dict[int, Producer], batch: Batch) -> None:
    known = producers.get(batch.producer_id, Producer(batch.producer_epoch, None, NONE, None))
    if known.epoch != batch.producer_epoch:
        known = replace(known, epoch=batch.producer_epoch, last_data_offset=None)
    if not batch.is_control:
        opened = known.open_since
        if batch.is_transactional and opened is None:
            opened = batch.base_offset
        producers[batch.producer_id] = Producer(
            known.epoch, batch.last_offset, batch.max_timestamp, opened
        )
        return
    for record in batch.records():
        if decode_control_type(record.key) in (ControlType.ABORT, ControlType.COMMIT):
            producers[batch.producer_id] = replace(
                known, timestamp=record.timestamp, open_since=None
            )
        break
