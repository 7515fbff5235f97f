"""What of the remote log retention and the log start offset let go. Pure.

The rules are those of a local log (:mod:`keeplast.cleaner.retention`); the active segment lies
behind the remote end and never goes here. A compacted topic without ``delete`` loses only what lies
below its log start.
"""

from __future__ import annotations

from keeplast.cleaner.retention import ExpiryPlan, plan_expiry
from keeplast.model.segment import SegmentSummary
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.metadata import PartitionState


def plan_remote_expiry(topic: TopicConfig, state: PartitionState, now_ms: int) -> ExpiryPlan:
    """Return what may go of the live segments of ``state``."""
    summaries = [
        SegmentSummary(
            base_offset=route.base_offset,
            size_bytes=state.segments[route.segment_id].size_bytes,
            mtime_ms=state.segments[route.segment_id].mtime_ms,
            largest_timestamp_ms=state.segments[route.segment_id].max_timestamp_ms,
            offset_index_bytes=0,
            time_index_bytes=0,
        )
        for route in state.routes
    ]
    summaries.append(SegmentSummary(state.remote_end, 0, now_ms, -1, 0, 0))
    return plan_expiry(
        topic, summaries, log_start=state.log_start, log_end=state.remote_end,
        high_watermark=state.remote_end, now_ms=now_ms,
    )  # fmt: skip
