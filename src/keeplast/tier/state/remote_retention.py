"""What of the remote log retention and the log start offset let go. Pure.

The rules are those of a local log (:mod:`keeplast.cleaner.retention`); the active segment lies
behind the remote end and never goes here. A compacted topic without ``delete`` loses only what lies
below its log start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keeplast.cleaner.retention import ExpiryPlan, plan_expiry
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.state.partition_state import PartitionState


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


def find_directory_log_start(
    topic: TopicConfig, *, noted: int | None, first_base: int, lineage: Sequence[LeaderEpoch]
) -> int:
    """Return below which offset the broker of a directory has nothing to read any more.

    ``noted`` is the line of its log start checkpoint. A broker drops the line with the segments
    below it, and moves the beginning of its leader epochs there; a host of a tiered log, whose
    segments leave its disk alone, does not. With ``delete`` in the policy it is retention that
    moves both, and the store has a retention of its own: there the line alone counts.
    """
    found = 0 if noted is None else noted
    if topic.expires or not lineage:
        return found
    return max(found, min(first_base, lineage[0].start_offset))
