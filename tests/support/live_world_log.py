"""What producers got acknowledged of one partition, and what any reader of it must then be given.

The truth is a plain list of batches. Every record is acknowledged when it is appended: a log whose
replicas are in sync loses nothing. The law of a compacted log, in both isolation levels: offsets
ascend, every record is one that was written there, no read-committed reader sees an aborted one,
and a record may be missing only when it was aborted, or when a later one of its key was committed
below the last stable offset. Where tombstones go, one may be missing as well: not before its time,
and only from a reader who is given no older record of its key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from keeplast.format.batch import encode_batch
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType, EndTransactionMarker, Record, encode_end_transaction
from keeplast.format.remote_log_metadata import EpochStart
from keeplast.format.txn_index import AbortedTransaction
from tests.support.tier_world_stores import require


class Fate(StrEnum):
    """What became of a record's transaction; without one it is committed at once."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Appended(Struct, frozen=True):
    """A batch as it lies in the log; ``last`` is its last offset."""

    base: int
    last: int
    producer_id: int
    sequence: int
    timestamp: int
    is_transactional: bool
    outcome: ControlType | None
    data: bytes


@dataclass(slots=True)
class WrittenLog:
    """One partition, as its leader has it; ``start`` is the log start, ``lineage`` cut there."""

    batches: list[Appended] = field(default_factory=list)
    lineage: list[LeaderEpoch] = field(default_factory=lambda: [LeaderEpoch(0, 0)])
    start: int = 0
    end: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    fates: dict[int, Fate] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    """First offset of each open transaction, by producer."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """First offset and marker of each transaction that has ended."""
    aborted: list[AbortedTransaction] = field(default_factory=list)
    changes: int = 0
    _bases: list[int] = field(default_factory=list)
    _sequences: dict[int, int] = field(default_factory=dict)
    _committed: dict[bytes, list[int]] = field(default_factory=dict)

    @property
    def last_stable(self) -> int:
        """Return the offset from which on a transaction may still be aborted."""
        return min(self.open.values(), default=self.end)

    # Writing.

    def append(
        self, new: Sequence[tuple[bytes, bytes | None]], now_ms: int, *, producer_id: int = -1,
        is_transactional: bool = False,
    ) -> None:  # fmt: skip
        """Append one batch of these keys and values."""
        base = self.end
        records = [Record(base + at, now_ms, key, value) for at, (key, value) in enumerate(new)]
        sequence = self._sequences.get(producer_id, 0) if producer_id >= 0 else -1
        if producer_id >= 0:
            self._sequences[producer_id] = sequence + len(records)
        data = encode_batch(
            records, leader_epoch=self.lineage[-1].epoch, producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1, base_sequence=sequence,
            is_transactional=is_transactional,
        )  # fmt: skip
        if is_transactional:
            self.open.setdefault(producer_id, base)
        for each in records:
            self.records[each.offset] = each
            self.fates[each.offset] = Fate.OPEN
            if not is_transactional:
                self._commit(each)
        last = records[-1].offset
        self._take(
            Appended(base, last, producer_id, sequence, now_ms, is_transactional, None, data)
        )

    def end_transaction(self, producer_id: int, outcome: ControlType, now_ms: int) -> None:
        """Append the marker of an open transaction."""
        first, marker = self.open.pop(producer_id), self.end
        key, value = encode_end_transaction(EndTransactionMarker(outcome, 0))
        data = encode_batch(
            [Record(marker, now_ms, key, value)], leader_epoch=self.lineage[-1].epoch,
            producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True,
        )  # fmt: skip
        mine = [
            offset
            for each in self.batches[bisect_left(self._bases, first) :]
            if each.producer_id == producer_id and each.is_transactional
            for offset in range(each.base, each.last + 1)
        ]
        for offset in mine:
            if outcome is ControlType.COMMIT:
                self._commit(self.records[offset])
            else:
                self.fates[offset] = Fate.ABORTED
        self.spans.append((first, marker))
        self._take(Appended(marker, marker, producer_id, -1, now_ms, True, outcome, data))
        if outcome is ControlType.ABORT:
            self.aborted.append(AbortedTransaction(producer_id, first, marker, self.last_stable))

    def begin_epoch(self, epoch: int) -> None:
        """Let another leader go on."""
        if self.lineage[-1].start_offset == self.end:
            self.lineage.pop()  # It wrote nothing, and no replica keeps it.
        self.lineage.append(LeaderEpoch(epoch, self.end))

    def cut(self, offset: int) -> None:
        """Move the log start, and cut the epochs there."""
        self.start = offset
        kept = [each for each in self.lineage if each.start_offset > offset]
        below = [each for each in self.lineage if each.start_offset <= offset]
        if below:
            kept.insert(0, LeaderEpoch(below[-1].epoch, offset))
        self.lineage = kept
        self.changes += 1

    def _commit(self, record: Record) -> None:
        assert record.key is not None
        self.fates[record.offset] = Fate.COMMITTED
        found = self._committed.setdefault(record.key, [])
        found.insert(bisect_left(found, record.offset), record.offset)

    def _take(self, batch: Appended) -> None:
        self.batches.append(batch)
        self._bases.append(batch.base)
        self.end = batch.last + 1
        self.changes += 1

    # What a leader copies.

    def between(self, first: int, last: int) -> list[Appended]:
        """Return the batches from ``first`` to ``last``, both inclusive; bounds are batches'."""
        return self.batches[bisect_left(self._bases, first) : bisect_right(self._bases, last)]

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of an offset at or above the log start."""
        place = bisect_right(self.lineage, offset, key=lambda each: each.start_offset)
        require(place > 0, f"no leader epoch has the offset. offset={offset}")
        return self.lineage[place - 1].epoch

    def epochs_of(self, first: int, last: int) -> tuple[EpochStart, ...]:
        """Return the epochs of offsets ``first`` to ``last``, as an announcement has them."""
        ends = [*(each.start_offset for each in self.lineage[1:]), self.end + 1]
        return tuple(
            EpochStart(each.epoch, max(each.start_offset, first))
            for each, end in zip(self.lineage, ends, strict=True)
            if each.start_offset <= last and end > first
        )

    def lineage_to(self, last: int) -> list[LeaderEpoch]:
        """Return the epochs' file that is copied with a segment which ends at ``last``."""
        return [each for each in self.lineage if each.start_offset <= last]

    def producers_at(self, offset: int) -> list[ProducerEntry]:
        """Return what was known of producers behind the record before ``offset``."""
        found: dict[int, ProducerEntry] = {}
        for each in self.batches:
            if each.base >= offset:
                break
            if each.producer_id < 0:
                continue
            known = found.get(each.producer_id)
            if each.outcome is not None:
                last = (-1, -1, 0) if known is None else (
                    known.last_sequence, known.last_offset, known.offset_delta,
                )  # fmt: skip
                open_from = -1
                entry = (*last, each.timestamp, 0, open_from)
            else:
                began = -1 if known is None else known.current_txn_first_offset
                open_from = each.base if each.is_transactional and began < 0 else began
                count = each.last - each.base
                entry = (
                    each.sequence + count, each.last, count, each.timestamp,
                    -1 if known is None else known.coordinator_epoch, open_from,
                )  # fmt: skip
            found[each.producer_id] = ProducerEntry(each.producer_id, 0, *entry)
        return list(found.values())

    def aborted_in(self, first: int, last: int) -> list[AbortedTransaction]:
        """Return the aborted transactions whose marker lies there."""
        return [each for each in self.aborted if first <= each.last_offset <= last]

    # The law.

    def is_superseded(self, record: Record, below: int) -> bool:
        """Say whether a later record of the key was committed below an offset."""
        assert record.key is not None
        found = self._committed.get(record.key, [])
        place = bisect_left(found, below)
        return place > 0 and found[place - 1] > record.offset

    def judge(
        self, who: str, given: dict[int, Record], committed: Iterable[int], first: int, end: int,
        *, written_before_ms: int = -1,
    ) -> int:  # fmt: skip
        """AssertionError unless a reader may be given this of the offsets ``[first, end)``.

        ``committed`` are the offsets that a read-committed reader is given. Tombstones may be gone
        that were written no later than ``written_before_ms``; returns how many are.
        """
        stable, seen = self.last_stable, set(committed)
        gone = 0
        oldest: dict[bytes | None, int] = {}
        for offset in sorted(given):
            oldest.setdefault(given[offset].key, offset)
        for offset in given:
            if offset not in self.records:
                raise AssertionError(f"{who} is given what was never written. offset={offset}")
        for offset in range(first, end):
            record = self.records.get(offset)
            if record is None:
                continue
            fate, found = self.fates[offset], given.get(offset)
            if found is not None and found != record:
                raise self._wrong(who, offset, f"another record is read. {found}")
            if fate is Fate.ABORTED:
                if offset in seen:
                    raise self._wrong(who, offset, "an aborted record is read as committed.")
                continue
            if found is None:
                if fate is not Fate.OPEN and self.is_superseded(record, stable):
                    continue
                may_go = fate is Fate.COMMITTED and record.value is None and offset < stable
                if not may_go or record.timestamp > written_before_ms:
                    raise self._wrong(who, offset, "a record that decides is not read.")
                back = oldest.get(record.key, offset)
                if back < offset:
                    raise self._wrong(who, offset, f"a deleted key is back, of {back}.")
                gone += 1
            elif fate is Fate.COMMITTED and offset < stable and offset not in seen:
                raise self._wrong(who, offset, "a committed record is not read as such.")
        return gone

    def _wrong(self, who: str, offset: int, what: str) -> AssertionError:
        key, fate = self.records[offset].key, self.fates[offset]
        return AssertionError(f"{what} {who} offset={offset} key={key!r} fate={fate}")

    def state_at(self, end: int) -> dict[bytes, Record]:
        """Return the last committed record of every key below ``end``, which is stable."""
        found: dict[bytes, Record] = {}
        for key, offsets in self._committed.items():
            place = bisect_left(offsets, end)
            if place:
                found[key] = self.records[offsets[place - 1]]
        return found
