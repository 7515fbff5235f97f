"""Reads a partition directory that a broker may be working on.

A broker replaces whole segments at any time: it renames the old files away (``.deleted``, for a
minute) and the new ones in. So what is read of a directory counts only if it was one moment's:

1. a listing is one that two calls in a row agree on, without a swap under way;
2. what was read of a segment counts when its file is the listed one still, behind the reading;
3. what fails where files were replaced or shortened meanwhile is done again with a fresh listing,
   a bounded number of times, and then left for the next turn. It is no damage.

``.cleaned`` and ``.deleted`` files are a round under way, or what one left: nobody reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from keeplast.clock import Clock
from keeplast.errors import CorruptError, InvalidError, RefusedError, UnavailableError
from keeplast.format import meta_properties
from keeplast.format.filename import META_PROPERTIES, PARTITION_METADATA
from keeplast.log.files import FileSystem
from keeplast.log.log_start import noted_log_start
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, list_partition
from keeplast.log.settled import settled_partition

ATTEMPTS_MAX = 4
"""How often something is done anew because the directory changed under it."""
LISTINGS_MAX = 10
META_PROPERTIES_BYTES_MAX = 1 << 20

Identity = tuple[int, int, int, int]
Done = TypeVar("Done")


class MovedError(UnavailableError):
    """A file was replaced, shortened or appended to while it was read."""


def identity(segment: SegmentFiles) -> Identity:
    """Return what a segment's file is told from its successors by."""
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
        f"the directory changes faster than it can be listed; it is done again. path={directory}"
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
            f"path={segment.log_path}"
        )


def while_it_moves(directory: Path, files: FileSystem, act: Callable[[], Done]) -> Done:
    """Return what ``act`` returns, doing it anew when files moved under it.

    UnavailableError when they did so ATTEMPTS_MAX times. An error stays what it is where it is
    found twice and no closed segment of the directory has changed: once may be a segment that came
    and went, as when a broker rolls and truncates.
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
                f"stopped. path={directory} attempts={ATTEMPTS_MAX}"
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
    """Return a digest that another directory, or a replica that was made anew, does not have.

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
