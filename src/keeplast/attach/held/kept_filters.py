"""The filters of a partition's segments, as keeplast's own objects beside them.

The rule: **a filter is only a cache**: a segment without one is read. It is written when its
segment is read or written, by whoever holds the partition, and bound to the segment by its id, its
size and the decision log's key. It goes when its segment is collected or taken back, and with the
partition; of segments that brokers removed it goes when the next round begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from keeplast.attach.held.outputs import filter_folder, filter_name
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    TopicIdPartition,
)

KEPT_BYTES_MAX = 64 << 20
"""No filter is larger: it is written, and read, as one request."""
KEPT_SHARE_MAX = 0.5
"""Nor larger than this share of its segment's bytes: to ask it would save too little."""


def filter_names(layout: RemoteLayout, partition: TopicIdPartition) -> frozenset[str]:
    """Return the names of the own objects that are filters of a partition's segments."""
    return frozenset(each.name for each in layout.list_own(filter_folder(partition)))


def remove_filters(
    layout: RemoteLayout, there: Collection[str], segments: Iterable[RemoteLogSegment]
) -> None:
    """Remove the filters of ``segments``, as far as they are among the names ``there``."""
    for each in segments:
        if filter_name(each.id) in there:
            layout.delete_own(filter_name(each.id))


def sweep_filters(
    layout: RemoteLayout, partition: TopicIdPartition, known: Collection[bytes] = ()
) -> int:
    """Remove the filters of all segments but those with the ids ``known``; return how many.

    Whoever held the partition when it looked may: what somebody else has made since is made again.
    """
    kept = {filter_name(RemoteLogSegmentId(partition, each)) for each in known}
    gone = filter_names(layout, partition) - kept
    for name in sorted(gone):
        layout.delete_own(name)
    return len(gone)
