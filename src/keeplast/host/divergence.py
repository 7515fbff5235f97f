"""Whether a local log and the log in object storage are the same, by the epochs of who wrote them.

What a reader must not break: an offset alone says nothing. Two leaders may have written different
records at one, and only their epochs tell them apart (KIP-101, KIP-279). A log that was cleaned
before it was replicated may lack the first record of an epoch, or all of them; so where the leader
epochs of the two differ, it is the batches that are asked, which carry the epoch of their writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keeplast.columns import batch_table as t
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import PartitionFiles
from keeplast.log.windows import WindowBuffers, read_windows

EPOCH_AT = 12
"""Where a batch of format 2 has the epoch of the leader that wrote it."""
EPOCH_MAGIC_MIN = 2


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first batch of a log that another leader wrote: it begins at ``offset``."""

    offset: int
    epoch: int
    expected: int


def find_divergent_batch(
    files: FileSystem,
    listing: PartitionFiles,
    own: Sequence[LeaderEpoch],
    known: Sequence[LeaderEpoch],
    end: int,
) -> Divergence | None:
    """Return the first batch below ``end``, exclusive, that is not of the leaders in ``known``.

    ``own`` are the leader epochs of the log that ``listing`` lists. Nothing is read where both say
    the same. What lies below the first epoch of ``known``, and batches of a format that names no
    leader, cannot be compared.
    """
    start = _first_difference(own, known, listing.segments[0].base_offset, end)
    if start is None:
        return None
    for base, last, epoch in _batches(files, listing, start):
        if base >= end:
            return None
        # By its end: an empty batch behind what cleaning has left begins where that ended, which
        # may have been an earlier leader's.
        expected = _epoch_at(known, min(last, end - 1))
        if expected is not None and epoch != expected:
            return Divergence(base, epoch, expected)
    return None


def _first_difference(
    own: Sequence[LeaderEpoch], known: Sequence[LeaderEpoch], start: int, end: int
) -> int | None:
    """Return the first offset of ``[start, end)`` that belongs to another leader in each."""
    if not known:
        return None
    start = max(start, known[0].start_offset)
    bounds = {start, *(entry.start_offset for entry in (*own, *known))}
    return next(
        (
            offset
            for offset in sorted(bounds)
            if start <= offset < end and _epoch_at(own, offset) != _epoch_at(known, offset)
        ),
        None,
    )


def _epoch_at(lineage: Sequence[LeaderEpoch], offset: int) -> int | None:
    found = [entry.epoch for entry in lineage if entry.start_offset <= offset]
    return found[-1] if found else None


def _batches(
    files: FileSystem, listing: PartitionFiles, start: int
) -> Iterator[tuple[int, int, int]]:
    """Yield first offset, last offset and leader epoch of each batch that ends at ``start`` or
    behind it."""
    segments = listing.segments
    first = max(i for i, each in enumerate(segments) if i == 0 or each.base_offset <= start)
    buffers = WindowBuffers()
    for segment in segments[first:]:
        with reading(files, segment.log_path) as handle:
            for window in read_windows(
                handle, segment.log_path, buffers, end=segment.size_bytes, checks_crc=False
            ):
                for row in window.table[: window.batches]:
                    if row[t.LAST_OFFSET] < start or row[t.MAGIC] < EPOCH_MAGIC_MIN:
                        continue
                    at = int(row[t.POSITION]) + EPOCH_AT
                    epoch = int.from_bytes(window.data[at : at + 4].tobytes(), "big", signed=True)
                    yield int(row[t.BASE_OFFSET]), int(row[t.LAST_OFFSET]), epoch
