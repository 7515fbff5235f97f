"""Segments as brokers announce them, for what works with their objects."""

from __future__ import annotations

from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    TopicIdPartition,
)

PARTITION = TopicIdPartition("orders", bytes(range(16)), 3)


def remote_segment(
    *,
    size_bytes: int,
    number: int = 1,
    start_offset: int = 100,
    end_offset: int = 199,
    partition: TopicIdPartition = PARTITION,
    custom_metadata: bytes | None = None,
) -> RemoteLogSegment:
    """Return a finished segment of ``partition`` with one leader epoch."""
    return RemoteLogSegment(
        id=RemoteLogSegmentId(partition, number.to_bytes(16, "big")),
        start_offset=start_offset,
        end_offset=end_offset,
        broker_id=1,
        max_timestamp_ms=1000,
        event_timestamp_ms=2000,
        epochs=(EpochStart(0, start_offset),),
        size_bytes=size_bytes,
        custom_metadata=custom_metadata,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    )
