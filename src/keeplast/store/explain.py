"""What there is of one key in a partition of a store: live segments, and replaced ones.

To the search the live segments are a log that is all closed; what a host has not copied yet is only
in its directory. A segment that a round or an import has replaced has its records until it is
collected, and readers that began before may still see them. Changes nothing, holds nothing.

Filters say which segments of a store, or of a remote tier, one key is not in. A filter has every
key of its segment: a round that took it for one that lacks a key would leave a superseded record.
It is believed where it is whole, under this store's key, and about the very bytes that metadata, or
the cluster, names. Anything else is no filter, and the segment is read. What is proven by reading
(``erase``, certificates, ``verify``) asks none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from keeplast.cleaner.plan import has_no_events
from keeplast.columns.filters import find_any
from keeplast.columns.rows import hash_of
from keeplast.errors import CorruptError
from keeplast.format.filename import LOG
from keeplast.inspect.explain import (
    AskedKey,
    explain_looked,
    key_of,
    look_for_keys,
    rankings_of,
)
from keeplast.inspect.key_search import Progressed, SearchedSegment, find_key_records
from keeplast.inspect.remains import Remains, RemainsKind, SearchedKey
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import list_partition
from keeplast.model.hold import GroupReader
from keeplast.rewrite.workspace import Workspace
from keeplast.store.look import RemoteLook, StoredReaders, stored_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.tier.objects.filters import (
    FILTER_BYTES_MAX,
    HEAD_BYTES,
    FilterKey,
    SegmentBytes,
    decode_head,
    decode_words,
)
from keeplast.tier.objects.object_store import ObjectStore, topic_ids_of
from keeplast.tier.objects.round_files import RoundFiles, filter_file
from keeplast.tier.state.segment import RemoteSegment


def without_absent(
    segments: Sequence[SearchedSegment],
    named: Mapping[int, SegmentBytes],
    directory: Path,
    files: FileSystem,
    key: bytes,
    filter_key: FilterKey | None,
    progressed: Callable[[int], None],
) -> list[SearchedSegment]:
    """Return ``segments`` with what their filters, next to them in ``directory``, say of ``key``.

    ``named`` has by base offset which bytes they are; ``filter_key`` None asks none. ``progressed``
    hears of the bytes of filters that were read. OSError when the store fails.
    """
    if filter_key is None:
        return list(segments)
    found = []
    for each in segments:
        of = named.get(each.files.base_offset)
        if of is not None:
            path = directory / filter_file(each.files.base_offset)
            each = _asked(each, of, path, files, key, filter_key, progressed)
        found.append(each)
    return found


def _asked(
    searched: SearchedSegment,
    of: SegmentBytes,
    path: Path,
    files: FileSystem,
    key: bytes,
    filter_key: FilterKey,
    progressed: Callable[[int], None],
) -> SearchedSegment:
    read_bytes = 0
    try:
        with reading(files, path) as handle:
            object_bytes = handle.size_bytes
            if object_bytes > FILTER_BYTES_MAX:
                return searched
            data = bytearray(min(object_bytes, HEAD_BYTES))
            read_bytes = handle.pread_into(memoryview(data), 0)
            head = decode_head(bytes(data[:read_bytes]), str(path))
            # Records of old formats are not what the filter was meant for.
            if not head.speaks_for(of, object_bytes, filter_key) or head.contents.old_format:
                return searched
            rest = bytearray(max(head.size_bytes - read_bytes, 0))
            read_bytes += handle.pread_into(memoryview(rest), read_bytes) if rest else 0
            words = decode_words(head, bytes((data + rest)[head.words_at :]), str(path))
    except (FileNotFoundError, CorruptError):
        return searched
    finally:
        progressed(read_bytes)
    hashes = np.zeros(2, np.uint64)
    hash_of(
        np.frombuffer(bytearray(key), np.uint8), np.uint64(filter_key.k0),
        np.uint64(filter_key.k1), hashes,
    )  # fmt: skip
    is_absent = find_any(words, head.bits, head.probes, hashes[:1].copy(), 1) < 0
    return replace(searched, lacks_key=is_absent, is_quiet=has_no_events(head.contents))


def left_out_of(segments: Sequence[SearchedSegment]) -> tuple[int, int]:
    """Return how many segments filters leave out of a search, and their bytes."""
    sizes = [each.valid_bytes for each in segments if each.lacks_key]
    return len(sizes), sum(sizes)


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
) -> SearchedKey:
    """Explain a key in the live segments, and find it in those that were replaced.

    Segments whose filters say that the key is not in them are not read; ``filter_key`` None asks
    none. ``planned`` hears of the bytes that will be read then, ``progressed`` of those that were.
    Errors as for :func:`~keeplast.inspect.explain.explain_key`; a replaced segment that is
    collected meanwhile has no records. ``brokers`` report what consumer groups have committed.
    """
    state = look.state
    segments = state.live_segments
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
    remains: list[Remains] = []
    for orphan, files, its in replaced:
        try:
            records = find_key_records(
                its, key, rankings_of(look.topic, asked.header), files, workspace, progressed,
                asked.values_bytes_max,
            )  # fmt: skip
        except FileNotFoundError:
            continue
        kind, name = (
            (RemainsKind.REPLACED, orphan.segment.segment_id)
            if orphan.kept_by is None
            else (RemainsKind.KEPT, orphan.kept_by)
        )
        remains.append(Remains(kind, name, records=records, until_ms=orphan.not_before_ms))
    return SearchedKey(found, tuple(remains), left_out=left_out_of(every))


Narrowed = Callable[
    [Sequence[SearchedSegment], Sequence[RemoteSegment], RoundFiles], Sequence[SearchedSegment]
]


def _replaced(
    files: RoundFiles, segment: RemoteSegment, narrowed: Narrowed
) -> tuple[RoundFiles, Sequence[SearchedSegment]]:
    """Return a replaced segment as what is searched."""
    listed = list_partition(files.path, files).segments[0]
    return files, narrowed([SearchedSegment(listed, listed.size_bytes)], [segment], files)
