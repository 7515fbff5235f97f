"""Whether a log ends where its active segment stops being sound, or was only cut off there.

A broker that runs, or has crashed, leaves a last batch that is not whole, and nothing behind it:
that ends a log. The rule for whoever reads: **what was replicated or lies behind is never left
out.** A log that ends below its high watermark has lost records, and a bad batch that whole ones
follow is damage, as it is in a closed segment.

Nothing here writes. Answers to ``LogSegment.recover``, which cuts at the first bad batch and lets
the leader's copy bring back what was behind it; files without a leader have nothing that does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.clock import Clock
from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format.filename import REPLICATION_CHECKPOINT, parse_partition_directory
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem, ReadHandle, reading
from keeplast.log.format_guard import check_magic
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, Tail, find_tail
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.offsets import INT32_MAX

SEARCH_BYTES_MAX = 64 << 20
"""So far behind what is bad a whole batch is searched. The bad one is hardly larger, and a broker
that preallocates leaves up to a whole segment of zeros."""
SEARCH_WINDOW_BYTES = 1 << 20
CHECKED_BYTES_MAX = 256 << 20
"""So many bytes at most are checked against the CRCs of what only looks like a batch."""
LOOKS_MAX = 4
"""A broker that writes or truncates while its segment is read gets so many looks to be done."""
LOOK_SECONDS = 0.05


def sound_tail(
    listing: PartitionFiles, high_watermark: int | None, files: FileSystem, clock: Clock
) -> Tail:
    """Return where a log ends that may be written meanwhile; errors as :func:`require_log_end`."""
    for _ in range(LOOKS_MAX - 1):
        tail = find_tail(listing, files)
        try:
            require_log_end(listing, tail, high_watermark, files)
        except CorruptError:
            clock.sleep(LOOK_SECONDS)
        else:
            return tail
    tail = find_tail(listing, files)
    require_log_end(listing, tail, high_watermark, files)
    return tail


def require_log_end(
    listing: PartitionFiles, tail: Tail, high_watermark: int | None, files: FileSystem
) -> None:
    """Raise CorruptError unless the log ends at ``tail``.

    RefusedError where a batch of a magic that is not known is there: the log goes on behind it.
    ``high_watermark`` is what the directory's checkpoint said before the segments were listed, None
    where it says nothing, or nobody minds what is lost.
    """
    active = listing.active
    if tail.torn_at is not None:
        behind = find_whole_batch(active, tail, files)
        if behind is not None:
            raise CorruptError(
                "the active segment is damaged, and whole batches follow, so that the log does not "
                "end there; restore the file, or take another replica",
                path=str(active.log_path), position=tail.torn_at, expected="a whole batch",
                found=f"{tail.problem}; the next whole one is at position {behind}",
            )  # fmt: skip
        check_magic(active.log_path, tail.torn_at, files)
    if high_watermark is not None:
        require_replicated(active, tail, high_watermark)


def require_replicated(active: SegmentFiles, tail: Tail, high_watermark: int) -> None:
    """Raise CorruptError for a log that ends below its high watermark."""
    if tail.log_end < high_watermark:
        problem = "" if tail.problem is None else f"; {tail.problem}"
        raise CorruptError(
            "the log ends below its high watermark, so that records which were replicated are not "
            "here; restore the file, or take another replica. Where the topic was made anew just "
            "now, read again when its broker has written replication-offset-checkpoint; of a copy "
            "whose end is not wanted, remove the partition's line there",
            path=str(active.log_path), position=tail.valid_bytes,
            expected=f"a log end of {high_watermark} or more", found=f"{tail.log_end}{problem}",
        )  # fmt: skip


def noted_high_watermark(files: FileSystem, directory: Path) -> int | None:
    """Return the high watermark that the data directory of a partition notes, None without a line.

    None too for a directory that is not in service: the line is then another's. CorruptError when
    ``replication-offset-checkpoint`` cannot be read.
    """
    parsed = parse_partition_directory(directory.name)
    if parsed is None or parsed.mark is not None:
        return None
    return read_checkpoint(files, directory.parent, REPLICATION_CHECKPOINT).get(parsed.partition)


def find_whole_batch(active: SegmentFiles, tail: Tail, files: FileSystem) -> int | None:
    """Return the position of the first whole batch behind where an active segment is torn.

    One counts that has its offset in the segment's range, a plausible size and the right CRC; None
    when none does within SEARCH_BYTES_MAX.
    """
    if tail.torn_at is None:
        return None
    end = active.size_bytes
    stop = min(end, tail.torn_at + SEARCH_BYTES_MAX)
    data = np.empty(SEARCH_WINDOW_BYTES + t.SCAN_BYTES_MIN, np.uint8)
    checked, buffers = 0, WindowBuffers()
    position = tail.torn_at + 1
    with reading(files, active.log_path) as handle:
        while position + t.SCAN_BYTES_MIN <= stop:
            want = min(len(data), stop - position)
            got = handle.pread_into(data.data[:want], position)
            if got < t.SCAN_BYTES_MIN:
                return None
            for at, size in _candidates(data[:got], active.base_offset, tail.log_end):
                if position + at + size > end or checked + size > CHECKED_BYTES_MAX:
                    continue
                checked += size
                if _is_whole(handle, active, buffers, position + at, size):
                    return position + at
            position += got - t.SCAN_BYTES_MIN + 1
    return None


def _candidates(data: NDArray[np.uint8], base_offset: int, log_end: int) -> list[tuple[int, int]]:
    """Return position and size of what in ``data`` looks like the header of a later batch."""
    if not data.any():
        return []
    count = len(data) - t.SCAN_BYTES_MIN + 1
    # The cheap tests first: of random bytes one in 20,000 is left.
    found = np.flatnonzero((data[16 : 16 + count] <= 2) & (data[:count] == log_end >> 56))
    offsets = _integers(data, found, 8)
    sizes = _integers(data, found + 8, 4)
    is_likely = (
        (offsets >= log_end)
        & (offsets <= base_offset + INT32_MAX)
        & (sizes >= t.MESSAGE_BYTES_MIN)
        & (sizes <= INT32_MAX)
    )
    kept = np.flatnonzero(is_likely)
    return list(zip(found[kept].tolist(), (sizes[kept] + t.PREFIX_BYTES).tolist(), strict=True))


def _integers(data: NDArray[np.uint8], at: NDArray[np.intp], width: int) -> NDArray[np.int64]:
    """Return the big-endian numbers of ``width`` bytes at some positions."""
    value = np.zeros(len(at), np.int64)
    for i in range(width):
        value = (value << 8) | data[at + i]
    return value


def _is_whole(
    handle: ReadHandle, active: SegmentFiles, buffers: WindowBuffers, position: int, size: int
) -> bool:
    try:
        windows = read_windows(
            handle, active.log_path, buffers, start=position, end=position + size
        )
        return any(window.batches > 0 for window in windows)
    except CorruptError:
        return False
