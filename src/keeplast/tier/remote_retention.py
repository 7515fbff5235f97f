"""What of the remote log retention and the log start offset let go. Pure.

The rules are those of a local log (:mod:`keeplast.cleaner.retention`); the active segment lies
behind the remote end and never goes here. A compacted topic without ``delete`` loses only what lies
below its log start.
"""

from __future__ import annotations

from dataclasses import replace

from keeplast.cleaner.retention import ExpiryPlan, plan_expiry
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.partition_state import PartitionState


def plan_remote_expiry(
    topic: TopicConfig,
    state: PartitionState,
    now_ms: int,
    *,
    log_start: int | None = None,
    local_only_bytes: int = 0,
) -> ExpiryPlan:
    """Return what may go of the live segments of ``state``.

    ``log_start`` is where the log is to start, the present one by default. ``local_only_bytes`` lie
    behind the remote end on the leader's disk: ``retention.bytes`` is about the whole log.
    """
    *live, active = state.summaries()
    return plan_expiry(
        topic, (*live, replace(active, size_bytes=local_only_bytes)),
        log_start=state.log_start if log_start is None else log_start,
        log_end=state.remote_end + (1 if local_only_bytes else 0),
        high_watermark=state.remote_end, now_ms=now_ms,
    )  # fmt: skip
