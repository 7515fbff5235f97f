"""By when a value that was overwritten or deleted is gone from both tiers, or why no time is known.

For everything that lies in the log now. The leader's log is due by the rules of a local one
(:mod:`keeplast.cleaner.erasure`). What is only local must be left and copied first, and both are
done in the pass that cleans. From there:

1. each round begins within ``every_ms`` and ends within ``round_ms``; the leader's local copy is
   replaced in it;
2. replaced segments wait out the grace, and ``undo.retention.ms`` where a round has kept them. What
   a failed or late attempt wrote waits out its least age; the collection that follows begins and
   ends within the same two times;
3. a follower has segments of its own. Its last one begins with any record of the log. So it is due
   at the latest ``max.compaction.lag.ms`` after the newest of them; nothing waits there.

It rests on hosts that run, rounds that succeed, transactions that end, replicas that keep up, and
an object store that keeps no versions of what was deleted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from msgspec import Struct

from keeplast.cleaner.erasure import BasisKind, Eligibility, ErasureBasis
from keeplast.inspect.status import (
    ErasedBy,
    TombstoneReading,
    find_status,
    largest_timestamp,
)
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import (
    PartitionFiles,
    Tail,
    find_tail,
    list_partition,
    load_indexes,
)
from keeplast.log.truncation import noted_log_start
from keeplast.log.windows import WindowBuffers
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import TopicConfig
from keeplast.store.look import stored_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.partition_state import PartitionState


class TierPace(Struct, frozen=True):
    """How often every host goes through its partitions, and how long that takes at most.

    A pass leaves idle segments, copies, cleans and collects, in this order; ``round_ms`` is all of
    it, queueing included.
    """

    every_ms: int
    round_ms: int
    grace_ms: int
    garbage_age_ms: int
    has_followers: bool = True

    @property
    def pass_ms(self) -> int:
        """Return the time from any moment to the end of the next whole pass."""
        return self.every_ms + self.round_ms

    def left_ms(self, undo_retention_ms: int) -> int:
        """Return for how long replaced segments, and failed attempts, lie there at most."""
        return max(self.grace_ms, self.garbage_age_ms, undo_retention_ms)


class TierEligibility(Struct, frozen=True):
    """What a bound rests on before any pace: it stays while the log and its metadata do.

    ``by_ms`` is when the last round is due by what was copied and what is only local, None with
    what is missing as the ``basis``. ``newest_ms`` is the largest timestamp, -1 of no record.
    """

    by_ms: int | None
    basis: ErasureBasis
    rounds_max: int = 1
    newest_ms: int = -1

    def bounded(self, topic: TopicConfig, pace: TierPace, now_ms: int) -> ErasedBy:
        """Return the bound at ``now_ms`` for hosts of this ``pace``."""
        if self.by_ms is None:
            return ErasedBy(None, None, self.basis)
        eligible = max(self.by_ms, now_ms)
        rounds_ms = self.rounds_max * pace.pass_ms
        leader = eligible + rounds_ms + pace.left_ms(topic.undo_retention_ms) + pace.pass_ms
        if not pace.has_followers:
            return ErasedBy(leader, eligible, self.basis)
        if topic.max_compaction_lag_ms >= INT64_MAX:
            missing = ErasureBasis(BasisKind.NO_MAX_LAG_OF_FOLLOWERS)
            return ErasedBy(None, eligible, missing)
        lag = max(
            topic.max_compaction_lag_ms, topic.min_compaction_lag_ms, topic.segment_age_max_ms
        )
        follower = max(now_ms, self.newest_ms) + lag + 1 + rounds_ms
        return ErasedBy(max(leader, follower), eligible, self.basis)


def find_tier_erasure(
    state: PartitionState,
    objects: ObjectStore,
    files: FileSystem,
    directory: Path | None,
    topic: TopicConfig,
    pace: TierPace,
    now_ms: int,
    *,
    timestamp_ahead_max_ms: int,
    high_watermark: int | None = None,
) -> ErasedBy:
    """Return the bound for a leader's log with its local part in ``directory``; None has none.

    ``high_watermark`` None is where the local log ends.
    """
    found = find_tier_eligibility(
        state, objects, files, directory, topic, now_ms,
        timestamp_ahead_max_ms=timestamp_ahead_max_ms, high_watermark=high_watermark,
    )  # fmt: skip
    return found.bounded(topic, pace, now_ms)


def find_tier_eligibility(
    state: PartitionState,
    objects: ObjectStore,
    files: FileSystem,
    directory: Path | None,
    topic: TopicConfig,
    now_ms: int,
    *,
    timestamp_ahead_max_ms: int,
    high_watermark: int | None = None,
) -> TierEligibility:
    """Return by when the last round is due; arguments as of :func:`find_tier_erasure`."""
    if state.uncleanable_reason is not None:
        return TierEligibility(None, ErasureBasis(BasisKind.SET_ASIDE))
    due = partial(_due, state, topic, now_ms, timestamp_ahead_max_ms)
    segments = state.live_segments
    parts: list[Eligibility] = []
    stamps = [-1, *(segment.max_timestamp_ms for segment in segments)]
    if segments:
        remote = RoundFiles(objects, state.partition, state.topic_id, segments)
        parts.append(due(remote, remote.path, remote.end))
    if directory is not None:
        listing = list_partition(directory, files, if_empty=noted_log_start(files, directory))
        tail = find_tail(listing, files)
        stamps += _local_stamps(listing, tail, files, topic)
        if tail.log_end > state.remote_end:
            watermark = tail.log_end if high_watermark is None else high_watermark
            parts.append(due(files, directory, watermark))
    missing = next((part for part in parts if part.by_ms is None), None)
    if missing is not None:
        return TierEligibility(None, missing.basis)
    empty = Eligibility(now_ms, ErasureBasis(BasisKind.EMPTY))
    last = max(parts, key=lambda part: part.by_ms or 0, default=empty)
    rounds_max = max((part.rounds_max for part in parts), default=1)
    return TierEligibility(last.by_ms, last.basis, rounds_max, max(stamps))


def _due(
    state: PartitionState, topic: TopicConfig, now_ms: int, timestamp_ahead_max_ms: int,
    files: FileSystem, path: Path, watermark: int,
) -> Eligibility:  # fmt: skip
    """Return by when a round for what lies in ``path``, of either tier, is due."""
    partition = PartitionRequest(state.partition, path, topic)
    request = CleanRequest((partition,), log_start_offset=state.log_start, high_watermark=watermark)
    checkpoints = stored_checkpoints(state, {state.partition: watermark})
    return find_status(
        partition, request, checkpoints, files, now_ms,
        timestamp_ahead_max_ms=timestamp_ahead_max_ms, tombstones=TombstoneReading.SKIP,
    ).eligibility  # fmt: skip


def _local_stamps(
    listing: PartitionFiles, tail: Tail, files: FileSystem, topic: TopicConfig
) -> list[int]:
    """Return the largest timestamp of each local segment."""
    buffers = WindowBuffers()
    stamps = [
        load_indexes(closed, files, topic.index_interval_bytes, buffers).largest_timestamp_ms
        for closed in listing.segments[:-1]
    ]
    return [*stamps, largest_timestamp(listing, tail, files) or -1]
