"""What of the remote log retention and the log start offset let go. Pure.

The rules are those of a local log (:mod:`keeplast.cleaner.retention`); the active segment lies
behind the remote end and never goes here. A compacted topic without ``delete`` loses only what lies
below its log start.
"""

from __future__ import annotations

from keeplast.cleaner.retention import ExpiryPlan, plan_expiry
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.metadata import PartitionState


def plan_remote_expiry(topic: TopicConfig, state: PartitionState, now_ms: int) -> ExpiryPlan:
    """Return what may go of the live segments of ``state``."""
    return plan_expiry(
        topic, state.summaries(), log_start=state.log_start, log_end=state.remote_end,
        high_watermark=state.remote_end, now_ms=now_ms,
    )  # fmt: skip
