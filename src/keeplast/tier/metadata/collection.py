"""Removes what nobody reads any more: replaced segments, and objects that no row names.

Metadata first, objects later (KIP-1272): a segment that was replaced is deleted when its grace has
passed, nothing routes to it, and the segments that are live cover its range in this lineage; the
deletion is announced in a fenced transaction before an object goes. Objects without a row are what
a crash or a late attempt left; they go after a minimum age, because whoever writes them may still
be about to commit. Only the owner of the newest epoch collects. Source: tiering.md section 9.3.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from keeplast.clock import Clock
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata.marks import Marks
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore, segment_of_key
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment, SegmentState, is_within_lineage


@dataclass(frozen=True, slots=True)
class Collected:
    """What a pass removed, and how many replaced segments still wait."""

    segments: int
    objects: int
    bytes: int
    waiting: int


def is_covered(segment: RemoteSegment, state: PartitionState) -> bool:
    """Say whether nobody can need ``segment``: what it held is below the log start, outside of the
    lineage, or read from live segments of the lineage without a hole."""
    if segment.last_offset < state.log_start:
        return True
    if not is_within_lineage(segment, state.lineage, state.remote_end):
        return True
    at = max(segment.base_offset, state.log_start)
    for route in state.routes:
        if route.base_offset <= at <= route.last_offset:
            live = state.segments[route.segment_id]
            if not is_within_lineage(live, state.lineage, state.remote_end):
                return False
            at = route.last_offset + 1
    return at > segment.last_offset


def collect(
    store: MetadataStore,
    objects: ObjectStore,
    partition: TopicPartition,
    *,
    epoch: int,
    garbage_age_ms: int,
    clock: Clock,
    marks: Marks | None = None,
) -> Collected:
    """Do one pass as the owner at ``epoch``; FencedError when a newer one exists.

    ``clock`` is the store's: nothing goes while this host's differs. ``marks`` are the place's:
    RefusedError, and nothing more goes, when they say that the metadata is an older one.
    """
    clock.now_ms()
    store.undo_rows.sweep(partition, epoch=epoch)
    state = store.load(partition)
    removed = count = size = waiting = 0
    by_segment: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    # Listed before the rows are read: what is committed meanwhile has a row by then.
    # All of the partition's, also those of a topic of its name that was given up before.
    for found in objects.list(str(partition)):
        segment_id = segment_of_key(found.key)
        if segment_id is not None:
            by_segment[segment_id].append((found.key, found.size_bytes, found.modified_ms))
    now_ms = clock.now_ms()
    for orphan in store.orphans(partition):
        segment_id = orphan.segment.segment_id
        # Not asked for those that wait: each question looks at the place of the objects.
        may_go = orphan.not_before_ms <= now_ms and is_covered(orphan.segment, state)
        if may_go and marks is not None:
            marks.deleting()
        if not may_go or not store.start_delete(partition, epoch=epoch, segment_id=segment_id):
            waiting += 1
            continue
        keys = by_segment.pop(segment_id, [])
        objects.delete([key for key, _, _ in keys])
        store.finish_delete(partition, epoch=epoch, segment_id=segment_id)
        removed += 1
        count += len(keys)
        size += sum(found_bytes for _, found_bytes, _ in keys)
    known = store.known_ids(partition)
    for segment_id, keys in by_segment.items():
        newest = max(modified_ms for _, _, modified_ms in keys)
        # What was removed may get a filter once more, from a late round.
        is_gone = known.get(segment_id, SegmentState.DELETED) is SegmentState.DELETED
        if not is_gone or newest > now_ms - garbage_age_ms:
            continue
        if marks is not None:
            marks.deleting()
        store.check_owner(partition, epoch=epoch)
        objects.delete([key for key, _, _ in keys])
        count += len(keys)
        size += sum(found_bytes for _, found_bytes, _ in keys)
        by_segment[segment_id] = []
    # Who is late may still write objects for what was given up, and nobody would look for them.
    is_over = state.forgotten_ms is not None and state.forgotten_ms <= now_ms - garbage_age_ms
    if is_over and not waiting and not any(by_segment.values()):
        store.removals.remove(state)
    return Collected(removed, count, size, waiting)
