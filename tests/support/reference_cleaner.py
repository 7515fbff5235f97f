"""Kafka's cleaner, record by record, as an oracle for tests: the specification as a program.

Nothing here is fast, shared with the product or clever. A round reads a partition directory,
decides, and returns the files that it would leave; :func:`write_outcome` puts them in place.
The rules follow cleaning.md 1.2 to 1.5, 2 and 3, as corrected by F1 to F8; sections are cited where
a rule is applied. Damaged input and outputs that overflow their indexes are outside of it.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.batch import RecordBatch, TimestampType, encode_batch, encode_empty_batch
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType, Record, decode_control_type
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.partition import INT32_MAX, delete_horizon
from keeplast.model.topic_config import CleanerConfig, Strategy, TopicConfig
from tests.support.reference_log import Log, Producer, Segment, read_log

MAP_ENTRY_BYTES = 24
VERSIONED_MAP_ENTRY_BYTES = 32

Rank = tuple[int, int, int]
"""Has a version (0 or 1), version, offset."""


class Round(Struct, frozen=True):
    """What one round is called with; None where the directory or the log decides."""

    now_ms: int
    topic: TopicConfig
    cleaner: CleanerConfig
    checkpoint: int | None = None
    log_start: int = 0
    high_watermark: int | None = None
    first_dirty: int | None = None
    uncleanable: int | None = None
    force: bool = True
    passed_to: int | None = None
    """Up to where all readers who are waited for have read, exclusive; None waits for no reader."""

    def is_over(self, horizon_ms: int, offset: int, now_ms: int) -> bool:
        """Say whether what lies at ``offset`` has been kept for long enough."""
        if self.passed_to is not None and offset >= self.passed_to:
            horizon_ms += self.topic.tombstones_wait_max_ms
        return horizon_ms <= now_ms


@dataclass(slots=True)
class Counts:
    """Kafka's ``CleanerStats``, as far as they do not depend on buffer sizes."""

    map_messages_read: int = 0
    messages_read: int = 0
    bytes_read: int = 0
    messages_written: int = 0
    bytes_written: int = 0
    invalid_messages_read: int = 0


class Output(Struct, frozen=True):
    """One cleaned segment: its files by suffix, the file time, and the sources it replaces."""

    base_offset: int
    files: dict[str, bytes]
    mtime_ns: int
    replaced: tuple[int, ...]


@dataclass(slots=True)
class Outcome:
    """What a round decided and would leave. ``end_offset`` None when nothing was cleanable."""

    log_end: int
    last_stable: int
    first_dirty: int
    uncleanable: int
    bound: int
    clean_bytes: int
    cleanable_bytes: int
    compaction_delay_ms: int
    end_offset: int | None = None
    counts: Counts = field(default_factory=Counts)
    outputs: list[Output] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Cleanable bytes over all that count; 0 for an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


class IndexOverflowError(Exception):
    """The output needs more index entries than allowed (F4): not a case for this oracle."""


@dataclass(slots=True)
class KeyMap:
    """Greatest rank per key; ``latest`` is the offset up to which the map knows everything."""

    ranks: dict[bytes, Rank] = field(default_factory=dict)
    latest: int = -1
    is_full: bool = False


def rank(record: Record, topic: TopicConfig) -> Rank:
    """Return what decides between records of a key (9.2)."""
    if topic.strategy is Strategy.OFFSET:
        return 0, 0, record.offset
    if topic.strategy is Strategy.TIMESTAMP:
        is_dated = record.timestamp != -1
        return is_dated, record.timestamp if is_dated else 0, record.offset
    assert topic.strategy_header is not None
    values = [value for name, value in record.headers if name == topic.strategy_header.encode()]
    if not values or values[-1] is None or len(values[-1]) != 8:
        return 0, 0, record.offset
    return 1, int.from_bytes(values[-1], "big", signed=True), record.offset


class Transactions:
    """Which batches belong to aborted transactions, and which markers are still needed (3.5)."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._waiting: list[tuple[int, int, AbortedTransaction]] = []
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        self.index: list[AbortedTransaction] = []
        """The output's aborted transactions; who starts an output replaces the list."""

    def add(self, aborted: Iterator[AbortedTransaction]) -> None:
        """Take in aborted transactions; duplicates do no harm."""
        for entry in aborted:
            item = (entry.first_offset, entry.producer_id, entry)
            if all(item[:2] != known[:2] for known in self._waiting):
                heapq.heappush(self._waiting, item)

    def _advance(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            entry = heapq.heappop(self._waiting)[2]
            self._aborted.setdefault(entry.producer_id, (entry, False))

    def is_aborted(self, batch: Batch) -> bool:
        """Pass a data batch; return whether it belongs to an aborted transaction."""
        self._advance(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._aborted:
            entry, _ = self._aborted[batch.producer_id]
            self._aborted[batch.producer_id] = (entry, True)
            return True
        self._committed.add(batch.producer_id)
        return False

    def is_marker_discardable(self, batch: Batch) -> bool:
        """Pass a control batch; return whether nothing needs its marker any more."""
        self._advance(batch.last_offset)
        record = next(iter(batch.records()), None)
        if record is None:
            return True
        control = decode_control_type(record.key)
        if control == ControlType.ABORT:
            entry, has_data = self._aborted.pop(batch.producer_id, (None, False))
            if entry is not None and has_data:
                self.index.append(entry)
                return False
            return True
        if control == ControlType.COMMIT:
            is_needed = batch.producer_id in self._committed
            self._committed.discard(batch.producer_id)
            return not is_needed
        return False


def clean(partition: Path, settings: Round) -> Outcome:
    """Return what one round makes of the directory ``partition``; nothing is written."""
    log = read_log(
        partition,
        now_ms=settings.now_ms,
        expiration_ms=settings.cleaner.producer_id_expiration_ms,
        log_start=settings.log_start,
    )
    return clean_log(log, settings)


def clean_log(log: Log, settings: Round) -> Outcome:
    """Return what one round makes of ``log``."""
    outcome = _bounds(log, settings)
    is_selected = outcome.compaction_delay_ms > 0 or (
        outcome.ratio > settings.topic.min_cleanable_dirty_ratio
    )
    if outcome.cleanable_bytes == 0 or not (settings.force or is_selected):
        return outcome
    key_map = _build_map(log, settings, outcome)
    if settings.topic.strategy is not Strategy.OFFSET:
        _raise_over_clean(log, settings, outcome, key_map)
    outcome.end_offset = key_map.latest + 1 if key_map.is_full else outcome.bound
    before = log.between(0, outcome.first_dirty)
    legacy_horizon = before[-1].mtime_ms - settings.topic.delete_retention_ms if before else 0
    transactions = Transactions()
    rewrite = _Rewrite(log, settings, outcome, key_map, transactions, legacy_horizon)
    for group in _groups(log, settings, outcome):
        outcome.outputs.append(rewrite.group(group))
    return outcome


def write_outcome(partition: Path, outcome: Outcome) -> None:
    """Put the files of ``outcome`` in the place of what they were made from."""
    for output in outcome.outputs:
        for base_offset in output.replaced:
            kinds = [LOG, INDEX, TIME_INDEX, TXN_INDEX]
            if base_offset != output.base_offset:
                kinds.append(SNAPSHOT)
            for kind in kinds:
                (partition / f"{base_offset:020d}{kind}").unlink(missing_ok=True)
        for kind, content in output.files.items():
            path = partition / f"{output.base_offset:020d}{kind}"
            path.write_bytes(content)
            os.utime(path, ns=(output.mtime_ns, output.mtime_ns))


def _bounds(log: Log, settings: Round) -> Outcome:
    """Sections 1.2 to 1.4."""
    checkpoint = settings.checkpoint
    if checkpoint is None or not settings.log_start <= checkpoint <= log.end_offset:
        first_dirty = settings.log_start
    else:
        first_dirty = checkpoint
    high_watermark = log.end_offset if settings.high_watermark is None else settings.high_watermark
    last_stable = log.last_stable_offset(high_watermark)
    limits = [last_stable, log.active_base]
    lag_ms = settings.topic.min_compaction_lag_ms
    if lag_ms > 0:
        young = [
            segment.base_offset
            for segment in log.non_active_from(first_dirty)
            if segment.largest_timestamp > settings.now_ms - lag_ms
        ]
        limits += young[:1]
    uncleanable = max(first_dirty, min(limits))
    if settings.first_dirty is not None:
        first_dirty = settings.first_dirty
    if settings.uncleanable is not None:
        uncleanable = settings.uncleanable
    rest = log.non_active_from(uncleanable)
    bound = rest[0].base_offset if rest else log.active_base
    dirty = log.between(min(first_dirty, bound), bound)
    clean_segments = log.between(-1, first_dirty)
    return Outcome(
        log_end=log.end_offset,
        last_stable=last_stable,
        first_dirty=first_dirty,
        uncleanable=uncleanable,
        bound=bound,
        clean_bytes=sum(len(segment.data) for segment in clean_segments),
        cleanable_bytes=sum(len(segment.data) for segment in dirty),
        compaction_delay_ms=_compaction_delay_ms(log, settings, first_dirty),
    )


def _compaction_delay_ms(log: Log, settings: Round, first_dirty: int) -> int:
    """Section 1.5."""
    first_timestamps = [
        segment.batches[0].max_timestamp
        for segment in log.non_active_from(first_dirty)
        if segment.batches and segment.batches[0].max_timestamp > 0
    ]
    cutoff_ms = settings.now_ms - settings.topic.max_compaction_lag_ms
    return max([0, *(cutoff_ms - earliest for earliest in sorted(first_timestamps)[:1])])


def _aborted_between(
    log: Log, log_start: int, start: int, end: int
) -> Iterator[AbortedTransaction]:
    """Yield aborted transactions for offsets below ``end``, from the segment of ``start`` (3.5)."""
    floor = log.between(start, start + 1)[0].base_offset
    for segment in log.segments:
        if segment.base_offset < floor:
            continue
        for entry in segment.aborted:
            if entry.last_offset >= log_start and entry.first_offset < end:
                yield entry
            if entry.last_stable_offset >= end:
                return


def _build_map(log: Log, settings: Round, outcome: Outcome) -> KeyMap:
    """Section 2: return the map and how far it got."""
    start, end = outcome.first_dirty, outcome.bound
    key_map = KeyMap()
    limit: float = float("inf")
    if settings.cleaner.key_map_bytes is not None:
        is_by_offset = settings.topic.strategy is Strategy.OFFSET
        slot_bytes = MAP_ENTRY_BYTES if is_by_offset else VERSIONED_MAP_ENTRY_BYTES
        slots = settings.cleaner.key_map_bytes // slot_bytes
        limit = int(slots * settings.cleaner.load_factor)
    transactions = Transactions()
    transactions.add(_aborted_between(log, settings.log_start, start, end))
    dirty = log.between(start, end)
    for number, segment in enumerate(dirty):
        # F5: reading starts where the index says, not at the first dirty offset.
        relative = start - segment.base_offset
        position = max((p for offset, p in segment.index if offset <= relative), default=0)
        if settings.topic.strategy is not Strategy.OFFSET:
            position = 0
        for batch in segment.batches:
            if batch.position < position:
                continue
            if _index_batch(batch, settings.topic, start, limit, key_map, transactions, outcome):
                key_map.is_full = True
                return key_map
        is_last = number + 1 == len(dirty)
        key_map.latest = (end if is_last else dirty[number + 1].base_offset) - 1
    return key_map


def _raise_over_clean(log: Log, settings: Round, outcome: Outcome, key_map: KeyMap) -> None:
    """Section 9.3, rule 3, before anything is written: clean records of dirty keys take part."""
    transactions = Transactions()
    first_base = log.segments[0].base_offset
    transactions.add(_aborted_between(log, settings.log_start, first_base, outcome.bound))
    for segment in log.segments:
        if segment.base_offset >= outcome.first_dirty:
            break
        for batch in segment.batches:
            if batch.is_control:
                transactions.is_marker_discardable(batch)
            elif not transactions.is_aborted(batch):
                for record in batch.records():
                    if record.key is None or record.offset >= outcome.first_dirty:
                        continue
                    key = bytes(record.key)
                    if key in key_map.ranks:
                        key_map.ranks[key] = max(key_map.ranks[key], rank(record, settings.topic))


def _index_batch(
    batch: Batch,
    topic: TopicConfig,
    start: int,
    limit: float,
    key_map: KeyMap,
    transactions: Transactions,
    outcome: Outcome,
) -> bool:
    """Take one batch into the map; return True when the map is full."""
    counts = outcome.counts
    if batch.is_control:
        transactions.is_marker_discardable(batch)
        counts.map_messages_read += 1
    elif transactions.is_aborted(batch):
        counts.map_messages_read += batch.count
    else:
        for record in batch.records():
            if record.key is not None and record.offset >= start:
                # The test comes before the key is looked up: a known key ends the map as well.
                if len(key_map.ranks) >= limit:
                    return True
                key, found = bytes(record.key), rank(record, topic)
                key_map.ranks[key] = max(key_map.ranks.get(key, found), found)
                key_map.latest = record.offset
            counts.map_messages_read += 1
    if batch.last_offset >= start:
        key_map.latest = batch.last_offset
    return False


def _groups(log: Log, settings: Round, outcome: Outcome) -> Iterator[tuple[Segment, ...]]:
    """Section 3.2."""
    assert outcome.end_offset is not None
    remaining = list(log.between(0, outcome.end_offset))
    while remaining:
        group = [remaining.pop(0)]
        head = group[0].base_offset
        while remaining:
            segment = remaining[0]
            together = [*group, segment]
            last_possible = (remaining[1].base_offset if len(remaining) > 1 else outcome.bound) - 1
            index_bytes = sum(len(s.index) for s in together) * offset_index.ENTRY_BYTES
            time_bytes = sum(len(s.times) for s in together) * time_index.ENTRY_BYTES
            fits = (
                sum(len(s.data) for s in together) <= settings.topic.segment_bytes
                and index_bytes <= settings.topic.segment_index_bytes
                and time_bytes <= settings.topic.segment_index_bytes
                and (not segment.data or last_possible - head <= INT32_MAX)
            )
            if not fits:
                break
            group.append(remaining.pop(0))
        yield tuple(group)


class _Rewrite:
    """Pass 2: what is left of every group, in ascending order (3.3 to 3.8)."""

    def __init__(
        self,
        log: Log,
        settings: Round,
        outcome: Outcome,
        key_map: KeyMap,
        transactions: Transactions,
        legacy_horizon: int,
    ) -> None:
        self._log = log
        self._settings = settings
        self._bound = outcome.bound
        self._first_dirty = outcome.first_dirty
        self._counts = outcome.counts
        self._key_map = key_map
        self._transactions = transactions
        self._legacy_horizon = legacy_horizon

    def group(self, group: tuple[Segment, ...]) -> Output:
        """Return the one segment that ``group`` becomes."""
        self._transactions.index = []
        batches: list[bytes] = []
        for number, segment in enumerate(group):
            is_last = number + 1 == len(group)
            upper = segment.next_offset if is_last else group[number + 1].base_offset
            self._transactions.add(
                _aborted_between(self._log, self._settings.log_start, segment.base_offset, upper)
            )
            for batch in segment.batches:
                result = self._batch(batch, segment.mtime_ms)
                if result is not None:
                    batches.append(result)
        data = b"".join(batches)
        self._counts.bytes_written += len(data)
        base_offset = group[0].base_offset
        files = {LOG: data, **indexes(base_offset, data, self._settings.topic)}
        if self._transactions.index:
            files[TXN_INDEX] = txn_index.encode(self._transactions.index)
        replaced = tuple(segment.base_offset for segment in group)
        return Output(base_offset, files, group[-1].mtime_ns, replaced)

    def _batch(self, batch: Batch, mtime_ms: int) -> bytes | None:
        """Return what is left of ``batch``; None for nothing (3.4)."""
        horizon = batch.delete_horizon_ms
        self._counts.bytes_read += batch.size_bytes
        if batch.is_control:
            discardable = self._transactions.is_marker_discardable(batch)
            discards = discardable and self._is_over(horizon, batch.last_offset)
        else:
            discardable = discards = self._transactions.is_aborted(batch)
        stays = self._is_last_of_producer(batch) or batch.last_offset + 1 == self._bound
        if discards and not stays:
            return None
        records = list(batch.records())
        kept = [
            record for record in records if not discards and self._keeps(batch, record, mtime_ms)
        ]
        self._counts.messages_read += len(records)
        self._counts.messages_written += len(kept)
        if not kept:
            return self._emptied(batch, records) if stays else None
        has_tombstone = not batch.is_control and any(record.value is None for record in kept)
        ends_empty_transaction = batch.is_control and discardable
        needs_horizon = horizon is None and (has_tombstone or ends_empty_transaction)
        is_whole = len(kept) == len(records)
        if isinstance(batch, RecordBatch) and is_whole and not needs_horizon:
            return bytes(batch.data)
        if needs_horizon:
            settings = self._settings
            new = delete_horizon(settings.now_ms, settings.topic.delete_retention_ms)
            horizon = new if new >= 0 else None
        return _rebuilt(batch, kept, horizon)

    def _emptied(self, batch: Batch, records: list[Record]) -> bytes:
        """Return what stays of a batch that has to stay and keeps no record (3.8)."""
        if isinstance(batch, RecordBatch):
            return encode_empty_batch(batch)
        # Kafka fails here, since old formats have no empty batch; the batch is kept as it is.
        self._counts.messages_written += len(records)
        return bytes(batch.data)

    def _is_last_of_producer(self, batch: Batch) -> bool:
        if batch.producer_id < 0:
            return False
        producer: Producer | None = self._log.producers.get(batch.producer_id)
        if producer is None:
            return False
        if producer.last_data_offset is not None:
            return batch.last_offset == producer.last_data_offset
        return batch.is_control and batch.producer_epoch == producer.epoch

    def _is_over(self, horizon_ms: int | None, offset: int) -> bool:
        settings = self._settings
        return horizon_ms is not None and settings.is_over(horizon_ms, offset, settings.now_ms)

    def _keeps(self, batch: Batch, record: Record, mtime_ms: int) -> bool:
        """Decide on one record; the order of the tests matters (3.4)."""
        if batch.is_control or record.offset > self._key_map.latest:
            return True
        if record.key is None:
            self._counts.invalid_messages_read += 1
            return False
        topic, key = self._settings.topic, bytes(record.key)
        found = rank(record, topic)
        if found < self._key_map.ranks.get(key, found):
            return False
        if record.value is not None:
            return True
        if topic.strategy is not Strategy.OFFSET:
            # Section 9.3, rule 5.
            is_dirty = record.offset >= self._first_dirty
            if is_dirty or key in self._key_map.ranks or self._key_map.is_full:
                return True
            if topic.keep_versioned_tombstones and found[0] == 1:
                return True
        if batch.magic < 2:
            return not self._settings.is_over(mtime_ms, record.offset, self._legacy_horizon)
        return not self._is_over(batch.delete_horizon_ms, record.offset)


def _rebuilt(batch: Batch, kept: list[Record], horizon: int | None) -> bytes:
    """Return a batch of what is left of ``batch`` (3.7); always of magic 2 (F1)."""
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamp_type = TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
    max_timestamp = batch.max_timestamp if is_append_time else None
    if not isinstance(batch, RecordBatch):
        return encode_batch(
            kept,
            codec=batch.codec,
            timestamp_type=timestamp_type,
            max_timestamp=max_timestamp,
            delete_horizon_ms=horizon,
        )
    return encode_batch(
        kept,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        codec=batch.codec,
        timestamp_type=timestamp_type,
        max_timestamp=max_timestamp,
        delete_horizon_ms=horizon,
        leader_epoch=batch.leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
    )


def indexes(base_offset: int, data: bytes, topic: TopicConfig) -> dict[str, bytes]:
    """Return offset and time index of a segment that the cleaner wrote (F3)."""
    offsets: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    since = 0
    largest, largest_offset = -1, -1

    def add_time() -> None:
        if largest > (times[-1][0] if times else -1):
            times.append((largest, largest_offset - base_offset))

    for batch in read_batches(data):
        if batch.max_timestamp > largest:
            largest, largest_offset = batch.max_timestamp, batch.last_offset
        if since > topic.index_interval_bytes:
            offsets.append((batch.last_offset - base_offset, batch.position))
            add_time()
            since = 0
        since += batch.size_bytes
    add_time()
    if len(offsets) > topic.segment_index_bytes // offset_index.ENTRY_BYTES:
        raise IndexOverflowError("offset index")
    # A time index counts as full one entry early (F4).
    if len(times) > topic.segment_index_bytes // time_index.ENTRY_BYTES - 1:
        raise IndexOverflowError("time index")
    return {INDEX: offset_index.encode(offsets), TIME_INDEX: time_index.encode(times)}
