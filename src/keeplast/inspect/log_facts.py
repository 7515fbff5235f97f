"""What one pass over the batch headers of a log tells ``verify``: no record is looked into.

Every CRC is checked on the way. Order, transactions, producers, sizes and checksums of segments,
and whether the indexes beside them lead to the batches that they name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format.batch import decode_batch
from keeplast.format.checksum import crc32c
from keeplast.format.control import ControlType, decode_control_type
from keeplast.inspect.index_proof import IndexProof
from keeplast.inspect.verdicts import Findings
from keeplast.inspect.verified_log import WINDOW_BYTES, VerifiedLog
from keeplast.log.windows import Window, WindowBuffers
from keeplast.read.transaction_outcomes import TransactionOutcomes

ENDS_TRANSACTION = (ControlType.ABORT, ControlType.COMMIT)


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The newest of a producer: last data offset (-1: only markers known), epoch, time."""

    last_offset: int
    epoch: int
    timestamp: int


@dataclass(slots=True)
class SegmentFacts:
    """Sums over the batches of one segment; the CRC-32C is of the whole file as read."""

    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    largest_timestamp: int = -1
    crc32c: int = 0
    has_old_format: bool = False


@dataclass(slots=True)
class LogFacts:
    """The outcome of the pass."""

    transactions: TransactionOutcomes = field(default_factory=TransactionOutcomes)
    producers: dict[int, LastBatch] = field(default_factory=dict)
    segments: dict[int, SegmentFacts] = field(default_factory=dict)
    order: Findings = field(default_factory=Findings)
    indexes: Findings = field(default_factory=Findings)


def find_facts(log: VerifiedLog) -> LogFacts:
    """Read all batches of ``log``; CorruptError where that is not possible."""
    facts = LogFacts()
    buffers = WindowBuffers(WINDOW_BYTES)
    bases = [s.base_offset for s in log.segments]
    for segment in log.segments:
        facts.segments[segment.base_offset] = SegmentFacts()
    ends = dict(zip(bases, [*bases[1:], 1 << 63], strict=True))
    previous = (-1, -1)
    for segment in log.segments:
        base = segment.base_offset
        proof = IndexProof(log, segment, facts.indexes)
        for window in log.windows_of(segment, buffers, checks_crc=True):
            table = window.table[: window.batches]
            _add_sums(facts.segments[base], window, table)
            previous = _check_order(facts.order, window, table, previous, ends[base])
            _follow(facts, window, table)
            proof.add(window.position, table)
        proof.finish()
    return facts


def _add_sums(sums: SegmentFacts, window: Window, table: NDArray[np.int64]) -> None:
    sums.size_bytes += window.length
    sums.batches += len(table)
    sums.records += int(table[:, t.COUNT].sum())
    if sums.first_offset is None:
        sums.first_offset = int(table[0, t.BASE_OFFSET])
    sums.last_offset = int(table[-1, t.LAST_OFFSET])
    sums.largest_timestamp = max(sums.largest_timestamp, int(table[:, t.MAX_TIMESTAMP].max()))
    sums.has_old_format |= bool((table[:, t.MAGIC] < 2).any())
    sums.crc32c = crc32c(window.data.data[: window.length], sums.crc32c)


def _check_order(
    findings: Findings,
    window: Window,
    table: NDArray[np.int64],
    previous: tuple[int, int],
    end: int,
) -> tuple[int, int]:
    """Find batches that do not begin behind the one before; ``previous`` is (base, last)."""
    lasts = table[:, t.LAST_OFFSET]
    before = np.maximum.accumulate(np.concatenate([[previous[1]], lasts]))
    bases_before = np.concatenate([[previous[0]], table[:, t.BASE_OFFSET]])
    strays = (table[:, t.BASE_OFFSET] <= before[:-1]) | (lasts >= end)
    for i in np.flatnonzero(strays).tolist():
        base = int(table[i, t.BASE_OFFSET])
        at = f"path={window.path} position={window.position + int(table[i, t.POSITION])}"
        if base == bases_before[i]:
            findings.add(f"the batch comes twice. {at}", offset=base)
        elif lasts[i] >= end:
            findings.add(f"the batch reaches into the next segment. {at}", offset=base)
        else:
            findings.add(f"the batch is out of order, it follows {before[i]}. {at}", offset=base)
    return int(bases_before[-1]), int(before[-1])


def _follow(facts: LogFacts, window: Window, table: NDArray[np.int64]) -> None:
    """Account for everything that a producer with an id has sent."""
    chosen = (table[:, t.PRODUCER_ID] >= 0) & (table[:, t.MAGIC] == 2)
    for i in np.flatnonzero(chosen).tolist():
        base, last, attributes, stamp, producer_id, epoch = table[
            i,
            [
                t.BASE_OFFSET, t.LAST_OFFSET, t.ATTRIBUTES, t.MAX_TIMESTAMP, t.PRODUCER_ID,
                t.PRODUCER_EPOCH,
            ],
        ].tolist()  # fmt: skip
        if attributes & t.CONTROL == 0:
            facts.producers[producer_id] = LastBatch(last, epoch, stamp)
            if attributes & t.TRANSACTIONAL:
                facts.transactions.add_data(producer_id, base)
            continue
        kind = control_type(window, i)
        if kind in ENDS_TRANSACTION:
            known = facts.producers.get(producer_id)
            is_same_epoch = known is not None and known.epoch == epoch
            kept = known.last_offset if known is not None and is_same_epoch else -1
            facts.producers[producer_id] = LastBatch(kept, epoch, stamp)
            commits = kind is ControlType.COMMIT
            facts.transactions.add_marker(producer_id, last, commits=commits)


def control_type(window: Window, number: int) -> ControlType | None:
    """Return what a control batch says, None when it has been emptied."""
    start = int(window.table[number, t.POSITION])
    raw = window.data[start : start + int(window.table[number, t.SIZE])].tobytes()
    try:
        record = next(decode_batch(raw).records(), None)
        return None if record is None else decode_control_type(record.key)
    except CorruptError as error:
        raise window.corrupt(number, error.problem, error.expected, error.found) from error
