"""What there is of one key in a partition of a store: live segments, and replaced ones.

To the search the live segments are a log that is all closed; what a host has not copied yet is its
directory's to tell. A segment that a round or an import has replaced has its records until it is
collected, and readers that began before may still see them. Changes nothing, holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.inspect.explain import AskedKey, KeyExplanation, explain_key, rankings_of
from keeplast.inspect.key_search import KeyRecord, Progressed, SearchedSegment, find_key_records
from keeplast.log.partition_log import list_partition
from keeplast.model.reader_wait import GroupReader
from keeplast.rewrite.workspace import Workspace
from keeplast.store.look import RemoteLook
from keeplast.store.readers import StoredReaders
from keeplast.survey.log_bounds import Checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles


@dataclass(frozen=True, slots=True)
class ReplacedCopy:
    """A record in a replaced segment, which may be collected from ``collected_ms`` on.

    None: nothing says when.
    """

    record: KeyRecord
    segment_id: str
    collected_ms: int | None


def explain_stored(
    look: RemoteLook,
    objects: ObjectStore,
    asked: AskedKey,
    now_ms: int,
    workspace: Workspace,
    progressed: Progressed,
    brokers: GroupReader | None = None,
) -> tuple[KeyExplanation, tuple[ReplacedCopy, ...]]:
    """Explain a key in the live segments, and find it in those that were replaced.

    Errors as for :func:`~keeplast.inspect.explain.explain_key`; a replaced segment that is
    collected meanwhile has no records. ``brokers`` tell what consumer groups have committed.
    """
    state = look.state
    segments = tuple(state.segments[route.segment_id] for route in state.routes)
    remote = RoundFiles(objects, state.partition, state.topic_id, segments)
    request = CleanRequest(
        (), first_dirty_offset=state.first_dirty(), log_start_offset=state.log_start,
        high_watermark=remote.end,
    )  # fmt: skip
    found = explain_key(
        PartitionRequest(state.partition, remote.path, look.topic), request, remote, now_ms, asked,
        workspace, progressed, Checkpoints({}, {}, {state.partition: remote.end}),
        StoredReaders(state.topic_id, brokers),
    )  # fmt: skip
    copies: list[ReplacedCopy] = []
    for orphan in look.orphans:
        files = RoundFiles(objects, state.partition, state.topic_id, (orphan.segment,))
        try:
            listed = list_partition(files.path, files).segments[0]
            records = find_key_records(
                [SearchedSegment(listed, listed.size_bytes)], found.key,
                rankings_of(look.topic, asked.header), files, workspace, progressed,
                asked.values_bytes_max,
            )  # fmt: skip
        except FileNotFoundError:
            continue
        copies += [
            ReplacedCopy(each, orphan.segment.segment_id, orphan.not_before_ms) for each in records
        ]
    return found, tuple(copies)
