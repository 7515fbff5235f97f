"""Takes a partition directory of a broker into the store, and writes one out of it again.

An import copies every segment, the active one too, in order, and goes on where an earlier one
ended, also in the middle of a segment that has grown since or was merged with its neighbours; the
directory is only read. What it may not continue is another history: leader epochs and the topic's
id are compared first, before anything is claimed. A broker forgets the epochs below its log start;
those of what is in the store are kept. An export is a directory that a broker serves: the live
segments, an empty active one behind them, leader epochs, producers and the cleaner's checkpoint.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from keeplast.errors import ConflictError, CorruptError, RefusedError
from keeplast.format import leader_epoch, partition_metadata
from keeplast.format.batch import encode_batch
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.metadata import MetadataStore
from keeplast.tier.objects import ID_CHARS, ObjectStore, object_key
from keeplast.tier.partition_state import PartitionState
from keeplast.tier.transfer import copy_segment, download_object

SMALL_BYTES_MAX = 1 << 20
EMPTY_BATCH = encode_batch([], base_offset=0, last_offset=0)
Progressed = Callable[[int], None]


def read_lineage(files: FileSystem, directory: Path) -> tuple[LeaderEpoch, ...]:
    """Return the leader epochs of a partition directory, none without a checkpoint."""
    path = directory / LEADER_EPOCH_CHECKPOINT
    if not files.exists(path):
        return ()
    try:
        return leader_epoch.decode(files.read_bytes(path, SMALL_BYTES_MAX))
    except CorruptError as error:
        raise error.located(str(path)) from error


def read_topic_id(files: FileSystem, directory: Path) -> str:
    """Return the topic id of a partition directory in hex, zeros when it has none."""
    path = directory / PARTITION_METADATA
    if not files.exists(path):
        return "0" * ID_CHARS
    try:
        return partition_metadata.decode(files.read_bytes(path, SMALL_BYTES_MAX)).topic_id.hex()
    except CorruptError as error:
        raise error.located(str(path)) from error


def import_segments(
    store: MetadataStore,
    objects: ObjectStore,
    files: FileSystem,
    directory: Path,
    state: PartitionState,
    *,
    index_interval_bytes: int,
    progressed: Progressed,
    until: int | None = None,
) -> PartitionState:
    """Copy what of ``directory`` the store does not have; returns what it then has.

    ``until`` leaves out segments that end above it, and the active one; None leaves out nothing.
    RefusedError when leftovers of a swap or a torn tail lie in the directory, ConflictError when it
    does not continue what is in the store.
    """
    listing = list_partition(directory, files)
    tail = find_tail(listing, files)
    if listing.leftovers or (tail.torn_at is not None and until is None):
        raise RefusedError(
            "the directory is not whole: a swap was interrupted or its end is torn; start a broker "
            f"on it once, or clean it in place. path={directory}"
        )
    lineage = state.joined_lineage(continued_lineage(files, directory, state))
    segments = listing.segments if until is None else listing.segments[:-1]
    ends = [*(s.base_offset for s in listing.segments[1:]), tail.log_end]
    for segment, end in zip(segments, ends, strict=False):
        if end <= state.remote_end or end == segment.base_offset:
            continue
        if until is not None and end > until:
            break
        if state.routes and segment.base_offset > state.remote_end:
            raise ConflictError(
                "the directory does not continue what is in the store: what lay between was "
                f"removed before it was copied. path={segment.log_path} "
                f"store_end={state.remote_end}"
            )
        made = copy_segment(
            objects, files, segment,
            partition=state.partition, topic_id=state.topic_id,
            segment_id=secrets.token_hex(ID_CHARS // 2), next_offset=end, lineage=lineage,
            leader_epoch_of_owner=state.leader_epoch, number=0,
            cleaner_offsets=dict(state.publications[-1].offsets),
            index_interval_bytes=index_interval_bytes,
            from_offset=state.remote_end if state.routes else None,
        )  # fmt: skip
        state = store.commit_copy(
            state.partition, secrets.token_hex(ID_CHARS // 2), epoch=state.leader_epoch,
            segment=made, lineage=lineage,
        )  # fmt: skip
        progressed(segment.size_bytes)
    return state


def adopt_checkpoint(
    store: MetadataStore,
    files: FileSystem,
    directory: Path,
    state: PartitionState,
    topic: TopicConfig,
) -> PartitionState:
    """Take over how far a broker's cleaner has come, where what was copied is what it cleaned.

    The log then has the ratio it had in its directory. Everything stays dirty when a segment below
    the checkpoint is not the directory's: it was copied before the cleaner had been there.
    """
    checkpoint = read_checkpoint(files, directory.parent, CLEANER_CHECKPOINT).get(state.partition)
    if checkpoint is None or not topic.is_compacted:
        return state
    target = min(checkpoint, state.remote_end)
    if target <= state.first_dirty():
        return state
    local = {segment.base_offset: segment for segment in list_partition(directory, files).segments}
    for route in state.routes:
        if route.base_offset >= target:
            break
        copied, found = state.segments[route.segment_id], local.get(route.base_offset)
        # A copy may have got an empty batch at its end.
        sizes = (copied.size_bytes, copied.size_bytes - len(EMPTY_BATCH))
        if found is None or found.size_bytes not in sizes or found.mtime_ms != copied.mtime_ms:
            return state
    return store.publish(
        state.partition, secrets.token_hex(ID_CHARS // 2), epoch=state.leader_epoch,
        cleaned_to=target,
    )  # fmt: skip


def continued_lineage(
    files: FileSystem, directory: Path, state: PartitionState
) -> tuple[LeaderEpoch, ...]:
    """Return the leader epochs of a directory; epoch 0 for a log from before there were any.

    ConflictError unless ``directory`` is the log that the store holds the beginning of.
    """
    topic_id = read_topic_id(files, directory)
    if int(topic_id, 16) and int(state.topic_id, 16) and topic_id != state.topic_id:
        raise ConflictError(
            "another topic of the same name: it was deleted and made again. "
            f"path={directory} topic_id={topic_id} store_topic_id={state.topic_id}"
        )
    lineage = read_lineage(files, directory) or (LeaderEpoch(0, 0),)
    if not state.routes:
        return lineage
    # A log start that moved takes older epochs out of a directory, and the first one that is left
    # begins there: its epoch is compared, and the bounds of those behind it.
    first = lineage[0]
    known, found = (
        {e for e in entries if e.epoch > first.epoch and e.start_offset < state.remote_end}
        for entries in (state.lineage, lineage)
    )
    begun = [e for e in state.lineage if e.start_offset <= first.start_offset]
    if first.start_offset < state.remote_end and begun and begun[-1].epoch != first.epoch:
        found.add(first)
    if known != found:
        differing = min(known ^ found, key=lambda entry: entry.start_offset)
        raise ConflictError(
            "the directory has another history than the store: its leader epochs differ. "
            f"path={directory} epoch={differing.epoch} from_offset={differing.start_offset}"
        )
    return lineage


def export_partition(
    objects: ObjectStore,
    files: FileSystem,
    state: PartitionState,
    directory: Path,
    progressed: Progressed,
) -> None:
    """Write the live log of ``state`` into ``directory``, which holds no log yet.

    CorruptError when an object is not what was uploaded; what is there by then stays.
    """
    files.make_directory(directory)
    for route in state.routes:
        segment = state.segments[route.segment_id]
        for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT):
            if suffix in segment.files:
                base = segment.next_offset if suffix == SNAPSHOT else segment.base_offset
                key = object_key(
                    state.partition, state.topic_id, segment.segment_id, segment.base_offset, suffix
                )
                download_object(
                    objects, files, key, segment.files[suffix],
                    directory / f"{base:020d}{suffix}", mtime_ms=segment.mtime_ms,
                )  # fmt: skip
        progressed(segment.size_bytes)
    active = directory / segment_file(state.remote_end, LOG)
    for suffix in (LOG, INDEX, TIME_INDEX):
        files.open_write(active.with_suffix(suffix)).close()
    if state.lineage:
        files.write_durable(
            directory / LEADER_EPOCH_CHECKPOINT, leader_epoch.encode(list(state.lineage))
        )
    if int(state.topic_id, 16):
        metadata = PartitionMetadata(bytes.fromhex(state.topic_id))
        files.write_durable(directory / PARTITION_METADATA, partition_metadata.encode(metadata))
    files.fsync_directory(directory)
    change = {state.partition: state.first_dirty()}
    update_checkpoint(files, directory.parent, CLEANER_CHECKPOINT, change)
