"""Decides whether an idle active segment must be left, so that its records can be cleaned.

A broker rolls only when it appends: what lies in the active segment of a log that nobody writes to
is never cleaned, whatever ``max.compaction.lag.ms`` promises. KIP-354 asks for more, and gets it
here: a segment that is not empty is left when its first record is older than the lesser of
``segment.ms`` and ``max.compaction.lag.ms``. Without a first timestamp nothing is forced.
Architecture 2.2 f; cleaning.md sections 1.7 and 9.1.

Pure: the clock comes from the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.model.topic_config import TopicConfig


@dataclass(frozen=True, slots=True)
class IdleRoll:
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
