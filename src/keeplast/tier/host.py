"""A partition on one host: leader or follower, its local log and the same log in object storage.

A library object without a network: who embeds it carries batches from leader to follower and says
who leads at which epoch. What it must never do is decided by the metadata store: whatever an old
leader does late, it is fenced there. A leader appends, copies closed segments, and is the only one
that cleans, expires or collects in object storage; a follower replicates and keeps its local log.

Reads go to the local log where it is the leader's own, and to object storage below the first dirty
offset or the local start. KIP-405, KIP-1272; tiering.md section 9.7.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import ConflictError, FencedError, InvalidError, RefusedError
from keeplast.format.batch import RecordBatch
from keeplast.format.compression import Codec
from keeplast.format.control import ControlType
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.fetch import FETCH_BYTES_DEFAULT, Fetched, fetch, find_offset_for_time
from keeplast.log.files import FileSystem
from keeplast.log.log_start import retire_segments
from keeplast.log.partition_log import PartitionFiles, list_partition
from keeplast.log.truncation import truncate_log
from keeplast.model.offsets import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.importing import read_lineage
from keeplast.tier.metadata import MetadataStore, PartitionState
from keeplast.tier.objects import ID_CHARS, ObjectStore
from keeplast.tier.round_files import RoundFiles
from keeplast.tier.transfer import copy_segment


class Role(StrEnum):
    """What a host is for a partition."""

    LEADER = "leader"
    FOLLOWER = "follower"


class PartitionHost:
    """One partition on this host. Not safe for concurrent calls; one host a directory."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        partition: TopicPartition,
        root: Path,
        *,
        topic: TopicConfig,
        owner: str,
        files: FileSystem,
        clock: Clock,
    ) -> None:
        """Open the local log below ``root``, or start an empty one; a follower until told."""
        self.partition = partition
        self._store = store
        self._objects = objects
        self._directory = root / str(partition)
        self._topic = topic
        self._owner = owner
        self._files = files
        self._clock = clock
        self.role = Role.FOLLOWER
        self.epoch = -1
        self._log = self._open()
        self._high_watermark = self._log.log_end_offset

    def close(self) -> None:
        """Write what belongs beside the local log."""
        self._log.close()

    # What is known.

    @property
    def log_end_offset(self) -> int:
        """Return the offset that the next record gets."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Return the offset below which every replica that counts has the log."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Return the offset below which every transaction is decided."""
        open_from = self._log.first_open_transaction()
        return self._high_watermark if open_from is None else min(self._high_watermark, open_from)

    @property
    def local_start(self) -> int:
        """Return the first offset that the local log may hold."""
        return self._listing().segments[0].base_offset

    @property
    def lineage(self) -> tuple[LeaderEpoch, ...]:
        """Return the leader epochs of the local log."""
        return read_lineage(self._files, self._directory)

    def state(self) -> PartitionState:
        """Return what the metadata store says now."""
        return self._store.load(self.partition)

    # Leadership.

    def become_leader(self, epoch: int) -> PartitionState:
        """Take the partition over: fence older leaders, then make the local log agree.

        FencedError when a newer leader has. Local segments that lie wholly below the first dirty
        offset go, because object storage has them cleaned; ConflictError, and nothing goes, when
        it does not have all of them. The local checkpoint becomes the store's, also downwards.
        """
        lineage = self.lineage
        if not lineage or lineage[-1].epoch != epoch:
            lineage = (*lineage, LeaderEpoch(epoch, self.log_end_offset))
        state = self._store.take_over(
            self.partition, epoch=epoch, owner=self._owner, lineage=lineage,
            log_end=self.log_end_offset,
        )  # fmt: skip
        # Not earlier: who was fenced goes on as a follower, with the epochs of what it replicates.
        self._log.set_leader_epoch(epoch)
        self.role, self.epoch = Role.LEADER, epoch
        self._high_watermark = max(self._high_watermark, state.remote_end)
        self._align(state)
        return state

    def become_follower(self, epoch: int) -> None:
        """Step down: appends are refused from here on."""
        if epoch < self.epoch:
            raise FencedError(f"an older epoch. partition={self.partition} epoch={epoch}")
        self.role, self.epoch = Role.FOLLOWER, epoch

    def _align(self, state: PartitionState) -> None:
        """Drop what object storage has cleaned, and take the store's checkpoint."""
        first_dirty = state.first_dirty(self.log_end_offset)
        if state.routes and self.log_end_offset < first_dirty:
            raise ConflictError(
                "the local log ends below what was cleaned; replicate first. "
                f"partition={self.partition} log_end={self.log_end_offset} "
                f"first_dirty={first_dirty}"
            )
        covered = not state.routes or state.routes[0].base_offset <= state.log_start
        if covered and state.remote_end >= first_dirty:
            self._drop_local_below(first_dirty)
        root = self._directory.parent
        update_checkpoint(
            self._files, root, CLEANER_CHECKPOINT, {self.partition: max(first_dirty, 0)}
        )

    def _drop_local_below(self, offset: int) -> int:
        """Remove local segments that end at or below ``offset``; returns how many."""
        listing = self._listing()
        ends = [segment.base_offset for segment in listing.segments[1:]]
        gone = [
            s.base_offset for s, end in zip(listing.segments, ends, strict=False) if end <= offset
        ]
        for path in retire_segments(self._files, self._directory, gone):
            self._files.unlink(path)
        return len(gone)

    # Appending.

    def append(
        self,
        records: Sequence[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
    ) -> int:
        """Append a batch as the leader and return its base offset.

        A batch that a producer sends again is not appended twice. RefusedError for a follower,
        InvalidError when a sequence number or an epoch does not follow.
        """
        self._check_leader()
        if producer_id != NO_PRODUCER_ID:
            duplicate = self._log.find_duplicate(
                producer_id, producer_epoch, base_sequence, len(records)
            )
            if duplicate is not None:
                return duplicate
        return self._log.append(
            records, codec=codec, producer_id=producer_id, producer_epoch=producer_epoch,
            base_sequence=base_sequence, is_transactional=is_transactional,
        )  # fmt: skip

    def end_transaction(
        self, outcome: ControlType, *, producer_id: int, producer_epoch: int
    ) -> int:
        """Append the marker that ends a producer's transaction and return its offset."""
        self._check_leader()
        return self._log.append_marker(
            outcome, producer_id=producer_id, producer_epoch=producer_epoch,
            timestamp_ms=self._clock.now_ms(),
        )  # fmt: skip

    def acknowledge(self, offset: int) -> None:
        """Say that every replica that counts has the log below ``offset``."""
        if not self._high_watermark <= offset <= self.log_end_offset:
            raise InvalidError(
                "the high watermark only grows, up to the log end. "
                f"from={self._high_watermark} to={offset} log_end={self.log_end_offset}"
            )
        self._high_watermark = offset

    def replicate(self, data: bytes, *, high_watermark: int) -> int:
        """Append what a leader's fetch gave, as it is; returns the log end offset.

        Batches below the log end are there already and passed over.
        """
        if self.role is Role.LEADER:
            raise RefusedError(f"a leader does not replicate. partition={self.partition}")
        for batch in read_batches(data):
            if not isinstance(batch, RecordBatch):
                raise InvalidError("only batches of format 2 are replicated")
            if batch.base_offset >= self.log_end_offset:
                self._log.append_stored(batch)
        self._high_watermark = min(high_watermark, self.log_end_offset)
        return self.log_end_offset

    def truncate(self, offset: int) -> None:
        """Cut the local log at ``offset``, as a follower whose end is not its leader's."""
        if self.role is Role.LEADER:
            raise RefusedError(f"a leader is not truncated. partition={self.partition}")
        self._log.close()
        truncate_log(self._files, self._directory, offset)
        self._log = self._open()
        self._high_watermark = min(self._high_watermark, self.log_end_offset)

    def roll(self) -> None:
        """Close the active segment and start one at the log end."""
        self._log.roll()

    # Both tiers.

    def copy(self) -> int:
        """Copy every closed segment that object storage lacks; returns how many.

        Only what is decided: segments that end at or below the last stable offset.
        """
        self._check_leader()
        self._log.flush()
        state = self.state()
        listing = self._listing()
        ends = [segment.base_offset for segment in listing.segments[1:]]
        copied = 0
        for segment, end in zip(listing.segments, ends, strict=False):
            if end > self.last_stable_offset or end <= max(state.remote_end, state.first_dirty()):
                continue
            made = copy_segment(
                self._objects, self._files, segment,
                partition=self.partition, topic_id=state.topic_id,
                segment_id=secrets.token_hex(ID_CHARS // 2), next_offset=end,
                lineage=self.lineage, leader_epoch_of_owner=self.epoch, number=0,
                cleaner_offsets=dict(state.publications[-1].offsets),
                index_interval_bytes=self._topic.index_interval_bytes,
                from_offset=max(segment.base_offset, state.remote_end),
            )  # fmt: skip
            state = self._store.commit_copy(
                self.partition,
                secrets.token_hex(ID_CHARS // 2),
                epoch=self.epoch,
                segment=made,
                lineage=self.lineage,
            )
            copied += 1
        return copied

    def fetch(self, offset: int, bytes_max: int = FETCH_BYTES_DEFAULT) -> Fetched:
        """Return whole batches from ``offset`` on, from whichever tier has it.

        InvalidError below the log start and above the log end. Below the first dirty offset the
        cleaned log in object storage is read, also where a local segment straddles it.
        """
        state = self.state()
        if not state.log_start <= offset <= self.log_end_offset:
            raise InvalidError(
                f"offset out of range. partition={self.partition} offset={offset} "
                f"log_start={state.log_start} log_end={self.log_end_offset}"
            )
        remote_to = self._remote_to(state)
        if offset < remote_to:
            files = self._remote_files(state)
            listing = list_partition(files.path, files)
            found = fetch(files, listing, offset, end=remote_to, bytes_max=bytes_max)
            if found.data:
                return found
            offset = remote_to
        return fetch(
            self._files, self._listing(), offset, end=self.log_end_offset, bytes_max=bytes_max
        )

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after a time, None without one."""
        state = self.state()
        remote_to = self._remote_to(state)
        if remote_to > state.log_start:
            files = self._remote_files(state)
            found = find_offset_for_time(
                files, list_partition(files.path, files), timestamp_ms,
                start=state.log_start, end=remote_to,
            )  # fmt: skip
            if found is not None:
                return found
        return find_offset_for_time(
            self._files, self._listing(), timestamp_ms,
            start=max(remote_to, state.log_start), end=self.log_end_offset,
        )  # fmt: skip

    def _remote_to(self, state: PartitionState) -> int:
        """Return up to where object storage is read: the first dirty offset or the local start."""
        floor = max(state.first_dirty(self.log_end_offset), self.local_start)
        return min(floor, state.remote_end)

    def _remote_files(self, state: PartitionState) -> RoundFiles:
        segments = tuple(state.segments[route.segment_id] for route in state.routes)
        return RoundFiles(self._objects, self.partition, state.topic_id, segments)

    def _listing(self) -> PartitionFiles:
        return list_partition(self._directory, self._files)

    def _open(self) -> LogAppender:
        return LogAppender(self._directory, self._files, topic=self._topic, clock=self._clock)

    def _check_leader(self) -> None:
        if self.role is not Role.LEADER:
            raise RefusedError(f"only the leader does this. partition={self.partition}")
