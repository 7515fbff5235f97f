"""A segment in object storage, and which segment is read for which offsets. Pure.

A segment is an immutable set of objects under an id that is never used again. Bounds are Kafka's:
``base_offset`` inclusive and ``last_offset`` inclusive, with no holes between neighbours whatever
records are left in between (I-1). Answers to KIP-405's ``RemoteLogSegmentMetadata`` with the
``cleanerOffsets`` of KIP-1272.

Routes say which segment is read: disjoint ranges without holes, ascending. An offset that cleaning
has removed belongs to a range all the same, and the read goes on at the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from keeplast.errors import ConflictError, InvalidError, invariant
from keeplast.format.leader_epoch import LeaderEpoch

SEGMENT_BYTES_MAX = 2**31 - 1


class SegmentKind(StrEnum):
    """How the segment came about: copied as it was, or written by the cleaner."""

    RAW = "raw"
    CLEANED = "cleaned"


class SegmentState(StrEnum):
    """Where in its life a segment is; only ``LIVE`` ones are ever read."""

    LIVE = "live"
    REPLACED = "replaced"
    DELETING = "deleting"
    DELETED = "deleted"


class RemoteFile(Struct, frozen=True):
    """One object of a segment."""

    size_bytes: int
    crc32c: int


class RemoteSegment(Struct, frozen=True):
    """What is known of a segment without reading its objects.

    ``epochs`` are the leader epochs whose records lie in it, each with its first offset there; a
    merge takes the smallest of each (I-2). ``max_timestamp_ms`` is -1 when no record has one, and
    ``mtime_ms`` then decides its age. ``files`` are by suffix, as ``.log``. ``leader_epoch`` and
    ``number`` are the publisher's; of two segments over one range the greater pair is read.
    ``cleaner_offsets`` are the vector as of when the segment was published; of what a round made,
    as of its end.
    """

    segment_id: str
    base_offset: int
    last_offset: int
    epochs: tuple[LeaderEpoch, ...]
    size_bytes: int
    max_timestamp_ms: int
    mtime_ms: int
    kind: SegmentKind
    leader_epoch: int
    number: int
    cleaner_offsets: Mapping[int, int]
    files: Mapping[str, RemoteFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """InvalidError when a bound is not what a broker accepts (I-3)."""
        if not 0 <= self.base_offset <= self.last_offset:
            raise InvalidError(
                "a remote segment covers at least one offset. "
                f"base_offset={self.base_offset} last_offset={self.last_offset}",
                code="K341",
            )
        if not 0 < self.size_bytes <= SEGMENT_BYTES_MAX:
            raise InvalidError(
                f"a remote segment has 1 to {SEGMENT_BYTES_MAX} bytes. "
                f"size_bytes={self.size_bytes}",
                code="K341",
            )

    @property
    def next_offset(self) -> int:
        """Return the offset after the last of the segment, exclusive."""
        return self.last_offset + 1


def merged_epochs(parts: tuple[tuple[LeaderEpoch, ...], ...]) -> tuple[LeaderEpoch, ...]:
    """Return the union of several segments' epochs, of each the smallest start (I-2)."""
    starts: dict[int, int] = {}
    for entry in (entry for part in parts for entry in part):
        starts[entry.epoch] = min(entry.start_offset, starts.get(entry.epoch, entry.start_offset))
    return tuple(LeaderEpoch(epoch, starts[epoch]) for epoch in sorted(starts))


def is_within_lineage(
    segment: RemoteSegment, lineage: tuple[LeaderEpoch, ...], log_end: int
) -> bool:
    """Say whether the records of ``segment`` are those of the leaders in ``lineage``.

    Its epochs are in the lineage with the same bounds inside the segment, and it ends in the log.
    The lineage's first epoch has no bound below: what a broker wrote before it knew of epochs, or
    before its checkpoint begins, counts as that epoch's.
    Kafka: ``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``.
    """
    if segment.last_offset >= log_end or not segment.epochs:
        return False
    starts = {entry.epoch: entry.start_offset for entry in lineage}
    known = sorted(starts)
    for position, entry in enumerate(segment.epochs):
        if entry.epoch not in starts:
            return False
        later = [epoch for epoch in known if epoch > entry.epoch]
        end = starts[later[0]] if later else log_end
        if position + 1 < len(segment.epochs):
            following = segment.epochs[position + 1]
            if following.epoch != later[0] or following.start_offset != end:
                return False
        elif segment.last_offset >= end:
            return False
        begins = starts[entry.epoch] if entry.epoch != known[0] else entry.start_offset
        if not begins <= entry.start_offset < end:
            return False
    return True


class Route(Struct, frozen=True, order=True):
    """``segment_id`` serves the offsets ``[base_offset, last_offset]``, both inclusive."""

    base_offset: int
    last_offset: int
    segment_id: str


def check_routes(routes: Sequence[Route]) -> None:
    """InvariantError unless the ranges ascend and leave no hole (I-14)."""
    for before, after in itertools.pairwise(routes):
        invariant(
            before.last_offset + 1 == after.base_offset,
            f"a hole or an overlap between two routes. before={before} after={after}",
        )
    for route in routes:
        invariant(route.base_offset <= route.last_offset, f"an empty route. route={route}")


def append_route(
    routes: Sequence[Route], segment_id: str, base_offset: int, last_offset: int, *, floor: int
) -> tuple[Route, ...]:
    """Return the routes with a copied segment at their end.

    It serves only what no segment serves yet and what lies at or above ``floor``, the first dirty
    offset: below it the cleaned segments count. ConflictError when it would leave a hole, or serves
    nothing.
    """
    start = max(base_offset, floor if routes else base_offset)
    if routes:
        start = max(start, routes[-1].last_offset + 1)
        if start != routes[-1].last_offset + 1:
            raise ConflictError(
                "a copied segment does not continue the remote log. "
                f"base_offset={base_offset} next_offset={routes[-1].last_offset + 1}",
                code="K341",
            )
    if start > last_offset:
        raise ConflictError(
            "a copied segment has nothing that is not there. "
            f"base_offset={base_offset} last_offset={last_offset}",
            code="K341",
        )
    return (*routes, Route(start, last_offset, segment_id))


def replace_routes(
    routes: Sequence[Route], sources: Iterable[str], outputs: Sequence[Route]
) -> tuple[Route, ...]:
    """Return the routes with those of ``sources`` replaced by ``outputs``, range for range.

    ConflictError when a source is not read any more, or the outputs do not cover exactly what the
    sources served: what the decision rested on has changed.
    """
    gone = set(sources)
    old = [route for route in routes if route.segment_id in gone]
    if {route.segment_id for route in old} != gone or not outputs:
        raise ConflictError(
            f"a segment to be replaced is not read any more. segments={sorted(gone)}", code="K341"
        )
    check_routes(outputs)
    span = (old[0].base_offset, old[-1].last_offset)
    inside = [r for r in routes if span[0] <= r.base_offset <= span[1]]
    if inside != old or span != (outputs[0].base_offset, outputs[-1].last_offset):
        raise ConflictError(
            "the outputs do not cover what their sources serve. "
            f"sources={span} outputs={(outputs[0].base_offset, outputs[-1].last_offset)}",
            code="K341",
        )
    kept = [route for route in routes if route.segment_id not in gone]
    return tuple(sorted([*kept, *outputs]))
