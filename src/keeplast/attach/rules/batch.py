"""What is appended to the metadata topic for a decision, always the same bytes.

Pure. The rule: **one batch: finished copies by descending start, then the deletion of every source
begins**. Descending, because a copy takes away what starts later and does not reach beyond it; in
one batch, because between two of them a broker would serve a hole or delete what it counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from keeplast.cluster.facts import OffsetRange
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    encode,
)
from keeplast.tier.state.attached import Decision, mark_of


@dataclass(frozen=True, slots=True)
class Batch:
    """Updates of a decision in their order, and the values that they are.

    In the metadata topic that the decision was made for they lie at or behind ``floor_offset``, and
    at ``place`` when they were found there before.
    """

    events: tuple[RemoteLogSegmentUpdate, ...]
    values: tuple[bytes, ...]
    floor_offset: int = 0
    place: OffsetRange | None = None


def batch_of(decision: Decision) -> Batch:
    """Return the batch that publishes ``decision``; the same whoever publishes it, and when."""
    outputs = sorted(decision.outputs, key=lambda each: each.start_offset, reverse=True)
    events = (
        *updates(
            outputs, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, decision.epoch,
            decision.decided_ms,
        ),
        *updates(
            decision.sources, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, decision.epoch,
            decision.decided_ms,
        ),
    )  # fmt: skip
    place = None
    if decision.first_offset is not None and decision.last_offset is not None:
        place = OffsetRange(decision.first_offset, decision.last_offset + 1)
    return Batch(events, tuple(encode(each) for each in events), decision.floor_offset, place)


def updates(
    segments: Iterable[RemoteLogSegment], state: RemoteLogSegmentState, epoch: int, at_ms: int
) -> tuple[RemoteLogSegmentUpdate, ...]:
    """Return updates of ``segments`` to ``state``, each with its own custom metadata."""
    return tuple(
        RemoteLogSegmentUpdate(
            id=each.id, broker_id=mark_of(epoch), event_timestamp_ms=at_ms,
            custom_metadata=each.custom_metadata, state=state,
        )
        for each in segments
    )  # fmt: skip


def announcement(segment: RemoteLogSegment, epoch: int, at_ms: int) -> RemoteLogSegment:
    """Return ``segment`` as it is announced: begun, in the name of ``epoch``."""
    return replace(
        segment, broker_id=mark_of(epoch), event_timestamp_ms=at_ms, custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED, tags=(),
    )  # fmt: skip
