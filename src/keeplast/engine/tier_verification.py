"""Checks a live store against its invariants, by reading every live object; changes nothing.

Each finding names the invariant (tiering.md section 10), so that an operator can tell a lost object
from a wrong row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format.checksum import crc32c
from keeplast.format.filename import LOG, segment_file
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.tier.objects import ObjectStore, object_key
from keeplast.tier.partition_state import PartitionState
from keeplast.tier.segment import RemoteFile, RemoteSegment, is_within_lineage
from keeplast.tier.transfer import crc_of

Progressed = Callable[[int], None]
WINDOW_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TierFinding:
    """Something that is not as it must be."""

    invariant: str
    segment_id: str | None
    problem: str


def verify_remote(
    objects: ObjectStore, state: PartitionState, progressed: Progressed
) -> tuple[TierFinding, ...]:
    """Return everything that is wrong with the live log of ``state``; nothing when all holds."""
    found = [*_check_rows(state)]
    for route in state.routes:
        segment = state.segments[route.segment_id]
        log, findings = _check_log(objects, state, segment)
        found += findings
        for suffix, expected in segment.files.items():
            stored = log if suffix == LOG else _read_object(objects, state, segment, suffix)
            found += _compare(segment, suffix, expected, stored)
        progressed(segment.size_bytes)
    return tuple(found)


def _check_rows(state: PartitionState) -> Iterator[TierFinding]:
    at = state.routes[0].base_offset if state.routes else state.log_start
    if at > state.log_start:
        yield TierFinding("I-14", None, f"offsets {state.log_start}..{at} are served by nobody")
    for route in state.routes:
        segment = state.segments.get(route.segment_id)
        if route.base_offset != at:
            yield TierFinding("I-14", route.segment_id, f"a hole or overlap at offset {at}")
        at = route.last_offset + 1
        if segment is None:
            yield TierFinding("I-14", route.segment_id, "a route without a segment")
        elif not is_within_lineage(segment, state.lineage, state.remote_end):
            yield TierFinding("I-23", route.segment_id, "outside of the leader epochs' lineage")
        elif segment.base_offset > route.base_offset or segment.last_offset < route.last_offset:
            yield TierFinding("I-1", route.segment_id, "a route reaches beyond its segment")
    if state.remote_bytes != state.effective_bytes():
        yield TierFinding(
            "I-21", None,
            f"the cached size is {state.remote_bytes}, the sum {state.effective_bytes()}",
        )  # fmt: skip
    if state.routes and state.first_dirty() > state.remote_end:
        yield TierFinding("I-18", None, f"the first dirty offset is {state.first_dirty()}")


def _key(state: PartitionState, segment: RemoteSegment, suffix: str) -> str:
    return object_key(
        state.partition, state.topic_id, segment.segment_id, segment.base_offset, suffix
    )


def _read_object(
    objects: ObjectStore, state: PartitionState, segment: RemoteSegment, suffix: str
) -> RemoteFile | None:
    """Return what an object is now, None when it is gone."""
    try:
        crc, size = crc_of(objects, _key(state, segment, suffix))
    except FileNotFoundError:
        return None
    return RemoteFile(size, crc)


def _compare(
    segment: RemoteSegment, suffix: str, expected: RemoteFile, found: RemoteFile | None
) -> Iterator[TierFinding]:
    name = f"{segment.base_offset:020d}{suffix}"
    if found is None:
        yield TierFinding("I-14", segment.segment_id, f"the object is gone. object={name}")
    elif found != expected:
        yield TierFinding(
            "I-9", segment.segment_id,
            f"the object is not what was written. object={name} bytes={found.size_bytes} "
            f"crc32c={found.crc32c} expected_bytes={expected.size_bytes} "
            f"expected_crc32c={expected.crc32c}",
        )  # fmt: skip


def _check_log(
    objects: ObjectStore, state: PartitionState, segment: RemoteSegment
) -> tuple[RemoteFile | None, list[TierFinding]]:
    """Read a segment's log once: what the object is now, and what is wrong with its batches."""
    key = _key(state, segment, LOG)
    try:
        handle = _Summed(objects, key)
    except FileNotFoundError:
        return None, []
    path = Path(f"{segment.segment_id}/{segment_file(segment.base_offset, LOG)}")
    first, last, found = None, None, []
    try:
        for window in read_windows(handle, path, WindowBuffers(WINDOW_BYTES)):
            rows = window.table[: window.batches]
            if first is None:
                first = int(rows[0, t.BASE_OFFSET])
            last = int(rows[-1, t.LAST_OFFSET])
    except CorruptError as error:
        found.append(TierFinding("I-5", segment.segment_id, str(error)))
    else:
        if first is None or first < segment.base_offset:
            found.append(
                TierFinding("I-1", segment.segment_id, f"its first batch begins at {first}")
            )
        if last != segment.last_offset:
            found.append(
                TierFinding(
                    "I-6", segment.segment_id,
                    f"its last batch ends at {last}, the segment at {segment.last_offset}",
                )
            )  # fmt: skip
    return handle.finished(), found


class _Summed:
    """An object that is read ahead, window by window, and summed on the way."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key
        self.size_bytes = objects.stat(key).size_bytes
        self._crc = 0
        self._summed_to = 0

    def pread_into(self, buffer: memoryview, position: int) -> int:
        end = min(position + len(buffer), self.size_bytes)
        data = self._objects.read_range(self._key, position, end)
        buffer[: len(data)] = data
        # Windows overlap by the batch that was cut off at the end of the one before.
        if position <= self._summed_to < position + len(data):
            self._crc = crc32c(data[self._summed_to - position :], self._crc)
            self._summed_to = position + len(data)
        return len(data)

    def close(self) -> None:
        """Do nothing: a range is one request."""

    def finished(self) -> RemoteFile:
        """Read what damage kept from being read; return what the whole object is."""
        while self._summed_to < self.size_bytes:
            end = min(self._summed_to + WINDOW_BYTES, self.size_bytes)
            data = self._objects.read_range(self._key, self._summed_to, end)
            if not data:
                break
            self._crc = crc32c(data, self._crc)
            self._summed_to += len(data)
        return RemoteFile(self._summed_to, self._crc)
