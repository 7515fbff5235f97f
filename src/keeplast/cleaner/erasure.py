"""By when a value that was overwritten or deleted is gone from the disk, or why no time is known.

KIP-354 promises that a log becomes eligible in time. Who must prove an erasure needs more: when the
round that follows has ended and the replaced files are removed. For everything that lies in the log
now, let ``Z`` be its last segment with data, ``f`` the first timestamp of ``Z``, ``M``
``max.compaction.lag.ms`` and ``L`` ``min.compaction.lag.ms``:

1. While ``Z`` is dirty, the log is overdue from ``f + M`` on: the earliest first timestamp of its
   dirty segments is at most ``f``. Rounds take segments from the front, so ``Z`` is the last.
2. An active ``Z`` is left at ``f + min(segment.ms, M)``, not later than 1, if ``f`` is known.
3. No segment up to ``Z`` may be younger than ``L``. Until ``Z`` is left records may be appended to
   it, dated at most ``D`` ahead of the clock: the last of the lags ends ``L`` after that.
4. A map with a bound may end a round before ``Z``, and the rewritten ``Z`` may begin later. Its
   greatest timestamp counts then, and every round in between waits for its turn again.
5. No hold below the log end may be in force: the last of them ends at a time that is written down.
6. What the round replaces may be kept for undo, ``undo.retention.ms`` longer, and goes at the next
   look after that. An undo begins again, with a log that is overdue by then.

``f`` is at most ``D`` ahead of the append that wrote it. So the wait is at most ``D + M`` from the
append and ``D + M + D`` from the record's own timestamp, which is the KIP's bound (its note 1).
Queueing, rounds and removal come on top (:class:`Pace`). The docs say what else has to happen: the
daemon runs, rounds succeed, transactions end.

Pure. Answers to KIP-354; architecture 2.2 f; the order of logs is
:mod:`keeplast.cleaner.log_order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum, auto
from itertools import pairwise
from math import ceil

from msgspec import Struct

from keeplast.cleaner.log_order import PASSED_OVER_MAX
from keeplast.cleaner.reasons import HoldLimit, Limit
from keeplast.model.partition import INT64_MAX, SegmentSummary
from keeplast.model.topic_config import TopicConfig


class BasisKind(StrEnum):
    """What a bound rests on, or what is missing for one."""

    CLEAN = auto()
    EMPTY = auto()
    NOTHING_LEFT = auto()
    LEFTOVERS = auto()
    KEPT = auto()
    NEXT_ROUND = auto()
    OVERDUE = auto()
    MAX_LAG_AFTER_FIRST = auto()
    MAX_LAG_AFTER_LAST = auto()
    MIN_LAG_AFTER_LAST = auto()
    HELD = auto()
    HOLD = auto()
    NO_MAX_LAG = auto()
    NO_MAX_LAG_OF_FOLLOWERS = auto()
    UNDATED = auto()
    LAG_OF_ANY_DATE = auto()
    KEY_MAP_OF_ANY_DATE = auto()
    SET_ASIDE = auto()
    UNREADABLE = auto()
    FAILING = auto()


class ErasureBasis(Struct, frozen=True):
    """A kind, with the segment that it is about, or with what holds the log back."""

    kind: BasisKind
    base_offset: int | None = None
    limit: Limit | None = None


class Eligibility(Struct, frozen=True):
    """When a round that covers everything now in the log is due.

    ``by_ms`` None means that there is no bound, and ``basis`` is what is missing; otherwise what
    it rests on. ``rounds_max`` is how many rounds that takes at most. ``is_clean`` says that
    nothing is dirty, so that nothing has to be waited for.
    """

    by_ms: int | None
    basis: ErasureBasis
    rounds_max: int = 1
    is_clean: bool = False


class DirtyLog(Struct, frozen=True):
    """What a bound needs to know of a log, next to its settings.

    ``segments`` are all, the last one active. ``active_first_ms`` and ``active_largest_ms`` are the
    first and the greatest timestamp of the active segment. Both are None when it has none, the
    greatest also when ``min.compaction.lag.ms`` is 0 and the key map has no bound. ``limit`` is
    what keeps offsets from being cleaned that no time ends (an open transaction, the high
    watermark). ``hold`` is the one that ends last of the holds below the log end. ``is_eligible``
    says that a round up to ``bound`` is due now.
    """

    segments: Sequence[SegmentSummary]
    first_dirty: int
    log_end: int
    bound: int
    is_eligible: bool
    limit: Limit | None = None
    hold: HoldLimit | None = None
    active_first_ms: int | None = None
    active_largest_ms: int | None = None

    def closed_dirty(self) -> list[SegmentSummary]:
        """Return the closed segments that end above the first dirty offset."""
        return [
            segment
            for segment, following in pairwise(self.segments)
            if following.base_offset > self.first_dirty
        ]


def find_eligibility(
    log: DirtyLog,
    topic: TopicConfig,
    *,
    timestamp_ahead_max_ms: int,
    key_capacity: int | None,
    now_ms: int,
) -> Eligibility:
    """Return by when a round that covers ``log`` up to its present end is due.

    ``timestamp_ahead_max_ms`` is how far ahead of the clock a record may be dated that is appended
    from now on (``D``); INT64_MAX when that is not checked.
    """
    if log.first_dirty >= log.log_end:
        return Eligibility(now_ms, ErasureBasis(BasisKind.CLEAN), is_clean=True)
    rounds_max = 1 if key_capacity is None else 1 + (log.log_end - log.first_dirty) // key_capacity
    if log.limit is not None:
        return Eligibility(None, ErasureBasis(BasisKind.HELD, limit=log.limit))
    if log.is_eligible and log.bound >= log.log_end and key_capacity is None:
        return Eligibility(now_ms, ErasureBasis(BasisKind.NEXT_ROUND), rounds_max)
    if topic.max_compaction_lag_ms >= INT64_MAX:
        return Eligibility(None, ErasureBasis(BasisKind.NO_MAX_LAG))
    *closed, active = log.segments
    last = closed[-1] if closed and active.base_offset >= log.log_end else None
    first_ms = log.active_first_ms if last is None else last.first_timestamp_ms
    largest_ms = log.active_largest_ms if last is None else last.largest_timestamp_ms
    base_offset = (active if last is None else last).base_offset
    if first_ms is None or first_ms <= 0:
        return Eligibility(None, ErasureBasis(BasisKind.UNDATED, base_offset))
    counted_ms, kind = first_ms, BasisKind.MAX_LAG_AFTER_FIRST
    left_ms = now_ms if last is not None else max(first_ms + topic.segment_age_max_ms + 1, now_ms)
    needs_ahead = last is None and (topic.min_compaction_lag_ms > 0 or key_capacity is not None)
    if needs_ahead and timestamp_ahead_max_ms >= INT64_MAX:
        has_lag = topic.min_compaction_lag_ms > 0
        kind = BasisKind.LAG_OF_ANY_DATE if has_lag else BasisKind.KEY_MAP_OF_ANY_DATE
        return Eligibility(None, ErasureBasis(kind))
    ahead_ms = left_ms + timestamp_ahead_max_ms if needs_ahead else -1
    if key_capacity is not None:
        counted_ms = max(first_ms, -1 if largest_ms is None else largest_ms, ahead_ms)
        kind = BasisKind.MAX_LAG_AFTER_LAST
    overdue_ms = counted_ms + max(topic.max_compaction_lag_ms, 0) + 1
    lag_ms = _lag_ends(log, topic, largest_ms, ahead_ms)
    if lag_ms > max(overdue_ms, now_ms):
        kind = BasisKind.MIN_LAG_AFTER_LAST
    elif overdue_ms <= now_ms:
        kind = BasisKind.OVERDUE
    basis = ErasureBasis(kind, base_offset)
    by_ms = max(overdue_ms, lag_ms, left_ms)
    if log.hold is not None and log.hold.until_ms > by_ms:
        return Eligibility(
            log.hold.until_ms, ErasureBasis(BasisKind.HOLD, limit=log.hold), rounds_max
        )
    return Eligibility(by_ms, basis, rounds_max)


def _lag_ends(log: DirtyLog, topic: TopicConfig, largest_ms: int | None, ahead_ms: int) -> int:
    """Return when no dirty segment is younger than the least lag any more."""
    if topic.min_compaction_lag_ms <= 0:
        return -1
    ages = [segment.age_timestamp_ms for segment in log.closed_dirty()]
    ages += [] if largest_ms is None else [largest_ms]
    return max([*ages, ahead_ms]) + topic.min_compaction_lag_ms


def find_deadline(log: DirtyLog, topic: TopicConfig) -> int | None:
    """Return the last moment at which the log is not overdue; None when it never will be."""
    if topic.max_compaction_lag_ms >= INT64_MAX or log.first_dirty >= log.log_end:
        return None
    stamps = [segment.first_timestamp_ms for segment in log.closed_dirty()]
    known = [stamp for stamp in (*stamps, log.active_first_ms) if stamp is not None and stamp > 0]
    return min(known) + max(topic.max_compaction_lag_ms, 0) if known else None


class Pace(Struct, frozen=True):
    """How fast rounds are taken to go, and how many at a time.

    ``round_ms`` is a floor for the smallest; ``bytes_per_second`` are the bytes of a log that one
    worker gets through, both passes, writing and removal included. ``backoff_ms`` is the pause of
    a daemon that has found nothing to do, and the age up to which it goes by what it found.
    """

    bytes_per_second: float
    round_ms: int
    slots: int
    backoff_ms: int

    def duration_ms(self, size_bytes: int) -> int:
        """Return how long a round on a log of this size is taken to last."""
        return self.round_ms + ceil(1000 * size_bytes / self.bytes_per_second)


def find_turn_ms(sizes: Sequence[int], pace: Pace) -> int:
    """Return the longest time from a log's eligibility to the end of one round of it.

    ``sizes`` are the bytes of every log that the daemon cleans, the log itself included: it is the
    same for all of them. The daemon may be pausing when the log becomes eligible, or go by what it
    found before, and pause again once the active segment was left. A turn of ``slots`` logs may be
    under way. Up to :data:`PASSED_OVER_MAX` more may take others. After those the log that waits
    longest comes first, so that no log comes twice.
    """
    longest = sorted((pace.duration_ms(size) for size in sizes), reverse=True)
    turns = ceil(len(longest) / pace.slots)
    queue_ms = (PASSED_OVER_MAX + 1) * longest[0] + sum(longest[:turns])
    return 2 * pace.backoff_ms + queue_ms
