"""What is odd about the dates of a log's dirty segments, and what follows for the lags.

A lag looks at a segment's greatest timestamp and nothing else. Pure: the clock is an argument.
KIP-58, KIP-354.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from keeplast.cleaner.reasons import BackDates, FutureDates, MissingDates
from keeplast.model.offsets import INT64_MAX
from keeplast.model.segment import SegmentSummary
from keeplast.model.topic_config import TopicConfig


@dataclass(frozen=True, slots=True)
class Dating:
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
        # One date in the future does not make those behind it old.
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
