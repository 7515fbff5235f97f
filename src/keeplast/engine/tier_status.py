"""What of a tiered log is clean, dirty and waiting, from the metadata alone.

The regions are the KIP's: cleaned, dirty, uncleanable (younger than ``min.compaction.lag.ms``). The
ratio counts each offset once; the KIP's own figure, which counts what lies in both tiers twice, is
given beside it where a local log is known. KIP-1272, "Dirty ratio calculation".
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.cleaner.eligibility import find_cleanable_range, find_first_uncleanable
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.metadata import Orphan, PartitionState


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """A run of live segments of one region: offsets ``[base_offset, end_offset)``."""

    name: str
    base_offset: int
    end_offset: int
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One partition of a store; ``is_drifted`` says that the cached size is not the sum."""

    partition: TopicPartition
    owner: str
    leader_epoch: int
    log_start: int
    remote_end: int
    first_dirty: int
    regions: tuple[RemoteRegion, ...]
    ratio: float
    remote_bytes: int
    is_drifted: bool
    orphans: int
    orphan_bytes: int
    uncleanable_reason: str | None
    segments: tuple[tuple[int, int, int, str], ...]


def tier_status(
    state: PartitionState, orphans: tuple[Orphan, ...], topic: TopicConfig, now_ms: int
) -> TierStatus:
    """Return the status of a partition at ``now_ms``."""
    summaries = state.summaries()
    first_dirty = state.first_dirty()
    uncleanable = find_first_uncleanable(
        summaries, first_dirty=first_dirty, high_watermark=state.remote_end, open_transaction=None,
        min_compaction_lag_ms=topic.min_compaction_lag_ms, now_ms=now_ms,
    )  # fmt: skip
    cleanable = find_cleanable_range(
        summaries, first_dirty=first_dirty, uncleanable=uncleanable.offset
    )
    edges = (
        ("cleaned", state.log_start, min(first_dirty, state.remote_end)),
        ("dirty", first_dirty, cleanable.bound),
        ("uncleanable", max(cleanable.bound, first_dirty), state.remote_end),
    )
    regions = []
    for name, start, end in edges:
        inside = [r for r in state.routes if start <= r.base_offset < end]
        if inside:
            size = sum(state.segments[r.segment_id].size_bytes for r in inside)
            last = inside[-1].last_offset + 1
            regions.append(RemoteRegion(name, inside[0].base_offset, last, len(inside), size))
    return TierStatus(
        partition=state.partition,
        owner=state.owner,
        leader_epoch=state.leader_epoch,
        log_start=state.log_start,
        remote_end=state.remote_end,
        first_dirty=first_dirty,
        regions=tuple(regions),
        ratio=cleanable.ratio,
        remote_bytes=state.remote_bytes,
        is_drifted=state.remote_bytes != state.effective_bytes(),
        orphans=len(orphans),
        orphan_bytes=sum(orphan.segment.size_bytes for orphan in orphans),
        uncleanable_reason=state.uncleanable_reason,
        segments=tuple(
            (r.base_offset, r.last_offset + 1, state.segments[r.segment_id].size_bytes,
             state.segments[r.segment_id].kind.value)
            for r in state.routes
        ),
    )  # fmt: skip
