"""Plays rounds over the records of one key, to see which of them would go, and why.

The rule that a reader must not break: nothing is decided here. A log of these records alone goes
through the key map and the kernels that clean a whole one, in the order of a round: index, raise
over what is clean, look up, judge. Each record lies in a batch of its own, with the header of the
one that it was found in; whether that batch stays, emptied, matters to its producer and not to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from keeplast.cleaner.plan import old_kept_from
from keeplast.columns import batch_table as t
from keeplast.columns import rules, verdicts
from keeplast.columns.winners import UNKNOWN, KeyMap
from keeplast.inspect.key_search import KeyRecord
from keeplast.model.offsets import INT64_MAX
from keeplast.model.reader_wait import ReaderWait
from keeplast.model.strategy import Strategy
from keeplast.read.log_state import winning_offsets
from keeplast.read.transaction_outcomes import TransactionOutcome
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.workspace import Workspace

_NO_PRODUCERS = np.empty((0, 3), np.int64)
_HASH = 1
"""All records have one key, so that any hash will do."""


class RecordVerdict(IntEnum):
    """What a round does with a record: the rules' own numbers."""

    KEEP = rules.KEEP
    SUPERSEDED = rules.SUPERSEDED
    EXPIRED_TOMBSTONE = rules.EXPIRED_TOMBSTONE
    ABORTED_DATA = rules.ABORTED_DATA


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """What a round goes by, as in :class:`~keeplast.cleaner.plan.RoundPlan`.

    It cleans below ``bound`` and indexes ``[first_dirty, bound)``; ``horizon_ms`` is what it
    stamps, negative for never. ``old_format_horizon_ms`` is the plan's, ``readers`` those that
    tombstones wait for.
    """

    log_start: int
    first_dirty: int
    bound: int
    now_ms: int
    horizon_ms: int
    old_format_horizon_ms: int
    readers: ReaderWait | None = None

    @property
    def late_now_ms(self) -> int:
        """Return the time up to which horizons have passed and nobody is waited for any more."""
        return self.now_ms - (0 if self.readers is None else self.readers.max_ms)

    @property
    def passed_to(self) -> int:
        """Return the offset below which no reader is waited for."""
        return INT64_MAX if self.readers is None else self.readers.passed_to


class KeyRounds:
    """The records of one key that are left, after as many rounds as were played.

    ``left`` are numbers of the records it began with.
    """

    def __init__(
        self, records: Sequence[KeyRecord], strategy: Strategy, ranking: Ranking, w: Workspace
    ) -> None:
        self._ranking = ranking
        self._w = w
        count = len(records)
        self._headers = np.zeros((count, t.COLUMNS), np.int64)
        for number, each in enumerate(records):
            self._headers[number] = each.header
        is_aborted = [each.outcome is TransactionOutcome.ABORTED for each in records]
        self._headers[:, t.STATE] = np.array(is_aborted, np.int64) * t.ABORTED
        self._headers[:, t.ROWS] = 1
        self._offsets = np.array([each.offset for each in records], np.int64)
        ranks = [each.ranks[strategy] for each in records]
        self._flags = np.array([flags for flags, _ in ranks], np.uint8)
        self._versions = np.array([version for _, version in ranks], np.int64)
        self._segments = np.array([each.segment for each in records], np.int64)
        self._mtimes = np.array([each.mtime_ms for each in records], np.int64)
        is_open = [each.outcome is TransactionOutcome.OPEN for each in records]
        self._is_open = np.array(is_open, np.bool_)
        self.left: NDArray[np.int64] = np.arange(count)

    def winner(self, log_start: int) -> int | None:
        """Return the offset of the record that wins of all that are left, None without one.

        What was aborted, is undecided or lies below ``log_start`` takes no part.
        """
        chosen = self.left[~self._is_open[self.left]]
        key_map = self._ranking.new_map()
        self._put(key_map, chosen, log_start, int(self._offsets.max(initial=0)) + 1, raises=False)
        winners = winning_offsets(key_map, self._ranking)
        return int(winners[0]) if len(winners) else None

    def offset_of(self, number: int) -> int:
        """Return the offset of one of the records that it began with."""
        return int(self._offsets[number])

    def horizons(self, below: int) -> list[tuple[int, int]]:
        """Return what is left in segments below an offset and has a delete horizon: both."""
        return [
            (int(self._offsets[number]), int(self._headers[number, t.BASE_TIMESTAMP]))
            for number in self.left.tolist()
            if self._segments[number] < below
            and self._headers[number, t.MAGIC] == 2
            and self._headers[number, t.ATTRIBUTES] & t.DELETE_HORIZON
        ]

    def play(self, terms: RoundTerms) -> tuple[dict[int, RecordVerdict], int | None]:
        """Do one round; returns why what goes went, by number, and who won, where it was asked."""
        w, left = self._w, self.left[self._segments[self.left] < terms.bound]
        count = len(left)
        if not count:
            return {}, None
        key_map = self._ranking.new_map()
        self._put(key_map, left, terms.first_dirty, terms.bound, raises=False)
        if self._ranking.has_versions:
            self._put(key_map, left, terms.log_start, terms.first_dirty, raises=True)
        winners = winning_offsets(key_map, self._ranking)
        table = self._place(left)
        w.standings[:count] = UNKNOWN
        if verdicts.mark_looked_up(
            table, 0, count, terms.bound - 1, w.offsets, w.flags, w.standings, w.marks
        ):
            block = self._ranking.block_of(count, w)
            key_map.find(block, w.starts, w.block_rows, w.standings)
        gone: dict[int, RecordVerdict] = {}
        for at, number in enumerate(left.tolist()):
            verdict = self._judge(table, at, int(self._mtimes[number]), terms)
            if verdict is not RecordVerdict.KEEP:
                gone[number] = verdict
            self._headers[number] = _rewritten(table[at])
        self.left = self.left[~np.isin(self.left, list(gone))]
        return gone, int(winners[0]) if len(winners) else None

    def _judge(
        self, table: NDArray[np.int64], at: int, mtime_ms: int, terms: RoundTerms
    ) -> RecordVerdict:
        """Return what becomes of the one record of batch ``at``."""
        w, counters = self._w, np.zeros(verdicts.COUNTERS, np.int64)
        verdicts.judge_batches(
            table, at, at + 1, terms.now_ms, terms.late_now_ms, terms.passed_to, INT64_MAX,
            terms.bound, _NO_PRODUCERS, counters,
        )  # fmt: skip
        verdicts.judge_rows(
            table, at, at + 1, terms.bound - 1, terms.now_ms, terms.late_now_ms, terms.passed_to,
            INT64_MAX, terms.horizon_ms,
            old_kept_from(mtime_ms, terms.old_format_horizon_ms, terms.readers), False,
            self._ranking.expiry, terms.first_dirty, w.offsets, w.positions, w.flags, w.standings,
            w.marks, counters,
        )  # fmt: skip
        is_whole = table[at, t.COUNT] == 1 and table[at, t.MAGIC] < 2
        if table[at, t.ACTION] == t.ACTION_COPY and is_whole:
            # An old-format batch that cannot be emptied: differences.md (b).
            return RecordVerdict.KEEP
        reasons = counters[verdicts.REASON_RECORDS : verdicts.REASON_RECORDS + rules.REASONS]
        return RecordVerdict(int(np.argmax(reasons))) if reasons.any() else RecordVerdict.KEEP

    def _put(
        self, key_map: KeyMap, chosen: NDArray[np.int64], first: int, end: int, *, raises: bool
    ) -> None:
        """Give the map what of ``chosen`` has an offset in [first, end) and was not aborted."""
        w, count = self._w, len(chosen)
        table = self._place(chosen)
        verdicts.select_indexed(table, 0, count)
        verdicts.mark_indexed(count, first, end, w.offsets, w.flags, w.marks)
        w.marks[:count][table[:, t.VERDICT] == t.DELETE] = 0
        if not w.marks[:count].any():
            return
        block = self._ranking.block_of(count, w)
        if raises:
            key_map.raise_known(block, w.starts)  # type: ignore[attr-defined]
        else:
            key_map.put(block, w.starts)

    def _place(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Put records into the rows of the workspace; returns the table of their batches."""
        w, rows = self._w, slice(0, len(chosen))
        w.offsets[rows] = self._offsets[chosen]
        w.flags[rows] = self._flags[chosen]
        w.hashes[rows] = _HASH
        w.positions[rows] = 0
        if self._ranking.has_versions:
            w.room_for_ranks()[0][rows] = self._versions[chosen]
        table = self._headers[chosen]
        table[:, t.FIRST_ROW] = np.arange(len(chosen))
        return table


def _rewritten(row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the header of a batch behind the round that judged it."""
    if row[t.ACTION] == t.ACTION_REBUILD:
        row = row.copy()
        row[t.MAGIC] = 2
        if row[t.OUT_BASE_TIMESTAMP] >= 0:
            row[t.ATTRIBUTES] |= t.DELETE_HORIZON
            row[t.BASE_TIMESTAMP] = row[t.OUT_BASE_TIMESTAMP]
    return row
