"""What another strategy would change, before anybody switches: both ranked over the same records.

Every committed record with a key counts, from the log start to the first open transaction, in the
active segment too: what matters is which record of a key would stay in the end, not how far the
next round gets. What an earlier strategy has removed is gone and can be no candidate.

The log is read three times (transactions, then once by each strategy), and sorted by key and rank
in runs on disk: memory does not grow with the keys.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.columns.fingerprints import PRIME
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.columns.versions import HAS_VERSION, MALFORMED_VERSION
from keeplast.format.rank import header_version
from keeplast.format.record import Record
from keeplast.inspect.final_records import IS_TOMBSTONE, ON_LEFT, final_records
from keeplast.inspect.log_facts import LogFacts, find_facts
from keeplast.inspect.sorted_runs import (
    COLUMNS,
    FLAGS,
    HORIZON,
    KEY_HIGH,
    KEY_LOW,
    KEY_SHIFT,
    OFFSET,
    VERSION,
    Rows,
    SortedRuns,
)
from keeplast.inspect.verified_log import VerifiedLog, VerifiedPart
from keeplast.inspect.version_spread import VersionSpread
from keeplast.log.files import FileSystem
from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import TopicConfig
from keeplast.read.transaction_outcomes import TransactionOutcome

Progressed = Callable[[int], None]

READINGS = 2
"""Times that progress is told of every byte."""


@dataclass(frozen=True, slots=True)
class PreviewedRecord:
    """The record of a key that would stay; ``version`` is what the proposed header says."""

    offset: int
    timestamp: int
    version: int | None
    is_tombstone: bool


@dataclass(frozen=True, slots=True)
class WinnerChange:
    """A key that would keep another record than today."""

    key: bytes
    today: PreviewedRecord
    then: PreviewedRecord


@dataclass(frozen=True, slots=True)
class FarAhead:
    """A record whose version is far beyond the rest and would win for long."""

    key: bytes
    offset: int
    version: int


@dataclass(frozen=True, slots=True)
class StrategyPreview:
    """One partition. ``changes`` are those of the keys whose records lie first in the log.

    ``keys_back`` of the changed keys are deleted today and would not be, ``keys_gone`` the other
    way round. ``today_source`` says who chose what is in force. ``records`` and what counts records
    are of committed records with a key.
    """

    partition: TopicPartition
    today: Strategy
    today_source: str
    then: Strategy
    header: str | None
    records: int
    keys: int
    keys_changed: int
    keys_back: int
    keys_gone: int
    changes: tuple[WinnerChange, ...]
    versions_missing: int
    versions_malformed: int
    tombstones_unversioned: int
    spread: VersionSpread
    far_ahead: tuple[FarAhead, ...]


@dataclass(slots=True)
class _Counts:
    records: int = 0
    missing: int = 0
    malformed: int = 0
    tombstones: int = 0
    spread: VersionSpread = field(default_factory=VersionSpread)


@dataclass(slots=True)
class _Changes:
    """Pairs of offsets that differ: how many, and those that lie first."""

    first_max: int
    keys: int = 0
    changed: int = 0
    back: int = 0
    gone: int = 0
    first: list[tuple[int, int]] = field(default_factory=list)

    def add(self, today: Rows, then: Rows) -> None:
        """Take the final records of the same keys by both strategies."""
        self.keys += len(today)
        differs = np.flatnonzero(today[:, OFFSET] != then[:, OFFSET])
        if not len(differs):
            return
        self.changed += len(differs)
        was_deleted = today[differs, FLAGS] & IS_TOMBSTONE != 0
        is_deleted = then[differs, FLAGS] & IS_TOMBSTONE != 0
        self.back += int((was_deleted & ~is_deleted).sum())
        self.gone += int((~was_deleted & is_deleted).sum())
        pairs = zip(today[differs, OFFSET].tolist(), then[differs, OFFSET].tolist(), strict=True)
        self.first = sorted([*self.first, *pairs], key=min)[: self.first_max]


def preview_strategy(
    path: Path,
    partition: TopicPartition,
    files: FileSystem,
    *,
    today: TopicConfig,
    then: TopicConfig,
    first: int,
    memory_bytes: int,
    log_start: int = 0,
    progressed: Progressed,
    temporary: Path | None = None,
) -> StrategyPreview:
    """Compare the strategies of two settings over the log in ``path``; writes nothing there.

    Nothing below ``log_start`` counts. ``first`` is how many changed keys, and records far ahead,
    come with their candidates.
    CorruptError where the log cannot be read.
    """
    log = VerifiedLog(path, files)
    log.require_end()
    facts = find_facts(log)
    seeds = np.array([2 + secrets.randbelow(PRIME - 2) for _ in range(2)], np.uint64)
    counts, changes = _Counts(), _Changes(first)
    with tempfile.TemporaryDirectory(prefix="keeplast-preview-", dir=temporary) as directory:
        finals = []
        for name, topic, found in (("today", today, None), ("then", then, counts)):
            place = Path(directory) / name
            place.mkdir()
            runs = SortedRuns(place, memory_bytes // 2)
            reading = _Reading(topic, log_start, seeds, found, progressed)
            for rows in reading.committed(log, facts):
                runs.add(rows)
            finals.append(final_records(runs.merged()))
        for left, right in _align(*finals):
            changes.add(left, right)
    ahead = counts.spread.far_ahead(first)
    wanted = {offset for pair in changes.first for offset in pair} | {at for at, _ in ahead}
    records = log.records_at(wanted)
    header = (then.strategy_header or "").encode()
    return StrategyPreview(
        partition=partition,
        today=today.strategy,
        today_source=today.strategy_source,
        then=then.strategy,
        header=then.strategy_header if then.strategy is Strategy.HEADER else None,
        records=counts.records,
        keys=changes.keys,
        keys_changed=changes.changed,
        keys_back=changes.back,
        keys_gone=changes.gone,
        changes=tuple(
            WinnerChange(
                records[a].key or b"",
                _candidate(records[a], header),
                _candidate(records[b], header),
            )
            for a, b in changes.first
        ),
        versions_missing=counts.missing,
        versions_malformed=counts.malformed,
        tombstones_unversioned=counts.tombstones,
        spread=counts.spread,
        far_ahead=tuple(FarAhead(records[at].key or b"", at, version) for at, version in ahead),
    )


def _candidate(record: Record, header: bytes) -> PreviewedRecord:
    version = header_version(record.headers, header)
    return PreviewedRecord(record.offset, record.timestamp, version, record.is_tombstone)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One pass over a log by one strategy; ``counts`` receives what it finds, if anybody asks."""

    topic: TopicConfig
    log_start: int
    seeds: NDArray[np.uint64]
    counts: _Counts | None
    progressed: Progressed

    def committed(self, log: VerifiedLog, facts: LogFacts) -> Iterator[Rows]:
        """Yield a row for each committed record with a key."""
        first_open = facts.transactions.first_open()
        end = INT64_MAX if first_open is None else first_open
        told: object = None
        for part in log.parts(self.seeds, self.topic):
            if part.window is not told:
                told = part.window
                self.progressed(part.window.length)
            outcomes = facts.transactions.of_batches(part.table)
            is_data = part.table[:, t.ATTRIBUTES] & t.CONTROL == 0
            chosen = ((outcomes == TransactionOutcome.COMMITTED) & is_data)[part.batch_of]
            chosen &= part.flags & HAS_KEY != 0
            chosen &= (part.offsets >= self.log_start) & (part.offsets < end)
            numbers = np.flatnonzero(chosen)
            if not len(numbers):
                continue
            flags = part.flags[numbers]
            if self.counts is not None:
                _count(self.counts, part, numbers, flags, self.topic.strategy)
            yield _rows(part, numbers, flags)


def _rows(part: VerifiedPart, numbers: NDArray[np.int64], flags: NDArray[np.uint8]) -> Rows:
    rows = np.empty((len(numbers), COLUMNS), np.int64)
    rows[:, KEY_HIGH] = part.keys[numbers, 0]
    rows[:, KEY_LOW] = (part.keys[numbers, 1] << KEY_SHIFT) | (flags & HAS_VERSION != 0)
    rows[:, VERSION] = part.versions[numbers]
    rows[:, OFFSET] = part.offsets[numbers]
    rows[:, HORIZON] = -1
    rows[:, FLAGS] = ON_LEFT | (flags & HAS_VALUE == 0) * IS_TOMBSTONE
    return rows


def _count(
    counts: _Counts,
    part: VerifiedPart,
    numbers: NDArray[np.int64],
    flags: NDArray[np.uint8],
    strategy: Strategy,
) -> None:
    counts.records += len(numbers)
    if strategy is Strategy.OFFSET:
        return
    has_version = flags & HAS_VERSION != 0
    is_malformed = flags & MALFORMED_VERSION != 0
    counts.malformed += int(is_malformed.sum())
    versioned = numbers[has_version]
    if strategy is Strategy.TIMESTAMP:
        versioned = versioned[part.versions[versioned] >= 0]
    else:
        # What lacks a timestamp lacks no header.
        counts.missing += int((~has_version & ~is_malformed).sum())
        counts.tombstones += int((~has_version & (flags & HAS_VALUE == 0)).sum())
    counts.spread.add(part.offsets[versioned], part.versions[versioned])


def _align(left: Iterator[Rows], right: Iterator[Rows]) -> Iterator[tuple[Rows, Rows]]:
    """Yield the rows of both, which have the same keys in one order, in pieces of one length."""
    empty = np.empty((0, COLUMNS + 2), np.int64)
    ours, theirs = empty, empty
    while True:
        if not len(ours):
            ours = next(left, empty)
        if not len(theirs):
            theirs = next(right, empty)
        length = min(len(ours), len(theirs))
        if not length:
            return
        yield ours[:length], theirs[:length]
        ours, theirs = ours[length:], theirs[length:]
