"""What the metadata store knows of a partition, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from keeplast.errors import InvalidError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.hold import Hold
from keeplast.model.partition import TopicPartition
from keeplast.model.segment import SegmentSummary
from keeplast.tier.state import vector
from keeplast.tier.state.holder import Holder
from keeplast.tier.state.routing import Route
from keeplast.tier.state.segment import RemoteSegment, SegmentState, is_within_lineage
from keeplast.tier.state.vector import Publication


@dataclass(frozen=True, slots=True)
class PartitionState:
    """All that is known of a partition, as of one transaction. ``segments`` are the routed ones.

    ``holder`` is the process that may change it, or the last one that might when
    ``held_since_ms`` is None. ``forgotten_ms`` is when the partition was given up; it has no routes
    then. ``cleaned_for`` is the greatest end of a round by which anything here was cleaned.
    ``holds`` are all of the partition, also those that are over.
    """

    row_id: int
    partition: TopicPartition
    topic_id: str
    leader_epoch: int
    owner: str
    version: int
    log_start: int
    remote_bytes: int
    lineage: tuple[LeaderEpoch, ...]
    publications: tuple[Publication, ...]
    routes: tuple[Route, ...]
    segments: Mapping[str, RemoteSegment]
    settings: Mapping[str, str]
    uncleanable_reason: str | None
    holder: Holder | None
    held_since_ms: int | None
    forgotten_ms: int | None = None
    cleaned_for: int = 0
    holds: tuple[Hold, ...] = ()

    @property
    def fence(self) -> tuple[int, str | None]:
        """Return what a change is compared with: the leader epoch, and the holder's id."""
        return self.leader_epoch, None if self.holder is None else self.holder.id

    @property
    def remote_end(self) -> int:
        """Return the offset behind the last one in object storage; the log start without any."""
        return self.routes[-1].last_offset + 1 if self.routes else self.log_start

    def first_dirty(self, log_end: int | None = None) -> int:
        """Return the first dirty offset, by the vector, at least the log start."""
        end = self.remote_end if log_end is None else log_end
        found = vector.checkpoint(self.publications, self.lineage, max(end, self.remote_end))
        return self.log_start if found is None else max(found, self.log_start)

    @property
    def told_from(self) -> int:
        """Return the offset as of which, and of every later one, the state can still be told.

        As far as rounds and claims say, also of rounds that were cut short; at most the remote end.
        Who asks for a state is told more.
        """
        return max(self.log_start, min(max(self.cleaned_for, self.first_dirty()), self.remote_end))

    def summaries(self) -> tuple[SegmentSummary, ...]:
        """Return the live segments as decisions see them, and an empty active one behind them."""
        found = [
            SegmentSummary(
                base_offset=route.base_offset,
                size_bytes=self.segments[route.segment_id].size_bytes,
                mtime_ms=self.segments[route.segment_id].mtime_ms,
                largest_timestamp_ms=self.segments[route.segment_id].max_timestamp_ms,
                offset_index_bytes=0,
                time_index_bytes=0,
            )
            for route in self.routes
        ]
        return (*found, SegmentSummary(self.remote_end, 0, 0, -1, 0, 0))

    def effective_bytes(self) -> int:
        """Return what the live segments hold, each once."""
        return sum(segment.size_bytes for segment in self.segments.values())

    def covered_to(self) -> int:
        """Return up to where live segments of the lineage cover the log without a hole."""
        at = self.log_start
        for route in self.routes:
            segment = self.segments[route.segment_id]
            if route.base_offset > at or not is_within_lineage(
                segment, self.lineage, self.remote_end
            ):
                break
            at = max(at, route.last_offset + 1)
        return at

    def with_copy(
        self,
        segment: RemoteSegment,
        route: Route,
        lineage: tuple[LeaderEpoch, ...],
        cleaned_for: int = 0,
    ) -> PartitionState:
        """Return the state behind a commit of this one that made ``route`` its last.

        Of what was copied records may have gone for others below ``cleaned_for``, exclusive.
        """
        return replace(
            self, version=self.version + 1, lineage=lineage, routes=(*self.routes, route),
            segments={**self.segments, segment.segment_id: segment},
            remote_bytes=self.remote_bytes + segment.size_bytes,
            cleaned_for=max(self.cleaned_for, cleaned_for),
        )  # fmt: skip

    def joined_lineage(self, own: tuple[LeaderEpoch, ...]) -> tuple[LeaderEpoch, ...]:
        """Return the leader epochs of a log that has all of object storage's; ``own`` are its own.

        Up to the remote end the store knows them: of a log that was cleaned before it was
        replicated, the first record of an epoch, or all of them, may be missing.
        """
        known = tuple(entry for entry in self.lineage if entry.start_offset < self.remote_end)
        newest = known[-1].epoch if known else -1
        return (*known, *(entry for entry in own if entry.epoch > newest))


def check_not_forgotten(state: PartitionState) -> None:
    """Raise InvalidError for a partition that was given up: nothing is added to it."""
    if state.forgotten_ms is not None:
        raise InvalidError(
            "the partition was given up (keeplast tier forget); keeplast tier import begins it "
            f"anew. partition={state.partition}"
        )


@dataclass(frozen=True, slots=True)
class Orphan:
    """A segment that is read no more and may be deleted from ``not_before_ms`` on.

    ``kept_by`` is the round that has kept it for undo until then, None without one.
    """

    segment: RemoteSegment
    state: SegmentState
    not_before_ms: int
    kept_by: str | None = None
