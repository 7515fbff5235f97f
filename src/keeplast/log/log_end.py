"""Says where a log ends, and refuses directories that a newer Kafka has written. Writes nothing.

*The end.* A log ends where its active segment stops being sound, or it was only cut off there. A
broker that runs, or has crashed, leaves a last batch that is not whole, and nothing after it: that
ends a log. The rule for every reader: **what was replicated or lies above is never left out.** A
log that ends below its high watermark has lost records. A bad batch that whole ones follow is
damage, as it is in a closed segment. Answers to ``LogSegment.recover``, which cuts at the first bad
batch and lets the leader's copy bring back what followed it. Files without a leader have nothing
that does.

*What is not understood* is refused before any write. A newer Kafka may add a kind of file to every
segment, or another layout of batches. A process that swaps segments without knowing it leaves such
files with the wrong segment, or drops what a batch says. So each of these is a RefusedError that
names the file:

1. a file named by twenty digits and a kind that is not known; a kind may come with a stage;
2. a ``meta.properties``, ``partition.metadata`` or ``leader-epoch-checkpoint`` of a later version;
3. a batch of a later magic where a segment begins, or where its sound batches end.

So is a directory that has a segment file's name: it can be renamed as a file can, not removed.
Damage can look like 3: the magic is under no checksum. It is refused all the same, and so is left
as it is. Names that are no segment file's are ignored, as brokers ignore them. Answers to
``LogFileUtils``, ``MetaPropertiesVersion``, ``CheckpointFile`` and ``RecordBatch``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.columns.batches import HEADER_BYTES
from keeplast.errors import CorruptError, RefusedError
from keeplast.format.filename import (
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    META_PROPERTIES,
    PARTITION_METADATA,
    REPLICATION_CHECKPOINT,
    is_unknown_kind,
    parse_partition_directory,
    parse_segment_file,
)
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem, ReadHandle, reading
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, Tail, find_tail
from keeplast.log.paths import child_path
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.partition import INT32_MAX

MAGIC_MAX = 2
MESSAGE_BYTES_MIN = 14
_PREFIX_BYTES = 12
_MAGIC_AT = 16
_HEAD_BYTES_MAX = 4096

_VERSIONS: tuple[tuple[str, re.Pattern[bytes], int], ...] = (
    (PARTITION_METADATA, re.compile(rb"version:\s*([0-9]{1,9})\s"), 0),
    (LEADER_EPOCH_CHECKPOINT, re.compile(rb"([0-9]{1,9})\s"), 0),
)
_META_VERSION = re.compile(rb"(?:\A|[\r\n])version\s*[=:]\s*([0-9]{1,9})\s")
_META_VERSION_MAX = 1


def check_understood(directory: Path, files: FileSystem) -> tuple[dict[int, bytes], list[str]]:
    """Raise RefusedError when something in a partition directory is a newer Kafka's.

    Returns by base offset what each log begins with, HEADER_BYTES at most, for the next check, and
    the names in the directory.
    """
    heads: dict[int, bytes] = {}
    _check_version(
        child_path(directory.parent, META_PROPERTIES), _META_VERSION, _META_VERSION_MAX, files
    )
    names = files.listdir(directory)
    for name in names:
        if parse_segment_file(name) is None and is_unknown_kind(name):
            raise RefusedError(
                "segment file of a kind that is not known; a newer Kafka's, it seems: use a "
                f"keeplast that knows it, or move the file away. path={directory / name}",
                code="K210",
            )
    for name, pattern, latest in _VERSIONS:
        if name in names:
            _check_version(child_path(directory, name), pattern, latest, files, at_start=True)
    directories = files.directories_in(directory)
    for name in names:
        parsed = parse_segment_file(name)
        if parsed is None:
            continue
        if name in directories:
            raise RefusedError(
                f"directory in the place of a segment file; move it away. path={directory / name}",
                code="K211",
            )
        if parsed.kind == LOG:
            head = check_magic(child_path(directory, name), 0, files)
            if not parsed.stage:
                heads[parsed.base_offset] = head
    return heads, names


def check_magic(path: Path, position: int, files: FileSystem) -> bytes:
    """Raise RefusedError when a whole batch of a later magic is at ``position`` of a segment.

    Returns what is there, HEADER_BYTES at most.
    """
    found = bytearray(HEADER_BYTES)
    with reading(files, path) as handle:
        left = handle.size_bytes - position
        head = bytes(found[: handle.pread_into(memoryview(found), position)])
    if len(head) <= _MAGIC_AT:
        return head
    size = int.from_bytes(head[8:_PREFIX_BYTES], "big", signed=True)
    magic = int.from_bytes(head[_MAGIC_AT : _MAGIC_AT + 1], "big", signed=True)
    if magic > MAGIC_MAX and MESSAGE_BYTES_MIN <= size <= left - _PREFIX_BYTES:
        raise RefusedError(
            "batch of a magic that is not known; a newer Kafka's, or damage: inspect the segment. "
            f"path={path} position={position} magic={magic} known={MAGIC_MAX}",
            code="K210",
        )
    return head


def _check_version(
    path: Path,
    pattern: re.Pattern[bytes],
    latest: int,
    files: FileSystem,
    *,
    at_start: bool = False,
) -> None:
    """Refuse a later version; a file that is not there, or that says none, is no concern here."""
    if not files.exists(path):
        return
    head = bytearray(_HEAD_BYTES_MAX)
    with reading(files, path) as handle:
        count = handle.pread_into(memoryview(head), 0)
    # The last line may lack its end.
    text = bytes(head[:count]) + b"\n"
    found = pattern.match(text) if at_start else pattern.search(text)
    if found is not None and int(found[1]) > latest:
        raise RefusedError(
            "file of a version that is not known; a newer Kafka's, it seems: use a keeplast that "
            f"knows it. path={path} version={int(found[1])} known={latest}",
            code="K210",
        )


SEARCH_BYTES_MAX = 64 << 20
"""A whole batch is searched for so many bytes after what is bad. The bad one is hardly larger, and
a broker that preallocates leaves up to a whole segment of zeros.
"""
SEARCH_WINDOW_BYTES = 1 << 20
CHECKED_BYTES_MAX = 256 << 20
"""So many bytes at most are checked against the CRCs of what only looks like a batch."""
LOOKS_MAX = 4
"""A broker that writes or truncates while its segment is read gets so many looks to be done."""
LOOK_SECONDS = 0.05


def sound_tail(
    listing: PartitionFiles,
    high_watermark: int | None,
    files: FileSystem,
    clock: Clock,
    find: Callable[[PartitionFiles, FileSystem], Tail] = find_tail,
) -> Tail:
    """Return where a log ends that may be written meanwhile; errors as :func:`require_log_end`.

    ``find`` looks for the end.
    """
    for _ in range(LOOKS_MAX - 1):
        tail = find(listing, files)
        try:
            require_log_end(listing, tail, high_watermark, files)
        except CorruptError:
            clock.sleep(LOOK_SECONDS)
        else:
            return tail
    tail = find(listing, files)
    require_log_end(listing, tail, high_watermark, files)
    return tail


def require_log_end(
    listing: PartitionFiles, tail: Tail, high_watermark: int | None, files: FileSystem
) -> None:
    """Raise CorruptError unless the log ends at ``tail``.

    RefusedError where a batch of a magic that is not known is there: the log goes on after it.
    ``high_watermark`` is what the directory's checkpoint said before the segments were listed, None
    where it says nothing, or a loss does not matter.
    """
    active = listing.active
    if tail.torn_at is not None:
        behind = find_whole_batch(active, tail, files)
        if behind is not None:
            raise CorruptError(
                "the active segment is damaged, and whole batches follow, so that the log does not "
                "end there; restore the file, or take another replica",
                path=str(active.log_path), position=tail.torn_at, expected="a whole batch",
                found=f"{tail.problem}; the next whole one is at position {behind}", code="K212",
            )  # fmt: skip
        check_magic(active.log_path, tail.torn_at, files)
    if high_watermark is not None:
        require_replicated(active, tail, high_watermark)


def require_replicated(active: SegmentFiles, tail: Tail, high_watermark: int) -> None:
    """Raise CorruptError for a log that ends below its high watermark."""
    if tail.log_end < high_watermark:
        problem = "" if tail.problem is None else f"; {tail.problem}"
        raise CorruptError(
            "the log ends below its high watermark, so that replicated records are missing; "
            "restore the file, or take another replica. After a topic was made again, read again "
            "when its broker has written replication-offset-checkpoint. Of a copy without its "
            "end, remove the partition's line there",
            path=str(active.log_path), position=tail.valid_bytes,
            expected=f"a log end of {high_watermark} or more", found=f"{tail.log_end}{problem}",
            code="K213",
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
    """Return the position of the first whole batch after where an active segment is torn.

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
