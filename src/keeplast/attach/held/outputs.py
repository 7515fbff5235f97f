"""What a round writes in a remote tier: ids and descriptions of its segments, and their filters.

The rule: **an id is used once**. The id follows from the attempt that wrote the segment, whose name
is random. So the publisher knows it wherever the attempt ran. Brokers keep facts by id, some of
them for good. An own object of the layout records an attempt's result, in the form of the
announcement that brokers will read.

The filters of a partition's segments are keeplast's own objects next to them. The second rule: **a
filter is only a cache**: a segment without one is read. The partition's holder writes it when it
reads or writes the segment. The segment's id, its size and the decision log's key bind the filter
to the segment. It goes when its segment is collected or taken back, and with the partition. Filters
of segments that brokers removed go when the next round begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.attach.rules.swap import merged_epochs
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.columns import batches as t
from keeplast.columns.batches import scan_batches
from keeplast.columns.kernel import OK
from keeplast.errors import CorruptError, invariant
from keeplast.format.checksum import Buffer
from keeplast.format.filename import LOG, parse_segment_file
from keeplast.format.identifier import ID_BYTES, encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from keeplast.log.windows import TABLE_ROWS, WINDOW_BYTES_DEFAULT
from keeplast.rewrite.task import StagedGroup

BEGUN = b"begun"
"""What an own object holds while its output is written."""
SWEPT = b"swept"
"""Its content after the partition's next holder removed its output."""


class OutputMark(Struct, frozen=True):
    """The announcer and the time of a round's announcements: no broker's, and seen to be ours."""

    broker_id: int
    announced_ms: int


def output_id(partition: TopicIdPartition, attempt: str, base_offset: int) -> RemoteLogSegmentId:
    """Return the name of what ``attempt`` writes at ``base_offset``."""
    digest = hashlib.sha256(f"{attempt}/{base_offset}".encode()).digest()
    return RemoteLogSegmentId(partition, digest[:ID_BYTES])


def staged_id(partition: TopicIdPartition, staged: StagedGroup) -> RemoteLogSegmentId:
    """Return the name of a staged output, which has files."""
    logs = [parse_segment_file(each.name) for each in staged.files if each.kind == LOG]
    parsed = logs[0] if logs else None
    invariant(parsed is not None and parsed.attempt is not None, f"no staged log. group={staged}")
    return output_id(partition, parsed.attempt or "" if parsed else "", staged.base_offset)


def work_folder(partition: TopicIdPartition) -> str:
    """Return the folder of the own objects that list what a partition's rounds have begun."""
    return f"work/{encode_id(partition.topic_id)}-{partition.partition}"


def filter_folder(partition: TopicIdPartition) -> str:
    """Return the folder of the own objects that list which keys a partition's segments hold."""
    return f"filters/{encode_id(partition.topic_id)}-{partition.partition}"


def filter_name(name: RemoteLogSegmentId) -> str:
    """Return the name of the own object that is the filter of a segment."""
    return f"{filter_folder(name.partition)}/{encode_id(name.segment_id)}"


def work_name(name: RemoteLogSegmentId) -> str:
    """Return the name of the own object of an output that is not announced yet."""
    return f"{work_folder(name.partition)}/{encode_id(name.segment_id)}"


def describe_output(
    name: RemoteLogSegmentId,
    sources: Sequence[RemoteLogSegment],
    facts: OutputFacts,
    mark: OutputMark,
) -> RemoteLogSegment:
    """Return the announcement of what takes the place of ``sources``, whose range it covers."""
    return RemoteLogSegment(
        id=name,
        start_offset=sources[0].start_offset,
        end_offset=sources[-1].end_offset,
        broker_id=mark.broker_id,
        max_timestamp_ms=facts.max_timestamp_ms,
        event_timestamp_ms=mark.announced_ms,
        epochs=merged_epochs(sources),
        size_bytes=facts.size_bytes,
        custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )


class OutputFacts:
    """What an announcement says of a log's content, found out while the log is written.

    ``max_timestamp_ms`` is that of batches with records alone, -1 without any. A batch that is kept
    empty keeps its own timestamp, and a broker that looks for a time would look there in vain
    (I-4). :meth:`has_marker` says which transactions' markers are in the log.
    """

    def __init__(self) -> None:
        self.max_timestamp_ms = -1
        self.size_bytes = 0
        self._markers: list[NDArray[np.int64]] = []
        self._data = np.empty(WINDOW_BYTES_DEFAULT, np.uint8)
        self._length = 0
        self._table = t.new_batch_table(TABLE_ROWS)

    def add(self, data: Buffer) -> None:
        """Take what was appended; batches may be cut anywhere."""
        view = memoryview(data).cast("B")
        self.size_bytes += len(view)
        if not self._length and not view.readonly:
            # What comes is mostly whole batches, which are looked at where they lie.
            view = view[self._note(np.frombuffer(view, np.uint8)) :]
        while view:
            part = view[: len(self._data) - self._length]
            self._data[self._length : self._length + len(part)] = part
            self._length += len(part)
            view = view[len(part) :]
            if self._length == len(self._data):
                self._scan()
                if self._length == len(self._data):
                    self._data = np.concatenate((self._data, np.empty_like(self._data)))

    def finish(self) -> None:
        """Take the end; CorruptError when a batch is cut off there."""
        self._scan()
        if self._length:
            raise CorruptError(
                "what was staged ends inside a batch", position=self.size_bytes - self._length,
                expected=0, found=self._length, code="K437",
            )  # fmt: skip
        self._data, self._table = np.empty(0, np.uint8), self._table[:0]

    def has_marker(self, offset: int) -> bool:
        """Say whether the log, which is finished, has a control record at ``offset``."""
        if len(self._markers) > 1:
            self._markers = [np.concatenate(self._markers)]
        for each in self._markers:
            place = int(np.searchsorted(each, offset))
            return place < len(each) and int(each[place]) == offset
        return False

    def _scan(self) -> None:
        noted = self._note(self._data[: self._length])
        rest = self._length - noted
        self._data[:rest] = self._data[noted : self._length].copy()
        self._length = rest

    def _note(self, data: NDArray[np.uint8]) -> int:
        """Take the whole batches at the beginning of ``data``, the last that came; how much it
        was."""
        noted = 0
        while noted < len(data):
            part = data[noted:]
            batches, consumed, _, _, code = scan_batches(part, len(part), self._table)
            if code != OK:
                raise CorruptError(
                    "what was staged is no batch",
                    position=self.size_bytes - len(part) + consumed,
                    expected="a batch", found=f"code {code}", code="K437",
                )  # fmt: skip
            if not consumed:
                break
            rows = self._table[:batches]
            times = rows[rows[:, t.COUNT] > 0, t.MAX_TIMESTAMP]
            is_marker = (rows[:, t.COUNT] > 0) & (rows[:, t.ATTRIBUTES] & t.CONTROL != 0)
            if is_marker.any():
                self._markers.append(rows[is_marker, t.LAST_OFFSET])
            if len(times):
                self.max_timestamp_ms = max(self.max_timestamp_ms, int(times.max()))
            noted += consumed
        return noted


KEPT_BYTES_MAX = 64 << 20
"""No filter is larger: it is written, and read, as one request."""
KEPT_SHARE_MAX = 0.5
"""Nor larger than this share of its segment's bytes: to ask it would save too little."""


def filter_names(layout: RemoteLayout, partition: TopicIdPartition) -> frozenset[str]:
    """Return the names of the own objects that are filters of a partition's segments."""
    return frozenset(each.name for each in layout.list_own(filter_folder(partition)))


def sweep_filters(
    layout: RemoteLayout, partition: TopicIdPartition, known: Collection[bytes] = ()
) -> int:
    """Remove the filters of all segments but those with the ids ``known``; return how many.

    The caller held the partition when it looked. A filter that another process has made since is
    made again.
    """
    kept = {filter_name(RemoteLogSegmentId(partition, each)) for each in known}
    gone = filter_names(layout, partition) - kept
    for name in sorted(gone):
        layout.delete_own(name)
    return len(gone)
