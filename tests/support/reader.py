"""What a fresh read-committed reader gets from a partition directory, as a consumer would.

Aborted transactions are known from the segments' transaction indexes, as a broker gives them with
each fetch, and from nothing else: a wrong index makes this reader see aborted records.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from keeplast.format import txn_index
from keeplast.format.filename import LOG, TXN_INDEX
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType, Record, decode_control_type


class ReadBatch(Protocol):
    """What a reader looks at of a batch."""

    @property
    def last_offset(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def is_transactional(self) -> bool: ...
    def records(self) -> Iterable[Record]: ...


class DecodedBatch(Struct, frozen=True):
    """A batch whose records are decoded once: it is given to readers again and again."""

    base_offset: int
    last_offset: int
    producer_id: int
    is_control: bool
    is_transactional: bool
    given: tuple[Record, ...]

    def records(self) -> tuple[Record, ...]:
        """Return its records."""
        return self.given

    def within(self, start: int, end: int) -> DecodedBatch:
        """Return it with the records of ``[start, end)`` alone."""
        if start <= self.base_offset and self.last_offset < end:
            return self
        kept = tuple(r for r in self.given if start <= r.offset < end)
        return DecodedBatch(
            self.base_offset, self.last_offset, self.producer_id, self.is_control,
            self.is_transactional, kept,
        )  # fmt: skip


def decode_records(batch: Batch) -> DecodedBatch:
    """Return a batch with its records."""
    return DecodedBatch(
        batch.base_offset, batch.last_offset, batch.producer_id, batch.is_control,
        batch.is_transactional, tuple(batch.records()),
    )  # fmt: skip


def committed_records(
    batches: Iterable[ReadBatch], aborted: Iterable[txn_index.AbortedTransaction], start: int = 0
) -> list[Record]:
    """Return what a read-committed reader is given of ``batches`` from offset ``start`` on."""
    waiting = [entry for entry in aborted if entry.last_offset >= start]
    waiting.sort(key=lambda entry: entry.first_offset)
    open_aborted: set[int] = set()
    given: list[Record] = []
    for batch in batches:
        if batch.last_offset < start:
            continue
        while waiting and waiting[0].first_offset <= batch.last_offset:
            open_aborted.add(waiting.pop(0).producer_id)
        if batch.is_control:
            first = next(iter(batch.records()), None)
            if first is not None and decode_control_type(first.key) == ControlType.ABORT:
                open_aborted.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in open_aborted):
            given += [record for record in batch.records() if record.offset >= start]
    return given


def _final_values(records: Iterable[Record]) -> dict[bytes, bytes]:
    """Return the last value of every key; a deleted key is absent."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


class Readable(Struct, frozen=True):
    """One partition's batches and aborted transactions, in order."""

    batches: tuple[Batch, ...]
    aborted: tuple[txn_index.AbortedTransaction, ...]

    def records(self, start: int = 0) -> list[Record]:
        """Return what a read-committed reader that starts at offset ``start`` is given."""
        return committed_records(self.batches, self.aborted, start)

    def final_values(self, start: int = 0) -> dict[bytes, bytes]:
        """Return the last value of every key; a deleted key is absent."""
        return _final_values(self.records(start))

    def final_values_from(self, starts: Iterable[int]) -> list[dict[bytes, bytes]]:
        """Return the last values for readers that start at each of ``starts``.

        Records are decoded once, not for each of them.
        """
        batches = [decode_records(batch) for batch in self.batches]
        return [_final_values(committed_records(batches, self.aborted, start)) for start in starts]

    @property
    def end_offset(self) -> int:
        """The offset behind the last batch."""
        return self.batches[-1].last_offset + 1 if self.batches else 0


def read_partition(partition: Path) -> Readable:
    """Return what the files in the directory ``partition`` say."""
    batches: list[Batch] = []
    aborted: list[txn_index.AbortedTransaction] = []
    for path in sorted(partition.glob(f"*{LOG}")):
        batches += read_batches(path.read_bytes())
        index = path.with_suffix(TXN_INDEX)
        if index.exists():
            aborted += txn_index.decode(index.read_bytes())
    return Readable(tuple(batches), tuple(aborted))
