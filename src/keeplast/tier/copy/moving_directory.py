"""Reads a partition directory that a broker may be working on: its segments, their contents, the
seam.

A broker replaces whole segments at any time: it renames the old files away (``.deleted``, for a
minute) and the new ones in. The rule: **what is read of a directory counts only if it was one
moment's**.

1. A listing is one that two calls in a row agree on, without a swap under way.
2. What was read of a segment counts when its file is still the listed one after the reading.
3. What fails where files were replaced or shortened meanwhile is done again with a fresh listing, a
   bounded number of times, and then left for the next turn. It is no damage.

``.cleaned`` and ``.deleted`` files belong to a round that is under way or was left: they are never
read.

A copy reads what the store lacks, and what was aborted. Aborted transactions follow from the
markers and from what was open where the copy goes on, which the *store* knows. A broker's cleaner
may have removed the data of a transaction from the directory, and with it the marker's entry in the
transaction index. The store may still have that data.

Whether a directory goes on where the store ends is decided by the batches that both have just below
that end. Leader epochs distinguish two leaders, and not two runs of one. A broker whose disk went
back to a backup begins the same epoch at the same offset again. A topic without an id that was
deleted and created again begins epoch 0 at 0. What a reader must not break: a batch keeps its
offsets as long as one of its records is there. It keeps its bytes as long as all of them are there
and no delete horizon was stamped into it. Whatever else cleaning may have done on either side is no
difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct

from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.columns.batches import HAS_EVENTS
from keeplast.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    RefusedError,
    UnavailableError,
)
from keeplast.format import meta_properties
from keeplast.format.filename import META_PROPERTIES, PARTITION_METADATA
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentFiles,
    Tail,
    list_partition,
    load_indexes,
)
from keeplast.log.readers import settled_partition
from keeplast.log.transactions import TransactionFold, fold_before
from keeplast.log.truncation import noted_log_start
from keeplast.log.windows import WindowBuffers, read_from, read_windows
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.objects.transfer import find_cut
from keeplast.tier.state.continuity import RangeContent
from keeplast.tier.state.partition_state import PartitionState

ATTEMPTS_MAX = 4
"""How often something is done again because the directory changed under it."""
LISTINGS_MAX = 10
META_PROPERTIES_BYTES_MAX = 1 << 20

Identity = tuple[int, int, int, int]
Done = TypeVar("Done")


class MovedError(UnavailableError):
    """A file was replaced, shortened or appended to while it was read."""


def identity(segment: SegmentFiles) -> Identity:
    """Return what distinguishes a segment's file from its successors."""
    return segment.base_offset, segment.inode, segment.size_bytes, segment.mtime_ns


def still_listing(directory: Path, files: FileSystem, clock: Clock) -> PartitionFiles:
    """Return the segments of one moment; the active one may have been appended to since.

    RefusedError when a swap was interrupted, UnavailableError when the directory changes faster
    than it can be listed.
    """
    before: list[Identity] | None = None
    for _ in range(LISTINGS_MAX):
        start = noted_log_start(files, directory)
        listing = settled_partition(directory, files, clock, if_empty=start)
        found = [identity(segment) for segment in listing.segments[:-1]]
        found.append((listing.active.base_offset, listing.active.inode, 0, 0))
        if found == before:
            return listing
        before = found
    raise UnavailableError(
        f"the directory changes faster than it can be listed; it is done again. path={directory}",
        code="K337",
    )


def check_unmoved(segment: SegmentFiles, files: FileSystem) -> None:
    """MovedError unless the segment's file is the one that was listed, and as it was then."""
    try:
        status = files.stat(segment.log_path)
    except FileNotFoundError:
        found = None
    else:
        found = (segment.base_offset, status.inode, status.size_bytes, status.mtime_ns)
    if found != identity(segment):
        raise MovedError(
            "a segment was replaced or changed while it was copied; nothing of it counts. "
            f"path={segment.log_path}",
            code="K337",
        )


def while_it_moves(directory: Path, files: FileSystem, act: Callable[[], Done]) -> Done:
    """Return what ``act`` returns, doing it again when files moved under it.

    UnavailableError when they did so ATTEMPTS_MAX times. An error stays what it is where it is
    found twice and no closed segment of the directory has changed. An error that is found once may
    be a segment that came and went, as when a broker rolls and truncates.
    """
    unmoved = ""
    for left in reversed(range(ATTEMPTS_MAX)):
        before = _look(directory, files)
        try:
            return act()
        except MovedError as error:
            moved: Exception = error
        except (CorruptError, FileNotFoundError, InvalidError) as error:
            # An index that became larger between its size and its content is an InvalidError.
            if not _has_moved(before, _look(directory, files)):
                if unmoved == str(error):
                    raise
                unmoved = str(error)
            moved = error
        if not left:
            raise UnavailableError(
                "segments were replaced, shortened or appended to each time they were copied; they "
                "are copied with the next turn. An import needs the directory's broker to be "
                f"stopped. path={directory} attempts={ATTEMPTS_MAX}",
                code="K337",
            ) from moved
    raise AssertionError("unreachable")


def _look(directory: Path, files: FileSystem) -> PartitionFiles | None:
    """Return the segments as they are, None when they cannot even be listed."""
    try:
        return list_partition(directory, files)
    except (FileNotFoundError, RefusedError, UnavailableError):
        return None


def _has_moved(before: PartitionFiles | None, after: PartitionFiles | None) -> bool:
    """Say whether anything but the end of the active segment has changed."""
    if before is None or after is None:
        return True
    now = {segment.base_offset: segment for segment in after.segments}
    active = now.get(before.active.base_offset)
    if active is None or active.inode != before.active.inode:
        return True
    if active.size_bytes < before.active.size_bytes:
        return True
    closed = {identity(segment) for segment in before.segments[:-1]}
    return not closed <= {identity(segment) for segment in after.segments}


def directory_id(directory: Path, files: FileSystem) -> str:
    """Return a digest that another directory, or a replica that was made again, does not have.

    Of the path, whose directory it is (``meta.properties``), and when the partition was made in it:
    what is known of one replica's cleaning says nothing of another's.
    """
    parts = [str(directory.absolute())]
    path = directory.parent / META_PROPERTIES
    if files.exists(path):
        try:
            found = meta_properties.decode(files.read_bytes(path, META_PROPERTIES_BYTES_MAX))
        except CorruptError as error:
            raise error.located(str(path)) from error
        parts += [str(found.cluster_id), str(found.node_id), str(found.directory_id)]
    made = directory / PARTITION_METADATA
    if files.exists(made):
        parts.append(str(files.stat(made).mtime_ns))
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


class CopiedPart(Struct, frozen=True):
    """A segment to copy up to ``end``; ``is_cut`` says that batches at or above it are left out.

    The first ``valid_bytes`` of its file can be read.
    """

    segment: SegmentFiles
    end: int
    valid_bytes: int
    is_cut: bool


def parts_to_copy(
    listing: PartitionFiles, tail: Tail, files: FileSystem, *, until: int | None,
    high_watermark: int | None, index_interval_bytes: int, cuts_last: bool = False,
) -> Iterator[CopiedPart]:  # fmt: skip
    """Yield what of a directory may be copied, ascending.

    ``until`` leaves out segments that end above it, and the active one; with ``cuts_last`` only the
    batches of a closed one that reach beyond it. Batches that reach beyond
    ``high_watermark`` are left out. None leaves out none.
    """
    ends = [*(segment.base_offset for segment in listing.segments[1:]), tail.log_end]
    for segment, segment_end in zip(listing.segments, ends, strict=True):
        is_active, end = segment is listing.active, segment_end
        limit = high_watermark
        if until is not None and (is_active or end > until):
            if is_active or not cuts_last or segment.base_offset >= until:
                return
            limit = until
        has_any = segment.size_bytes > 0  # the only one of an empty log may have no file
        is_cut = limit is not None and end > limit and has_any
        if is_cut:
            end = find_cut(files, segment, int(limit or 0), index_interval_bytes)
        if end > segment.base_offset:
            valid_bytes = tail.valid_bytes if is_active else segment.size_bytes
            yield CopiedPart(segment, end, valid_bytes, is_cut)
        if is_cut:
            return


class ContentReader:
    """Reads the ranges of a copy, in order; open transactions are carried from one to the next."""

    def __init__(self, files: FileSystem, opened: Callable[[], TransactionFold]) -> None:
        """Begin where the copy does; ``opened`` finds, when asked for, what is open there."""
        self._files = files
        self._opened = opened
        self._fold: TransactionFold | None = None
        self._buffers = WindowBuffers()

    def read(self, part: CopiedPart, start: int) -> RangeContent:
        """Return what a segment has of the offsets from ``start`` to the part's end.

        CorruptError where a batch or marker cannot be read; checksums of data are not looked at.
        """
        segment, end = part.segment, part.end
        present = 0
        has_old_format = False
        horizons: list[int] = []
        aborted: list[AbortedTransaction] = []
        with reading(self._files, segment.log_path) as handle:
            for window in read_windows(
                handle, segment.log_path, self._buffers, end=part.valid_bytes, checks_crc=False
            ):
                rows = window.table[: window.batches]
                is_new = (rows[:, t.LAST_OFFSET] >= start) & (rows[:, t.LAST_OFFSET] < end)
                # A batch that began below counts as none: what of it is there is not known.
                is_inside = is_new & (rows[:, t.BASE_OFFSET] >= start)
                present += int(rows[is_inside, t.COUNT].sum())
                has_old_format |= bool((rows[is_new, t.MAGIC] < 2).any())
                has_horizon = is_new & (rows[:, t.MAGIC] == 2)
                has_horizon &= rows[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0
                if has_horizon.any():
                    horizons.append(int(rows[has_horizon, t.BASE_TIMESTAMP].min()))
                if window.marks & HAS_EVENTS and is_new.any():
                    if self._fold is None:
                        self._fold = self._opened()
                    window.table = np.ascontiguousarray(rows[is_new])
                    window.batches = len(window.table)
                    aborted += self._fold.add(window)
        missing = max(end - start - present, 0)
        return RangeContent(
            start, end, missing, has_old_format, min(horizons, default=None), tuple(aborted)
        )


def read_rest(offset: int, listing: PartitionFiles, files: FileSystem) -> RangeContent | None:
    """Return what there is from ``offset`` to the end of the closed segment that it is in.

    None where no closed segment has it. MovedError when the file is another one by now.
    """
    ends = [segment.base_offset for segment in listing.segments[1:]]
    for segment, end in zip(listing.segments, ends, strict=False):
        if segment.base_offset <= offset < end:
            part = CopiedPart(segment, end, segment.size_bytes, is_cut=False)
            found = ContentReader(files, TransactionFold).read(part, offset)
            check_unmoved(segment, files)
            return found
    return None


def opened_in_store(objects: ObjectStore, state: PartitionState) -> TransactionFold:
    """Return the transactions that are open at the end of what the store has.

    From the newest snapshot of producers in the store, or from its first segment on.
    """
    files = RoundFiles(objects, state.partition, state.topic_id, state.live_segments)
    return fold_before(state.remote_end, list_partition(files.path, files), files, WindowBuffers())


def opened_in_directory(listing: PartitionFiles, files: FileSystem, start: int) -> TransactionFold:
    """Return the transactions that are open at ``start`` in a directory."""
    return fold_before(start, listing, files, WindowBuffers())


SEAM_BYTES = 256 << 10
"""So much below the store's end is compared, from the index entry before it on."""
CRC_AT = 17
"""Where a batch of format 2 has its checksum, which covers neither offset nor leader epoch."""


class _Batch(Struct, frozen=True):
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
                "the directory has another history than the store, with other batches at one "
                "offset: its disk went back to a backup, or its topic was made again. To keep "
                "the directory's, give the store's up (keeplast detach) and import the "
                f"directory's. path={each.log_path} offset={found} store_end={state.remote_end}",
                code="K335",
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
