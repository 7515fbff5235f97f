"""Replaces the whole range of a partition in the store by that of its directory, at once.

For a copy that could miss a delete (:mod:`keeplast.tier.state.continuity`). What the directory has
is the broker's own log as of one moment: all of it is read as one listing. What a broker replaced
meanwhile is read again, and all becomes live in one transaction. A crash before it leaves objects
without a row. Segments that the store has already, byte for byte, are not sent again. When that is
all there was below the store's end, nothing was lost, and what was cleaned stays so.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.errors import RefusedError
from keeplast.format import txn_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import CLEANER_CHECKPOINT, LOG, TXN_INDEX
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.checkpoints import read_checkpoint, said_end
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, find_tail, load_indexes
from keeplast.log.windows import WindowBuffers
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.tier.copy.moving_directory import (
    ATTEMPTS_MAX,
    ContentReader,
    CopiedPart,
    MovedError,
    identity,
    opened_in_directory,
    parts_to_copy,
    still_listing,
)
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ID_CHARS, ObjectStore
from keeplast.tier.objects.transfer import copy_segment, end_batch, file_crc
from keeplast.tier.state.continuity import Doubt, Hazard, RangeContent, ReplacedRange
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment, Route, SegmentKind

Progressed = Callable[[int], None]
FORGET = "let the store begin again with the directory: keeplast detach, then keeplast copy --new"


class _Taken(Struct, frozen=True):
    """A segment of the directory as the store has it; ``is_new`` when it was uploaded."""

    segment: RemoteSegment
    is_new: bool


class RangeReplacement:
    """The directory's log in place of the store's, for one partition."""

    def __init__(
        self, store: MetadataStore, objects: ObjectStore, files: FileSystem, clock: Clock,
        directory: Path, lineage: tuple[LeaderEpoch, ...], *,
        topic: TopicConfig, until: int | None, high_watermark: int | None, grace_ms: int,
        progressed: Progressed,
    ) -> None:  # fmt: skip
        """Take what a copy takes.

        ``until`` and ``high_watermark`` are as of :func:`.moving_directory.parts_to_copy`.
        """
        self._store = store
        self._objects = objects
        self._files = files
        self._clock = clock
        self._directory = directory
        self._lineage = lineage
        self._topic = topic
        self._until = until
        self._high_watermark = high_watermark
        self._grace_ms = grace_ms
        self._progressed = progressed
        self._taken: dict[tuple[object, ...], _Taken] = {}

    def replace(
        self, state: PartitionState, hazard: Hazard
    ) -> tuple[PartitionState, ReplacedRange | None]:
        """Replace the range; returns the new state, and None where nothing had to be replaced.

        RefusedError when the directory does not have all of the store's log, or another strategy
        cleans it. MovedError when it changed each time before all of it was read.
        """
        if hazard.doubt is Doubt.CLEANED_BY_OFFSET:
            raise RefusedError(
                f"{hazard.sentence()}; keep the broker from cleaning the topic, or let the store's "
                f"topic compact by offset, then {FORGET}. path={self._directory}",
                code="K338",
            )
        for _ in range(ATTEMPTS_MAX):
            # Read before the segments: what is clean by it is clean in them.
            cleaned_to = read_checkpoint(self._files, self._directory.parent, CLEANER_CHECKPOINT)
            listing = still_listing(self._directory, self._files, self._clock)
            if listing.segments[0].base_offset > state.log_start:
                raise RefusedError(
                    f"{hazard.sentence()}, and the directory begins above the store's log start, "
                    f"so that it cannot take the store's place; {FORGET}. path={self._directory} "
                    f"directory_start={listing.segments[0].base_offset} "
                    f"log_start={state.log_start}",
                    code="K338",
                )
            cleaned_for = said_end(state.partition, listing, self._files) or 0
            tail = find_tail(listing, self._files)
            parts = parts_to_copy(
                listing, tail, self._files, until=self._until,
                high_watermark=self._high_watermark,
                index_interval_bytes=self._topic.index_interval_bytes,
            )  # fmt: skip
            chosen = [part for part in parts if part.end > state.log_start]
            if not chosen or chosen[-1].end < state.remote_end:
                raise MovedError(
                    "segments were merged beyond what may be copied while they were copied. "
                    f"path={self._directory} store_end={state.remote_end}",
                    code="K337",
                )
            taken = self._take(state, listing, chosen)
            after = still_listing(self._directory, self._files, self._clock)
            still = {identity(segment) for segment in after.segments}
            if all(identity(part.segment) in still for part in chosen):
                checkpoint = cleaned_to.get(state.partition, 0)
                # As a broker does: one beyond the log's end is of another log.
                clean = checkpoint if checkpoint <= tail.log_end else 0
                return self._commit(state, hazard, taken, clean, max(clean, cleaned_for))
        raise MovedError(
            "the directory was cleaned each time before all of it was copied. "
            f"path={self._directory} attempts={ATTEMPTS_MAX}",
            code="K337",
        )

    def _take(
        self,
        state: PartitionState,
        listing: PartitionFiles,
        chosen: list[CopiedPart],
    ) -> list[_Taken]:
        start = chosen[0].segment.base_offset
        reader = ContentReader(
            self._files, lambda: opened_in_directory(listing, self._files, start)
        )
        taken = []
        for part in chosen:
            segment = part.segment
            content = reader.read(part, segment.base_offset)
            key = (*identity(segment), content.aborted, part.end)
            if key not in self._taken:
                kept = None if part.is_cut else self._same(state, segment, content)
                self._taken[key] = (
                    _Taken(self._copy(state, part, content), True)
                    if kept is None
                    else _Taken(kept, False)
                )
                self._progressed(segment.size_bytes)
            taken.append(self._taken[key])
        return taken

    def _same(
        self, state: PartitionState, segment: SegmentFiles, content: RangeContent
    ) -> RemoteSegment | None:
        """Return the store's segment that has the same bytes and says the same of transactions."""
        for route in state.routes:
            found = state.segments[route.segment_id]
            is_whole = (route.base_offset, route.last_offset) == (
                found.base_offset, found.last_offset,
            )  # fmt: skip
            span = (segment.base_offset, content.end)
            if found.kind is SegmentKind.RAW and (found.base_offset, found.next_offset) == span:
                aborted = found.files.get(TXN_INDEX)
                said = txn_index.encode(content.aborted)
                knows = (
                    aborted is None
                    if not content.aborted
                    else aborted is not None and aborted.crc32c == crc32c(said)
                )
                if is_whole and knows and self._has_bytes(found, segment, content.end):
                    return found
        return None

    def _has_bytes(self, found: RemoteSegment, segment: SegmentFiles, end: int) -> bool:
        log = found.files[LOG]
        if log.size_bytes < segment.size_bytes:
            return False
        crc = file_crc(self._files, segment.log_path)
        if log.size_bytes > segment.size_bytes:
            # A copy may have got an empty batch at its end.
            indexes = load_indexes(
                segment, self._files, self._topic.index_interval_bytes, WindowBuffers()
            )
            more = end_batch(
                self._files, segment, indexes, segment.base_offset, end, found.epochs[-1].epoch
            )
            if log.size_bytes != segment.size_bytes + len(more):
                return False
            crc = crc32c(more, crc)
        return crc == log.crc32c

    def _copy(
        self, state: PartitionState, part: CopiedPart, content: RangeContent
    ) -> RemoteSegment:
        return copy_segment(
            self._objects, self._files, part.segment,
            partition=state.partition, topic_id=state.topic_id,
            segment_id=secrets.token_hex(ID_CHARS // 2), next_offset=content.end,
            lineage=self._lineage, leader_epoch_of_owner=state.leader_epoch, number=0,
            cleaner_offsets=dict(state.publications[-1].offsets),
            index_interval_bytes=self._topic.index_interval_bytes, aborted=content.aborted,
            is_cut=part.is_cut,
        )  # fmt: skip

    def _commit(
        self,
        state: PartitionState,
        hazard: Hazard,
        taken: list[_Taken],
        checkpoint: int,
        cleaned_for: int,
    ) -> tuple[PartitionState, ReplacedRange | None]:
        made = [each.segment for each in taken if each.is_new]
        end = taken[-1].segment.next_offset
        kept = {each.segment.segment_id for each in taken if not each.is_new}
        is_same_log = all(route.segment_id in kept for route in state.routes)
        cleaned_to: int | None = None
        if not is_same_log:
            is_clean = self._topic.is_compacted and self._topic.strategy is Strategy.OFFSET
            cleaned_to = max(min(checkpoint if is_clean else 0, end), state.log_start)
        after = self._store.commit_replacement(
            state.partition, secrets.token_hex(ID_CHARS // 2), epoch=state.leader_epoch,
            instead_of=state.routes, made=made, lineage=self._lineage, cleaned_to=cleaned_to,
            grace_ms=self._grace_ms, cleaned_for=cleaned_for,
            routes=[
                Route(each.segment.base_offset, each.segment.last_offset, each.segment.segment_id)
                for each in taken
            ],
        )  # fmt: skip
        if is_same_log:
            return after, None
        size = sum(segment.size_bytes for segment in made)
        return after, ReplacedRange(
            hazard, state.log_start, after.remote_end, len(made), size, len(kept)
        )
