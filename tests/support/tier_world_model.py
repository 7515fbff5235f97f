"""What a partition must hold: the batches that were written, in a plain list, and what readers get.

The log of the newest leader is the truth. A batch is kept by the leader epoch that wrote it, so
that a new leader's log, whatever it got from whom, is known from its leader epochs alone. What lies
below the greatest high watermark was acknowledged and may never leave the list.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from msgspec import Struct

from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from tests.support.tier_world_stores import require


class Written(Struct, frozen=True):
    """A batch: data, or the marker that ends a transaction with ``outcome``."""

    base_offset: int
    epoch: int
    records: tuple[Record, ...]
    producer_id: int = -1
    sequence: int = -1
    is_transactional: bool = False
    outcome: ControlType | None = None

    @property
    def next_offset(self) -> int:
        """Return the offset behind it."""
        return self.base_offset + max(len(self.records), 1)


class Reading(Struct, frozen=True):
    """What a read-committed reader got from ``start`` up to ``end``, exclusive."""

    start: int
    end: int
    records: Sequence[Record]


class Model:
    """The log that must be read."""

    def __init__(self) -> None:
        """Start empty."""
        self.log: list[Written] = []
        self.acknowledged = 0
        self._acknowledged: list[Written] = []
        self._history: dict[int, dict[int, Written]] = {}

    @property
    def end(self) -> int:
        """Return the log end offset of the newest leader."""
        return self.log[-1].next_offset if self.log else 0

    def write(self, written: Written) -> None:
        """Remember what a leader is about to append; whether it counts is seen later."""
        self._history.setdefault(written.epoch, {})[written.base_offset] = written

    def append(self, written: Written) -> None:
        """Account for what the newest leader has appended."""
        require(written.base_offset == self.end, f"appended at {written.base_offset}: {self.end}")
        self.log.append(written)

    def adopt(self, lineage: Sequence[LeaderEpoch], log_end: int) -> None:
        """Take a new leader's log as the truth; all that was acknowledged must be in it."""
        self.log = self._batches(lineage, log_end)
        there = set(self.log)
        lost = [written for written in self._acknowledged if written not in there]
        require(
            not lost,
            f"an acknowledged batch is not in the new leader's log. lineage={lineage} "
            f"log_end={log_end} acknowledged={self.acknowledged} lost={lost[:1]}",
        )
        require(log_end == self.end, f"the new leader ends at {log_end}, its batches at {self.end}")

    def acknowledge(self, lineage: Sequence[LeaderEpoch], offset: int) -> None:
        """Say that producers got everything acknowledged below ``offset`` in a leader's log."""
        if offset > self.acknowledged:
            found = self._batches(lineage, offset)
            self._acknowledged += [w for w in found if w.base_offset >= self.acknowledged]
            self.acknowledged = offset

    def _batches(self, lineage: Sequence[LeaderEpoch], log_end: int) -> list[Written]:
        """Return what was written by the leaders of ``lineage`` below ``log_end``."""
        bounds = [*lineage, LeaderEpoch(-1, log_end)]
        found: list[Written] = []
        for entry, following in itertools.pairwise(bounds):
            batches = self._history.get(entry.epoch, {})
            end = min(following.start_offset, log_end)
            found += [batches[b] for b in sorted(batches) if entry.start_offset <= b < end]
        return found

    def open_transactions(self, end: int | None = None) -> dict[int, int]:
        """Return the first offset of each producer's open transaction."""
        opened: dict[int, int] = {}
        for written in self.log:
            if end is not None and written.base_offset >= end:
                break
            if written.outcome is not None:
                opened.pop(written.producer_id, None)
            elif written.is_transactional:
                opened.setdefault(written.producer_id, written.base_offset)
        return opened

    def decided_end(self) -> int:
        """Return up to where the log is acknowledged and all of its transactions have ended."""
        opened = self.open_transactions(self.acknowledged).values()
        return min([self.acknowledged, *opened])

    def last_of(self, producer_id: int) -> Written | None:
        """Return the last data batch of a producer."""
        mine = [w for w in self.log if w.producer_id == producer_id and w.outcome is None]
        return mine[-1] if mine else None

    def aborted(self) -> list[AbortedTransaction]:
        """Return every aborted transaction, as a broker's index names it."""
        found: list[AbortedTransaction] = []
        first: dict[int, int] = {}
        for written in self.log:
            if written.outcome is None and written.is_transactional:
                first.setdefault(written.producer_id, written.base_offset)
            elif written.outcome is not None:
                start = first.pop(written.producer_id, None)
                if start is not None and written.outcome is ControlType.ABORT:
                    found.append(
                        AbortedTransaction(written.producer_id, start, written.base_offset, start)
                    )
        return found

    def committed(self, start: int, end: int) -> list[Record]:
        """Return the records of ``[start, end)`` that a read-committed reader may see."""
        aborted = {(a.producer_id, a.first_offset): a.last_offset for a in self.aborted()}
        found: list[Record] = []
        for written in self.log:
            if written.outcome is not None or written.base_offset >= end:
                continue
            gone = written.is_transactional and any(
                producer == written.producer_id and first <= written.base_offset < last
                for (producer, first), last in aborted.items()
            )
            found += [] if gone else [r for r in written.records if start <= r.offset < end]
        return found

    def check(
        self, reading: Reading, *, log_start: int, fresh_from_ms: int, is_exact: bool
    ) -> None:
        """AssertionError unless a reader got what it may rely on.

        ``fresh_from_ms``: tombstones at or after it must be seen. A reader that took longer than
        ``delete.retention.ms`` is not ``is_exact``: it may have missed a tombstone.
        """
        may_see = {r.offset: r for r in self.committed(reading.start, reading.end)}
        newest = {r.key: r for r in may_see.values()}
        # A replica that ends below what is clean, as its high watermark may after a change of
        # leader, need not have what is overwritten behind its end.
        for record in self.committed(reading.end, self.decided_end()):
            newest.pop(record.key, None)
        seen: dict[bytes | None, Record] = {}
        last = -1
        for record in reading.records:
            require(record.offset > last, f"offset {record.offset} behind {last}")
            last = record.offset
            expected = may_see.get(record.offset)
            require(
                expected == record,
                f"read what was not written, or not committed. expected={expected} found={record}",
            )
            seen[record.key] = record
        for key, want in newest.items():
            if want.offset < log_start:
                continue
            got = seen.get(key)
            where = f"key={key!r} newest={want} read={got} reading={reading.start}..{reading.end}"
            if want.value is not None:
                require(got == want, f"I-7: an acknowledged record is not read. {where}")
            elif want.timestamp >= fresh_from_ms:
                require(got == want, f"a fresh tombstone is not read. {where}")
            elif is_exact:
                require(got is None or got.value is None, f"a deleted key came back. {where}")
