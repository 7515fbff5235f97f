"""Takes in what a directory has, whole or next to the broker that works on it.

Each is done again while files move under it, a bounded number of times. What could have lost a
delete that was not copied is the business of :mod:`keeplast.tier.state.continuity`.

A broker's data directory says where a log begins and ends. A log start that moved is followed: what
was deleted from a log must not be read from its copy.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import Clock
from keeplast.errors import RefusedError
from keeplast.format.filename import LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import PartitionFiles, find_tail
from keeplast.log.readers import settled_partition
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.run.receipt import Receipt
from keeplast.store.migration import check_same_settings
from keeplast.store.removal import expire_remote
from keeplast.survey.bounds import LogBounds, find_bounds, load_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import survey_partition
from keeplast.tier.copy.importing import Replaced, adopt_checkpoint, import_segments, read_topic_id
from keeplast.tier.copy.moving_directory import check_unmoved, still_listing, while_it_moves
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ID_CHARS, ObjectStore
from keeplast.tier.state.continuity import ReplacedRange
from keeplast.tier.state.partition_state import PartitionState, find_directory_log_start

REPLICATION_MARGIN_MS = 30_000
"""A broker writes high watermarks down a moment after it has read them."""


def find_replicated_ms(files: FileSystem, directory: Path, clock: Clock) -> int | None:
    """Return when no more was replicated than the high watermark that is read *after* this says.

    A broker's cleaner was below it until then. None where the file does not say, or its clock is
    not ours.
    """
    path = directory.parent / REPLICATION_CHECKPOINT
    try:
        written_ms = files.stat(path).mtime_ns // 1_000_000
    except FileNotFoundError:
        return None
    return None if written_ms > clock.now_ms() else written_ms - REPLICATION_MARGIN_MS


def directory_bounds(
    files: FileSystem, partition: TopicPartition, directory: Path, clock: Clock
) -> LogBounds:
    """Return what of a directory its readers may see; without checkpoints all of it."""

    def look() -> LogBounds:
        checkpoints = load_checkpoints(files, directory.parent)
        known_start = checkpoints.log_start.get(partition, 0)
        listing = settled_partition(directory, files, clock, if_empty=known_start)
        tail = find_tail(listing, files)
        bounds = find_bounds(partition, CleanRequest(()), checkpoints, listing, tail)
        _check_log_start(listing, files, bounds.log_start, tail.log_end)
        return bounds

    return while_it_moves(directory, files, look)


def begin_partition(
    store: MetadataStore,
    files: FileSystem,
    partition: TopicPartition,
    directory: Path,
    settings: Mapping[str, str],
    topic_of: Callable[[Mapping[str, str]], TopicConfig],
    *,
    log_start: int,
    own: Callable[[], PartitionState],
) -> None:
    """Let a partition of a directory be in the store: as it is, new, or again if it was given up.

    ``own`` holds it for the latter. RefusedError when it is kept with other settings.
    """
    topic_id = read_topic_id(files, directory)
    if partition in store.partitions(is_forgotten=True):
        store.removals.restart(
            own(), secrets.token_hex(ID_CHARS // 2), topic_id, log_start=log_start,
            settings=settings,
        )  # fmt: skip
    elif partition not in store.partitions():
        store.create(partition, topic_id, log_start=log_start, settings=settings)
    check_same_settings(partition, store.load(partition).settings, settings, topic_of)


def _check_log_start(
    listing: PartitionFiles, files: FileSystem, log_start: int, log_end: int
) -> None:
    """Raise RefusedError for a log start beyond the log's end: following it deletes everything.

    MovedError when the active segment has changed since it was listed. A new leader's cut, between
    the listing and the reading, lets the end seem torn where it is not.
    """
    if log_start > log_end:
        check_unmoved(listing.active, files)
        raise RefusedError(
            "the log start checkpoint lies beyond the log's end: the end was lost, or the line is "
            "another log's; start the directory's broker once, or mend the checkpoint. "
            f"path={listing.path} log_start={log_start} log_end={log_end}",
            code="K214",
        )


def follow_log_start(
    store: MetadataStore,
    state: PartitionState,
    topic: TopicConfig,
    files: FileSystem,
    directory: Path,
    lineage: Sequence[LeaderEpoch],
    *,
    clock: Clock,
    grace_ms: int,
    receipt: Receipt | None,
) -> PartitionState:
    """Let go what was deleted in a directory since it was copied; returns what is known then.

    As the holder that ``state`` names. ``lineage`` are the directory's leader epochs.
    """
    # Before the segments: a log start of now may lie beyond the end that the log had then.
    noted = read_checkpoint(files, directory.parent, LOG_START_CHECKPOINT).get(state.partition)
    # Between two renames of a swap the log would seem to begin later than it does.
    listing = settled_partition(directory, files, clock, if_empty=noted or 0)
    log_start = find_directory_log_start(
        topic, lineage=lineage, first_base=listing.segments[0].base_offset, noted=noted
    )
    if log_start <= state.log_start:
        return state
    if log_start > listing.active.base_offset:

        def check() -> None:
            listed = settled_partition(directory, files, clock, if_empty=noted or 0)
            _check_log_start(listed, files, log_start, find_tail(listed, files).log_end)

        while_it_moves(directory, files, check)
    # By the log start alone: what retention lets go is for an expiry to say.
    only_start = replace(topic, cleanup_policy=topic.cleanup_policy - {"delete"})
    expire_remote(
        store, state, only_start, clock.now_ms(), grace_ms=grace_ms, log_start=log_start,
        receipt=receipt,
    )  # fmt: skip
    return store.load(state.partition)


def unheard(done: ReplacedRange) -> None:
    """Hear of a replacement and say nothing."""


class Intake(Struct, frozen=True):
    """A directory of a partition that is held, and the listeners to what is done with it.

    ``topic`` is what counts for the directory; what is replaced in the store waits out
    ``grace_ms``.
    """

    store: MetadataStore
    objects: ObjectStore
    files: FileSystem
    clock: Clock
    partition: TopicPartition
    directory: Path
    topic: TopicConfig
    grace_ms: int
    progressed: Callable[[int], None]
    replaced: Replaced

    def whole(self, high_watermark: int | None, replicated_ms: int | None) -> PartitionState:
        """Take all of it below ``high_watermark``, and what its cleaner has cleaned for clean.

        ``replicated_ms`` as of :func:`find_replicated_ms`.
        """

        def act() -> PartitionState:
            return adopt_checkpoint(
                self.store, self.files, self.directory,
                self._import(high_watermark=high_watermark, replicated_ms=replicated_ms),
                self.topic,
            )  # fmt: skip

        return while_it_moves(self.directory, self.files, act)

    def closed(self, retention_ms: int | None) -> PartitionState:
        """Copy closed segments that are replicated and decided, next to a broker that runs.

        ``retention_ms`` is the broker's ``delete.retention.ms``, None where it is not known; the
        least of it and the topic's counts.
        """
        own_ms = self.topic.delete_retention_ms
        least_ms = own_ms if retention_ms is None else min(own_ms, retention_ms)
        topic = replace(self.topic, delete_retention_ms=least_ms)

        def act() -> PartitionState:
            replicated_ms = find_replicated_ms(self.files, self.directory, self.clock)
            # In the middle of a swap a survey would miss what lies between two renames.
            still_listing(self.directory, self.files, self.clock)
            survey = survey_partition(
                PartitionRequest(self.partition, self.directory, topic), CleanRequest(()),
                load_checkpoints(self.files, self.directory.parent), self.files,
                self.clock.now_ms(),
            )  # fmt: skip
            return replace(self, topic=topic)._import(
                until=survey.last_stable, replicated_ms=replicated_ms
            )

        return while_it_moves(self.directory, self.files, act)

    def _import(
        self, *, replicated_ms: int | None, until: int | None = None,
        high_watermark: int | None = None,
    ) -> PartitionState:  # fmt: skip
        return import_segments(
            self.store, self.objects, self.files, self.directory, self.store.load(self.partition),
            topic=self.topic, clock=self.clock, progressed=self.progressed, until=until,
            high_watermark=high_watermark, replicated_ms=replicated_ms, grace_ms=self.grace_ms,
            replaced=self.replaced,
        )  # fmt: skip
