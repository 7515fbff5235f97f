"""What there is of one key in a partition of a store: live segments, and replaced ones.

To the search the live segments are a log that is all closed; what a host has not copied yet is its
directory's to tell. A segment that a round or an import has replaced has its records until it is
collected, and readers that began before may still see them. Changes nothing, holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from keeplast.format.filename import LOG
from keeplast.inspect.explain import (
    AskedKey,
    KeyExplanation,
    explain_looked,
    key_of,
    look_for_keys,
    rankings_of,
)
from keeplast.inspect.key_search import KeyRecord, Progressed, SearchedSegment, find_key_records
from keeplast.inspect.undo_copies import UndoCopy
from keeplast.log.partition_log import list_partition
from keeplast.model.reader_wait import GroupReader
from keeplast.rewrite.workspace import Workspace
from keeplast.store.key_filters import without_absent
from keeplast.store.look import RemoteLook, stored_checkpoints
from keeplast.store.readers import StoredReaders
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.tier.objects.filters import FilterKey, SegmentBytes
from keeplast.tier.objects.object_store import ObjectStore, topic_ids_of
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class ReplacedCopy:
    """A record in a replaced segment, which may be collected from ``collected_ms`` on.

    None: nothing says when.
    """

    record: KeyRecord
    segment_id: str
    collected_ms: int | None


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What was found of a key: its records in live segments, and in replaced ones.

    ``kept`` are those in segments that rounds have kept for undo, which are no ``copies``.
    Of ``left_out`` segments, ``left_out_bytes`` in all, filters say that the key is in none.
    """

    found: KeyExplanation
    copies: tuple[ReplacedCopy, ...]
    left_out: int
    left_out_bytes: int
    kept: tuple[UndoCopy, ...] = ()


def explain_stored(
    look: RemoteLook,
    objects: ObjectStore,
    asked: AskedKey,
    now_ms: int,
    workspace: Workspace,
    *,
    filter_key: FilterKey | None,
    planned: Progressed,
    progressed: Progressed,
    brokers: GroupReader | None = None,
) -> StoredKey:
    """Explain a key in the live segments, and find it in those that were replaced.

    Segments whose filters say that the key is not in them are not read; ``filter_key`` None asks
    none. ``planned`` hears of the bytes that will be read then, ``progressed`` of those that were.
    Errors as for :func:`~keeplast.inspect.explain.explain_key`; a replaced segment that is
    collected meanwhile has no records. ``brokers`` tell what consumer groups have committed.
    """
    state = look.state
    segments = tuple(state.segments[route.segment_id] for route in state.routes)
    remote = RoundFiles(objects, state.partition, state.topic_id, segments)
    request = CleanRequest((), log_start_offset=state.log_start, high_watermark=remote.end)
    looked = look_for_keys(
        PartitionRequest(state.partition, remote.path, look.topic), request,
        stored_checkpoints(state, {state.partition: remote.end}), remote, now_ms,
        StoredReaders(state.topic_id, brokers),
    )  # fmt: skip
    key = key_of(looked, asked)

    def narrowed(
        searched: Sequence[SearchedSegment], remote: Sequence[RemoteSegment], files: RoundFiles
    ) -> Sequence[SearchedSegment]:
        if filter_key is None:
            return searched
        named = {
            each.base_offset: SegmentBytes(each.segment_id, each.size_bytes, each.files[LOG].crc32c)
            for each in remote
        }
        return without_absent(searched, named, files.path, files, key, filter_key, progressed)

    looked = replace(looked, segments=narrowed(looked.segments, segments, remote))
    # Listed where there is any at all.
    stored = objects.list(str(state.partition)) if look.orphans else ()
    topic_ids = topic_ids_of(each.key for each in stored)
    replaced = [
        (
            orphan,
            *_replaced(
                RoundFiles(
                    objects, state.partition,
                    topic_ids.get(orphan.segment.segment_id, state.topic_id), (orphan.segment,),
                ),
                orphan.segment, narrowed,
            ),
        )
        for orphan in look.orphans
    ]  # fmt: skip
    every = [*looked.segments, *(each for _, _, its in replaced for each in its)]
    planned(sum(each.valid_bytes for each in every if not each.lacks_key))
    found = explain_looked(looked, replace(asked, key=key, offset=None), workspace, progressed)
    copies: list[ReplacedCopy] = []
    kept: list[UndoCopy] = []
    for orphan, files, its in replaced:
        try:
            records = find_key_records(
                its, key, rankings_of(look.topic, asked.header), files, workspace, progressed,
                asked.values_bytes_max,
            )  # fmt: skip
        except FileNotFoundError:
            continue
        segment_id, from_ms, kept_by = (
            orphan.segment.segment_id, orphan.not_before_ms, orphan.kept_by,
        )  # fmt: skip
        if kept_by is not None:
            kept += [UndoCopy(each, kept_by, from_ms) for each in records]
        else:
            copies += [ReplacedCopy(each, segment_id, from_ms) for each in records]
    left_out = [each for each in every if each.lacks_key]
    return StoredKey(
        found, tuple(copies), len(left_out), sum(each.valid_bytes for each in left_out),
        tuple(kept),
    )  # fmt: skip


Narrowed = Callable[
    [Sequence[SearchedSegment], Sequence[RemoteSegment], RoundFiles], Sequence[SearchedSegment]
]


def _replaced(
    files: RoundFiles, segment: RemoteSegment, narrowed: Narrowed
) -> tuple[RoundFiles, Sequence[SearchedSegment]]:
    """Return a replaced segment as what is searched."""
    listed = list_partition(files.path, files).segments[0]
    return files, narrowed([SearchedSegment(listed, listed.size_bytes)], [segment], files)
