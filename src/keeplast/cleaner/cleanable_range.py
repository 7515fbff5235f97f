"""Decides what of a log may be cleaned now: from which offset to which. Pure.

``first dirty`` is the first offset not yet cleaned; ``uncleanable`` the first offset that must not
be touched. ``bound`` is the latter, rounded down to the base of its segment, and the exclusive end
of the round. Times come from the caller, and a bound always comes with its reason. Kafka:
``LogCleanerManager.cleanableOffsets``, ``LogToClean``; cleaning.md 1.2 to 1.5.

It also decides whether an idle active segment must be left, so that its records can be cleaned. A
broker rolls only when it appends. What lies in the active segment of a log without new records is
never cleaned, whatever ``max.compaction.lag.ms`` promises. KIP-354 asks for more, and gets it here.
A segment that is not empty is left when its first record is older than the lesser of ``segment.ms``
and ``max.compaction.lag.ms``. Without a first timestamp nothing is forced. Architecture 2.2 f;
cleaning.md sections 1.7 and 9.1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from msgspec import Struct

from keeplast.cleaner.reasons import (
    ActiveLimit,
    CheckpointRepaired,
    HoldLimit,
    KeptLimit,
    LagLimit,
    Limit,
    TransactionLimit,
    WatermarkLimit,
)
from keeplast.errors import ConflictError, InvalidError
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.hold import Hold, in_force
from keeplast.model.partition import SegmentSummary, TopicPartition
from keeplast.model.topic_config import TopicConfig


class FirstDirty(Struct, frozen=True):
    """Where the dirty section begins; ``repaired`` says why the checkpoint must be set to it."""

    offset: int
    repaired: CheckpointRepaired | None = None

    @property
    def repairs(self) -> bool:
        """True when the checkpoint must be rewritten to ``offset``."""
        return self.repaired is not None


class FirstUncleanable(Struct, frozen=True):
    """Before rounding: the first offset that must stay as it is, and why."""

    offset: int
    limit: Limit


class CleanableRange(Struct, frozen=True):
    """The rounded bound and the bytes on either side of the first dirty offset."""

    bound: int
    clean_bytes: int
    cleanable_bytes: int

    @property
    def ratio(self) -> float:
        """Return cleanable / (clean + cleanable), 0 for an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def find_first_dirty(checkpoint: int | None, *, log_start: int, log_end: int) -> FirstDirty:
    """Return the first dirty offset; a checkpoint outside ``[log_start, log_end]`` is repaired."""
    if checkpoint is None:
        return FirstDirty(log_start)
    if checkpoint < log_start:
        return FirstDirty(log_start, CheckpointRepaired(checkpoint, log_start))
    if checkpoint > log_end:
        return FirstDirty(log_start, CheckpointRepaired(checkpoint, log_start, log_end))
    return FirstDirty(checkpoint)


def segments_between(
    segments: Sequence[SegmentSummary], start: int, end: int
) -> Sequence[SegmentSummary]:
    """Return the segments that ``[start, end)`` touches, as Kafka's ``LogSegments.values`` does.

    The first one may begin below ``start``; ``start`` -1 means from the first. InvalidError when
    ``end`` < ``start``.
    """
    if start == end:
        return ()
    if end < start:
        raise InvalidError(f"range ends before it begins. start={start} end={end}", code="K161")
    bases = [segment.base_offset for segment in segments]
    return tuple(segments[max(bisect_right(bases, start) - 1, 0) : bisect_left(bases, end)])


def non_active_from(segments: Sequence[SegmentSummary], offset: int) -> Sequence[SegmentSummary]:
    """Return the closed segments from the one that contains ``offset``; the last is active."""
    active = segments[-1].base_offset
    return () if offset > active else segments_between(segments, offset, active)


def find_first_uncleanable(
    segments: Sequence[SegmentSummary],
    *,
    first_dirty: int,
    high_watermark: int,
    open_transaction: int | None,
    min_compaction_lag_ms: int,
    now_ms: int,
    kept_transaction: int | None = None,
    hold: HoldLimit | None = None,
) -> FirstUncleanable:
    """Return the least of last stable offset, active base and the base of the first young segment.

    The last stable offset is the lesser of ``high_watermark`` and ``open_transaction``, the first
    offset of the oldest undecided transaction. Never below ``first_dirty``. A segment is young when
    its largest timestamp is greater than ``now_ms - min_compaction_lag_ms``; timestamps are
    believed, so one record from the future holds back everything above it. ``kept_transaction`` is
    where the first aborted transaction begins that must stay for another part of the log, of
    :func:`find_kept_transaction`. ``hold`` is the lowest that is in force.
    """
    active = segments[-1].base_offset
    limit: Limit = ActiveLimit(active)
    if min_compaction_lag_ms > 0:
        for segment in non_active_from(segments, first_dirty):
            if segment.age_timestamp_ms > now_ms - min_compaction_lag_ms:
                limit = LagLimit(
                    segment.base_offset,
                    now_ms - segment.age_timestamp_ms,
                    min_compaction_lag_ms,
                    is_undated=segment.largest_timestamp_ms < 0,
                )
                break
    if high_watermark < limit.offset:
        limit = WatermarkLimit(high_watermark)
    if open_transaction is not None and open_transaction < limit.offset:
        limit = TransactionLimit(open_transaction)
    if kept_transaction is not None and kept_transaction < limit.offset:
        limit = KeptLimit(kept_transaction)
    if hold is not None and hold.offset < limit.offset:
        limit = hold
    return FirstUncleanable(max(limit.offset, first_dirty), limit)


def find_hold(holds: Sequence[Hold]) -> HoldLimit | None:
    """Return that of the lowest limit among a partition's ``holds``, which are in force.

    What is cleaned below its limit takes nothing from the states that it keeps. None without one.
    """
    lowest = min(holds, key=lambda each: (each.limit, -each.until_ms), default=None)
    return None if lowest is None else limit_of(lowest)


def limit_of(hold: Hold) -> HoldLimit:
    """Return the limit that a hold is to rounds."""
    return HoldLimit(hold.limit, hold.name, hold.until_ms, hold.offset)


def require_unheld(
    partition: TopicPartition, holds: Iterable[Hold], now_ms: int, *, end: int, first_dirty: int
) -> None:
    """Raise ConflictError when a round would pass a hold that was added since it began.

    ``holds`` are the partition's as they are when what the round has written is about to count;
    its records below ``end``, exclusive, have decided what stays.
    """
    hold = find_hold(in_force(holds, now_ms))
    if hold is not None and end > max(hold.offset, first_dirty):
        raise ConflictError(
            "a hold was added while the round was under way, and it would pass it; what it has "
            f"written goes, and the next one ends there. hold={hold.name} "
            f"offset={hold.offset} bound={end} partition={partition}",
            code="K239",
        )


def find_kept_transaction(
    aborted: Iterable[tuple[int, Sequence[AbortedTransaction]]], clean_elsewhere_to: int | None
) -> int | None:
    """Return where the first aborted transaction begins whose data another part may still have.

    ``aborted`` is as in :class:`~keeplast.cleaner.plan.RoundPlan`. The other part is clean below
    ``clean_elsewhere_to``; None when there is none. Only the entry of the transaction index
    distinguishes its data from committed data, and it goes with the data here. What is copied or
    fetched from here afterwards would bring the marker without it.
    """
    if clean_elsewhere_to is None:
        return None
    return min(
        (
            each.first_offset
            for _, entries in aborted
            for each in entries
            if each.last_offset >= clean_elsewhere_to
        ),
        default=None,
    )


def find_cleanable_range(
    segments: Sequence[SegmentSummary], *, first_dirty: int, uncleanable: int
) -> CleanableRange:
    """Round ``uncleanable`` down to a segment and add up the bytes.

    A segment that merely contains ``first_dirty`` counts in both sums, as in Kafka.
    """
    closed = non_active_from(segments, uncleanable)
    bound = closed[0].base_offset if closed else segments[-1].base_offset
    clean = segments_between(segments, -1, first_dirty) if first_dirty >= 0 else ()
    cleanable = segments_between(segments, min(first_dirty, bound), bound)
    return CleanableRange(
        bound,
        sum(segment.size_bytes for segment in clean if segment.base_offset < first_dirty),
        sum(segment.size_bytes for segment in cleanable),
    )


def find_expired_bound(segments: Sequence[SegmentSummary], *, first_dirty: int, bound: int) -> int:
    """Return the exclusive end of a round that only removes what has expired.

    That is the base of the segment that holds ``first_dirty``, and at most ``bound``: everything
    below was indexed by earlier rounds.
    """
    bases = [s.base_offset for s in segments if s.base_offset <= first_dirty]
    return min(max(bases, default=bound), bound)


class IdleRoll(Struct, frozen=True):
    """An active segment that has to be left: the age of its first record, and of what is allowed.

    ``limit`` is the setting that allows no more.
    """

    age_ms: int
    age_max_ms: int
    limit: str


def find_idle_roll(
    topic: TopicConfig, *, size_bytes: int, first_timestamp_ms: int | None, now_ms: int
) -> IdleRoll | None:
    """Return why the active segment must be left at ``now_ms``, None when it may stay.

    ``first_timestamp_ms`` is that of its first record; an age equal to what is
    allowed is no reason, as for a broker that appends.
    """
    if size_bytes == 0 or first_timestamp_ms is None or first_timestamp_ms < 0:
        return None
    age_ms, age_max_ms = now_ms - first_timestamp_ms, topic.segment_age_max_ms
    if not topic.is_compacted or age_ms <= age_max_ms:
        return None
    limit = "segment.ms" if age_max_ms == topic.segment_ms else "max.compaction.lag.ms"
    return IdleRoll(age_ms, age_max_ms, limit)
