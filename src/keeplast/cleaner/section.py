"""Says of a log's dirty section what it holds, how urgent it is, and whether it is worth a round.

Pure: segments, settings and the clock are arguments. Where the section begins and must end is
decided by :mod:`~keeplast.cleaner.eligibility`; here it becomes one value, and its words are those
of :mod:`~keeplast.cleaner.explanation`. Answers to ``LogToClean`` in Kafka's LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keeplast.cleaner.eligibility import (
    CleanableRange,
    FirstDirty,
    FirstUncleanable,
    delay_ms,
    find_cleanable_range,
    find_overdue_from,
)
from keeplast.cleaner.explanation import (
    Dating,
    bound_sentence,
    eligible_sentence,
    find_dating,
    nothing_sentence,
    ratio_sentence,
)
from keeplast.model.segment import SegmentSummary
from keeplast.model.topic_config import TopicConfig


@dataclass(frozen=True, slots=True)
class DirtySection:
    """The dirty section of a log: ``[first_dirty, uncleanable)`` before rounding to segments.

    ``compaction_delay_ms`` is for how long it is overdue, 0 when it is not; ``overdue_from_ms`` is
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
) -> str | None:
    """Say why no round happens, or None. A ratio equal to the threshold is not enough."""
    cleanable = section.cleanable
    if cleanable.cleanable_bytes == 0:
        if not any(segment.size_bytes for segment in segments):
            return "nothing to clean: the log is empty"
        return nothing_sentence(
            first_dirty=section.first_dirty.offset,
            first_base=segments[0].base_offset,
            active_base=segments[-1].base_offset,
            limit=section.uncleanable.note,
        )
    threshold = topic.min_cleanable_dirty_ratio
    if is_forced or section.compaction_delay_ms > 0 or cleanable.ratio > threshold:
        return None
    return ratio_sentence(ratio=cleanable.ratio, threshold=threshold)


def section_notes(section: DirtySection, topic: TopicConfig, *, is_eligible: bool) -> list[str]:
    """Return what to know of the section: why it is cleaned, from where, and how far."""
    notes = []
    if is_eligible:
        notes.append(
            eligible_sentence(
                ratio=section.cleanable.ratio,
                threshold=topic.min_cleanable_dirty_ratio,
                delay_ms=section.compaction_delay_ms,
                max_compaction_lag_ms=topic.max_compaction_lag_ms,
            )
        )
    if section.first_dirty.note is not None:
        notes.append(section.first_dirty.note)
    uncleanable = section.uncleanable
    notes.append(
        bound_sentence(
            bound=section.cleanable.bound, uncleanable=uncleanable.offset, limit=uncleanable.note
        )
    )
    return notes
