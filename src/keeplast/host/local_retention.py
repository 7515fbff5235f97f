"""Which local segments of a tiered log may leave this disk. Pure.

The KIP has two readings. R-A, the default: a segment goes when it is older or the local part is
larger than ``local.retention.*``, cleaned or not. R-B, with ``local.delete.requires.clean``: only
what lies below the first dirty offset goes, until ``local.delete.max.extra.*`` beyond the limits,
then R-A; a cleaner that fails must not fill the disk. A topic with ``compact,delete`` has R-A
alone: its local log is that of an append-only topic. Both need that object storage has the segment
and that every replica does. The active segment never goes, and neither does anything behind the
first segment that stays. KIP-1272, "Change on Local Segment Retention" and
"Deletion of local log segment"; tiering.md section 9.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keeplast.cleaner.retention import ExpiryRule, plan_expiry
from keeplast.model.segment import SegmentSummary
from keeplast.model.topic_config import TopicConfig

RULES = frozenset({ExpiryRule.SIZE, ExpiryRule.TIME})


@dataclass(frozen=True, slots=True)
class LocalRetention:
    """What leaves the disk: every closed segment below ``to``; ``kept`` says what keeps the next
    one that is past its time, None when nothing is."""

    to: int
    segments: int
    bytes: int
    kept: str | None = None


def plan_local_retention(
    topic: TopicConfig,
    segments: Sequence[SegmentSummary],
    *,
    log_end: int,
    high_watermark: int,
    remote_end: int,
    first_dirty: int,
    now_ms: int,
) -> LocalRetention:
    """Return what may go of ``segments``, all of the local log's, the last one active."""
    active = segments[-1].base_offset
    total = replace(
        topic, cleanup_policy=frozenset({"delete"}), retention_ms=topic.local_age_max_ms,
        retention_bytes=topic.local_bytes_max,
    )  # fmt: skip

    def count(config: TopicConfig, limit: int) -> int:
        plan = plan_expiry(
            config, segments, log_start=0, log_end=log_end, high_watermark=limit, now_ms=now_ms,
            rules=RULES,
        )  # fmt: skip
        return len(plan.expired)

    due = count(total, active)
    goes = count(total, min(active, high_watermark, remote_end))
    kept = "not in object storage yet" if remote_end < high_watermark else "not everywhere yet"
    if topic.local_delete_requires_clean and topic.is_compacted and not topic.expires:
        clean = count(total, min(active, high_watermark, remote_end, first_dirty))
        forced = count(_with_extra(total, topic), min(active, high_watermark, remote_end))
        if max(clean, forced) < goes:
            goes, kept = max(clean, forced), "not cleaned yet"
    return LocalRetention(
        to=segments[goes].base_offset,
        segments=goes,
        bytes=sum(segment.size_bytes for segment in segments[:goes]),
        kept=None if goes == due else f"segment {segments[goes].base_offset} stays: {kept}",
    )


def _with_extra(total: TopicConfig, topic: TopicConfig) -> TopicConfig:
    """Return the limits behind which nothing waits to be cleaned; no limit has none behind it."""
    age, size = total.retention_ms, total.retention_bytes
    return replace(
        total,
        retention_ms=age if age < 0 else age + topic.local_delete_max_extra_ms,
        retention_bytes=size if size < 0 else size + topic.local_delete_max_extra_bytes,
    )
