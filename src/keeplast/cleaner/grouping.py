"""Puts neighbouring segments together, so that what remains of them becomes one.

Greedy from the left, by sizes before cleaning. The head's base is the output's base, and every
offset in the output must lie within 2^31-1 of it. Kafka: ``groupSegmentsBySize``; cleaning.md 3.2.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from keeplast.model.offsets import INT32_MAX, RELATIVE_OFFSET_MAX
from keeplast.model.segment import SegmentSummary


def group_segments(
    segments: Sequence[SegmentSummary],
    *,
    bound: int,
    segment_bytes: int,
    segment_index_bytes: int,
    sources_max: int = INT32_MAX,
    begins_at: Container[int] = (),
) -> tuple[tuple[SegmentSummary, ...], ...]:
    """Return the groups in ascending order; each has at least one segment.

    An empty segment joins at any distance, which lets runs of emptied segments collapse.
    ``bound`` is the round's exclusive end, from which the last segment's reach follows.
    ``sources_max`` is how many segments a group has at most, ``begins_at`` are base offsets with
    which one has to begin; Kafka's cleaner has no such limits.
    """
    groups: list[tuple[SegmentSummary, ...]] = []
    at = 0
    while at < len(segments):
        head = segments[at]
        size, offsets, times = head.size_bytes, head.offset_index_bytes, head.time_index_bytes
        end = at + 1
        while end < len(segments) and end - at < sources_max:
            candidate = segments[end]
            if candidate.base_offset in begins_at:
                break
            size += candidate.size_bytes
            offsets += candidate.offset_index_bytes
            times += candidate.time_index_bytes
            if size > segment_bytes or max(offsets, times) > segment_index_bytes:
                break
            following = segments[end + 1].base_offset if end + 1 < len(segments) else bound
            reach = following - 1 - head.base_offset
            if candidate.size_bytes and reach > RELATIVE_OFFSET_MAX:
                break
            end += 1
        groups.append(tuple(segments[at:end]))
        at = end
    return tuple(groups)
