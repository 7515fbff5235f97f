"""What becomes of each record of a key by its topic's policy, and when, before it happens.

The clock is run on over the log as it is now, as if no record came any more. A round is played
whenever something lets one reach further: a lag ends, the active segment is left, a transaction is
decided. One is played for each delete horizon that passes, too. Limits come from the survey's own
rules.

The rules that a reader must not break:

- Nothing is decided here. A log of these records alone goes through the key map and the kernels
  that clean a whole one, in the order of a round: index, raise over what is clean, look up, judge.
- A time is the *earliest* at which a round may do a thing. Whether one is done then is the
  daemon's; the latest time is from :mod:`keeplast.cleaner.erasure`. What no clock decides (an open
  transaction, the high watermark) is taken to end after all that a clock decides.

Each record lies in a batch of its own, with the header of the one that it was found in. Whether
that batch stays, emptied, matters to its producer and not to the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum, auto

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.cleaner.cleanable_range import (
    find_cleanable_range,
    find_expired_bound,
    find_first_uncleanable,
    find_hold,
)
from keeplast.cleaner.plan import old_format_horizon, old_kept_from
from keeplast.cleaner.reasons import (
    ActiveLimit,
    HoldLimit,
    LagLimit,
    Limit,
    SourcesLimit,
    TombstoneRemoval,
    TransactionLimit,
    WatermarkLimit,
)
from keeplast.columns import batches as t
from keeplast.columns import retained
from keeplast.columns.winners import UNKNOWN, KeyMap
from keeplast.inspect.key_search import KeyRecord
from keeplast.model.hold import Hold, ReaderWait, in_force
from keeplast.model.partition import INT64_MAX, NO_HORIZON, SegmentSummary, delete_horizon
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.read.log_state import winning_offsets
from keeplast.read.transactions import TransactionOutcome
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.workspace import Workspace

_NO_PRODUCERS = np.empty((0, 3), np.int64)
_HASH = 1
"""All records have one key, so that any hash will do."""


class RecordVerdict(IntEnum):
    """What a round does with a record: the rules' own numbers."""

    KEEP = retained.KEEP
    SUPERSEDED = retained.SUPERSEDED
    EXPIRED_TOMBSTONE = retained.EXPIRED_TOMBSTONE
    ABORTED_DATA = retained.ABORTED_DATA


class RoundTerms(Struct, frozen=True):
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
        """Return the time up to which horizons have passed and no reader is waited for any more."""
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
        self._put(key_map, chosen, log_start, INT64_MAX, raises=False)
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
        if retained.mark_looked_up(
            table, 0, count, terms.bound - 1, self._ranking.has_versions, w.offsets, w.flags,
            w.standings, w.marks,
        ):  # fmt: skip
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
        w, counters = self._w, np.zeros(retained.COUNTERS, np.int64)
        retained.judge_batches(
            table, at, at + 1, terms.now_ms, terms.late_now_ms, terms.passed_to, INT64_MAX,
            terms.bound, _NO_PRODUCERS, counters,
        )  # fmt: skip
        retained.judge_rows(
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
        reasons = counters[retained.REASON_RECORDS : retained.REASON_RECORDS + retained.REASONS]
        return RecordVerdict(int(np.argmax(reasons))) if reasons.any() else RecordVerdict.KEEP

    def _put(
        self, key_map: KeyMap, chosen: NDArray[np.int64], first: int, end: int, *, raises: bool
    ) -> None:
        """Give the map what of ``chosen`` has an offset in [first, end) and was not aborted."""
        w, count = self._w, len(chosen)
        table = self._place(chosen)
        retained.select_indexed(table, 0, count)
        retained.mark_indexed(count, first, end, w.offsets, w.flags, w.marks)
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
        if len(chosen) > len(w.offsets):
            w.make_rows(len(chosen))
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
    """Return the header of a batch after the round that judged it."""
    if row[t.ACTION] == t.ACTION_REBUILD:
        row = row.copy()
        row[t.MAGIC] = 2
        if row[t.OUT_BASE_TIMESTAMP] >= 0:
            row[t.ATTRIBUTES] |= t.DELETE_HORIZON
            row[t.BASE_TIMESTAMP] = row[t.OUT_BASE_TIMESTAMP]
    return row


class Outlook(StrEnum):
    """What a record has before it."""

    WINS = auto()
    GOES_NEXT = auto()
    GOES_LATER = auto()
    UNDECIDED = auto()
    STAYS = auto()


class Stay(StrEnum):
    """Why a record that does not win stays all the same, as far as that is known."""

    BELOW_LOG_START = auto()
    UNDECIDED_KEY = auto()
    NO_DIRTY_RECORD = auto()
    CUT_SEGMENT = auto()


class Fate(Struct, frozen=True):
    """What becomes of one record.

    ``verdict`` is why it goes, in a round at ``from_ms`` at the earliest (None: no clock decides);
    ``by_offset`` the record that supersedes it. Until then ``limit`` holds it, or its delete
    horizon where ``has_horizon``. After that its ``readers`` hold it, until they have read it or
    the wait is over at ``from_ms``. ``stay`` is why a record that neither wins nor goes stays.
    ``removal`` is what is known of a winning tombstone of an attached partition; where that goes,
    ``from_ms`` is a time at which a round surely takes it.
    """

    outlook: Outlook
    verdict: RecordVerdict | None = None
    by_offset: int | None = None
    from_ms: int | None = None
    limit: Limit | None = None
    has_horizon: bool = False
    readers: ReaderWait | None = None
    stay: Stay | None = None
    removal: TombstoneRemoval | None = None


class FoundLog(Struct, frozen=True):
    """A log as of ``now_ms``; ``segments`` are all, the last one active, ``first_dirty`` inclusive.

    ``stable`` is what keeps offsets from being cleaned that no time ends, None when nothing does.
    ``active_first_ms`` and ``active_largest_ms`` are the first and the greatest timestamp of the
    active segment, None when it has none. With ``expires_nothing`` rounds keep tombstones.
    ``readers`` are those that tombstones wait for; no clock decides when they read on.
    """

    segments: Sequence[SegmentSummary]
    log_start: int
    first_dirty: int
    log_end: int
    stable: TransactionLimit | WatermarkLimit | SourcesLimit | None
    active_first_ms: int | None
    active_largest_ms: int | None
    now_ms: int
    holds: tuple[Hold, ...] = ()
    expires_nothing: bool = False
    readers: ReaderWait | None = None


class RoundReach(Struct, frozen=True):
    """From ``at_ms`` on, once ``ended`` holds no more, rounds may clean below ``bound``.

    ``at_ms`` None: no clock decides when that is.
    """

    at_ms: int | None
    bound: int
    ended: Limit | None = None


def find_reaches(log: FoundLog, topic: TopicConfig) -> list[RoundReach]:
    """Return how far rounds may reach, and from when on; the first one is now's.

    At most two for each segment, one for each hold, and two more.
    """
    segments, at_ms = list(log.segments), log.now_ms
    stable = log.log_end if log.stable is None else log.stable.offset
    reaches: list[RoundReach] = []
    ended: Limit | None = None
    is_known = True
    for _ in range(2 * len(segments) + len(log.holds) + 2):
        found = find_first_uncleanable(
            segments, first_dirty=log.first_dirty, high_watermark=stable, open_transaction=None,
            min_compaction_lag_ms=topic.min_compaction_lag_ms, now_ms=at_ms,
            hold=find_hold(in_force(log.holds, at_ms)),
        )  # fmt: skip
        bound = find_cleanable_range(
            segments, first_dirty=log.first_dirty, uncleanable=found.offset
        ).bound
        reaches.append(RoundReach(at_ms if is_known else None, bound, ended))
        limit = found.limit
        if isinstance(limit, LagLimit):
            at_ms += limit.lag_ms - limit.age_ms
            if at_ms >= INT64_MAX:
                break
            ended = replace(limit, age_ms=limit.lag_ms - (at_ms - log.now_ms))
        elif isinstance(limit, HoldLimit):
            ended, at_ms = limit, limit.until_ms
        elif isinstance(limit, ActiveLimit) and segments[-1].base_offset < log.log_end:
            ended, segments = limit, _left(segments, log)
            first_ms = log.active_first_ms
            left_ms = (first_ms or 0) + topic.segment_age_max_ms + 1
            if first_ms is None or first_ms <= 0 or left_ms >= INT64_MAX:
                is_known = False
            else:
                at_ms = max(at_ms, left_ms)
        elif isinstance(limit, WatermarkLimit) and stable < log.log_end:
            # The time is not known; what follows comes in its order, without a time.
            ended, stable, is_known = log.stable, log.log_end, False
        else:
            break
    return reaches


def _left(segments: Sequence[SegmentSummary], log: FoundLog) -> list[SegmentSummary]:
    """Return the segments as they are once the active one is closed."""
    largest = -1 if log.active_largest_ms is None else log.active_largest_ms
    closed = replace(segments[-1], largest_timestamp_ms=largest)
    # What is timed by its file is closed then, and not before.
    return [*segments[:-1], closed, SegmentSummary(log.log_end, 0, 0, -1, 0, 0)]


def find_fates(
    records: Sequence[KeyRecord],
    rounds: KeyRounds,
    log: FoundLog,
    topic: TopicConfig,
    reaches: Sequence[RoundReach],
) -> tuple[Fate, ...]:
    """Return the fate of each of ``records``, those of one key that ``rounds`` begins with.

    ``reaches`` are those of :func:`find_reaches`.
    """
    has_open = any(each.outcome is TransactionOutcome.OPEN for each in records)
    if has_open:
        # What wins is decided by how the transaction ends: nothing is said beyond it.
        reaches = [each for each in reaches if not _is_beyond(each, reaches)]
    fates: dict[int, Fate] = {}
    clock, first_dirty, is_known = log.now_ms, log.first_dirty, True
    for number, reach in enumerate(reaches):
        if number:
            # What no clock decides may be long: what a clock decides comes first.
            until_ms = reach.at_ms if is_known else None
            clock = _expire(
                rounds, log, topic, first_dirty, clock, until_ms, fates, is_known=is_known
            )
            clock, is_known = max(clock, reach.at_ms or 0), is_known and reach.at_ms is not None
        bound = min(reach.bound, INT64_MAX)
        if bound <= first_dirty:
            bound = _expired_bound(log, first_dirty)
            if min(_expiries(rounds, log, bound), default=INT64_MAX) > clock:
                # No round takes nothing dirty unless a horizon has passed: none is stamped either.
                continue
        gone, by_offset = rounds.play(_terms(log, topic, min(first_dirty, bound), bound, clock))
        outlook = Outlook.GOES_LATER if number else Outlook.GOES_NEXT
        for each, verdict in gone.items():
            by = by_offset if verdict is RecordVerdict.SUPERSEDED else None
            from_ms = reach.at_ms if number else log.now_ms
            fates[each] = Fate(outlook, verdict, by, from_ms, reach.ended)
        first_dirty = max(first_dirty, reach.bound)
    _expire(rounds, log, topic, first_dirty, clock, None, fates, is_known=is_known)
    winner = rounds.winner(log.log_start)
    return tuple(
        fates[number] if number in fates else _staying(record, winner, log, has_open=has_open)
        for number, record in enumerate(records)
    )


def _is_beyond(reach: RoundReach, reaches: Sequence[RoundReach]) -> bool:
    """Say whether a reach comes once a transaction has ended."""
    ends = [
        number
        for number, each in enumerate(reaches)
        if isinstance(each.ended, TransactionLimit | WatermarkLimit | SourcesLimit)
    ]
    return bool(ends) and reaches.index(reach) >= ends[0]


def _terms(
    log: FoundLog, topic: TopicConfig, first_dirty: int, bound: int, now_ms: int
) -> RoundTerms:
    if log.expires_nothing:
        return RoundTerms(log.log_start, first_dirty, bound, -1, NO_HORIZON, -1)
    return RoundTerms(
        log.log_start, first_dirty, bound, now_ms,
        delete_horizon(now_ms, topic.delete_retention_ms),
        old_format_horizon(log.segments, first_dirty, topic.delete_retention_ms), log.readers,
    )  # fmt: skip


def _expired_bound(log: FoundLog, first_dirty: int) -> int:
    """Return the end of a round that takes nothing dirty; rounds end where a segment begins."""
    if first_dirty > log.first_dirty:
        return first_dirty
    return find_expired_bound(log.segments, first_dirty=first_dirty, bound=first_dirty)


def _expiries(rounds: KeyRounds, log: FoundLog, bound: int) -> set[int]:
    """Return when what has a horizon below ``bound`` has expired, and no reader is waited for."""
    readers = log.readers
    return {
        horizon_ms if readers is None else readers.ends_at(horizon_ms, offset)
        for offset, horizon_ms in rounds.horizons(bound)
    }


def _expire(
    rounds: KeyRounds,
    log: FoundLog,
    topic: TopicConfig,
    first_dirty: int,
    since_ms: int,
    until_ms: int | None,
    fates: dict[int, Fate],
    *,
    is_known: bool,
) -> int:
    """Play a round for each horizon and wait that ends, from ``since_ms`` on, before ``until_ms``.

    Returns the time of the last one.

    Not ``is_known`` are the times of what is stamped by a round whose time is not known.
    """
    if log.expires_nothing:
        return since_ms
    bound = _expired_bound(log, first_dirty)
    readers = log.readers
    # What a later record had contested may go in the round after that one.
    times = sorted({max(each, since_ms) for each in _expiries(rounds, log, bound)})
    for horizon_ms in times:
        if until_ms is not None and horizon_ms >= until_ms:
            break
        since_ms = horizon_ms
        gone, _ = rounds.play(_terms(log, topic, bound, bound, horizon_ms))
        for each, verdict in gone.items():
            fates[each] = Fate(
                Outlook.GOES_LATER, verdict, None, horizon_ms if is_known else None,
                has_horizon=True,
                readers=None if readers is None or rounds.offset_of(each) < readers.passed_to
                else readers,
            )  # fmt: skip
    return since_ms


def untouched_fate(record: KeyRecord, winner: int | None, log: FoundLog) -> Fate:
    """Return the fate of a record in a segment that no round takes."""
    if record.outcome is TransactionOutcome.OPEN:
        return Fate(Outlook.UNDECIDED, limit=log.stable)
    if record.offset == winner:
        return Fate(Outlook.WINS)
    is_below = record.offset < log.log_start
    stay = Stay.BELOW_LOG_START if is_below else Stay.CUT_SEGMENT
    return Fate(Outlook.STAYS, by_offset=None if is_below else winner, stay=stay)


def _staying(record: KeyRecord, winner: int | None, log: FoundLog, *, has_open: bool) -> Fate:
    if record.outcome is TransactionOutcome.OPEN:
        return Fate(Outlook.UNDECIDED, limit=log.stable)
    if record.offset == winner:
        return Fate(Outlook.WINS)
    if record.offset < log.log_start:
        return Fate(Outlook.STAYS, stay=Stay.BELOW_LOG_START)
    if has_open:
        return Fate(Outlook.STAYS, by_offset=winner, limit=log.stable, stay=Stay.UNDECIDED_KEY)
    return Fate(Outlook.STAYS, by_offset=winner, stay=Stay.NO_DIRTY_RECORD)
