"""Checks a live store against its invariants, by reading every live object; changes nothing.

Each finding names the invariant (tiering.md section 10), so that an operator can tell a lost object
from a wrong row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from keeplast.columns import batch_table as t
from keeplast.errors import CompactionError
from keeplast.format.filename import LOG, segment_file
from keeplast.log.files import reading
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.tier.metadata import PartitionState
from keeplast.tier.objects import ObjectStore, object_key
from keeplast.tier.round_files import RoundFiles
from keeplast.tier.segment import RemoteSegment, is_within_lineage
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
        found += _check_objects(objects, state, segment)
        if not any(f.segment_id == segment.segment_id for f in found):
            found += _check_records(objects, state, segment)
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


def _check_objects(
    objects: ObjectStore, state: PartitionState, segment: RemoteSegment
) -> Iterator[TierFinding]:
    for suffix, expected in segment.files.items():
        key = object_key(
            state.partition, state.topic_id, segment.segment_id, segment.base_offset, suffix
        )
        try:
            crc, size = crc_of(objects, key)
        except FileNotFoundError:
            yield TierFinding("I-14", segment.segment_id, f"the object is gone. key={key}")
            continue
        if (size, crc) != (expected.size_bytes, expected.crc32c):
            yield TierFinding(
                "I-9", segment.segment_id,
                f"the object is not what was written. key={key} bytes={size} crc32c={crc} "
                f"expected_bytes={expected.size_bytes} expected_crc32c={expected.crc32c}",
            )  # fmt: skip


def _check_records(
    objects: ObjectStore, state: PartitionState, segment: RemoteSegment
) -> Iterator[TierFinding]:
    files = RoundFiles(objects, state.partition, state.topic_id, (segment,))
    path = files.path / segment_file(segment.base_offset, LOG)
    first, last = None, None
    try:
        with reading(files, path) as handle:
            for window in read_windows(handle, path, WindowBuffers(WINDOW_BYTES)):
                rows = window.table[: window.batches]
                if first is None:
                    first = int(rows[0, t.BASE_OFFSET])
                last = int(rows[-1, t.LAST_OFFSET])
    except (CompactionError, OSError) as error:
        yield TierFinding("I-5", segment.segment_id, str(error))
        return
    if first is None or first < segment.base_offset:
        yield TierFinding("I-1", segment.segment_id, f"its first batch begins at {first}")
    if last != segment.last_offset:
        yield TierFinding(
            "I-6", segment.segment_id,
            f"its last batch ends at {last}, the segment at {segment.last_offset}",
        )  # fmt: skip
