"""Whether a directory goes on where the store ends: by the batches that both have just below it.

Leader epochs tell two leaders apart, and not two runs of one: a broker whose disk went back to a
backup begins the same epoch at the same offset again, and a topic without an id that was made anew
begins epoch 0 at 0. What a reader must not break: a batch keeps its offsets as long as one of its
records is there, and its bytes as long as all of them are and no delete horizon was stamped into
it; whatever else cleaning may have done on either side is no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.errors import ConflictError
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, list_partition, load_indexes
from keeplast.log.windows import WindowBuffers, read_from
from keeplast.tier.copy.moving_directory import check_unmoved
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.partition_state import PartitionState

SEAM_BYTES = 256 << 10
"""So much below the store's end is compared, from the index entry before it on."""
CRC_AT = 17
"""Where a batch of format 2 has its checksum, which covers neither offset nor leader epoch."""


@dataclass(frozen=True, slots=True)
class _Batch:
    base: int
    last: int
    count: int
    has_horizon: bool
    crc: bytes

    def is_other(self, found: _Batch) -> bool:
        """Say whether the two, which share an offset, were not one once."""
        if (self.base, self.last) != (found.base, found.last):
            return True
        is_whole = self.count == found.count and not (self.has_horizon or found.has_horizon)
        return is_whole and self.crc != found.crc


def check_seam(
    objects: ObjectStore,
    files: FileSystem,
    listing: PartitionFiles,
    state: PartitionState,
    *,
    valid_bytes: int,
    index_interval_bytes: int,
) -> None:
    """Raise ConflictError when ``listing`` has another batch than the store just below its end.

    ``valid_bytes`` of the active segment can be read. Nothing is said where the two have no batch
    in common, MovedError where the directory changed meanwhile.
    """
    route = state.routes[-1]
    segment = state.segments[route.segment_id]
    stored = RoundFiles(objects, state.partition, state.topic_id, (segment,))
    own_file = list_partition(stored.path, stored).segments[0]
    offsets = load_indexes(own_file, stored, index_interval_bytes, WindowBuffers()).offsets
    before = offsets[offsets[:, 1] <= own_file.size_bytes - SEAM_BYTES]
    start = int(before[-1, 1]) if len(before) else 0
    own = [
        batch
        for batch in _batches(
            stored, own_file, own_file.size_bytes, position=start, offset=state.remote_end
        )
        if route.base_offset <= batch.base and batch.last <= route.last_offset
    ]
    if not own:
        return
    ends = [*(each.base_offset for each in listing.segments[1:]), None]
    for each, end in zip(listing.segments, ends, strict=True):
        if each.base_offset > own[-1].last or (end is not None and end <= own[0].base):
            continue
        size = valid_bytes if each is listing.active else each.size_bytes
        indexes = load_indexes(each, files, index_interval_bytes, WindowBuffers())
        first = own[0].base
        at = indexes.position_before(max(first - each.base_offset, 0))
        found = _first_other(own, _batches(files, each, size, position=at, offset=first))
        if found is not None:
            check_unmoved(each, files)
            raise ConflictError(
                "the directory has another history than the store: they have other batches at one "
                "offset, as when its disk went back to a backup, or its topic was made anew. To "
                "keep the directory's, give the store's up (keeplast tier forget) and import it "
                f"anew. path={each.log_path} offset={found} store_end={state.remote_end}"
            )


def _first_other(own: list[_Batch], found: Iterator[_Batch]) -> int | None:
    """Return the first offset at which the two, both ascending, have other batches."""
    at = 0
    for batch in found:
        if batch.base > own[-1].last:
            return None
        while at < len(own) and own[at].last < batch.base:
            at += 1
        if at < len(own) and own[at].base <= batch.last and own[at].is_other(batch):
            return max(own[at].base, batch.base)
    return None


def _batches(
    files: FileSystem, segment: SegmentFiles, end: int, *, position: int, offset: int
) -> Iterator[_Batch]:
    """Yield the batches of a file's first ``end`` bytes that have records and are of format 2.

    Those from ``offset`` on at least; ``position`` is where an index says that they begin.
    """
    with reading(files, segment.log_path) as handle:
        for window in read_from(
            handle, segment.log_path, WindowBuffers(),
            position=position, offset=offset, end=end,
        ):  # fmt: skip
            rows = window.table[: window.batches]
            for row in rows[np.flatnonzero((rows[:, t.COUNT] > 0) & (rows[:, t.MAGIC] == 2))]:
                crc = int(row[t.POSITION]) + CRC_AT
                yield _Batch(
                    int(row[t.BASE_OFFSET]), int(row[t.LAST_OFFSET]), int(row[t.COUNT]),
                    bool(row[t.ATTRIBUTES] & t.DELETE_HORIZON),
                    window.data[crc : crc + 4].tobytes(),
                )  # fmt: skip
