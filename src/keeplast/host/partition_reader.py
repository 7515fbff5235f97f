"""A partition read from both tiers of one host, as one log.

Reads below the first dirty offset go to object storage, unless the local copy is known to be the
same (:mod:`~keeplast.host.overlap`). KIP-405, KIP-1272; tiering.md section 9.7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from keeplast.clock import Clock
from keeplast.errors import ConflictError, InvalidError
from keeplast.host.overlap import Overlap
from keeplast.host.replica import Replica
from keeplast.log.fetch import FETCH_BYTES_DEFAULT, Fetched, fetch, find_offset_for_time
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import list_partition
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.metadata.absence import explained
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.partition_state import PartitionState

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
                f"log_start={state.log_start} log_end={self.log_end_offset}"
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
        segments = tuple(state.segments[route.segment_id] for route in state.routes)
        return RoundFiles(self._objects, self.partition, state.topic_id, segments)
