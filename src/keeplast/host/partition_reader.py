"""A partition read from both tiers of one host, as one log.

Reads below the first dirty offset go to object storage, unless the local copy is known to be the
same (:mod:`~keeplast.host.partition_reader`). KIP-405, KIP-1272; tiering.md section 9.7.

The local copy of cleaned segments in object storage is made the same, segment by segment. Object
storage is committed first and alone says what is live. The local copy follows, through the swap of
a local round. Until it has, reads below the first dirty offset come from object storage. So a crash
between the two leaves nothing to undo. The next holder of the log, and the next round, make the
overlap agree or drop it (decision 0012). Segments whose bounds are not those of the local log leave
it, and so does everything below them: a log gets no hole.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from keeplast.clock import Clock
from keeplast.errors import CompactionError, ConflictError, InvalidError
from keeplast.format.filename import DELETED, LOG, Kind, SegmentFile
from keeplast.host.replica import Replica
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import SegmentFiles, list_partition
from keeplast.log.readers import FETCH_BYTES_DEFAULT, Fetched, fetch, find_offset_for_time
from keeplast.log.swap import KINDS, Replacement, commit_wave
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.stored_logs import explained
from keeplast.tier.objects.object_store import ObjectStore, object_key
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.objects.transfer import download_object, file_crc
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment


class Overlap:
    """The part of a leader's local log that object storage has cleaned."""

    def __init__(self, replica: Replica, objects: ObjectStore, files: FileSystem) -> None:
        """Know of no agreement yet: everything below the first dirty offset is read remotely."""
        self._replica = replica
        self._objects = objects
        self._files = files
        self._copies: dict[int, tuple[str, int, int]] = {}

    def forget(self) -> None:
        """Agree on nothing any more, as when the log belongs to another leader."""
        self._copies.clear()

    def agreed_from(self, state: PartitionState) -> int:
        """Return from where on the local log may be read in place of object storage.

        The first dirty offset when nothing below it agrees.
        """
        start = state.first_dirty(self._replica.log_end_offset)
        local = {
            segment.base_offset: (segment, end) for segment, end in self._replica.closed_segments()
        }
        for route in reversed([r for r in state.routes if r.last_offset < start]):
            found = local.get(route.base_offset)
            if route.last_offset + 1 != start or found is None or found[1] != start:
                break
            if not self._is_copy(found[0], state.segments[route.segment_id]):
                break
            start = route.base_offset
        return start

    def replace(self, state: PartitionState) -> int:
        """Put what is live below the first dirty offset in place of the local segments there.

        Returns how many segments were put in place. OSError when the disk refuses: nothing is lost,
        and the next call goes on.
        """
        # What object storage does not have within the lineage stays, whatever the checkpoint says.
        end = min(state.first_dirty(self._replica.log_end_offset), state.covered_to())
        made = 0
        for route in reversed([r for r in state.routes if r.last_offset < end]):
            segment = state.segments[route.segment_id]
            closed = self._replica.closed_segments()
            inside = [(s, e) for s, e in closed if s.base_offset <= route.last_offset < e]
            covered = [
                s for s, e in closed
                if s.base_offset >= route.base_offset and e <= route.last_offset + 1
            ]  # fmt: skip
            fits = (
                route.base_offset == segment.base_offset
                and bool(covered)
                and covered[0].base_offset == route.base_offset
                and inside == [(covered[-1], route.last_offset + 1)]
            )
            if not fits:
                # Also where the local log begins inside of it.
                self._replica.drop_below(route.last_offset + 1)
                break
            if len(covered) == 1 and self._compare(covered[0], segment):
                continue
            self._put(state, segment, covered)
            made += 1
        return made

    def _is_copy(self, local: SegmentFiles, segment: RemoteSegment) -> bool:
        """Say whether a local segment was found to be ``segment``, and is unchanged since."""
        return self._copies.get(local.base_offset) == _mark(local, segment)

    def _compare(self, local: SegmentFiles, segment: RemoteSegment) -> bool:
        """Say whether a local segment has the bytes of ``segment``; they are compared once.

        Size and time do not show it: a local pass may have stamped a horizon into it.
        """
        if self._is_copy(local, segment):
            return True
        expected = segment.files[LOG]
        if (
            local.size_bytes != expected.size_bytes
            or local.mtime_ms != segment.mtime_ms
            or file_crc(self._files, local.log_path) != expected.crc32c
        ):
            return False
        self._copies[local.base_offset] = _mark(local, segment)
        return True

    def _put(
        self, state: PartitionState, segment: RemoteSegment, covered: list[SegmentFiles]
    ) -> None:
        directory, base = self._replica.directory, segment.base_offset
        attempt = secrets.token_hex(8)
        staged: dict[Kind, str] = {}
        try:
            for kind in KINDS:
                if kind not in segment.files:
                    continue
                name = staged[kind] = SegmentFile(base, kind, DELETED, attempt).name
                key = object_key(state.partition, state.topic_id, segment.segment_id, base, kind)
                download_object(
                    self._objects, self._files, key, segment.files[kind], directory / name,
                    mtime_ms=segment.mtime_ms,
                )  # fmt: skip
                self._files.copy_owner_and_mode(covered[0].log_path, directory / name)
        except (CompactionError, OSError):
            for name in staged.values():
                if self._files.exists(directory / name):
                    self._files.unlink(directory / name)
            raise
        sources = tuple(each.base_offset for each in covered)
        for path in commit_wave(self._files, directory, [Replacement(base, staged, sources)]):
            self._files.unlink(path)
        made = next(s for s, _ in self._replica.closed_segments() if s.base_offset == base)
        self._copies[base] = _mark(made, segment)


def _mark(local: SegmentFiles, segment: RemoteSegment) -> tuple[str, int, int]:
    return segment.segment_id, local.size_bytes, local.mtime_ns


READS_MAX = 5
"""A reader that is overtaken by swap, grace and collection so often has a grace of next to none."""
_Read = TypeVar("_Read")


class PartitionReader(Replica):
    """A local log and the same log in a store. Not safe for concurrent calls."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        partition: TopicPartition,
        root: Path,
        *,
        topic: TopicConfig,
        files: FileSystem,
        clock: Clock,
        recovers: bool = False,
    ) -> None:
        """Open the local log below ``root``; see :class:`~keeplast.host.replica.Replica`."""
        super().__init__(partition, root, topic=topic, files=files, clock=clock, recovers=recovers)
        self._store = store
        self._objects = objects
        self._overlap = Overlap(self, objects, files)

    def state(self) -> PartitionState:
        """Return what the metadata store says now."""
        return self._store.load(self.partition)

    def fetch(
        self, offset: int, bytes_max: int = FETCH_BYTES_DEFAULT, *, end: int | None = None
    ) -> Fetched:
        """Return whole batches from ``offset`` on and below ``end``, from whichever tier has it.

        ``end`` is the log end by default, as replicas read; consumers are given the high watermark
        or the last stable offset. InvalidError below the log start and above the log end. Below the
        first dirty offset what is read is the cleaned log, also where a local segment straddles it.
        """
        return self._fresh(lambda state: self._fetch(state, offset, bytes_max, end))

    def _fetch(
        self, state: PartitionState, offset: int, bytes_max: int, end: int | None
    ) -> Fetched:
        if not state.log_start <= offset <= self.log_end_offset:
            raise InvalidError(
                f"offset out of range. partition={self.partition} offset={offset} "
                f"log_start={state.log_start} log_end={self.log_end_offset}",
                code="K150",
            )
        limit = self.log_end_offset if end is None else min(end, self.log_end_offset)
        remote_to = min(self._remote_to(state), limit)
        if offset < remote_to:
            files = self._remote_files(state)
            listing = list_partition(files.path, files)
            found = fetch(files, listing, offset, end=remote_to, bytes_max=bytes_max)
            if found.data:
                return found
            offset = remote_to
        return fetch(self._files, self.listing(), offset, end=limit, bytes_max=bytes_max)

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after a time, None without one."""
        return self._fresh(lambda state: self._offset_for_time(state, timestamp_ms))

    def _offset_for_time(self, state: PartitionState, timestamp_ms: int) -> tuple[int, int] | None:
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
            self._files, self.listing(), timestamp_ms,
            start=max(remote_to, state.log_start), end=self.log_end_offset,
        )  # fmt: skip

    def _fresh(self, read: Callable[[PartitionState], _Read]) -> _Read:
        """Read by what the store says now, and again where that was replaced and removed meanwhile.

        ConflictError when it is so every time; CorruptError when object storage lost an object.
        """
        for _ in range(READS_MAX - 1):
            with contextlib.suppress(ConflictError), explained(self._store, self.partition):
                return read(self.state())
        with explained(self._store, self.partition):
            return read(self.state())

    def _remote_to(self, state: PartitionState) -> int:
        """Return up to where object storage is read: to where the local log begins, or agrees."""
        floor = max(self._overlap.agreed_from(state), self.local_start)
        return min(floor, state.remote_end)

    def _remote_files(self, state: PartitionState) -> RoundFiles:
        return RoundFiles(self._objects, self.partition, state.topic_id, state.live_segments)
