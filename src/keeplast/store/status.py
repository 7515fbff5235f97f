"""What of a tiered log is clean, dirty and waiting, and in which tier each part of it is.

The regions are the KIP's, in the order of their offsets: clean; dirty; uncleanable, younger than
``min.compaction.lag.ms``, or held; unstable, at or above the last stable offset; active. Without a
local log only the first three are known. A segment belongs to the region that its first offset lies
in, as rounds take segments whole. Where it is, in object storage, on this disk or both, is a second
column.

The ratio is cleanable / (clean + cleanable), every offset counted once, and only what was copied is
cleanable. The KIP's own figure, which counts what lies in both tiers twice and what cannot be
cleaned too, is given next to it. KIP-1272, "Dirty ratio calculation"; tiering.md section 9.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import (
    find_cleanable_range,
    find_first_uncleanable,
    find_hold,
)
from keeplast.cleaner.reasons import HoldLimit
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import load_indexes
from keeplast.log.windows import WindowBuffers
from keeplast.model.hold import Hold, ReaderWait, in_force
from keeplast.model.partition import LogRegion, SegmentSummary, TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import survey_partition
from keeplast.tier.state.holder import Holder, Lease
from keeplast.tier.state.partition_state import Orphan, PartitionState, find_vector

ACTIVE = "active"
LOCAL = "local"


class Place(StrEnum):
    """Where a part of the log is."""

    REMOTE = "remote"
    BOTH = "both"
    LOCAL = "local"


class LocalLog(Struct, frozen=True):
    """A local log as found: its segments with the active one last, and the bounds of the log.

    ``beyond_bytes`` are those that lie above the remote end in the segment that holds it, to within
    an index interval; 0 when a segment begins there.
    """

    segments: tuple[SegmentSummary, ...]
    log_end: int
    high_watermark: int
    last_stable: int
    beyond_bytes: int


class TierSegment(Struct, frozen=True):
    """A segment of the log, each offset in one of them: offsets ``[base_offset, end_offset)``.

    ``kind`` is that of a remote segment, else ``local`` or ``active``.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    kind: str
    region: LogRegion
    place: Place


class Region(Struct, frozen=True):
    """The segments of one region: offsets ``[base_offset, end_offset)``, bytes counted once.

    ``remote_bytes``, ``both_bytes`` and ``local_bytes`` are what of them is where, and add up.
    """

    name: LogRegion
    base_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    remote_bytes: int
    both_bytes: int
    local_bytes: int


class TierStatus(Struct, frozen=True):
    """One partition of a store; ``is_drifted`` says that the cached size is not the sum.

    ``local_bytes`` None says that no local log was looked at; ``log_end`` is then the remote end.
    ``kip_ratio`` is the KIP's figure. ``held_since_ms`` None says that no process holds the
    partition. ``vector`` has the first dirty offset by leader epoch, ``settings`` are those that
    are kept with the partition. ``collected_from_ms`` is when the first replaced segment may go.
    ``readers`` are those that tombstones wait for. The state can still be shown as of
    ``earliest_as_of`` and of every later offset, as far as rounds say. ``holds`` are those in
    force. ``lease`` is the last of the host that leads the partition, None without hosts.
    """

    partition: TopicPartition
    owner: str
    leader_epoch: int
    log_start: int
    remote_end: int
    log_end: int
    first_dirty: int
    cleanable_to: int
    regions: tuple[Region, ...]
    ratio: float
    kip_ratio: float
    clean_bytes: int
    cleanable_bytes: int
    remote_bytes: int
    local_bytes: int | None
    is_drifted: bool
    orphans: int
    orphan_bytes: int
    uncleanable_reason: str | None
    segments: tuple[TierSegment, ...]
    holder: Holder | None
    held_since_ms: int | None
    vector: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    collected_from_ms: int | None = None
    readers: ReaderWait | None = None
    earliest_as_of: int = 0
    holds: tuple[Hold, ...] = ()
    lease: Lease | None = None


def local_log(
    partition: TopicPartition,
    directory: Path,
    topic: TopicConfig,
    files: FileSystem,
    now_ms: int,
    *,
    remote_end: int,
) -> LocalLog:
    """Look at a partition directory without changing it; errors as for a survey."""
    survey = survey_partition(
        PartitionRequest(partition, directory, topic), CleanRequest(()),
        load_checkpoints(files, directory.parent), files, now_ms,
    )  # fmt: skip
    active = survey.listing.active
    segments = (*survey.segments[:-1], replace(survey.segments[-1], size_bytes=active.size_bytes))
    holding = [s for s in survey.listing.segments if s.base_offset < remote_end]
    beyond = 0
    if holding and remote_end < next(
        (s.base_offset for s in segments if s.base_offset > holding[-1].base_offset),
        survey.tail.log_end,
    ):
        indexes = load_indexes(holding[-1], files, topic.index_interval_bytes, WindowBuffers())
        start = indexes.position_before(remote_end - holding[-1].base_offset)
        beyond = holding[-1].size_bytes - start
    return LocalLog(
        segments, survey.tail.log_end, min(survey.tail.log_end, survey.last_stable),
        survey.last_stable, beyond,
    )  # fmt: skip


def tier_status(
    state: PartitionState,
    orphans: tuple[Orphan, ...],
    topic: TopicConfig,
    now_ms: int,
    local: LocalLog | None = None,
    readers: ReaderWait | None = None,
    lease: Lease | None = None,
) -> TierStatus:
    """Return the status of a partition at ``now_ms``."""
    summaries = _summaries(state, local)
    log_end = max(state.remote_end, state.remote_end if local is None else local.log_end)
    first_dirty = state.first_dirty(log_end)
    edges = _edges(summaries, state, local, topic, now_ms, log_end)
    # What a round would take: what is dirty, may be cleaned, and was copied.
    cleanable = find_cleanable_range(
        summaries, first_dirty=min(state.first_dirty(), edges[2]),
        uncleanable=min(edges[2], state.remote_end),
    )  # fmt: skip
    segments = tuple(_segments(summaries, state, local, edges, log_end))
    local_bytes = None if local is None else sum(s.size_bytes for s in local.segments)
    every = (local_bytes or 0) + state.effective_bytes()
    return TierStatus(
        partition=state.partition,
        owner=state.owner,
        leader_epoch=state.leader_epoch,
        log_start=state.log_start,
        remote_end=state.remote_end,
        log_end=log_end,
        first_dirty=first_dirty,
        cleanable_to=cleanable.bound,
        regions=tuple(_regions(segments)),
        ratio=cleanable.ratio,
        kip_ratio=cleanable.cleanable_bytes / every if every else 0.0,
        clean_bytes=cleanable.clean_bytes,
        cleanable_bytes=cleanable.cleanable_bytes,
        remote_bytes=state.remote_bytes,
        local_bytes=local_bytes,
        is_drifted=state.remote_bytes != state.effective_bytes(),
        orphans=len(orphans),
        orphan_bytes=sum(orphan.segment.size_bytes for orphan in orphans),
        uncleanable_reason=state.uncleanable_reason,
        segments=segments,
        holder=state.holder,
        held_since_ms=state.held_since_ms,
        vector=find_vector(state.publications, state.lineage, max(state.remote_end, log_end)),
        settings=state.settings,
        collected_from_ms=min((each.not_before_ms for each in orphans), default=None),
        readers=readers,
        earliest_as_of=state.earliest_as_of,
        holds=in_force(state.holds, now_ms),
        lease=lease,
    )


_BELOW_ACTIVE = (LogRegion.CLEAN, LogRegion.DIRTY, LogRegion.UNCLEANABLE, LogRegion.UNSTABLE)
Edges = tuple[int, int, int, int, int, int]
"""Where the five regions begin, ascending, and where the last one ends."""


def _summaries(state: PartitionState, local: LocalLog | None) -> tuple[SegmentSummary, ...]:
    """Return the segments of the whole log, each offset in one, the last one active."""
    remote = state.summaries()
    if local is None or local.log_end <= state.remote_end:
        return remote
    behind = [s for s in local.segments if s.base_offset >= state.remote_end]
    if local.beyond_bytes:
        holding = [s for s in local.segments if s.base_offset < state.remote_end][-1]
        rest = replace(holding, base_offset=state.remote_end, size_bytes=local.beyond_bytes)
        behind = [rest, *behind]
    return (*remote[:-1], *behind)


def _edges(
    summaries: Sequence[SegmentSummary],
    state: PartitionState,
    local: LocalLog | None,
    topic: TopicConfig,
    now_ms: int,
    log_end: int,
) -> Edges:
    active = summaries[-1].base_offset
    first_dirty = min(state.first_dirty(log_end), active)
    stable = active if local is None else min(local.last_stable, active)

    def rounded(min_lag_ms: int, last_stable: int, hold: HoldLimit | None = None) -> int:
        uncleanable = find_first_uncleanable(
            summaries, first_dirty=first_dirty, high_watermark=last_stable, open_transaction=None,
            min_compaction_lag_ms=min_lag_ms, now_ms=now_ms, hold=hold,
        )  # fmt: skip
        found = find_cleanable_range(
            summaries, first_dirty=first_dirty, uncleanable=uncleanable.offset
        )
        return max(found.bound, first_dirty)

    unstable = rounded(0, max(stable, first_dirty))
    hold = find_hold(in_force(state.holds, now_ms))
    uncleanable = min(rounded(topic.min_compaction_lag_ms, active, hold), unstable)
    return state.log_start, first_dirty, uncleanable, unstable, active, log_end


def _segments(
    summaries: Sequence[SegmentSummary],
    state: PartitionState,
    local: LocalLog | None,
    edges: Edges,
    log_end: int,
) -> Sequence[TierSegment]:
    kinds = {r.base_offset: state.segments[r.segment_id].kind.value for r in state.routes}
    local_start = log_end if local is None else local.segments[0].base_offset
    ends = [*(s.base_offset for s in summaries[1:]), log_end]
    found = []
    for summary, end in zip(summaries, ends, strict=True):
        base = summary.base_offset
        is_active = summary is summaries[-1]
        if is_active and local is None:
            break
        is_remote = base in kinds and base < state.remote_end
        place = Place.LOCAL
        if is_remote:
            place = Place.BOTH if local_start <= base else Place.REMOTE
        name = LogRegion.ACTIVE
        if not is_active:
            name = _BELOW_ACTIVE[sum(base >= edge for edge in edges[1:4])]
        kind = kinds[base] if is_remote else ACTIVE if is_active else LOCAL
        found.append(TierSegment(base, end, summary.size_bytes, kind, name, place))
    return found


def _regions(segments: Sequence[TierSegment]) -> Sequence[Region]:
    found = []
    for name in LogRegion:
        inside = [s for s in segments if s.region is name]
        if not inside:
            continue
        size = {p: sum(s.size_bytes for s in inside if s.place is p) for p in Place}
        found.append(
            Region(
                name, inside[0].base_offset, inside[-1].end_offset, len(inside),
                sum(size.values()), size[Place.REMOTE], size[Place.BOTH], size[Place.LOCAL],
            )
        )  # fmt: skip
    return found
