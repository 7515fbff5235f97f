"""Says of a log's dirty section what it holds, how urgent it is, and whether it is worth a round.

Pure: segments, settings and the clock are arguments. Where the section begins and must end is
decided by :mod:`~keeplast.cleaner.cleanable_range`; here it becomes one value, with its
:mod:`~keeplast.cleaner.reasons`. Answers to ``LogToClean`` in Kafka's LogCleanerManager.

It also says what is odd about the dates of a log's dirty segments, and what follows for the lags. A
lag looks at a segment's greatest timestamp and nothing else. KIP-58, KIP-354.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import (
    CleanableRange,
    FirstDirty,
    FirstUncleanable,
    find_cleanable_range,
    non_active_from,
)
from keeplast.cleaner.reasons import (
    AllClean,
    BackDates,
    BoundNote,
    DirtyEnough,
    DueReason,
    EmptyLog,
    Forced,
    FutureDates,
    MissingDates,
    NothingBelow,
    OnlyActive,
    Overdue,
    RatioTooLow,
    SectionNote,
    SkipReason,
)
from keeplast.model.partition import INT64_MAX, SegmentSummary
from keeplast.model.topic_config import TopicConfig


class Dating(Struct, frozen=True):
    """Closed dirty segments whose dates cannot be taken for their age.

    ``future`` are dated after now, by at most ``ahead_ms``; ``missing`` have no timestamp at all;
    ``backdated`` are dated before what was appended earlier. Segments are counted, by their
    greatest timestamp, which is all that a lag looks at.
    """

    future: int = 0
    missing: int = 0
    backdated: int = 0
    ahead_ms: int = 0


def find_dating(segments: Sequence[SegmentSummary], *, first_dirty: int, now_ms: int) -> Dating:
    """Return what is odd about the dates of the closed segments from ``first_dirty`` on."""
    future = missing = backdated = ahead_ms = 0
    latest = -1
    for segment, following in pairwise(segments):
        stamp = segment.largest_timestamp_ms
        if following.base_offset > first_dirty:
            missing += stamp < 0
            future += stamp > now_ms
            backdated += 0 <= stamp < latest
            ahead_ms = max(ahead_ms, stamp - now_ms)
        # One date in the future does not make those after it old.
        latest = max(latest, min(stamp, now_ms))
    return Dating(future, missing, backdated, ahead_ms)


def dating_notes(
    dating: Dating, topic: TopicConfig
) -> list[FutureDates | MissingDates | BackDates]:
    """Return what follows from odd dates for the lags that are set; nothing without a lag."""
    has_min = topic.min_compaction_lag_ms > 0
    has_max = topic.max_compaction_lag_ms < INT64_MAX
    found: list[FutureDates | MissingDates | BackDates] = []
    if dating.future and (has_min or has_max):
        found.append(FutureDates(dating.future, dating.ahead_ms, has_min, has_max))
    if dating.missing and (has_min or has_max):
        found.append(MissingDates(dating.missing, has_min, has_max))
    if dating.backdated and has_min:
        found.append(BackDates(dating.backdated, topic.min_compaction_lag_ms))
    return found


class DirtySection(Struct, frozen=True):
    """The dirty section of a log: ``[first_dirty, uncleanable)`` before rounding to segments.

    ``compaction_delay_ms`` is for how long it is overdue, 0 when it is not. ``overdue_from_ms`` is
    the last moment at which it is not, None when it never will be.
    """

    first_dirty: FirstDirty
    uncleanable: FirstUncleanable
    cleanable: CleanableRange
    compaction_delay_ms: int
    overdue_from_ms: int | None
    dating: Dating

    def before(self, bound: int) -> DirtySection:
        """Return the section of a round that takes nothing dirty, and ends at ``bound``."""
        return replace(
            self,
            first_dirty=replace(self.first_dirty, offset=bound),
            cleanable=replace(self.cleanable, bound=bound, cleanable_bytes=0),
        )


class LogFigures(Struct, frozen=True):
    """How dirty a log is and for how long: what is published of every look at one.

    ``first_dirty`` is inclusive. ``uncleanable_bytes`` lie at and above the bound, the active
    segment included. ``compaction_delay_ms`` and ``overdue_from_ms`` are those of the section.
    """

    first_dirty: int
    cleanable: CleanableRange
    uncleanable_bytes: int
    compaction_delay_ms: int
    overdue_from_ms: int | None


def figures_of(section: DirtySection, segments: Sequence[SegmentSummary]) -> LogFigures:
    """Return the figures of a log with these ``segments``, all of it."""
    bound = section.cleanable.bound
    return LogFigures(
        section.first_dirty.offset,
        section.cleanable,
        sum(segment.size_bytes for segment in segments if segment.base_offset >= bound),
        section.compaction_delay_ms,
        section.overdue_from_ms,
    )


def find_overdue_from(
    segments: Sequence[SegmentSummary], *, first_dirty: int, max_compaction_lag_ms: int
) -> int | None:
    """Return the last moment at which compaction is not overdue, None when it never will be.

    Timestamps of 0 or less are ignored; min lag and the last stable offset play no part.
    """
    if max_compaction_lag_ms >= INT64_MAX:
        return None
    stamps = [
        segment.first_timestamp_ms
        for segment in non_active_from(segments, first_dirty)
        if segment.first_timestamp_ms is not None and segment.first_timestamp_ms > 0
    ]
    return min(stamps) + max(max_compaction_lag_ms, 0) if stamps else None


def delay_ms(overdue_from_ms: int | None, now_ms: int) -> int:
    """Return for how many milliseconds compaction is overdue at ``now_ms``, 0 when it is not."""
    return 0 if overdue_from_ms is None else max(now_ms - overdue_from_ms, 0)


def find_dirty_section(
    segments: Sequence[SegmentSummary],
    topic: TopicConfig,
    *,
    first_dirty: FirstDirty,
    uncleanable: FirstUncleanable,
    now_ms: int,
) -> DirtySection:
    """Return the section of ``segments`` (ascending, the last one active) between two limits."""
    overdue_from_ms = find_overdue_from(
        segments,
        first_dirty=first_dirty.offset,
        max_compaction_lag_ms=topic.max_compaction_lag_ms,
    )
    return DirtySection(
        first_dirty,
        uncleanable,
        find_cleanable_range(
            segments, first_dirty=first_dirty.offset, uncleanable=uncleanable.offset
        ),
        delay_ms(overdue_from_ms, now_ms),
        overdue_from_ms,
        find_dating(segments, first_dirty=first_dirty.offset, now_ms=now_ms),
    )


def skip_reason(
    section: DirtySection,
    segments: Sequence[SegmentSummary],
    topic: TopicConfig,
    *,
    is_forced: bool,
) -> SkipReason | None:
    """Say why no round happens, or None. A ratio equal to the threshold is not enough."""
    cleanable = section.cleanable
    active_base = segments[-1].base_offset
    if cleanable.cleanable_bytes == 0:
        if not any(segment.size_bytes for segment in segments):
            return EmptyLog()
        if segments[0].base_offset == active_base:
            return OnlyActive(active_base)
        if section.first_dirty.offset >= active_base:
            return AllClean(active_base)
        return NothingBelow(section.uncleanable.limit)
    threshold = topic.min_cleanable_dirty_ratio
    if is_forced or section.compaction_delay_ms > 0 or cleanable.ratio > threshold:
        return None
    return RatioTooLow(cleanable.ratio, threshold)


def due_reason(section: DirtySection, topic: TopicConfig) -> DueReason:
    """Say why a section that is not skipped is worth a round."""
    if section.compaction_delay_ms > 0:
        return Overdue(section.compaction_delay_ms, topic.max_compaction_lag_ms)
    ratio, threshold = section.cleanable.ratio, topic.min_cleanable_dirty_ratio
    return DirtyEnough(ratio, threshold) if ratio > threshold else Forced(ratio, threshold)


def section_notes(section: DirtySection) -> list[SectionNote]:
    """Return what to know of the section: from where it is cleaned, and how far."""
    repaired, uncleanable = section.first_dirty.repaired, section.uncleanable
    return [
        *(() if repaired is None else (repaired,)),
        BoundNote(section.cleanable.bound, uncleanable.offset, uncleanable.limit),
    ]
