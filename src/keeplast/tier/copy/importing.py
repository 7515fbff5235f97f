"""Takes a partition directory of a broker into the store, and writes one out of it again.

An import copies every segment in order, the active one too; the directory is only read. It goes on
where an earlier one ended, also in the middle of a segment that has grown since or was merged with
its neighbours. What it may not continue is another history: leader epochs and the topic's id are
compared first, before anything is claimed. A broker forgets the epochs below its log start; those
of what is in the store are kept. Which transactions were aborted the markers say: an index that is
cut short or gone would make their records committed, for good. An export is a directory that a
broker serves: the live segments, an empty active one after them, leader epochs, producers and the
cleaner's checkpoint. How far records have gone for others goes along both ways.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from keeplast.clock import Clock
from keeplast.errors import ConflictError, CorruptError, RefusedError, UnavailableError
from keeplast.format import leader_epoch, partition_metadata
from keeplast.format.batch import encode_batch
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.log.checkpoints import (
    RoundNote,
    drop_from_checkpoint,
    read_checkpoint,
    said_end,
    update_checkpoint,
    write_note,
)
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import PartitionFiles, find_tail, list_partition
from keeplast.log.transactions import TransactionFold
from keeplast.log.truncation import noted_log_start
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.tier.copy.moving_directory import (
    ContentReader,
    check_seam,
    check_unmoved,
    directory_id,
    opened_in_directory,
    opened_in_store,
    parts_to_copy,
    read_rest,
    still_listing,
    while_it_moves,
)
from keeplast.tier.copy.replacing import RangeReplacement
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ID_CHARS, ObjectStore, object_key
from keeplast.tier.objects.transfer import copy_segment, download_object
from keeplast.tier.state.continuity import (
    ReplacedRange,
    Visit,
    Visits,
    find_foreign_cleaner,
    find_hazard,
)
from keeplast.tier.state.partition_state import PartitionState

SMALL_BYTES_MAX = 1 << 20
EMPTY_BATCH = encode_batch([], base_offset=0, last_offset=0)

Progressed = Callable[[int], None]
Replaced = Callable[[ReplacedRange], None]


def _silent(done: ReplacedRange) -> None:
    """Hear of a replacement and say nothing."""


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
    topic: TopicConfig,
    clock: Clock,
    progressed: Progressed,
    until: int | None = None,
    high_watermark: int | None = None,
    replicated_ms: int | None = None,
    grace_ms: int = 0,
    replaced: Replaced = _silent,
) -> PartitionState:
    """Copy what of ``directory`` the store does not have; returns what it then has.

    ``until`` leaves out segments that end above it, and the active one; None leaves out none. Of
    the closed one that the copy goes on in, the batches below ``until`` are taken when the deadline
    of :mod:`keeplast.tier.state.continuity` comes near. Batches that reach beyond
    ``high_watermark`` are left out: a broker may truncate them yet. At ``replicated_ms`` no more
    than that was replicated, nor decided; None where it is not known. Of ``topic`` the retention of
    tombstones and the strategy count: those of the directory's cleaner. Where the copy could miss a
    delete, the store's range is replaced by the directory's (same module), ``replaced`` hears of
    it, and what was there waits out ``grace_ms``.

    RefusedError when an interrupted swap or a torn tail lies in the directory, or a delete could be
    missed that it does not have any more. ConflictError when it does not continue what is in the
    store. MovedError when a file was replaced or changed while it was read: what was committed
    stays, and the rest is for another call (:func:`.moving_directory.while_it_moves`).
    """
    began_ms = clock.now_ms()
    known = store.visits(state.partition, directory_id(directory, files))
    visits = known.at(began_ms, topic.delete_retention_ms)
    cleaned_to = read_checkpoint(files, directory.parent, CLEANER_CHECKPOINT).get(state.partition)
    listing = still_listing(directory, files, clock)
    cleaned_for = _cleaned_for(state, listing, files, cleaned_to)
    tail = find_tail(listing, files)
    if tail.torn_at is not None and until is None:
        # A broker that appended or truncated since the listing has torn nothing.
        check_unmoved(listing.active, files)
        raise RefusedError(
            "the directory is not whole: its end is torn; start a broker on it once, or clean it "
            f"in place. path={directory}",
            code="K212",
        )
    lineage = state.joined_lineage(continued_lineage(files, directory, state))
    if not state.routes:
        # DeleteRecords takes epochs out of a directory before their segments go: what is still
        # there is the oldest known one's.
        first = lineage[0]
        begin = min(first.start_offset, listing.segments[0].base_offset)
        lineage = (LeaderEpoch(first.epoch, begin), *lineage[1:])
    replacement = RangeReplacement(
        store, objects, files, clock, directory, lineage,
        topic=topic, until=until, high_watermark=high_watermark, grace_ms=grace_ms,
        progressed=progressed,
    )  # fmt: skip
    # What an empty store gets is this listing's, segment by segment: the broker's own log.
    is_whole = not state.routes and (until is None or topic.strategy is Strategy.OFFSET)
    is_joined = not state.routes
    hazard = None
    if not is_whole:
        hazard = find_foreign_cleaner(
            visits, cleaned_to=cleaned_to, start=state.remote_end, now_ms=began_ms,
            strategy=topic.strategy,
        )  # fmt: skip
    reader = ContentReader(files, partial(_open, objects, files, listing, state))
    # A broker merges up to a high watermark that it writes down later. Where each copy found the
    # next segment merged across it, the deadline would pass.
    is_pressed = visits.is_pressed(state.remote_end, topic.delete_retention_ms, now_ms=began_ms)
    for part in parts_to_copy(
        listing, tail, files, until=until, high_watermark=high_watermark,
        index_interval_bytes=topic.index_interval_bytes,
        cuts_last=is_pressed,
    ):  # fmt: skip
        if hazard is not None:
            break
        segment = part.segment
        if part.end <= state.remote_end:
            continue
        if state.routes and segment.base_offset > state.remote_end:
            raise ConflictError(
                "the directory does not continue what is in the store: what lay between was "
                f"removed before it was copied. path={segment.log_path} "
                f"store_end={state.remote_end}",
                code="K335",
            )
        if segment.base_offset > state.remote_end:
            # The broker's retention went on since the log start was read; nothing of it was here.
            store.commit_expiry(
                state.partition, secrets.token_hex(ID_CHARS // 2), epoch=state.leader_epoch,
                log_start=segment.base_offset, segments=(), grace_ms=grace_ms,
            )  # fmt: skip
            state = store.load(state.partition)
        if not is_joined:
            check_seam(
                objects, files, listing, state, valid_bytes=tail.valid_bytes,
                index_interval_bytes=topic.index_interval_bytes,
            )  # fmt: skip
            is_joined = True
        start = state.remote_end if state.routes else segment.base_offset
        content = reader.read(part, start)
        judged = partial(
            find_hazard, content, visits, retention_ms=topic.delete_retention_ms,
            strategy=topic.strategy,
        )  # fmt: skip
        hazard = None if is_whole else judged(now_ms=clock.now_ms())
        if hazard is not None:
            break
        made = copy_segment(
            objects, files, segment,
            partition=state.partition, topic_id=state.topic_id,
            segment_id=secrets.token_hex(ID_CHARS // 2), next_offset=part.end, lineage=lineage,
            leader_epoch_of_owner=state.leader_epoch, number=0,
            cleaner_offsets=dict(state.publications[-1].offsets),
            index_interval_bytes=topic.index_interval_bytes, aborted=content.aborted,
            from_offset=start if state.routes else None, is_cut=part.is_cut,
        )  # fmt: skip
        check_unmoved(segment, files)
        # Reading took its time: what was read is judged by when that was over.
        hazard = None if is_whole else judged(now_ms=clock.now_ms())
        if hazard is not None:
            break
        state = store.commit_copy(
            state.partition, secrets.token_hex(ID_CHARS // 2), epoch=state.leader_epoch,
            segment=made, lineage=lineage, known=state,
            cleaned_for=cleaned_for if start < cleaned_for else 0,
        )  # fmt: skip
        progressed(segment.size_bytes)
    is_replaced = False
    if hazard is not None:
        state, done = replacement.replace(state, hazard)
        is_replaced = done is not None
        if done is not None:
            replaced(done)
    visit = Visit(began_ms, listing.active.base_offset, topic.delete_retention_ms)
    if (
        state.remote_end < visit.uncleaned_from
        and replicated_ms is not None
        and visits.have_kept(visit.retention_ms, since_ms=replicated_ms)
    ):
        below = replace(visit, at_ms=replicated_ms, uncleaned_from=state.remote_end)
        if not visits.is_due(below, end=state.remote_end, cleaned_to=cleaned_to):
            # Reading the segment could only date it back, and then it would be due still less.
            return state
        # A log that is the directory's as of now cannot miss what was dropped before.
        is_even = is_whole or is_replaced
        visit = _visit_below_watermark(
            visit, below, files, directory, clock, None if is_even else visits
        )
    _remember(store, state, directory_id(directory, files), visits, visit, began_ms, cleaned_to)
    return state


def _cleaned_for(
    state: PartitionState, listing: PartitionFiles, files: FileSystem, line: int | None
) -> int:
    """Return below which offset records may have gone for others in what was listed, else 0.

    ``line`` is the cleaner checkpoint's of before the listing: one of later may be of a later log.
    """
    before = line if line is not None and line <= listing.active.base_offset else 0
    return max(before, said_end(state.partition, listing, files) or 0)


def _open(
    objects: ObjectStore, files: FileSystem, listing: PartitionFiles, state: PartitionState
) -> TransactionFold:
    """Return the transactions that are open where a copy begins that found ``state``."""
    if state.routes:
        return opened_in_store(objects, state)
    return opened_in_directory(listing, files, listing.segments[0].base_offset)


def _visit_below_watermark(
    visit: Visit,
    below: Visit,
    files: FileSystem,
    directory: Path,
    clock: Clock,
    visits: Visits | None,
) -> Visit:
    """Return ``below``, dated back if need be, when that is known to hold, and else ``visit``.

    What begins above the high watermark had not been cleaned when it was written down. The segment
    with the store's end reaches across it, and its own content decides: a broker that has gone on
    may have merged it with what lay below. When no tombstone or marker has gone from it, each is
    there, and dated where a cleaner was. None has gone when no offset is missing, or when
    ``visits`` rule that out until now (None where what went before does not count).
    """
    try:
        rest = while_it_moves(
            directory, files,
            lambda: read_rest(below.uncleaned_from, still_listing(directory, files, clock), files),
        )  # fmt: skip
    except (UnavailableError, RefusedError, FileNotFoundError):
        return visit
    if rest is None or rest.has_old_format:
        return visit
    if rest.missing and visits is not None:
        deadline_ms = visits.deadline_ms(below.uncleaned_from, below.retention_ms)
        if deadline_ms is None or clock.now_ms() >= deadline_ms:
            return visit
    if rest.horizon_ms is None:
        return below
    return replace(below, at_ms=min(below.at_ms, rest.horizon_ms - below.retention_ms))


def _remember(
    store: MetadataStore, state: PartitionState, directory: str, visits: Visits, visit: Visit,
    now_ms: int, cleaned_to: int | None,
) -> None:  # fmt: skip
    end = state.remote_end
    if visits.is_due(visit, end=end, cleaned_to=cleaned_to):
        store.remember(
            state.partition, epoch=state.leader_epoch, directory=directory,
            visits=visits.with_visit(visit, end=end, now_ms=now_ms, cleaned_to=cleaned_to),
        )  # fmt: skip


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
    listing = list_partition(directory, files, if_empty=noted_log_start(files, directory))
    if checkpoint > find_tail(listing, files).log_end:
        # As a broker does: one beyond the log's end is of another log.
        return state
    local = {segment.base_offset: segment for segment in listing.segments}
    for route in state.routes:
        if route.base_offset >= target:
            break
        copied, found = state.segments[route.segment_id], local.get(route.base_offset)
        # A copy may have got an empty batch at its end.
        sizes = (copied.size_bytes, copied.size_bytes - len(EMPTY_BATCH))
        if found is None or found.size_bytes not in sizes or found.mtime_ms != copied.mtime_ms:
            return state
    store.publish(
        state.partition, secrets.token_hex(ID_CHARS // 2), epoch=state.leader_epoch,
        cleaned_to=target,
    )  # fmt: skip
    return store.load(state.partition)


def continued_lineage(
    files: FileSystem, directory: Path, state: PartitionState
) -> tuple[LeaderEpoch, ...]:
    """Return the leader epochs of a directory; epoch 0 for a log from before there were any.

    ConflictError unless ``directory`` is the log that the store holds the beginning of.
    """
    check_same_topic(files, directory, state)
    lineage = read_lineage(files, directory) or (LeaderEpoch(0, 0),)
    differing = find_other_epoch(state, lineage)
    if differing is not None:
        raise ConflictError(
            "the directory has another history than the store: its leader epochs differ. Where "
            "a broker truncated what was copied, cut the store too: keeplast repair --truncate-to "
            f"--data-dir. path={directory} epoch={differing.epoch} "
            f"from_offset={differing.start_offset}",
            code="K335",
        )
    return lineage


def check_same_topic(files: FileSystem, directory: Path, state: PartitionState) -> None:
    """Raise ConflictError for a directory of another topic of the same name."""
    topic_id = read_topic_id(files, directory)
    if int(topic_id, 16) and int(state.topic_id, 16) and topic_id != state.topic_id:
        raise ConflictError(
            "another topic of the same name: it was deleted and made again. To keep the new one, "
            "give the old one up (keeplast detach) and take it in again: keeplast copy --new. "
            f"path={directory} topic_id={topic_id} store_topic_id={state.topic_id}",
            code="K336",
        )


def find_other_epoch(state: PartitionState, lineage: tuple[LeaderEpoch, ...]) -> LeaderEpoch | None:
    """Return the first leader epoch that shows that ``lineage`` is another log's than ``state``.

    ``lineage`` is a directory's; None when it is the same log's.
    """
    if not state.routes:
        return None
    # A log start that moved takes older epochs out of a directory, and the first one that is left
    # begins there: its epoch is compared, and the bounds of those after it.
    first = lineage[0]
    known, found = (
        {e for e in entries if e.epoch > first.epoch and e.start_offset < state.remote_end}
        for entries in (state.lineage, lineage)
    )
    begun = [e for e in state.lineage if e.start_offset <= first.start_offset]
    if first.start_offset < state.remote_end and begun and begun[-1].epoch != first.epoch:
        found.add(first)
    return min(known ^ found, key=lambda entry: entry.start_offset, default=None)


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
    if state.earliest_as_of > state.first_dirty():
        # A round was cut short, or what was copied had been cleaned further: nothing else says so.
        note = RoundNote(state.earliest_as_of, None, None)
        write_note(directory, files, note, like=state.remote_end)
    files.fsync_directory(directory)
    root, partition = directory.parent, state.partition
    update_checkpoint(files, root, CLEANER_CHECKPOINT, {partition: state.first_dirty()})
    if state.routes and state.log_start > state.routes[0].base_offset:
        # The name of the first segment says less: what was deleted would be read again.
        update_checkpoint(files, root, LOG_START_CHECKPOINT, {partition: state.log_start})
    else:
        drop_from_checkpoint(files, root, LOG_START_CHECKPOINT, partition)
