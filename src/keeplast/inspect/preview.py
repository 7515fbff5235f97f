"""What another strategy would change, before a switch: both ranked over the same records.

Every committed record with a key counts, from the log start to the first open transaction, in the
active segment too. What matters is which record of a key would stay in the end, not how far the
next round gets. What an earlier strategy has removed is gone and can be no candidate. The log is
read three times (transactions, then once by each strategy). It is sorted by key and rank in runs on
disk: memory does not grow with the keys.

It also shows how the versions of a log are spread, and which of them are far ahead of the rest. A
version is *far ahead* when it lies above the 99th percentile by more than ten times the distance
between the 1st and the 99th. That is a clock a century off, nanoseconds among milliseconds, a
counter that wrapped. Such a record wins against everything to come until a producer writes a
greater version. The percentiles are of a sample, every so many-th version in log order; the
greatest versions are kept exactly. Memory is bounded.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.fingerprints import PRIME
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.columns.version_ranks import HAS_VERSION, MALFORMED_VERSION
from keeplast.format.record import Record, header_version
from keeplast.inspect.log_facts import LogFacts, find_facts
from keeplast.inspect.sorted_runs import (
    COLUMNS,
    FLAGS,
    IS_TOMBSTONE,
    OFFSET,
    ON_LEFT,
    Rows,
    SortedRuns,
    final_records,
)
from keeplast.inspect.verified_log import VerifiedLog, VerifiedPart
from keeplast.log.files import FileSystem
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.read.transactions import TransactionOutcome

SAMPLE_MAX = 1 << 17
GREATEST_MAX = 1 << 12
LOW_SHARE, HIGH_SHARE = 0.01, 0.99
SPANS = 10
COUNT_MIN = 10
"""Of fewer versions it is not known what is usual."""


class VersionSpread(Struct):
    """Versions that were added part by part, in any order."""

    count: int = 0
    _stride: int = 1
    _sample: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _greatest: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    _least: int = 0

    def add(self, offsets: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Count records that have a version; keeps every so many of them as a sample."""
        if not len(versions):
            return
        least = int(versions.min())
        self._least = least if self.count == 0 else min(self._least, least)
        chosen = versions[-self.count % self._stride :: self._stride]
        self.count += len(versions)
        self._sample = np.concatenate([self._sample, chosen])
        while len(self._sample) > SAMPLE_MAX:
            self._sample = self._sample[::2]
            self._stride *= 2
        together = np.concatenate([self._greatest, np.stack([versions, offsets], axis=1)])
        if len(together) > GREATEST_MAX:
            order = np.lexsort((together[:, 1], together[:, 0]))
            together = together[order[-GREATEST_MAX:]]
        self._greatest = together

    @property
    def least(self) -> int | None:
        """Return the lowest version; None without any."""
        return self._least if self.count else None

    @property
    def greatest(self) -> int | None:
        """Return the highest version; None without any."""
        return int(self._greatest[:, 0].max()) if self.count else None

    @property
    def usual(self) -> tuple[int, int] | None:
        """Return the 1st and the 99th percentile; None without any."""
        if not self.count:
            return None
        ordered = np.sort(self._sample)
        low, high = (int(share * (len(ordered) - 1)) for share in (LOW_SHARE, HIGH_SHARE))
        return int(ordered[low]), int(ordered[high])

    @property
    def limit(self) -> int | None:
        """Return the greatest version that is not far ahead; None with too few to know it."""
        usual = self.usual if self.count >= COUNT_MIN else None
        return None if usual is None else usual[1] + SPANS * max(usual[1] - usual[0], 1)

    @property
    def far_ahead_count(self) -> int:
        """Return how many versions are far ahead, at most ``GREATEST_MAX``."""
        limit = self.limit
        return 0 if limit is None else sum(v > limit for v in self._greatest[:, 0].tolist())

    def far_ahead(self, first: int) -> list[tuple[int, int]]:
        """Return offset and version of the ``first`` greatest that are far ahead."""
        limit = self.limit
        pairs = sorted(self._greatest.tolist(), key=lambda pair: (-pair[0], pair[1]))
        return [(at, v) for v, at in pairs if limit is not None and v > limit][:first]


Progressed = Callable[[int], None]

READINGS = 2
"""Times that progress reports every byte."""


class PreviewedRecord(Struct, frozen=True):
    """The record of a key that would stay; ``version`` is what the proposed header says."""

    offset: int
    timestamp: int
    version: int | None
    is_tombstone: bool


class WinnerChange(Struct, frozen=True):
    """A key that would keep another record than today."""

    key: bytes
    today: PreviewedRecord
    then: PreviewedRecord


class FarAhead(Struct, frozen=True):
    """A record whose version is far beyond the rest and would win for long."""

    key: bytes
    offset: int
    version: int


class StrategyPreview(Struct, frozen=True):
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


class _Counts(Struct):
    records: int = 0
    missing: int = 0
    malformed: int = 0
    tombstones: int = 0
    spread: VersionSpread = field(default_factory=VersionSpread)


class _Changes(Struct):
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


class _Reading(Struct, frozen=True):
    """One pass over a log by one strategy; ``counts`` receives what it finds, if given."""

    topic: TopicConfig
    log_start: int
    seeds: NDArray[np.uint64]
    counts: _Counts | None
    progressed: Progressed

    def committed(self, log: VerifiedLog, facts: LogFacts) -> Iterator[Rows]:
        """Yield a row for each committed record with a key."""
        first_open = facts.transactions.first_open()
        end = INT64_MAX if first_open is None else first_open
        reported: object = None
        for part in log.parts(self.seeds, self.topic):
            if part.window is not reported:
                reported = part.window
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
            yield part.rows(numbers, ON_LEFT)


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
